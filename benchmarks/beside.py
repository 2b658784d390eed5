"""Methods side by side with other libraries: one split, the same initial weights, the same training, and whether curves agree.

    python benchmarks/beside.py [--pfllib CHECKOUT] [--htfllib CHECKOUT] [--only fedavg ditto] [--csv curves.csv]
    python benchmarks/beside.py --page

What a library has of our methods is listed in `beside_list.py`, with the options that make the two the same. Flower and fluke come
from PyPI into environments of their own (`venvs.py`); PFLlib and HtFLlib are not there: clone https://github.com/TsingZ0/PFLlib and
HtFLlib, and say where they are. A library that is not named is left out, and what is known of its methods stays.

Ten parties have label-skewed digits. Every method runs twenty rounds in both libraries, twice over:
- with batches of ten and three seeds, which differ in initial weights and in the order of samples. The order cannot be the same in two
  libraries: the curves should differ by no more than seeds do;
- with all of a party's samples in one batch, where no order matters: then the two should give the same answers, but for rounding, if
  the method draws nothing else at random.

Findings are kept in docs/results/data/beside/, and docs/methods-beside.md is made of them; `--page` writes it again.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import venvs
from beside_list import MATCHES, Match
from beside_work import CLASSES, Asked, Curve, How, parties, write_asked

import comity
from comity.core.key import Key
from comity.experiments.build import prepare
from comity.experiments.config import experiment

HERE = Path(__file__).resolve().parent
KEPT = HERE.parent / "docs" / "results" / "data" / "beside" / "curves.json"
PAGE = HERE.parent / "docs" / "methods-beside.md"
SEEDS = (0, 1, 2)
SOME = How()
WHOLE = How(batch=None, epochs=3, lr=0.1)
"""Few steps, so that rounding has no time to grow."""


def federation() -> comity.Federation:
    """Label-skewed digits at ten parties; each trains on a whole number of pairs of batches, since some drop or pair them."""
    dealt = comity.load("digits").partition("dirichlet(alpha=0.1)", parties=10, seed=0, validation=0.0)
    pairs = {}
    for name, own in dealt.parties.items():
        kept = len(own.train) // 20 * 20
        pairs[name] = ((own.train.x[:kept], own.train.y[:kept]), (own.test.x, own.test.y))
    return comity.Federation.from_arrays(pairs, validation=0.0, classes=CLASSES)


def write(folder: Path, fed: comity.Federation) -> None:
    """The federation, and the initial weights that Comity draws for each seed."""
    arrays = {}
    for i, own in enumerate(fed.parties.values()):
        arrays |= {f"{i}.x": own.train.x, f"{i}.y": own.train.y, f"{i}.x_test": own.test.x, f"{i}.y_test": own.test.y}
    np.savez(folder / "parties.npz", **{name: value.numpy() for name, value in arrays.items()})
    task = prepare(experiment({"algorithm": "fedavg"}), fed).info.task
    for seed in SEEDS:
        weights = task.init(Key.root(seed).fold("init"))
        np.savez(folder / f"weights-{seed}.npz", **{name: value.numpy() for name, value in weights.items()})


def ours(method: str, fed: comity.Federation, seed: int, how: How) -> Curve:
    """A run of Comity's: how many test samples each party answers rightly, by round."""
    most = max(len(own.train) for own in fed.parties.values())
    settings: dict[str, Any] = {"rounds": how.rounds, "epochs": how.epochs, "lr": how.lr, "batch": how.batch or most}
    result = comity.run(method, fed, seed=seed, engine="loop", workers=1, progress=False, **settings)
    tests = {name: len(own.test) for name, own in fed.parties.items()}
    found = {(n.round, n.party): n.value for n in result.metrics if (n.split, n.metric) == ("test", "accuracy")}
    return [[round(found[t, name] * count) for name, count in tests.items()] for t in range(how.rounds + 1)]


@dataclass
class Found:
    """A method in two libraries: right answers of all parties together, by seed and round, of `tests`; or why there are none."""

    theirs: list[list[int]]
    ours: list[list[int]]
    whole: int | None
    """With whole batches: the most answers by which parties differ in a round, summed over parties."""
    failed: str = ""


def totals(curve: Curve) -> list[int]:
    return [sum(right) for right in curve]


def apart(one: Curve, other: Curve) -> int:
    """The most answers, in any round, by which parties differ."""
    return max(sum(abs(a - b) for a, b in zip(*both, strict=True)) for both in zip(one, other, strict=True))


