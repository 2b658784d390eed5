"""A whole comparison: Comity against the same methods in pfl-research and fluke.

    python benchmarks/study.py [--repeats 1] [--work mlp2 cnn4] [--peer pfl fluke]

Twenty parties have 25 label-skewed digits each, as in README.md; three seeds. Every library trains
the methods that it has, evaluates all parties after every round, and is measured from the start of
its processes to their end. pfl and fluke run in two processes side by side, which share the runs.
Comity is `comity.compare(..., jobs="auto")` of the same methods with its page; it also trains each
party alone (SOLO), which the others lack.

A ratio is the other library's time to Comity's for the same methods: by the clock, and of all
processors that its processes used, which a machine with other work changes less. README's
comparison (SOLO and seven methods) has one method that another library has: its row is Comity's
time for all of them to that for FedAvg and SOLO.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
import venvs
from beside_work import CLASSES, NETWORKS, Asked, How, write_asked

import comity
from comity.machine import processor

HERE = Path(__file__).resolve().parent
SEEDS = (0, 1, 2)
PARTITION, PARTIES, LR = "dirichlet(alpha=1,min=35)|keep(samples=25)", 20, 0.05
README = ["fedavg", "fedavg+dbe", "adcol", "fedufo", "fed-sps(peers=4)", "relay", "relay-p2p"]
"""The methods of README.md's results (examples/five.sh), beside SOLO."""
FLUKE: dict[str, tuple[str, dict[str, Any]]] = {
    "fedavg": ("fedavg.FedAVG", {}),
    "fedprox(mu=0.1)": ("fedprox.FedProx", {"client": {"mu": 0.1}}),
    "scaffold": ("scaffold.SCAFFOLD", {"server": {"weighted": False}}),
    "moon(mu=1,tau=0.5)": ("moon.MOON", {"client": {"mu": 1.0, "tau": 0.5}}),
    "ditto(lam=1)": ("ditto.Ditto", {"client": {"lam": 1.0, "tau": 1}, "watched": "personal"}),
    "fedper": ("fedper.FedPer", {"shared": "encoder", "watched": "received"}),
    "fedrep(head_epochs=1)": (
        "fedrep.FedRep",
        {"shared": "encoder", "watched": "received", "client": {"tau": 1}},
    ),
}
PFL: dict[str, tuple[str, dict[str, Any]]] = {
    "fedavg": ("fedavg", {}),
    "fedprox(mu=0.1)": ("fedprox", {"mu": 0.1}),
    "scaffold": ("scaffold", {"use_gradient_as_control_variate": True}),
}
PEERS = {"pfl": ("study_pfl.py", PFL), "fluke": ("beside_fluke.py", FLUKE)}


@dataclass(frozen=True)
class Work:
    """A network, its rounds, and the methods that are compared with it."""

    side: int
    """The width of an image."""
    rounds: int
    methods: tuple[str, ...]


WORKS = {
    "mlp2": Work(8, 30, tuple(FLUKE)),
    "cnn4": Work(28, 5, ("fedavg", "fedprox(mu=0.1)", "scaffold", "ditto(lam=1)")),
}


@dataclass
class Taken:
    """Seconds by the clock, and of all processors."""

    clock: float
    processors: float


@dataclass
class Ratios:
    """Those of all repeats."""

    clock: list[float] = field(default_factory=list)
    processors: list[float] = field(default_factory=list)

    def add(self, there: Taken, here: Taken) -> None:
        self.clock.append(there.clock / here.clock)
        self.processors.append(there.processors / here.processors)

    def __str__(self) -> str:
        return f"{statistics.median(self.clock):9.2f}{statistics.median(self.processors):12.2f}"


