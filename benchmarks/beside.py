"""Methods side by side with other libraries: one split, the same initial weights, the same
training, and whether curves agree.

    python benchmarks/beside.py [--pfllib CHECKOUT] [--htfllib CHECKOUT] [--library flower fluke] [--only fedavg ditto]
    python benchmarks/beside.py --page [--csv curves.csv]

What a library has of our methods is listed in `beside_list.py`, with the options that make the two
the same. Flower and fluke come from PyPI into environments of their own (`venvs.py`); PFLlib and
HtFLlib are not there: clone https://github.com/TsingZ0/PFLlib and HtFLlib, and say where they are.
Without a checkout they are left out. What was found before stays, unless it is found again.

Ten parties have label-skewed digits. Every method runs twenty rounds in both libraries, in two ways:
- with batches of ten and three seeds, which differ in initial weights and in the order of samples. The order cannot be the same
  in two libraries: curves should differ by no more than seeds do;
- with all of a party's samples in one batch, where no order matters: the two should give the same answers, but for rounding, if
  the method draws nothing else at random.

Findings are kept in docs/results/data/beside/curves.json, of which docs/results/methods-beside.md is made;
`--page` writes it again.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import venvs
from beside_list import LIBRARIES, MATCHES, PARTIES, Match
from beside_work import CLASSES, Asked, Curve, How, normed, write_asked
from torch import Tensor

import comity
from comity.base.key import Key
from comity.runs.build import prepare
from comity.runs.config import experiment

HERE = Path(__file__).resolve().parent
KEPT = HERE.parent / "docs" / "results" / "data" / "beside" / "curves.json"
PAGE = HERE.parent / "docs" / "results" / "methods-beside.md"
CHECKOUTS = ("pfllib", "htfllib")
SEEDS = (0, 1, 2)
SOME = How()
WHOLE = How(batch=None, epochs=3, lr=0.1)
"""Few and small steps, so that rounding has no time to grow."""
OWN = {"mlp2": None, "normed": normed}
"""Networks that are given to Comity; None is its own."""


def federation() -> comity.Federation:
    """Label-skewed digits at ten parties; each trains on a whole number of pairs of batches, since
    some drop or pair them.

    At most eighty samples each, of at least twenty: as many steps as it takes to tell two methods
    apart.
    """
    dealt = comity.load("digits").partition(
        "dirichlet(alpha=0.1)", parties=PARTIES, seed=0, validation=0.0
    )
    pairs = {}
    for name, own in dealt.parties.items():
        kept = min(len(own.train) // 20 * 20, 80)
        pairs[name] = ((own.train.x[:kept], own.train.y[:kept]), (own.test.x, own.test.y))
    return comity.Federation.from_arrays(pairs, validation=0.0, classes=CLASSES)


def save(path: Path, tensors: Mapping[str, Tensor]) -> None:
    arrays: dict[str, Any] = {name: value.numpy() for name, value in tensors.items()}
    np.savez(path, **arrays)


def display_name(name: str) -> str:
    """A weight's name in the libraries' network, by its name in ours."""
    part, _, rest = name.replace("~", "").partition(".")
    known = {"encoder": "body", "head": "fc", "fc1": "body.fc1", "fc2": "body.fc2", "fc3": "fc"}
    return f"{known[part]}.{rest}"


def write(folder: Path, fed: comity.Federation) -> None:
    """The federation, and the initial weights that Comity draws for each network and seed."""
    arrays: dict[str, Tensor] = {}
    for i, own in enumerate(fed.parties.values()):
        arrays |= {
            f"{i}.x": own.train.x,
            f"{i}.y": own.train.y,
            f"{i}.x_test": own.test.x,
            f"{i}.y_test": own.test.y,
        }
    save(folder / "parties.npz", arrays)
    for network, given in OWN.items():
        task = prepare(experiment({"algorithm": "fedavg"}), fed, given).info.task
        for seed in SEEDS:
            weights = task.init(Key.root(seed).fold("init"))
            save(
                folder / f"{network}-{seed}.npz",
                {display_name(name): value for name, value in weights.items()},
            )


def first(
    folder: Path, fed: comity.Federation, match: Match, seed: int, how: How
) -> dict[str, str]:
    """The file of what our server begins with beside the network's weights, if the library is to
    begin with that too.
    """
    if not match.first:
        return {}
    job = prepare(experiment({"algorithm": match.spec(how), "seed": seed}), fed)
    state = job.algorithm.init_server(job.root.fold("init"), job.info)
    weights = state if isinstance(state, dict) else getattr(state, match.first)
    name = f"first-{match.name}-{seed}.npz"
    save(folder / name, weights)
    return {"first": name}


def ours(match: Match, fed: comity.Federation, seed: int, how: How) -> Curve:
    """A run of Comity's: how many test samples each party answers rightly, by round."""
    most = max(len(own.train) for own in fed.parties.values())
    settings: dict[str, Any] = {
        "rounds": how.rounds,
        "epochs": how.epochs,
        "lr": how.lr,
        "batch": how.batch or most,
    }
    settings |= match.settings if how.batch else {}
    settings |= {"model": given} if (given := OWN[match.network]) else {}
    result = comity.run(
        match.spec(how), fed, seed=seed, engine="loop", workers=1, progress=False, **settings
    )
    tests = {name: len(own.test) for name, own in fed.parties.items()}
    found = {
        (n.round, n.party): n.value
        for n in result.metrics
        if (n.split, n.metric) == ("test", "accuracy")
    }
    return [
        [round(found[t, name] * count) for name, count in tests.items()]
        for t in range(how.rounds + 1)
    ]


