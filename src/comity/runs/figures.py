"""The parties' values of a metric from the rows of `metrics.csv`, and their mean."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import TypeVar

from comity.core.server import Note
from comity.metrics.metrics import ACCURACY
from comity.wire.ledger import SERVER

K = TypeVar("K")


def is_figure(row: Note, split: str = "test", metric: str = ACCURACY.name) -> bool:
    """Return whether a row is a party's value of a metric, on its own samples of a split."""
    return row.metric == metric and row.split == split and row.party != SERVER


def by_round(
    rows: Iterable[Note], split: str = "test", metric: str = ACCURACY.name
) -> dict[int, dict[str, float]]:
    """Return the parties' values of a metric by evaluated round, each on its samples of a split."""
    figures: dict[int, dict[str, float]] = defaultdict(dict)
    for row in rows:
        if is_figure(row, split, metric):
            figures[row.round][row.party] = row.value
    return dict(figures)


def carry_forward(figures: Mapping[int, Mapping[K, float]]) -> dict[int, dict[K, float]]:
    """Return the figures by round, ascending; a party without a new figure keeps its last one."""
    latest: dict[K, float] = {}
    by_round = {}
    for t in sorted(figures):
        latest = latest | dict(figures[t])
        by_round[t] = latest
    return by_round


def mean(figures: Mapping[K, float], samples: Mapping[K, int] | None = None) -> float:
    """Return the mean over parties, weighted by their `samples` if given."""
    if samples is None:
        return sum(figures.values()) / len(figures)
    return sum(figures[p] * samples[p] for p in figures) / sum(samples[p] for p in figures)
