"""Differences between two methods with intervals that hold at every look of a race.

A race looks at the differences again and again, and ends when they are clear. An interval for one
look would then be too optimistic. Here each of the planned looks, and each of the methods, has an
equal share of the error probability (a union bound), so that with probability 95% all intervals of
all looks hold together, wherever the race ends.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scipy.special import stdtrit

from comity.studies.estimate import Estimate

ERROR = 0.05
"""The probability that any interval of a race misses, at any look."""


@dataclass(frozen=True)
class Outcome:
    """The result of one method on one fold, after some of its rounds or all of them."""

    values: Mapping[str, tuple[float, ...]]
    """By party: what each test sample adds to the metric, higher is better. For accuracy: 1 for a
    right prediction and 0 for a wrong one.
    """
    loss: float | None = None
    """The test loss, mean over parties."""
    seconds: float = 0.0
    """The seconds of the whole run so far."""

    @property
    def mean(self) -> float:
        """The metric, mean over parties."""
        return statistics.fmean(statistics.fmean(v) for v in self.values.values() if v)


@dataclass(frozen=True)
class TrainingNoise:
    """How much two trainings on other folds differ beyond what their test samples explain.

    A race begins with one fold, which says nothing about that. So the standard deviation is
    estimated from earlier federations and from the folds at hand together, as in a moderated t-test
    (Smyth 2004).
    """

    spread: float = 0.012
    """The standard deviation of the mean difference between two methods over trainings."""
    party_spread: float = 0.03
    """The same of one party's difference."""
    freedom: float = 8.0
    """How many folds the earlier federations count for."""


@dataclass(frozen=True)
class Looks:
    """What the error probability of a race is divided by."""

    comparisons: int
    """The number of methods that are compared with the leader."""
    looks: int
    """The number of planned looks."""
    folds: int
    """The number of folds that the parties' samples are divided into."""
    noise: TrainingNoise = TrainingNoise()

    @property
    def tail(self) -> float:
        """The error probability of one end of one interval."""
        return ERROR / (2 * max(1, self.comparisons) * max(1, self.looks))

    def difference(
        self, now: Sequence[Outcome], before: Sequence[Outcome], party: str | None = None
    ) -> Estimate:
        """Return the difference between two methods on the same folds.

        Args:
            now: The outcomes of one method, by fold.
            before: Those of the other method on the same folds.
            party: Only this party; default: the mean over parties.

        The variance of test samples is estimated within parties, as the parties themselves are
        given, and samples of a party are compared in pairs. The variance of training is that
        between folds; training sets of two folds overlap, so it falls more slowly than with their
        number (Nadeau and Bengio 2003).
        """
        present = set.intersection(*(set(outcome.values) for outcome in (*now, *before)))
        names = sorted(present & {party} if party else present)
        by_fold = [
            [[x - y for x, y in zip(a.values[name], b.values[name], strict=True)] for name in names]
            for a, b in zip(now, before, strict=True)
        ]
        pooled = [
            [d for of_fold in by_fold for d in of_fold[k]]
            for k in range(len(names))
            if all(of_fold[k] for of_fold in by_fold)
        ]
        if not pooled:
            return Estimate(0.0, -1.0, 1.0)
        resolution = max(
            (abs(v) for o in (*now, *before) for name in names for v in o.values[name]), default=1.0
        )
        gain = statistics.fmean(map(statistics.fmean, pooled))
        sampling = sum(_error(d, resolution) ** 2 for d in pooled) / len(pooled) ** 2
        spread = self.noise.party_spread if party else self.noise.spread
        between = _excess(by_fold, sampling * len(by_fold))
        more = len(by_fold) - 1
        freedom = self.noise.freedom + more
        variance = (self.noise.freedom * spread**2 + more * between) / freedom
        training = variance * (1 / len(by_fold) + 1 / max(1, self.folds - 1))
        total = sampling + training
        degrees = freedom * (total / training) ** 2 if training else math.inf
        quantile = float(stdtrit(degrees, 1 - self.tail))
        half = quantile * math.sqrt(total)
        return Estimate(gain, gain - half, gain + half, sampling, training, quantile)


def _error(differences: Sequence[float], resolution: float) -> float:
    """Return the standard error of a mean of paired differences.

    As in `measure.gain.paired_interval`, two pseudo-samples are added, one in each direction for
    half a sample: otherwise a party whose few samples all agree would have no error at all.
    """
    n = len(differences) + 2
    squares = sum(d * d for d in differences) + resolution**2
    return math.sqrt(max(squares - sum(differences) ** 2 / n, 0.0)) / n


def _excess(by_fold: Sequence[Sequence[Sequence[float]]], within: float) -> float:
    """Return the variance of the mean difference between folds, beyond that of test samples."""
    if len(by_fold) < 2:
        return 0.0
    means = [
        statistics.fmean(statistics.fmean(d) for d in of_fold if d)
        for of_fold in by_fold
        if any(of_fold)
    ]
    return max(0.0, statistics.variance(means) - within) if len(means) > 1 else 0.0
