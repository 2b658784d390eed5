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
from dataclasses import dataclass, replace

from comity.studies.estimate import Estimate, Variances

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

    A race begins with one fold, which says nothing about that. So the variance is estimated from an
    assumption, from the folds of all methods, and from those of the two methods at hand, each with
    its weight, as in a moderated t-test (Smyth 2004).
    """

    spread: float = 0.02
    """The standard deviation of the mean difference between two methods over trainings."""
    party_spread: float = 0.04
    """The same of one party's difference."""
    freedom: float = 8.0
    """How many folds this counts for."""
    first: float = 1.5
    """The factor of the assumed spread for a method's first fold, when nothing can correct it."""

    def informed_by(self, excess: Sequence[tuple[float, int]]) -> TrainingNoise:
        """Return the noise after looking at the folds of several methods.

        `excess` has the variance between folds, beyond that of test samples, of each method, and
        its degrees of freedom. Methods are compared with the same one, and so are not independent:
        they count half.
        """
        freedom = sum(count for _, count in excess) / 2
        if not freedom:
            return self
        variance = max(0.0, sum(v * n for v, n in excess) / sum(n for _, n in excess))
        total = self.freedom + freedom
        pooled = math.sqrt((self.freedom * self.spread**2 + freedom * variance) / total)
        scale = pooled / self.spread if self.spread else 1.0
        return replace(self, spread=pooled, party_spread=self.party_spread * scale, freedom=total)


@dataclass(frozen=True)
class Looks:
    """What the error probability of a race is divided by."""

    comparisons: int
    """The number of methods that are compared with the leader."""
    looks: int
    """The number of planned looks."""
    folds: int
    """The number of folds that the parties' samples are divided into."""
    noise: TrainingNoise
    """What is known about the noise of training."""

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
        by_fold = _differences(now, before, names)
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
        more = len(by_fold) - 1
        spread *= 1.0 if more else self.noise.first
        between = max(0.0, _excess(by_fold, sampling * len(by_fold)))
        freedom = self.noise.freedom + more
        variance = (self.noise.freedom * spread**2 + more * between) / freedom
        variances = Variances(
            sampling, variance, len(by_fold), max(2, self.folds), self.tail, freedom
        )
        half = variances.quantile * variances.error
        return Estimate(gain, gain - half, gain + half, variances)


def excess_variance(now: Sequence[Outcome], before: Sequence[Outcome]) -> float:
    """Return the variance of a mean difference between folds, beyond that of test samples.

    It is an unbiased estimate, which may be negative.
    """
    present = set.intersection(*(set(outcome.values) for outcome in (*now, *before)))
    by_fold = _differences(now, before, sorted(present))
    within = statistics.fmean(
        sum(_error(d, 0.0) ** 2 for d in of_fold) / len(of_fold) ** 2 for of_fold in by_fold
    )
    return _excess(by_fold, within)


def _differences(
    now: Sequence[Outcome], before: Sequence[Outcome], names: Sequence[str]
) -> list[list[list[float]]]:
    """Return the paired differences by fold, party and sample."""
    return [
        [[x - y for x, y in zip(a.values[name], b.values[name], strict=True)] for name in names]
        for a, b in zip(now, before, strict=True)
    ]


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
    return statistics.variance(means) - within if len(means) > 1 else 0.0
