"""Confidence intervals over seeds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from scipy.special import stdtrit

LEAST_SEEDS = 3
"""The fewest seeds of an interval; with fewer it would be too wide to be of use."""


def interval_over_seeds(differences: Sequence[float]) -> tuple[float, float] | None:
    """Return the 95% interval of the mean of paired differences, one per seed, by Student's t.

    The result is None with fewer than `LEAST_SEEDS` seeds.

    Examples:
        >>> [round(end, 2) for end in interval_over_seeds([1.0, 2.0, 3.0])]
        [-0.48, 4.48]
        >>> interval_over_seeds([1.0, 2.0]) is None
        True
    """
    if len(differences) < LEAST_SEEDS:
        return None
    error = statistics.stdev(differences) / math.sqrt(len(differences))
    half = float(stdtrit(len(differences) - 1, 0.975)) * error
    middle = statistics.mean(differences)
    return middle - half, middle + half
