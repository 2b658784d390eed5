"""How many more test samples would show a difference that is not clear yet."""

from __future__ import annotations

import math

from comity.studies.estimate import Estimate

POWER = 0.8
"""The probability with which a difference of the observed size would then be clear."""
POWER_QUANTILE = 0.8416212335729143
"""The quantile of the normal distribution at `POWER`."""
MOST = 100_000
"""The largest number of samples that is worth naming."""


def more_samples(estimate: Estimate, samples: int) -> int | None:
    """Return how many test samples more would show a difference as large as the observed one.

    The variance due to samples falls with their number, that due to training does not. The result
    is None if the latter alone hides the difference, or if more than `MOST` samples are needed. It
    is rounded up to two digits.

    Args:
        estimate: The gain.
        samples: How many test samples it is of.
    """
    width = estimate.quantile + POWER_QUANTILE
    variance = (estimate.gain / width) ** 2 - estimate.training
    if variance <= 0 or not estimate.sampling:
        return None
    needed = samples * estimate.sampling / variance - samples
    if needed > MOST:
        return None
    digits: int = 10 ** max(0, len(str(math.ceil(needed))) - 2)
    return max(0, math.ceil(needed / digits)) * digits


def describe_power(estimate: Estimate, samples: int) -> str:
    """Return a phrase for a difference that is not clear: what could be seen, and what it takes.

    It is empty for an estimate of an earlier version, whose variances are not known.
    """
    if not estimate.quantile:
        return ""
    visible = f"a difference below {50 * (estimate.high - estimate.low):.1f} points cannot be seen"
    more = more_samples(estimate, samples)
    if more is None:
        return f"{visible}, and more test samples alone would not settle it"
    return f"{visible}; about {more:,} more test samples would probably settle it"
