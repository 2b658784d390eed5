"""Parties' figures by a metric, out of the rows of `metrics.csv`, and the mean of them: the one way
in which Comity takes it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import TypeVar

from comity.core.server import Note
from comity.metrics.metrics import ACCURACY
from comity.wire.ledger import SERVER

K = TypeVar("K")


def is_figure(row: Note, split: str = "test", metric: str = ACCURACY.name) -> bool:
    """Whether a row is a party's figure by a metric, on its own samples of a split."""
    return row.metric == metric and row.split == split and row.party != SERVER


def by_round(
    rows: Iterable[Note], split: str = "test", metric: str = ACCURACY.name
) -> dict[int, dict[str, float]]:
    """Everyone's figure by a metric, on its own samples of a split, by evaluated round."""
    found: dict[int, dict[str, float]] = defaultdict(dict)
    for row in rows:
        if is_figure(row, split, metric):
            found[row.round][row.party] = row.value
    return dict(found)


def carried(figures: Mapping[int, Mapping[K, float]]) -> dict[int, dict[K, float]]:
    """The same by round, ascending, with everybody's last figure where there is no new one: who is
    not heard is not forgotten.
    """
    known: dict[K, float] = {}
    found = {}
    for t in sorted(figures):
        known = known | dict(figures[t])
        found[t] = known
    return found


def mean(figures: Mapping[K, float], samples: Mapping[K, int] | None = None) -> float:
    """The mean over parties: all alike, or each as much as it has samples."""
    if samples is None:
        return sum(figures.values()) / len(figures)
    return sum(figures[p] * samples[p] for p in figures) / sum(samples[p] for p in figures)
