"""Fairness: the spread of accuracy over parties (FedUFO, section 4.1.3: P_b, P_w, P_std).

All values are fractions, not percentages.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from comity.errors import ComityError


@dataclass(frozen=True)
class Fairness:
    """Five statistics of the parties' accuracies."""

    best: float
    """P_b."""
    worst: float
    """P_w."""
    std: float
    """P_std, the population standard deviation."""
    worst_tenth: float
    """The mean of the worst tenth of the parties (at least one party)."""
    jain: float
    """Jain's index (Σx)² / (n Σx²): 1 if all are equal, 1/n if only one is above zero."""


def fairness(accuracies: Iterable[float]) -> Fairness:
    """Return the fairness of accuracies, one per party."""
    x = np.sort(np.fromiter(accuracies, dtype=np.float64))
    if not len(x):
        raise ComityError("Fairness needs the accuracy of at least one party.")
    squares = len(x) * np.square(x).sum()
    return Fairness(
        best=float(x[-1]),
        worst=float(x[0]),
        std=float(x.std()),
        worst_tenth=float(x[: max(1, len(x) // 10)].mean()),
        jain=float(x.sum() ** 2 / squares) if squares else 1.0,  # all zero: all equal
    )