def theirs(library: str, checkout: Path | None, folder: Path, runs: list[Asked]) -> Iterator[dict[str, Any]]:
    """What a library answers, run by run."""
    write_asked(folder, runs)
    interpreter = venvs.python("pfllib" if library == "htfllib" else library)
    command = [interpreter, HERE / f"beside_{library}.py", folder, *([checkout] if checkout else [])]
    with tempfile.TemporaryFile() as log:
        with subprocess.Popen(command, cwd=HERE, stdout=subprocess.PIPE, stderr=log, text=True) as process:
            assert process.stdout
            for line in process.stdout:
                yield json.loads(line)
        log.seek(0)
        if process.returncode:
            raise RuntimeError(f"{library} ended: {venvs.last_line(log.read().decode(errors='replace'))}")


def compare(matches: Iterable[Match], library: str, checkout: Path | None) -> Iterator[tuple[Match, Found]]:
    """Run every match that a library has, theirs and ours."""
    fed = federation()
    runs = [(SOME, seed) for seed in SEEDS] + [(WHOLE, SEEDS[0])]
    matches = list(matches)
    with tempfile.TemporaryDirectory(prefix="beside-") as place:
        folder = Path(place)
        write(folder, fed)
        asked = [Asked(m.method, seed, how, m.asked(how)) for m in matches for how, seed in runs]
        answers = theirs(library, checkout, folder, asked)
        for match in matches:
            heard = [next(answers) for _ in runs]
            if failed := next((h["failed"] for h in heard if "failed" in h), ""):
                yield match, Found([], [], None, failed)
                continue
            mine = [ours(match.spec(how), fed, seed, how) for how, seed in runs]
            there = [h["curve"] for h in heard]
            whole = apart(there[-1], mine[-1])
            yield match, Found([totals(c) for c in there[:-1]], [totals(c) for c in mine[:-1]], whole)


@dataclass
class Line:
    """What the table says of a match, in per cent."""

    there: tuple[float, float]
    """Mean and standard deviation over seeds after the last round."""
    here: tuple[float, float]
    gap: float
    """The largest difference between mean curves, in any round."""
    spread: float
    """The largest distance between two seeds of one library in a round, over all rounds' mean."""
    whole: int | None
    verdict: str


def line(found: Found, tests: int) -> Line:
    """Whether two libraries' curves differ by more than seeds do."""
    a, b = (100 / tests * np.array(curves)[:, 1:] for curves in (found.theirs, found.ours))
    gaps = abs(a.mean(0) - b.mean(0))
    ranges = np.maximum(np.ptp(a, axis=0), np.ptp(b, axis=0))
    # A round's own range over three seeds may be small by chance: it is taken together with those of its neighbours.
    near = np.array([ranges[max(0, t - 2) : t + 3].mean() for t in range(len(ranges))])
    within = bool((gaps <= near).all())
    verdict = "the same" if found.whole is not None and found.whole <= 2 else "within" if within else "apart"
    ends = [(float(c[:, -1].mean()), float(statistics.stdev(c[:, -1]))) for c in (a, b)]
    return Line(ends[0], ends[1], float(gaps.max()), float(near.mean()), found.whole, verdict)


def main() -> None:
    cli = argparse.ArgumentParser()
    cli.add_argument("--pfllib", type=Path, metavar="CHECKOUT")
    cli.add_argument("--htfllib", type=Path, metavar="CHECKOUT")
    cli.add_argument("--only", nargs="+", metavar="METHOD")
    cli.add_argument("--library", nargs="+", choices=["pfllib", "htfllib", "flower", "fluke"], default=["pfllib", "htfllib", "flower", "fluke"])
    cli.add_argument("--csv", type=Path)
    args = cli.parse_args()
    tests = sum(len(own.test) for own in federation().parties.values())
    for library in args.library:
        checkout = {"pfllib": args.pfllib, "htfllib": args.htfllib}.get(library)
        if library in ("pfllib", "htfllib") and not checkout:
            continue
        wanted = [m for m in MATCHES if m.library == library and (not args.only or m.name in args.only)]
        if not wanted:
            continue
        for match, found in compare(wanted, library, checkout):
            if found.failed:
                print(f"{match.ours:30}{library:9} failed: {found.failed}", flush=True)
                continue
            l = line(found, tests)
            print(f"{match.ours:40}{library:9}{l.there[0]:7.1f} ±{l.there[1]:4.1f}{l.here[0]:7.1f} ±{l.here[1]:4.1f}  gap {l.gap:5.2f} spread {l.spread:5.2f}  whole {l.whole}  {l.verdict}", flush=True)


if __name__ == "__main__":
    main()