def theirs(
    library: str, checkout: Path | None, folder: Path, runs: list[Asked]
) -> Iterator[dict[str, Any]]:
    """What a library answers, run by run."""
    write_asked(folder, runs)
    name = "pfllib" if library in CHECKOUTS else library  # they are built alike
    command = [
        venvs.python(name),
        HERE / f"beside_{name}.py",
        folder,
        *([checkout] if checkout else []),
    ]
    with tempfile.TemporaryFile() as log:
        with subprocess.Popen(
            command, cwd=HERE, stdout=subprocess.PIPE, stderr=log, text=True
        ) as process:
            assert process.stdout
            for line in process.stdout:
                yield json.loads(line)
        if process.returncode:
            log.seek(0)
            raise RuntimeError(
                f"{library} ended: {venvs.last_line(log.read().decode(errors='replace'))}"
            )


@dataclass
class Found:
    """A method in two libraries: how many test samples all parties answer rightly, by seed and
    round.
    """

    ours: str
    library: str
    method: str
    there: list[list[int]]
    here: list[list[int]]
    whole: int | None
    """With whole batches: the most answers by which parties differ in a round, summed over parties;
    None if chance has a part.
    """
    mended: str = ""
    """What was mended in the library's version, if anything."""

    @property
    def key(self) -> tuple[str, str, str, str]:
        return self.ours, self.library, self.method, self.mended


def totals(curves: Sequence[Curve]) -> list[list[int]]:
    return [[sum(right) for right in curve] for curve in curves]


def apart(one: Curve, other: Curve) -> int:
    """The most answers, in any round after the first, by which parties differ."""
    return max(
        sum(abs(a - b) for a, b in zip(*both, strict=True))
        for both in zip(one[1:], other[1:], strict=True)
    )


def compare(matches: list[Match], library: str, checkout: Path | None) -> Iterator[Found]:
    """Run every match of a library, theirs and ours; what fails on either side is said, and left
    out.
    """
    fed = federation()
    known: dict[tuple[str, int, How], Curve] = {}
    """Our runs so far: what was mended over there, and what was not, are compared with the same."""
    with tempfile.TemporaryDirectory(prefix="beside-") as place:
        write(Path(place), fed)
        runs = {
            m: [(SOME, seed) for seed in SEEDS] + [(WHOLE, SEEDS[0])] * (not m.chance)
            for m in matches
        }
        asked = [
            Asked(
                m.method, seed, how, m.asked(how) | first(Path(place), fed, m, seed, how), m.network
            )
            for m in matches
            for how, seed in runs[m]
        ]
        answers = theirs(library, checkout, Path(place), asked)
        for m in matches:
            heard = [next(answers) for _ in runs[m]]
            if failed := next((h["failed"] for h in heard if "failed" in h), ""):
                print(f"{m.ours}: {library} failed: {failed}", flush=True)
                continue
            try:
                for how, seed in runs[m]:
                    known[m.ours, seed, how] = known.get((m.ours, seed, how)) or ours(
                        m, fed, seed, how
                    )
            except comity.UsageError as why:
                print(f"{m.ours}: {why}", flush=True)
                continue
            here = [known[m.ours, seed, how] for how, seed in runs[m]]
            there: list[Curve] = [h["curve"] for h in heard]
            seeds = len(SEEDS)
            whole = None if m.chance else apart(there[-1], here[-1])
            yield Found(
                m.ours,
                library,
                m.method,
                totals(there[:seeds]),
                totals(here[:seeds]),
                whole,
                m.mended,
            )


