"""Predictions of all samples of a party, each by the model that was not trained on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from comity.base.samples import Ints
from comity.metrics.evaluation import Answers
from comity.metrics.metrics import Metric

AT_ONCE = 4_000_000
"""How many weights of samples are computed with in one batch, to bound the memory."""


@dataclass(frozen=True)
class OutOfFold:
    """Predictions of all samples of a party, each by the model that was not trained on it, in the
    order of their positions.
    """

    answers: Answers
    fold: Tensor
    """The fold of each sample."""
    positions: Tensor

    def value(self, metric: Metric) -> float | None:
        """Return a metric of all predictions: None where it is not defined, NaN where a model has
        diverged.
        """
        if not metric.is_defined(self._labels()):
            return None
        return float(self._values(metric, torch.ones(1, len(self.fold), dtype=torch.double)))

    def pseudo_values(self, metric: Metric) -> Tensor:
        """Return the jackknife's pseudo-value of each sample: n θ - (n - 1) θ₋ᵢ, where θ₋ᵢ is the
        metric without sample i.

        Their mean is about the metric, and their spread gives its standard error. The pseudo-values
        of accuracy are 1 for a right prediction and 0 for a wrong one.
        """
        n = len(self.fold)
        whole = self._values(metric, torch.ones(1, n, dtype=torch.double))
        without = torch.cat(
            [
                self._values(metric, 1 - torch.eye(n, dtype=torch.double)[rows])
                for rows in torch.arange(n).split(max(1, AT_ONCE // n))
            ]
        )
        # Without the only sample of a class, a metric may not be defined.
        return n * whole - (n - 1) * torch.where(without.isfinite(), without, whole)

    def _labels(self) -> Tensor:
        truth = self.answers.truth
        return truth if self.answers.amounts else truth.long()

    def _values(self, metric: Metric, weights: Tensor) -> Tensor:
        y, predictions = self._labels(), self.answers.given
        classes = 0 if self.answers.amounts else 1 + max([1, *y.tolist(), *predictions.tolist()])
        scores = self.answers.scores(classes).double()
        if not metric.compares_scores:
            return metric.figures(scores, y, weights)
        # Scores of two models have different scales: only samples of one fold form pairs.
        sums = [torch.zeros(len(weights), dtype=torch.double) for _ in range(2)]
        for fold in self.fold.unique():
            of_fold = self.fold == fold
            weights_of_fold, positive = weights[:, of_fold], y[of_fold] == 1
            pairs = (weights_of_fold @ positive.double()) * (weights_of_fold @ (~positive).double())
            areas = metric.figures(scores[of_fold], y[of_fold], weights_of_fold)
            sums[0] += torch.where(pairs > 0, areas * pairs, 0.0)
            sums[1] += pairs
        return sums[0] / sums[1]


def join_answers(
    answers: Sequence[Answers], positions: Sequence[Sequence[int] | Ints | Tensor]
) -> Answers:
    """Return the predictions of several folds in the order of the samples' positions."""
    scores = [answer.score for answer in answers if answer.score is not None]
    return Answers(
        in_order([answer.truth for answer in answers], positions),
        in_order([answer.given for answer in answers], positions),
        in_order(scores, positions) if len(scores) == len(answers) else None,
    )


def in_order(parts: Sequence[Tensor], positions: Sequence[Sequence[int] | Ints | Tensor]) -> Tensor:
    """Return the rows of all parts in the order of their positions.

    Examples:
        >>> in_order([torch.tensor([10, 12]), torch.tensor([11])], [[0, 2], [1]])
        tensor([10, 11, 12])
    """
    return torch.cat(list(parts))[torch.cat([torch.as_tensor(p) for p in positions]).argsort()]
