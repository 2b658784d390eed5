"""Confidence intervals over seeds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from scipy.special import stdtrit


def interval_over_seeds(differences: Sequence[float]) -> tuple[float, float]:
    """Return the 95% interval of the mean of paired differences, one per seed, by Student's t."""
    error = statistics.stdev(differences) / math.sqrt(len(differences))
    half = float(stdtrit(len(differences) - 1, 0.975)) * error
    middle = statistics.mean(differences)
    return middle - half, middle + half
