"""bfloat16 against float32 in local training: the time of a step, and the accuracy of a run.

    python benchmarks/precision.py steps [--rounds 15] [--batch 10 32 64]
    COMITY_DATA=... python benchmarks/precision.py accuracy [--seeds 3] [--methods fedavg solo]

`steps` trains cnn4 on random 28 x 28 images in one process and one thread, and measures processor time. Float32
and bfloat16 take turns; the ratio of two neighbours is what counts, and medians and quartiles are
printed.

`accuracy` runs methods (FedAvg) with cnn4 on 8,000 images, half of which are test samples, at five
parties with label skew. Runs of one seed have the same data, first weights and batches in both
precisions. The difference is paired over test samples, with a 95% interval for each seed and for
all seeds together, which tells of these test samples and not of further seeds.
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import replace
from typing import Any

import torch

import comity
from comity.base.key import Key
from comity.data import Dataset
from comity.machine import computes_bfloat16, processor
from comity.runs import config
from comity.runs.build import prepare
from comity.training.descent import train
from comity.training.requests import plain
from comity.training.settings import Precision

PRECISIONS: tuple[Precision, Precision] = ("float32", "bf16")
IMAGES, PARTIES, ROUNDS, LR = 8000, 5, 10, 0.05
STEPS = 12


def steps(batches: list[int], rounds: int) -> None:
    """Print the milliseconds of a step and the ratio of the precisions, by batch size."""
    print(f"{'batch':>5}{'float32 ms':>12}{'bf16 ms':>9}{'ratio':>8}   quartiles")
    for batch in batches:
        x, y = torch.randn(batch * STEPS, 1, 28, 28), torch.arange(batch * STEPS) % 10
        federation = comity.Federation.from_arrays({"a": ((x, y), (x[:4], y[:4]))}, validation=0)
        settings = {"model": "cnn4", "batch": batch, "engine": "loop", "lr": 0.001}
        party = prepare(config.experiment(settings), federation).parties[0]
        theta = party.task.init(Key(0))

        def seconds(precision: Precision, party: Any = party, theta: Any = theta) -> float:
            how = replace(party.training, precision=precision)
            begin = time.process_time()
            train(party.fit(plain, theta, Key(1), training=how))
            return (time.process_time() - begin) / STEPS

        for precision in PRECISIONS:
            seconds(precision)
        pairs = [[seconds(precision) for precision in PRECISIONS] for _ in range(rounds)]
        ratios = [low / full for full, low in pairs]
        first, middle, third = statistics.quantiles(ratios, n=4, method="inclusive")
        full, low = (1000 * statistics.median(column) for column in zip(*pairs, strict=True))
        print(
            f"{batch:5}{full:12.1f}{low:9.1f}{middle:8.2f}   {first:.2f} to {third:.2f}", flush=True
        )


def outcomes(method: str, data: Dataset, seed: int, precision: Precision) -> torch.Tensor:
    """Which test samples the parties' final models classify correctly."""
    federation = data.partition("dirichlet(alpha=0.5)", parties=PARTIES, seed=seed, test="own(0.5)")
    result = comity.run(
        method,
        federation,
        model="cnn4",
        rounds=ROUNDS,
        eval_every=ROUNDS,
        lr=LR,
        seed=seed,
        engine="loop",
        precision=precision,
        progress=False,
    )
    correct = []
    for party in result.job.parties:
        theta = result.model(party.name).theta
        with torch.no_grad():
            logits = party.task.logits(theta, party.data.test.x)
        correct.append(logits.argmax(1) == party.data.test.y)
    return torch.cat(correct).double()


def interval(differences: torch.Tensor) -> str:
    """The mean of paired differences with a 95% interval, in points."""
    half = 1.96 * float(differences.std()) / len(differences) ** 0.5
    mean = float(differences.mean())
    return f"{100 * mean:+6.2f} ({100 * (mean - half):+.2f} to {100 * (mean + half):+.2f})"


def accuracy(name: str, seeds: int, methods: list[str]) -> None:
    """Print the accuracy of both precisions, and their paired difference."""
    whole = comity.load(name)
    x = whole.x[:IMAGES].float() / 255
    data = Dataset(f"{name}-{IMAGES}", x, whole.y[:IMAGES], 10)
    print(f"{'method':8}{'seed':>5}{'float32':>9}{'bf16':>7}   bf16 - float32, points")
    for method in methods:
        all_differences = []
        for seed in range(seeds):
            full, low = (outcomes(method, data, seed, precision) for precision in PRECISIONS)
            all_differences.append(low - full)
            print(
                f"{method:8}{seed:5}{100 * full.mean():9.2f}{100 * low.mean():7.2f}  "
                f" {interval(low - full)}",
                flush=True,
            )
        print(f"{method:8}{'all':>5}{'':16}   {interval(torch.cat(all_differences))}", flush=True)


def main() -> None:
    cli = argparse.ArgumentParser()
    commands = cli.add_subparsers(dest="command", required=True)
    step_options = commands.add_parser("steps")
    step_options.add_argument("--rounds", type=int, default=15)
    step_options.add_argument("--batch", type=int, nargs="+", default=[10, 32, 64])
    accuracy_options = commands.add_parser("accuracy")
    accuracy_options.add_argument("--seeds", type=int, default=3)
    accuracy_options.add_argument("--data", default="fashion-mnist")
    accuracy_options.add_argument("--methods", nargs="+", default=["fedavg"])
    args = cli.parse_args()
    torch.set_num_threads(1)
    has = "with" if computes_bfloat16() else "without"
    print(f"{processor()}, {has} instructions for bfloat16")
    if args.command == "steps":
        steps(args.batch, args.rounds)
    else:
        accuracy(args.data, args.seeds, args.methods)


if __name__ == "__main__":
    main()
