"""One run's accuracy in every paper's convention: papers differ in whom they average and in which round they take.

Whom: `mean` over parties; `weighted`, all test samples alike; `global`, one model on all test samples together (None where
parties have models of their own). When: `last` round; `best` round, which is chosen on the test data and so flatters;
`last10`, the mean of the last ten evaluated rounds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

from comity.core.ledger import SERVER
from comity.core.net import Note
from comity.errors import ComityError
from comity.experiments.folder import read_metrics
from comity.measure.fairness import fairness
from comity.measure.gain import outcomes

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


def party_curves(rows: Sequence[Note]) -> dict[str, Line]:
    """Each party's test accuracy by round."""
    found: dict[str, Line] = defaultdict(dict)
    for row in rows:
        if (row.split, row.metric) == ("test", "accuracy") and row.party != SERVER:
            found[row.party][row.round] = row.value
    return dict(found)


def curve(rows: Sequence[Note], whom: str = "mean", sizes: Mapping[str, int] | None = None) -> Line:
    """Test accuracy by round, of all parties in one figure; `sizes` are their test samples, for `weighted`."""
    if whom == "global":
        return {r.round: r.value for r in rows if (r.party, r.split, r.metric) == (SERVER, "pooled", "accuracy")}
    weights = sizes if whom == "weighted" else defaultdict(lambda: 1)
    if whom not in WHOM or weights is None:
        raise ComityError(f"Accuracy is taken as {', '.join(WHOM)}, the second with the parties' test sizes; not as {whom!r}.")
    right: dict[int, float] = defaultdict(float)
    count: dict[int, int] = defaultdict(int)
    for party, line in party_curves(rows).items():
        for t, value in line.items():
            right[t] += value * weights[party]
            count[t] += weights[party]
    return {t: right[t] / count[t] for t in sorted(right)}


def conventions(rows: Sequence[Note], sizes: Mapping[str, int]) -> dict[str, float | None]:
    """Every convention by name (`mean_last`, `weighted_best`, `global_last10`, ...), and the last round's fairness."""
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


def of_run(folder: Path) -> dict[str, float | None]:
    """The conventions of a finished run."""
    return conventions(read_metrics(folder), {party: len(right) for party, right in outcomes(folder).items()})
