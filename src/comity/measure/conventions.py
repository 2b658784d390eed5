"""A run's accuracy in the conventions of the papers, which differ in the average and in the round.

The average: `mean` over parties; `weighted` by the parties' test samples; `global`, the accuracy of
one model on all test samples pooled (None where each party has its own model). The round: `last`;
`best`, which is chosen on the test data and is therefore optimistic; `last10`, the mean of the last
ten evaluated rounds.
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
from comity.runs.figures import by_round, carry_forward, mean
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
"""The fraction of a run, at its end, over which figures are averaged to reduce noise."""


def last_tenth(line: Mapping[int, float], rounds: int) -> list[float]:
    """Return the values of a curve in the last tenth of a run of `rounds` rounds."""
    return [value for t, value in line.items() if t > (1 - TENTH) * rounds]


def party_curves(rows: Sequence[Note], metric: str = ACCURACY.name) -> dict[str, Line]:
    """Return each party's test accuracy by round, or its values of another metric."""
    curves: dict[str, Line] = defaultdict(dict)
    for t, figures in by_round(rows, metric=metric).items():
        for party, value in figures.items():
            curves[party][t] = value
    return dict(curves)


def curve(
    rows: Sequence[Note],
    whom: str = "mean",
    sizes: Mapping[str, int] | None = None,
    metric: str = ACCURACY.name,
) -> Line:
    """Return the test accuracy, or another metric, by round, averaged over the parties.

    Args:
        rows: The rows of metrics.csv.
        whom: The average: "mean", "weighted" or "global" (see above).
        sizes: The number of test samples of each party, for "weighted".
        metric: The name of the metric.
    """
    if whom == "global":
        return {
            r.round: r.value
            for r in rows
            if (r.party, r.split, r.metric) == (SERVER, "pooled", metric)
        }
    if whom not in WHOM or (whom == "weighted" and sizes is None):
        raise ComityError(
            f"The average must be one of {', '.join(WHOM)}, and weighted needs the parties' test"
            f" sizes; not {whom!r}."
        )
    weights = sizes if whom == "weighted" else None
    return {
        t: mean(figures, weights)
        for t, figures in carry_forward(by_round(rows, metric=metric)).items()
    }


def mean_curve(lines: Sequence[Line]) -> Line:
    """Return the mean of several curves, at the rounds that all of them have."""
    return {
        t: mean({k: line[t] for k, line in enumerate(lines)})
        for t in lines[0]
        if all(t in line for line in lines)
    }


def conventions(rows: Sequence[Note], sizes: Mapping[str, int]) -> dict[str, float | None]:
    """Return the accuracy in every convention by name (`mean_last`, `weighted_best`,
    `global_last10`, ...), and the fairness after the last round.
    """
    figures: dict[str, float | None] = {}
    for whom in WHOM:
        values = list(curve(rows, whom, sizes).values())
        figures[f"{whom}_last"] = values[-1] if values else None
        figures[f"{whom}_best"] = max(values) if values else None
        figures[f"{whom}_last10"] = fmean(values[-10:]) if values else None
    spread = fairness(line[max(line)] for line in party_curves(rows).values())
    return figures | {
        "P_b": spread.best,
        "P_w": spread.worst,
        "P_std": spread.std,
        "worst_tenth": spread.worst_tenth,
        "jain": spread.jain,
    }


def party_figures(folder: Path, party: str) -> dict[str, float | None]:
    """Return one party's test accuracy in a finished run: in the last round, in its best round, and
    the mean of the last ten evaluated rounds.
    """
    run = RunFolder(folder)
    _check_heard(run, [party])
    values = list(party_curves(run.read_metrics()).get(party, {}).values())
    if not values:
        return dict.fromkeys(("last", "best", "last10"))
    return {"last": values[-1], "best": max(values), "last10": fmean(values[-10:])}


def run_figures(folder: Path) -> dict[str, float | None]:
    """Return the accuracy of a finished run in every convention."""
    run = RunFolder(folder)
    _check_heard(run)
    return conventions(
        run.read_metrics(), {party: len(right) for party, right in run.read_outcomes().items()}
    )


def _check_heard(run: RunFolder, parties: Sequence[str] | None = None) -> None:
    """Raise ComityError if one of the parties (default: all) did not answer at the run's end."""
    absent = (run.read_summary() or {}).get("accuracy", {}).get("as_of") or {}
    if missing := [party for party in absent if parties is None or party in parties]:
        whose = (
            "papers' figures are of all parties"
            if parties is None
            else "its last figures are of an earlier round"
        )
        raise ComityError(f"{', '.join(missing)} was not heard at the end of {run.path}: {whose}.")
