"""One run's accuracy in every paper's convention: papers differ in whom they average and in which
round they take.

Whom: `mean` over parties; `weighted`, all test samples alike; `global`, one model on all test
samples together (None where parties have models of their own). When: `last` round; `best` round,
which is chosen on the test data and so flatters; `last10`, the mean of the last ten evaluated
rounds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

from comity.core.server import Note
from comity.errors import ComityError
from comity.measure.fairness import fairness
from comity.metrics.metrics import ACCURACY
from comity.runs.figures import by_round, carried, mean
from comity.runs.folder import RunFolder
from comity.wire.ledger import SERVER

WHOM = ("mean", "weighted", "global")
PAPERS = {
    "adcol": "mean_last",
    "fedufo": "global_last",
    "dbe": "weighted_best",
    "fed-sps": "mean_last",
    "relay": "mean_last",
}
"""The convention of each paper's main tables."""

Line = dict[int, float]
"""Accuracy by evaluated round, ascending."""
TENTH = 0.1
"""The share of a run, at its end, over which a figure is averaged: one round is no evidence."""


def last_tenth(line: Mapping[int, float], rounds: int) -> list[float]:
    """What a curve has in the last tenth of a run of so many rounds."""
    return [value for t, value in line.items() if t > (1 - TENTH) * rounds]


def party_curves(rows: Sequence[Note], metric: str = ACCURACY.name) -> dict[str, Line]:
    """Each party's test accuracy by round, or its figures by another metric that was asked for."""
    found: dict[str, Line] = defaultdict(dict)
    for t, figures in by_round(rows, metric=metric).items():
        for party, value in figures.items():
            found[party][t] = value
    return dict(found)


def curve(
    rows: Sequence[Note],
    whom: str = "mean",
    sizes: Mapping[str, int] | None = None,
    metric: str = ACCURACY.name,
) -> Line:
    """Test accuracy, or another metric, by round, of all parties in one figure; `sizes` (test
    samples) are for `weighted`.
    """
    if whom == "global":
        return {
            r.round: r.value
            for r in rows
            if (r.party, r.split, r.metric) == (SERVER, "pooled", metric)
        }
    if whom not in WHOM or (whom == "weighted" and sizes is None):
        raise ComityError(
            f"Accuracy is taken as {', '.join(WHOM)}, the second with the parties' test sizes; not"
            f" as {whom!r}."
        )
    weights = sizes if whom == "weighted" else None
    return {
        t: mean(figures, weights) for t, figures in carried(by_round(rows, metric=metric)).items()
    }


def mean_curve(lines: Sequence[Line]) -> Line:
    """The mean of several curves, as of a method's seeds, at the rounds that all of them have."""
    return {
        t: mean({k: line[t] for k, line in enumerate(lines)})
        for t in lines[0]
        if all(t in line for line in lines)
    }


def conventions(rows: Sequence[Note], sizes: Mapping[str, int]) -> dict[str, float | None]:
    """Every convention by name (`mean_last`, `weighted_best`, `global_last10`, ...), and the last
    round's fairness.
    """
    found: dict[str, float | None] = {}
    for whom in WHOM:
        values = list(curve(rows, whom, sizes).values())
        found[f"{whom}_last"] = values[-1] if values else None
        found[f"{whom}_best"] = max(values) if values else None
        found[f"{whom}_last10"] = fmean(values[-10:]) if values else None
    even = fairness(line[max(line)] for line in party_curves(rows).values())
    return found | {
        "P_b": even.best,
        "P_w": even.worst,
        "P_std": even.std,
        "worst_tenth": even.worst_tenth,
        "jain": even.jain,
    }


def of_party(folder: Path, party: str) -> dict[str, float | None]:
    """One party's test accuracy in a finished run: in the last round, the best, and on average over
    the last ten evaluated.
    """
    run = RunFolder(folder)
    _check_heard(run, [party])
    values = list(party_curves(run.read_metrics()).get(party, {}).values())
    if not values:
        return dict.fromkeys(("last", "best", "last10"))
    return {"last": values[-1], "best": max(values), "last10": fmean(values[-10:])}


def of_run(folder: Path) -> dict[str, float | None]:
    """The conventions of a finished run."""
    run = RunFolder(folder)
    _check_heard(run)
    return conventions(
        run.read_metrics(), {party: len(right) for party, right in run.read_outcomes().items()}
    )


def _check_heard(run: RunFolder, of: Sequence[str] | None = None) -> None:
    """Refuse figures of parties (all unless told) that were not heard at the run's end."""
    absent = (run.read_summary() or {}).get("accuracy", {}).get("as_of") or {}
    if missing := [party for party in absent if of is None or party in of]:
        whose = (
            "papers' figures are of all parties"
            if of is None
            else "its last figures are of an earlier round"
        )
        raise ComityError(f"{', '.join(missing)} was not heard at the end of {run.path}: {whose}.")
