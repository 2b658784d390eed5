"""Parties' accuracies, out of the rows of `metrics.csv`, and the mean of them: the one way in which Comity takes it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import TypeVar

from comity.core.ledger import SERVER
from comity.core.net import Note

K = TypeVar("K")


def is_accuracy(row: Note, split: str = "test") -> bool:
    """Whether a row is a party's accuracy on its own samples of a split."""
    return row.metric == "accuracy" and row.split == split and row.party != SERVER


def by_round(rows: Iterable[Note], split: str = "test") -> dict[int, dict[str, float]]:
    """Everyone's accuracy on its own samples of a split, by evaluated round."""
    found: dict[int, dict[str, float]] = defaultdict(dict)
    for row in rows:
        if is_accuracy(row, split):
            found[row.round][row.party] = row.value
    return dict(found)


def carried(accuracies: Mapping[int, Mapping[K, float]]) -> dict[int, dict[K, float]]:
    """The same by round, ascending, with everybody's last figure where there is no new one: who is not heard is not forgotten."""
    known: dict[K, float] = {}
    found = {}
    for t in sorted(accuracies):
        known = known | dict(accuracies[t])
        found[t] = known
    return found


def mean(accuracies: Mapping[K, float], samples: Mapping[K, int] | None = None) -> float:
    """The mean over parties: all alike, or each as much as it has samples."""
    if samples is None:
        return sum(accuracies.values()) / len(accuracies)
    return sum(accuracies[p] * samples[p] for p in accuracies) / sum(samples[p] for p in accuracies)
