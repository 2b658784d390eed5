"""Differences between two methods with intervals that allow for test samples and for training.

The methods are compared on folds that were not used to choose them, so that their intervals need no
correction for the number of methods that were tried.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

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
    """What is assumed about how the difference between two methods varies over trainings.

    It has two parts. The choice of training samples matters less the more there are. The seed
    (first weights, order of batches) matters however many samples there are, and more for methods
    that disagree on many samples; it is averaged out by folds and repeats. The figures were
    measured on development federations (`benchmarks/advise.py`).

    A few folds say little about the seed's part. So it is estimated from this assumption and from
    the runs of the two methods at hand, each with its weight, as in a moderated t-test (Smyth
    2004).
    """

    seeds: float = 2.5e-3
    """The variance over seeds, relative to the variance of a sample's difference."""
    party_seeds: float = 0.02
    """The same of one party's difference, of which fewer trainings are the mean."""
    sets: float = 0.5
    """The variance over training sets, relative to the variance due to test samples if all samples
    were tested on.
    """
    freedom: float = 4.0
    """How many degrees of freedom the assumption on seeds counts for."""


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
        self,
        now: Sequence[Sequence[FoldOutcome]],
        before: Sequence[Sequence[FoldOutcome]],
        party: str | None = None,
    ) -> Estimate:
        """Return the difference between two methods on the same folds.

        Args:
            now: The outcomes of one method, by fold and repeat.
            before: Those of the other method on the same folds.
            party: Only this party; default: the mean over parties.

        The variance of test samples is estimated within parties, as the parties themselves are
        given, and samples of a party are compared in pairs. That of training sets does not fall to
        zero with the number of folds, as training sets of two folds overlap (Nadeau and Bengio
        2003). That of seeds is `between` of the result.
        """
        repeats = min(len(of_fold) for of_fold in (*now, *before))
        every = [outcome for of_fold in (*now, *before) for outcome in of_fold[:repeats]]
        present = set.intersection(*(set(outcome.values) for outcome in every))
        names = sorted(present & {party} if party else present)
        by_repeat = [
            _differences([f[r] for f in now], [f[r] for f in before], names) for r in range(repeats)
        ]
        by_fold = _mean_over_repeats(by_repeat)
        pooled = [
            [d for of_fold in by_fold for d in of_fold[k]]
            for k in range(len(names))
            if all(of_fold[k] for of_fold in by_fold)
        ]
        if not pooled:
            return Estimate(0.0, -1.0, 1.0)
        resolution = max(
            (abs(v) for o in every for name in names for v in o.values[name]), default=1.0
        )
        gain = statistics.fmean(map(statistics.fmean, pooled))
        sampling = sum(_error(d, resolution) ** 2 for d in pooled) / len(pooled) ** 2
        tested, folds = len(by_fold), max(2, self.folds)
        if_all = sampling * tested / folds
        sets = self.noise.sets * if_all * (1 / tested + 1 / (folds - 1))
        ratio = self.noise.seeds if party is None else self.noise.party_seeds
        assumed = ratio * _disagreement(by_repeat, resolution)
        if repeats > 1:
            more, observed = tested * (repeats - 1), _over_repeats(by_repeat)
        else:
            more, observed = tested - 1, _excess(by_fold, sampling * tested)
        freedom = self.noise.freedom + more
        seeds = (self.noise.freedom * assumed + more * max(0.0, observed)) / freedom
        variances = Variances(
            sampling + sets, seeds, tested * repeats, tail=self.tail, freedom=freedom
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


def _mean_over_repeats(
    by_repeat: Sequence[Sequence[Sequence[Sequence[float]]]],
) -> list[list[list[float]]]:
    """Return the differences by fold, party and sample, mean over repeats."""
    if len(by_repeat) == 1:
        return [[list(d) for d in of_fold] for of_fold in by_repeat[0]]
    return [
        [
            [statistics.fmean(d) for d in zip(*runs, strict=True)]
            for runs in zip(*folds, strict=True)
        ]
        for folds in zip(*by_repeat, strict=True)
    ]


def _disagreement(
    by_repeat: Sequence[Sequence[Sequence[Sequence[float]]]], resolution: float
) -> float:
    """Return the variance of a sample's difference in one run, mean over parties and repeats."""
    variances = []
    for by_fold in by_repeat:
        for of_party in zip(*by_fold, strict=True):
            of_all_folds = [d for of_fold in of_party for d in of_fold]
            if of_all_folds:
                variances.append(len(of_all_folds) * _error(of_all_folds, resolution) ** 2)
    return statistics.fmean(variances)


def _over_repeats(by_repeat: Sequence[Sequence[Sequence[Sequence[float]]]]) -> float:
    """Return the variance of a fold's mean difference over seeds, beyond what its test samples
    explain, mean over folds.
    """
    excess = []
    for runs in zip(*by_repeat, strict=True):  # of one fold, by repeat, party and sample
        means = [statistics.fmean(statistics.fmean(d) for d in of_run if d) for of_run in runs]
        within = 0.0
        parties = [of_party for of_party in zip(*runs, strict=True) if of_party[0]]
        for of_party in parties:
            centre = [statistics.fmean(d) for d in zip(*of_party, strict=True)]
            residues = [[x - c for x, c in zip(d, centre, strict=True)] for d in of_party]
            # divided by the number of repeats - 1, as the residues of a sample sum to zero
            spread = sum(map(statistics.pvariance, residues)) / (len(runs) - 1)
            within += spread / len(centre)
        excess.append(statistics.variance(means) - within / len(parties) ** 2)
    return statistics.fmean(excess)


def further(variances: Variances, noise: TrainingNoise, folds: int, repeats: int) -> Variances:
    """Return the variances of a difference that is tested on so many folds and repeats."""
    more = folds * (repeats - 1) if repeats > 1 else folds - 1
    return replace(variances, runs=folds * repeats, freedom=noise.freedom + more)


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
