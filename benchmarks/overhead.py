"""Below the bare loop or above it: FedAvg's rounds (training and aggregation) against the bare
loop's, interleaved.

    python benchmarks/overhead.py [--rounds 15] [--work cnn4 mlp2 linear lenet5] [--engine loop process stacked] [--workers 1 2]

Round by round the bare loop and Comity take turns, so that a busy moment of the machine hits both.
Prints the median of the ratios of neighbouring rounds with its quartiles; with n workers against n
processes of the bare loop.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections.abc import Callable

import torch
from bare import BATCH, LR, WORKS, Bare, Data, data_of

from comity import Federation
from comity.engines.allocator import keep_freed_memory
from comity.runs import config
from comity.runs.build import prepare
from comity.runs.server_run import Quiet

CONVOLUTIONS = ("cnn4", "lenet5")


def seconds(action: Callable[[], object]) -> float:
    begin = time.perf_counter()
    action()
    return time.perf_counter() - begin


def compare(
    work: str, data: Data, engine: str, workers: int, rounds: int
) -> tuple[list[float], list[float]]:
    """Seconds of each round, bare and ours."""
    tiny = (torch.zeros(1, 1, 28, 28), torch.zeros(1, dtype=torch.long))
    federation = Federation.from_arrays(
        {f"p{i}": (d, tiny) for i, d in enumerate(data)}, validation=0.0, classes=10
    )
    settings = {
        "algorithm": "fedavg",
        "model": work,
        "batch": BATCH,
        "lr": LR,
        "engine": engine,
        "workers": workers,
    }
    job = prepare(config.experiment(settings), federation)
    bare = Bare(work, data, workers)
    running = job.engine()
    server = job.server(running, Quiet())
    s = job.algorithm.init_server(job.root.fold("init"), job.info)
    floor, ours = [], []
    try:
        for t in range(rounds + 1):  # the first warms up both
            floor.append(seconds(bare.round))
            begin = time.perf_counter()
            server.begin(t)
            s = job.algorithm.round(s, server, t)
            ours.append(time.perf_counter() - begin)
            server.ledger.take()
    finally:
        running.close()
        bare.close()
    return floor[1:], ours[1:]


def main() -> None:
    torch.set_num_threads(1)
    gc.freeze()  # as a run does
    keep_freed_memory()
    cli = argparse.ArgumentParser()
    cli.add_argument("--rounds", type=int, default=15)
    cli.add_argument("--work", nargs="+", choices=list(WORKS), default=list(WORKS))
    cli.add_argument(
        "--engine",
        nargs="+",
        choices=["loop", "process", "stacked"],
        default=["loop", "process", "stacked"],
    )
    cli.add_argument("--workers", nargs="+", type=int, default=[1, 2])
    args = cli.parse_args()
    print(f"{'work':8}{'parties':>8}  {'engine':9}{'workers':>8}{'ratio':>8}   quartiles")
    for work in args.work:
        data = data_of(work)
        for engine, workers in ((e, w) for e in args.engine for w in args.workers):
            if (engine == "loop") != (workers == 1) and engine != "stacked":
                continue
            if engine == "stacked" and work in CONVOLUTIONS:  # run one by one
                continue
            floor, ours = compare(work, data, engine, workers, args.rounds)
            ratios = [b / a for a, b in zip(floor, ours, strict=True)]
            low, middle, high = statistics.quantiles(ratios, n=4)
            spread = f"{low:.2f} to {high:.2f}"
            print(
                f"{work:8}{len(data):>8}  {engine:9}{workers:>8}{middle:8.2f}   {spread}",
                flush=True,
            )


if __name__ == "__main__":
    main()