def write(folder: Path, model: str) -> None:
    """The parties' samples, and each seed's first weights."""
    digits = comity.load("digits")
    side = WORKS[model].side
    fed = digits.partition(PARTITION, parties=PARTIES, seed=0, validation=0.0)
    arrays: dict[str, Any] = {}
    for i, party in enumerate(fed.parties.values()):
        for suffix, samples in (("", party.train), ("_test", party.test)):
            images = samples.x if side == samples.shape[-1] else F.interpolate(samples.x, size=side)
            arrays |= {f"{i}.x{suffix}": images.numpy(), f"{i}.y{suffix}": samples.y.numpy()}
    np.savez(folder / "parties.npz", **arrays)
    for seed in SEEDS:
        torch.manual_seed(seed)
        body, head = NETWORKS[model]((1, side, side), CLASSES)
        weights = {f"body.{name}": value for name, value in body.state_dict().items()}
        weights |= {f"fc.{name}": value for name, value in head.state_dict().items()}
        np.savez(folder / f"{model}-{seed}.npz", **{k: v.numpy() for k, v in weights.items()})


def measured(commands: Sequence[Sequence[str | Path]]) -> Taken:
    """Run commands side by side to their end. A RuntimeError says which run or command failed."""
    used = getrusage(RUSAGE_CHILDREN)
    begin = time.perf_counter()
    with tempfile.TemporaryFile() as log:
        processes = [
            subprocess.Popen(command, cwd=HERE, stdout=subprocess.PIPE, stderr=log, text=True)
            for command in commands
        ]
        answers = [process.communicate()[0] for process in processes]
        clock = time.perf_counter() - begin
        log.seek(0)
        last = venvs.last_line(log.read().decode(errors="replace"))
    if any(process.returncode for process in processes) or "failed" in "".join(answers):
        raise RuntimeError(f"{Path(commands[0][1]).name} failed: {last}")
    after = getrusage(RUSAGE_CHILDREN)
    return Taken(clock, after.ru_utime - used.ru_utime + after.ru_stime - used.ru_stime)


def theirs(peer: str, model: str, methods: Sequence[str]) -> Taken:
    """All runs of another library, in two processes side by side."""
    script, known = PEERS[peer]
    how = How(rounds=WORKS[model].rounds, lr=LR)
    runs = [
        Asked(known[method][0], seed, how, known[method][1], model)
        for method in methods
        for seed in SEEDS
    ]
    with tempfile.TemporaryDirectory(prefix="study-") as place:
        commands = []
        for k in range(2):
            folder = Path(place) / str(k)
            folder.mkdir()
            write(folder, model)
            write_asked(folder, runs[k::2])
            commands.append([venvs.python(peer), HERE / script, folder])
        return measured(commands)


def ours(model: str, methods: Sequence[str]) -> Taken:
    """Comity's comparison of methods, and of each party alone."""
    settings = {
        "model": model,
        "rounds": WORKS[model].rounds,
        "lr": LR,
        "seeds": list(SEEDS),
        "jobs": "auto",
        "progress": False,
    }
    with tempfile.TemporaryDirectory(prefix="study-") as place:
        folder = Path(place)
        write(folder, model)
        study = {"methods": list(methods), "settings": settings}
        (folder / "study.json").write_text(json.dumps(study))
        return measured([[sys.executable, HERE / "study_comity.py", folder]])


def main() -> None:
    cli = argparse.ArgumentParser()
    cli.add_argument("--repeats", type=int, default=1)
    cli.add_argument("--work", nargs="+", choices=list(WORKS), default=list(WORKS))
    cli.add_argument("--peer", nargs="*", choices=list(PEERS), default=list(PEERS))
    args = cli.parse_args()
    for peer in args.peer:
        venvs.python(peer)
    print(processor())
    print(
        f"{'work':6}{'library':9}{'methods':>8}{'clock':>9}{'processors':>12}   lacks", flush=True
    )
    for model in args.work:
        for peer in args.peer:
            methods = [m for m in WORKS[model].methods if m in PEERS[peer][1]]
            lacks = [
                "solo",
                *(m.partition("(")[0] for m in WORKS[model].methods if m not in methods),
            ]
            ratios = Ratios()
            for _ in range(args.repeats):
                ratios.add(theirs(peer, model, methods), ours(model, methods))
            print(f"{model:6}{peer:9}{len(methods):8}{ratios}   {', '.join(lacks)}", flush=True)
    if "mlp2" in args.work:
        ratios = Ratios()
        for _ in range(args.repeats):
            ratios.add(ours("mlp2", README), ours("mlp2", ["fedavg"]))
        print(f"{'mlp2':6}{'README':9}{len(README):8}{ratios}", flush=True)


if __name__ == "__main__":
    main()
