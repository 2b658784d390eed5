"""The power of a comparison: the smallest difference that a party's samples can show, and what
would show the observed one.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, replace

from comity.studies.estimate import Estimate, Variances

PROBABILITY = 0.8
"""The probability with which a difference is then clear."""
QUANTILE = 0.8416212335729143
"""The quantile of the normal distribution at `PROBABILITY`."""
MOST_TIMES = 20
"""More samples than so many times those of the party are not named."""
MOST_REPEATS = 10
"""The largest number of seeds, or of repeats of cross-validation, that is named."""


@dataclass(frozen=True)
class Power:
    """What a party's samples can show, where there is no clear difference."""

    visible: float
    """The smallest true difference that would be clear with a probability of 80%."""
    more_samples: int | None
    """How many more test samples (under cross-validation, samples) would show a difference of the
    observed size with that probability; None if no number up to `MOST_TIMES` theirs would.
    """
    repeats: int | None
    """How many seeds, or repeats of cross-validation, would show it with the same samples."""
    folds: int = 1
    """The number of folds of cross-validation; 1 without it."""

    @staticmethod
    def of(estimate: Estimate, samples: int) -> Power | None:
        """Return the power at a party that is tested on so many samples; None for an estimate of an
        earlier version.
        """
        variances = estimate.variances
        if variances is None:
            return None
        return Power(
            visible_difference(variances),
            _more_samples(abs(estimate.gain), variances, samples),
            _repeats(abs(estimate.gain), variances),
            variances.folds,
        )

    @property
    def kind_of_samples(self) -> str:
        """What the samples are called: under cross-validation, all are tested on."""
        return "samples" if self.folds > 1 else "test samples"

    @property
    def remedies(self) -> list[str]:
        """What would show a difference of the observed size, the cheapest first."""
        runs = "repeats (--repeats {})" if self.folds > 1 else "seeds"
        remedies = []
        if self.repeats:
            remedies.append(f"{self.repeats} {runs.format(self.repeats)}")
        if self.more_samples:
            remedies.append(f"about {self.more_samples:,} more {self.kind_of_samples}")
        return remedies

    def __str__(self) -> str:
        text = f"a difference below {100 * self.visible:.1f} points hardly shows"
        if not self.remedies:
            return text
        return f"{text}; {' or '.join(self.remedies)} would probably settle it"


def visible_difference(variances: Variances) -> float:
    """Return the smallest true difference that is clear with a probability of 80%."""
    return (variances.quantile + QUANTILE) * variances.error


def _more_samples(gain: float, variances: Variances, samples: int) -> int | None:
    """Return the number of samples to add, of two digits; None if it is not worth naming."""

    def shows(more: int) -> bool:
        return visible_difference(variances.with_samples(1 + more / max(1, samples))) <= gain

    numbers = _round_numbers((MOST_TIMES - 1) * samples)
    place = bisect_left(numbers, True, key=shows)
    return numbers[place] if place < len(numbers) else None


def _round_numbers(most: int) -> list[int]:
    """Return the numbers up to `most` that have at most two digits that are not zero.

    Examples:
        >>> _round_numbers(120)[-3:]
        [100, 110, 120]
    """
    numbers, scale = list(range(1, min(most, 99) + 1)), 1
    while 100 * scale <= most:
        numbers += [digits * 10 * scale for digits in range(10, 100)]
        scale *= 10
    return [number for number in numbers if number <= most]


def _repeats(gain: float, variances: Variances) -> int | None:
    """Return the number of seeds or repeats; None if it is not worth naming."""
    if not variances.between:
        return None
    return next(
        (
            repeats
            for repeats in range(variances.repeats + 1, MOST_REPEATS + 1)
            if visible_difference(replace(variances, runs=repeats * variances.folds)) <= gain
        ),
        None,
    )
