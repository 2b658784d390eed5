"""`Estimate`: a gain over training alone, with its interval."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Verdict = Literal["gains", "level", "alone", "too few", "not judged"]
Baseline = Literal["SOLO", "own model"]
"""What gains are over: training the network alone, or the best model that a party trains alone."""
OVER_SOLO: Baseline = "SOLO"
OVER_OWN_MODEL: Baseline = "own model"


@dataclass(frozen=True)
class Estimate:
    """A gain over training alone, over all seeds, with a Bonferroni-corrected 95% interval."""

    gain: float
    low: float
    high: float
    sampling: float = 0.0
    """The variance due to the choice of test samples."""
    training: float = 0.0
    """The variance due to training: to other starts and, under cross-validation, training sets."""
    quantile: float = 0.0
    """How many standard errors are half of the interval; 0 in results of earlier versions."""

    @property
    def helped(self) -> bool:
        """Whether the interval lies above zero."""
        return self.low > 0

    @property
    def hurt(self) -> bool:
        """Whether the interval lies below zero."""
        return self.high < 0

    @property
    def verdict(self) -> Verdict:
        """The verdict on this gain alone: gains, level, or better alone."""
        return "gains" if self.helped else "alone" if self.hurt else "level"

    @property
    def short(self) -> str:
        """The gain in points, with half the width of the interval in brackets."""
        return f"{100 * self.gain:+.1f} (±{50 * (self.high - self.low):.1f})"

    def __str__(self) -> str:
        return (
            f"{100 * self.gain:+.1f} points (between {100 * self.low:.1f} and"
            f" {100 * self.high:.1f})"
        )