@dataclass
class Line:
    """What the table says of a match, in per cent."""

    there: tuple[float, float]
    """Mean and standard deviation over seeds after the last round."""
    here: tuple[float, float]
    gap: float
    """The largest difference between the mean curves, in any round."""
    allowed: float
    """What chance allows for in that round."""
    same: bool
    """Whether the same answers came of whole batches."""
    within: bool

    @property
    def verdict(self) -> str:
        return ("the same" if self.same else "within") if self.within else "apart"


def judged(found: Found, tests: int) -> Line:
    """Whether two libraries' curves differ by more than their seeds do: three standard errors of
    the difference of the means.

    The variance in a round is that of both libraries' seeds, and of the two rounds before and
    after: of six numbers alone it would often be too small by chance. Two answers more or less
    never count.
    """
    a, b = (100 / tests * np.array(curves)[:, 1:] for curves in (found.there, found.here))
    gaps = abs(a.mean(0) - b.mean(0))
    variance = (a.var(0, ddof=1) + b.var(0, ddof=1)) / 2
    smooth = np.array([variance[max(0, t - 2) : t + 3].mean() for t in range(len(variance))])
    allowed = 3 * np.sqrt(2 * smooth / len(a)) + 200 / tests
    worst = int((gaps / allowed).argmax())
    ends = [(float(c[:, -1].mean()), float(c[:, -1].std(ddof=1))) for c in (a, b)]
    same = found.whole is not None and found.whole <= tests / 100
    return Line(
        ends[0],
        ends[1],
        float(gaps[worst]),
        float(allowed[worst]),
        same,
        bool((gaps <= allowed).all()),
    )


def read() -> dict[str, Any]:
    """What was found so far."""
    kept: dict[str, Any] = (
        json.loads(KEPT.read_text()) if KEPT.exists() else {"tests": 0, "versions": {}, "found": []}
    )
    return kept | {"found": [Found(**each) for each in kept["found"]]}


def keep(kept: dict[str, Any], new: Found) -> None:
    """Write what was found beside what is there, in the list's order; what the list has no more is
    dropped.
    """
    before = read()
    kept["versions"] = before["versions"] | kept["versions"]
    found = {each.key: each for each in [*before["found"], new]}
    kept["found"] = [found[m.key] for m in MATCHES if m.key in found]
    KEPT.parent.mkdir(parents=True, exist_ok=True)
    rows = ",\n".join(json.dumps(asdict(each)) for each in kept["found"])
    head = json.dumps({"tests": kept["tests"], "versions": kept["versions"]})
    KEPT.write_text(f'{head[:-1]}, "found": [\n{rows}\n]}}\n')


def version_of(library: str, checkout: Path | None) -> str:
    """The version of a library as it is installed, or the commit of its checkout."""
    if checkout:
        asked = subprocess.run(
            ["git", "-C", checkout, "rev-parse", "--short", "HEAD"],
            capture_output=True,
            text=True,
            check=False,
        )
        return asked.stdout.strip() or "a commit that is not known"
    return next(
        part.partition("==")[2] for call in venvs.PACKAGES[library] for part in call if "==" in part
    )


NAMES = {"pfllib": "PFLlib", "htfllib": "HtFLlib", "flower": "Flower", "fluke": "fluke"}
INTRO = """# Methods beside other libraries

This page compares methods of Comity with those of other libraries. Ten parties have label-skewed digits (Dirichlet, α = 0.1; 20
to 80 training samples each). The network is `mlp2`, and for FedBN a smaller one with BatchNorm. Split, initial weights and learning
rate are the same, and options mean the same. Accuracy is that of all parties' test samples after each round, by the models that the
method deploys. Where a library evaluates before it trains, its figure is taken one round later.

`python benchmarks/beside.py` runs all of it, and writes this page from [the curves](data/beside/curves.json). Other
libraries' code is called, and none of it is here.

- **Batches of ten, twenty rounds, three seeds** (learning rate 0.05, one epoch). The table has means and standard deviations over
  seeds after round 20. The *gap* is that between the two mean curves, in the round where it is largest against what chance allows.
  Chance allows three standard errors of the difference, by the variance between seeds. Orders of samples differ between libraries;
  splits and initial weights do not.
- **Whole batches** (learning rate 0.1, three epochs): with all of a party's samples in one batch no order matters, and two
  versions of one method compute the same. The figure is how many answers differ, summed over parties, in the worst of twenty
  rounds, of {tests} test samples. A dash: the method draws something else at random.

The verdict is *the same* if curves are within chance, and on whole batches no more than one answer in a hundred differs. It is
*within* if only the curves are within chance. Otherwise it is *apart*, and the reason is below. A library's version that was mended to be comparable
is marked, and what was mended is below.

"""

