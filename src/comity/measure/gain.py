"""A party's gain over training alone: the difference of a metric between a run and a SOLO run, on
the same test samples.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from comity.base.key import Key
from comity.errors import ComityError
from comity.metrics.evaluation import Answers
from comity.metrics.metrics import ACCURACY, METRICS, TWO, Metric
from comity.metrics.reliability import Z95
from comity.runs.folder import RunFolder

AT_ONCE = 4_000_000  # samples drawn in one batch, to bound the memory


@dataclass(frozen=True)
class Folds:
    """A gain in each run of cross-validation, one for each fold of each repeat."""

    number: int
    """The number of folds."""
    gains: tuple[float, ...]
    errors: tuple[float, ...]
    """Their standard errors due to the choice of test samples."""

    @property
    def between(self) -> float:
        """The variance between runs beyond that of their test samples.

        Each run has another training set and another start.
        """
        variance = statistics.variance(self.gains)
        return max(0.0, variance - statistics.fmean(error**2 for error in self.errors))

    @staticmethod
    def average(parties: Sequence[Folds]) -> Folds:
        """Return the mean gain of several parties in each run."""
        gains = zip(*(party.gains for party in parties), strict=True)
        errors = zip(*(party.errors for party in parties), strict=True)
        return Folds(
            parties[0].number,
            tuple(map(statistics.fmean, gains)),
            tuple(math.hypot(*of_run) / len(parties) for of_run in errors),
        )


@dataclass(frozen=True)
class Gain:
    """A party's gain over SOLO with its 95% interval.

    A gain above zero is better, also for metrics of which lower values are better.
    """

    party: str
    gain: float
    low: float
    high: float
    middle: float
    """The middle of the interval, which is closer to zero than the gain where samples are few."""
    error: float
    """The standard error, due to the choice of test samples."""
    folds: Folds | None = None
    """The gain in each run of cross-validation."""


def gains(run: Path, solo: Path, metric: str = ACCURACY.name) -> list[Gain]:
    """Return the gains of the parties in the folder `run` over the folder `solo`, a SOLO run.

    Both runs must have the same split. A party that did not report at the end of both runs, or for
    which the metric is not defined, is left out. Sites whose predictions may not leave them have
    computed their gains themselves.
    """
    summary = RunFolder(run).read_summary() or {}
    if summary.get("gained"):
        return [Gain(party, **figures) for party, figures in summary["gained"].items()]
    if metric == ACCURACY.name:
        now, before = RunFolder(run).read_outcomes(), RunFolder(solo).read_outcomes()
        return [
            paired_gain(party, right, before[party])
            for party, right in now.items()
            if party in before
        ]
    answers, solo_answers = RunFolder(run).read_answers(), RunFolder(solo).read_answers()
    return gains_from_answers(answers, solo_answers, METRICS[metric])


def gains_from_answers(
    now: dict[str, Answers], before: dict[str, Answers], metric: Metric
) -> list[Gain]:
    """Return the gains by a metric, from two models' predictions of the same test samples."""
    candidates = [
        bootstrap_gain(party, answers, before[party], metric)
        for party, answers in now.items()
        if party in before
    ]
    return [gain for gain in candidates if gain is not None]


def paired_gain(party: str, now: Sequence[int], before: Sequence[int]) -> Gain:
    """Return a party's gain in accuracy.

    `now` and `before` say which of the same test samples two models got right (1) or wrong (0).
    """
    better, worse = count_changes(now, before)
    middle, error = _of_changes(better, worse, len(now))
    return Gain(
        party, (better - worse) / len(now), *paired_interval(better, worse, len(now)), middle, error
    )


def count_changes(now: Sequence[int], before: Sequence[int]) -> tuple[int, int]:
    """Return how many test samples were right only now, and how many only before."""
    pairs = list(zip(now, before, strict=True))
    return sum(a > b for a, b in pairs), sum(a < b for a, b in pairs)


def paired_interval(better: int, worse: int, count: int) -> tuple[float, float]:
    """Return the 95% interval of a difference of paired proportions (Agresti and Min 2005).

    Of `count` samples, `better` were right only now, `worse` only before. Half a sample is added to
    each of the four cells, as the plain Wald interval is too narrow for small test sets.
    """
    middle, error = _of_changes(better, worse, count)
    return max(-1.0, middle - Z95 * error), min(1.0, middle + Z95 * error)


def _of_changes(better: int, worse: int, count: int) -> tuple[float, float]:
    """Return `mean_and_error` of `count` differences, of which `better` are 1 and `worse` are -1,
    in closed form.
    """
    b = better + 0.5
    c = worse + 0.5
    n = count + 2.0
    return (b - c) / n, math.sqrt(max(b + c - (b - c) ** 2 / n, 0.0)) / n


