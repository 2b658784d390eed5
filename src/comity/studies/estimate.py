"""`Estimate`: a gain over training alone, with its interval."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

from scipy.special import stdtrit

Verdict = Literal["gains", "level", "alone", "too few", "not judged"]
Baseline = Literal["SOLO", "own model"]
"""What gains are over: training the network alone, or the best model that a party trains alone."""
OVER_SOLO: Baseline = "SOLO"
OVER_OWN_MODEL: Baseline = "own model"
CUT = (
    "An interval that reaches -100 or +100 points is cut off there: the true difference may be"
    " anything up to that."
)
"""How to read an interval that is cut off (`Estimate.is_cut`)."""


@dataclass(frozen=True)
class Variances:
    """The variance of a gain: one part falls with more samples, the other with more runs."""

    sampling: float
    """The variance due to the choice of test samples."""
    between: float = 0.0
    """The variance between runs beyond that of their test samples: other starts of training and,
    under cross-validation, other training sets.
    """
    runs: int = 1
    """The number of runs: of seeds or, under cross-validation, of folds of all repeats."""
    folds: int = 1
    """The number of folds of cross-validation; 1 without it."""
    tail: float = 0.025
    """The probability beyond each end of the interval: with m methods, 0.025 / m (Bonferroni)."""
    freedom: float | None = None
    """The degrees of freedom of `between`; default: what follows from the number of runs."""

    @property
    def repeats(self) -> int:
        """The number of seeds, or of complete repeats of cross-validation."""
        return self.runs // self.folds

    @property
    def training(self) -> float:
        """The variance of the mean over runs that is due to training.

        The training sets of two folds overlap, so that these runs are not independent: the factor
        is that of Nadeau and Bengio (2003), 1 / runs + test size / training size.
        """
        overlap = 1 / (self.folds - 1) if self.folds > 1 else 0.0
        return self.between * (1 / self.runs + overlap)

    @property
    def error(self) -> float:
        """The standard error of the gain."""
        return math.sqrt(self.sampling + self.training)

    @property
    def quantile(self) -> float:
        """How many standard errors are half of the interval.

        `between` is estimated from few runs, hence Student's t, with Satterthwaite's degrees of
        freedom for the sum of both parts.
        """
        of_runs = self.freedom
        if of_runs is None:
            of_runs = self.runs - (max(1, self.repeats) if self.folds > 1 else 1)
        freedom = math.inf
        if self.training:
            freedom = of_runs * ((self.sampling + self.training) / self.training) ** 2
        return float(stdtrit(freedom, 1 - self.tail))

    def with_samples(self, factor: float) -> Variances:
        """Return the variances of a party with `factor` times as many samples.

        Under cross-validation, these are also more training samples, so that its runs differ less.
        Otherwise they are taken as further test samples.
        """
        between = self.between / factor if self.folds > 1 else self.between
        return replace(self, sampling=self.sampling / factor, between=between)


@dataclass(frozen=True)
class Estimate:
    """A gain over training alone, over all seeds, with a Bonferroni-corrected 95% interval."""

    gain: float
    low: float
    high: float
    variances: Variances | None = None
    """None in results of earlier versions."""

    @property
    def interval(self) -> dict[str, float]:
        """The gain and the ends of its interval, for a JSON file."""
        return {"gain": self.gain, "low": self.low, "high": self.high}

    @property
    def helped(self) -> bool:
        """Whether the interval lies above zero."""
        return self.low > 0

    @property
    def hurt(self) -> bool:
        """Whether the interval lies below zero."""
        return self.high < 0

    @property
    def is_cut(self) -> bool:
        """Whether an end of the interval is -100 or 100 points, where intervals by bounded metrics
        are cut off.
        """
        return self.low == -1.0 or self.high == 1.0

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