LEFT_OUT = """## Left out

HtFLlib's FedGen averages heads only, which makes it another method than ours and PFLlib's (and what its generator learns is not
kept from round to round). Of `ldp` Flower has a version that adds noise to weights; ours adds it to representations. None of the
four libraries has `adcol`, `affine-robust`, `afl`, `centralized`, `drfa`, `fada`, `fed-sps`, `fedmeta`, `fedreptile`, `feduad`,
`fedufo`, `mr`, `partialfed`, `prbm`, `relay` or `relay-p2p`.
"""


def page(kept: dict[str, Any]) -> str:
    """docs/results/methods-beside.md."""
    listed = {m.key: m for m in MATCHES}
    rows, notes = [], []
    for found in kept["found"]:
        line = judged(found, kept["tests"])
        (a, s), (b, u) = line.there, line.here
        mended = ", mended" if found.mended else ""
        there = f"{NAMES[found.library]} `{found.method.rpartition('.')[2]}`{mended}"
        whole = "–" if found.whole is None else str(found.whole)
        rows.append(
            f"| `{found.ours}` | {there} | {a:.1f} ± {s:.1f} | {b:.1f} ± {u:.1f} "
            f"| {line.gap:.1f} of {line.allowed:.1f} | {whole} | {line.verdict} |"
        )
        if why := listed[found.key].why:
            notes.append(f"- **`{found.ours}` and {there}.** {why[0].upper()}{why[1:]}")
    words = [judged(found, kept["tests"]).verdict for found in kept["found"]]
    counted = ", ".join(
        f"{words.count(word)} are {word}" for word in ("the same", "within", "apart")
    )
    versions = ", ".join(f"{NAMES[name]} {text}" for name, text in kept["versions"].items())
    table = [
        (
            "| Comity | library | theirs, % | ours, % | gap, of what chance allows | whole batches"
            " | verdict |"
        ),
        "| --- | --- | --- | --- | --- | --- | --- |",
        *rows,
    ]
    said = f"Of {len(words)} comparisons {counted}. Compared with {versions}."
    return INTRO.format(tests=kept["tests"]) + "\n".join(
        [*table, "", said, "", "## Why", "", *notes, "", LEFT_OUT]
    )


def write_csv(path: Path, kept: dict[str, Any]) -> None:
    """All curves, a row a point."""
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["ours", "library", "method", "mended", "whose", "seed", "round", "accuracy"])
        for f in kept["found"]:
            for whose, curves in (("theirs", f.there), ("ours", f.here)):
                for seed, curve in enumerate(curves):
                    rows.writerows(
                        [*f.key, whose, seed, t, f"{n / kept['tests']:.4f}"]
                        for t, n in enumerate(curve)
                    )


def main() -> None:
    cli = argparse.ArgumentParser()
    for name in CHECKOUTS:
        cli.add_argument(f"--{name}", type=Path, metavar="CHECKOUT")
    cli.add_argument("--library", nargs="+", choices=LIBRARIES, default=LIBRARIES)
    cli.add_argument("--only", nargs="+", metavar="METHOD")
    cli.add_argument(
        "--page",
        action="store_true",
        help="write the page of what was found before, and run nothing",
    )
    cli.add_argument("--csv", type=Path)
    args = cli.parse_args()
    kept = read()
    for library in [] if args.page else args.library:
        checkout: Path | None = getattr(args, library, None)
        if checkout and not (checkout / "system" / "flcore").is_dir():
            cli.error(f"{checkout} is no checkout of {NAMES[library]}.")
        wanted = [
            m for m in MATCHES if m.library == library and (not args.only or m.name in args.only)
        ]
        if not wanted or (library in CHECKOUTS and not checkout):
            continue
        kept["tests"] = sum(len(own.test) for own in federation().parties.values())
        kept["versions"][library] = version_of(library, checkout)
        for found in compare(wanted, library, checkout and checkout.resolve()):
            keep(kept, found)
            line = judged(found, kept["tests"])
            (a, s), (b, u) = line.there, line.here
            ends = f"{a:6.1f} ±{s:4.1f} {b:6.1f} ±{u:4.1f}"
            gap = f"{line.gap:5.1f} of {line.allowed:4.1f}"
            print(
                f"{found.ours:42}{library:9}{ends}   {gap}   {found.whole!s:5} {line.verdict}",
                flush=True,
            )
    PAGE.write_text(page(kept), encoding="utf-8")
    if args.csv:
        write_csv(args.csv, kept)


if __name__ == "__main__":
    main()
