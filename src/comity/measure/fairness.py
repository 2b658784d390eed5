"""How evenly accuracy is spread over parties (FedUFO, section 4.1.3: P_b, P_w, P_std).

Values stay fractions: whoever prints percentage points multiplies by 100, spread included.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from comity.errors import ComityError


@dataclass(frozen=True)
class Fairness:
    """A vector of accuracies in five figures."""

    best: float
    """P_b."""
    worst: float
    """P_w."""
    std: float
    """P_std, the population's: the parties are all there are, not a sample of them."""
    worst_tenth: float
    """The mean of the worst tenth of the parties, at least one."""
    jain: float
    """Jain's index (Σx)² / (n Σx²): 1 if all are equal, 1/n if one has everything."""


def fairness(accuracies: Iterable[float]) -> Fairness:
    """The figures of a vector of accuracies, one a party."""
    x = np.sort(np.fromiter(accuracies, dtype=np.float64))
    if not len(x):
        raise ComityError("There are no parties whose fairness could be judged.")
    squares = len(x) * np.square(x).sum()
    return Fairness(
        best=float(x[-1]),
        worst=float(x[0]),
        std=float(x.std()),
        worst_tenth=float(x[: max(1, len(x) // 10)].mean()),
        jain=float(x.sum() ** 2 / squares)
        if squares
        else 1.0,  # nobody has anything: that is even, too
    )
