"""Differences between two methods with intervals that allow for test samples and for training.

The methods are compared on folds that were not used to choose them, so that their intervals need no
correction for the number of methods that were tried.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from comity.measure.gain import mean_and_error
from comity.studies.estimate import Estimate, Variances

ERROR = 0.05
"""The probability that any of the intervals that are made together misses."""


@dataclass(frozen=True)
class FoldOutcome:
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

    A few folds say little about that. So the variance is estimated from an assumption and from the
    folds of the two methods at hand, each with its weight, as in a moderated t-test (Smyth 2004).
    """

    spread: float = 0.02
    """The standard deviation of the mean difference between two methods over trainings: that of the
    development federations of `benchmarks/advise_landscape.py`.
    """
    party_spread: float = 0.06
    """The same of one party's difference."""
    freedom: float = 8.0
    """How many folds this counts for."""


@dataclass(frozen=True)
class PairedTest:
    """Compares methods on the same folds, by intervals that hold together with 95%."""

    comparisons: int
    """The number of intervals among which the error probability is divided (Bonferroni)."""
    folds: int
    """The number of folds that the parties' samples are divided into."""
    noise: TrainingNoise = TrainingNoise()
    """What is assumed about the noise of training."""

    @property
    def tail(self) -> float:
        """The error probability of one end of one interval."""
        return ERROR / (2 * max(1, self.comparisons))

    def difference(
        self, now: Sequence[FoldOutcome], before: Sequence[FoldOutcome], party: str | None = None
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
        between = max(0.0, _excess(by_fold, sampling * len(by_fold)))
        freedom = self.noise.freedom + more
        variance = (self.noise.freedom * spread**2 + more * between) / freedom
        variances = Variances(
            sampling, variance, len(by_fold), max(2, self.folds), self.tail, freedom
        )
        half = variances.quantile * variances.error
        return Estimate(gain, gain - half, gain + half, variances)


def _differences(
    now: Sequence[FoldOutcome], before: Sequence[FoldOutcome], names: Sequence[str]
) -> list[list[list[float]]]:
    """Return the paired differences by fold, party and sample."""
    return [
        [[x - y for x, y in zip(a.values[name], b.values[name], strict=True)] for name in names]
        for a, b in zip(now, before, strict=True)
    ]


def _error(differences: Sequence[float], resolution: float) -> float:
    """Return the standard error of a mean of paired differences."""
    return mean_and_error(torch.tensor(differences, dtype=torch.double), resolution)[1]


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