def mean_and_error(differences: Tensor, resolution: float = 1.0) -> tuple[float, float]:
    """Return the mean of paired differences and its standard error.

    Two pseudo-samples are added: half a sample that became better by `resolution`, half a sample
    that became worse by it, and one without a change. For accuracy, whose differences are 1, 0 or
    -1, this is `paired_interval`.

    Args:
        differences: one difference per sample
        resolution: the largest difference that one sample can make; 0 for no pseudo-samples
    """
    n = len(differences) + (2 if resolution else 0)
    total = float(differences.sum())
    squares = float(differences.square().sum()) + resolution**2
    return total / n, math.sqrt(max(squares - total**2 / n, 0.0)) / n


def bootstrap_gain(party: str, now: Answers, before: Answers, metric: Metric) -> Gain | None:
    """Return a party's gain by any metric, with a percentile interval of a paired bootstrap.

    The bootstrap is stratified: it draws as many samples of each class as there are. As in the
    interval for accuracy, four pseudo-samples are added: they are divided equally among the
    classes, and in each class a quarter is right in both runs, only now, only before, and in
    neither. Without them, the interval of twelve samples that all became right would have no width.

    The result is None where the metric is not defined for the samples, or a model has diverged.
    """
    if not torch.equal(now.truth, before.truth):
        raise ComityError(
            f"The test samples of {party} differ between the runs, so its gain cannot be computed."
        )
    y = now.truth if now.amounts else now.truth.long()
    classes = (
        1 + max([1, *y.tolist(), *now.given.tolist(), *before.given.tolist()])
        if not now.amounts
        else 0
    )
    scores_now, scores_before = now.scores(classes).double(), before.scores(classes).double()
    values = [metric.of(scores, y) for scores in (scores_now, scores_before)]
    if any(value is None or not math.isfinite(value) for value in values):
        return None
    tickets = torch.arange(len(y))
    if not now.amounts:
        scores_now, scores_before, y, tickets = _with_pseudo_samples(scores_now, scores_before, y)
    rows = max(1, min(metric.draws, AT_ONCE // len(tickets)))
    generator = Key.root(0).fold("gain", party).generator()
    batches = []
    for begin in range(0, metric.draws, rows):
        count = min(rows, metric.draws - begin)
        weights = (
            _bootstrap_weights(len(y), count, generator)
            if now.amounts
            else _stratified_weights(y, tickets, count, generator)
        )
        batches.append(
            metric.sign
            * (metric.figures(scores_now, y, weights) - metric.figures(scores_before, y, weights))
        )
    differences = torch.cat(batches)
    # R² is not defined where all draws are the same sample.
    differences = differences[differences.isfinite()]
    if not len(differences):
        return None
    low, high = torch.quantile(
        differences, torch.tensor([0.025, 0.975], dtype=differences.dtype)
    ).tolist()
    gain = metric.sign * ((values[0] or 0.0) - (values[1] or 0.0))
    return Gain(party, gain, low, high, float(differences.mean()), float(differences.std()))


def _with_pseudo_samples(
    scores_now: Tensor, scores_before: Tensor, y: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return scores and labels with four pseudo-samples of each class, and the list of tickets.

    A ticket is an index of a sample; the bootstrap draws tickets. A true sample has as many tickets
    as there are classes, a pseudo-sample has one. So all pseudo-samples together weigh as much as
    four samples.

    Pseudo-samples have extreme scores: of their class if they are right, of the next class if they
    are wrong.
    """
    classes = scores_now.shape[1]
    labels = y.unique()
    largest = torch.finfo(scores_now.dtype).max / 4
    right = largest * torch.eye(classes, dtype=scores_now.dtype)[labels]
    wrong = largest * torch.eye(classes, dtype=scores_now.dtype)[(labels + 1) % classes]
    copies = max(TWO, len(labels))
    pseudo = len(y) + torch.arange(4 * len(labels))
    tickets = torch.cat([torch.arange(len(y)).repeat(copies), pseudo])
    return (
        torch.cat([scores_now, right, right, wrong, wrong]),
        torch.cat([scores_before, right, wrong, right, wrong]),
        torch.cat([y, labels.repeat(4)]),
        tickets,
    )


def _bootstrap_weights(samples: int, rows: int, generator: torch.Generator) -> Tensor:
    """Return how many times each sample is in each of `rows` bootstrap samples."""
    weights = torch.zeros(rows, samples, dtype=torch.double)
    indices = torch.randint(samples, (rows, samples), generator=generator)
    return weights.scatter_add_(1, indices, torch.ones(1, dtype=torch.double).expand(rows, samples))


def _stratified_weights(
    y: Tensor, tickets: Tensor, rows: int, generator: torch.Generator
) -> Tensor:
    """Return how many times each sample is in each of `rows` stratified bootstrap samples."""
    weights = torch.zeros(rows, len(y), dtype=torch.double)
    for label in y.unique():
        of_class = tickets[y[tickets] == label]
        size = int((y == label).sum()) - 4  # without the pseudo-samples
        indices = of_class[torch.randint(len(of_class), (rows, size), generator=generator)]
        weights.scatter_add_(1, indices, torch.ones(1, dtype=torch.double).expand(rows, size))
    return weights
