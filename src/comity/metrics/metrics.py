"""Metrics of models: each has a name, a description, a direction, and a pure function of scores and
labels.

The function returns one value for each row of a weight table, which says how many times each sample
counts. So bootstrap intervals (`measure/gain.py`) are computed by the same function as the metric
itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from comity.errors import UsageError
from comity.metrics.auc import areas
from comity.metrics.reliability import brier, calibration_intercepts, calibration_slopes

TWO = 2


@dataclass(frozen=True)
class Metric:
    """A metric of a model's predictions."""

    name: str
    """Its name in metrics.csv and --metric."""
    title: str
    """Its name in reports and tables."""
    about: str
    """A short description."""
    figures: Callable[[Tensor, Tensor, Tensor], Tensor]
    """From scores (samples x classes), labels and weights (values x samples) to the values."""
    is_defined: Callable[[Tensor], bool] = lambda y: len(y) > 0
    """Whether the metric is defined for samples with these labels."""
    fits: Callable[[int], bool] = lambda classes: classes > 0
    """Whether it fits that number of classes; 0 stands for a label that is a number."""
    only: int | None = None
    """The class whose samples it depends on, if it is only one."""
    higher: bool = True
    """Whether higher is better."""
    bounded: bool = True
    """Whether it lies between 0 and 1."""
    percent: bool = True
    """Whether it is printed in percent."""
    eligible: bool = True
    """Whether `--metric` can choose it: it must follow from predictions (`Answers`) alone, which
    have scores for two classes only.
    """
    compares_scores: bool = False
    """Whether it compares the scores of two samples of two classes, which must then be of the same
    model.
    """
    can_be_infinite: bool = False
    """Whether it is infinite for some predictions of a model that has not diverged. Such a model
    has no value of it.
    """
    counts_only: bool = False
    """Whether it is a function of numbers of samples and of pairs of samples: then samples with a
    weight of 0 do not change even its last bit.
    """
    draws: int = 2_000
    """The number of bootstrap samples of an interval."""
    has_function: bool = True
    """Whether its function is available; of a custom metric, a run folder has the description only
    (`custom_metrics`).
    """

    @property
    def sign(self) -> int:
        """1, or -1 if lower is better: sign times the value is better when higher."""
        return 1 if self.higher else -1

    def text(self, figure: float) -> str:
        """Format a value."""
        return f"{figure:.1%}" if self.percent else f"{figure:.4g}"

    def of(self, scores: Tensor, y: Tensor) -> float | None:
        """Return the value for a model's scores (samples x classes) and labels.

        It is None where the metric is not defined for these labels or, if it can be, infinite; and
        NaN where the model has diverged.
        """
        if not self.is_defined(y):
            return None
        value = float(
            self.figures(scores, y, torch.ones(1, len(y), dtype=torch.double, device=y.device))
        )
        return None if self.can_be_infinite and math.isinf(value) else value


def _counts(scores: Tensor, y: Tensor, weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return, for each class: the true positives, the samples, and the predictions."""
    truth = F.one_hot(y, scores.shape[1]).to(weights.dtype)
    answer = F.one_hot(scores.argmax(1), scores.shape[1]).to(weights.dtype)
    return weights @ (truth * answer), weights @ truth, weights @ answer


def _accuracy(scores: Tensor, y: Tensor, weights: Tensor) -> Tensor:
    hits, support, _ = _counts(scores, y, weights)
    return hits.sum(1) / support.sum(1)


def _recalls(scores: Tensor, y: Tensor, weights: Tensor) -> Tensor:
    """Return the recall of each class; NaN for a class without samples."""
    hits, support, _ = _counts(scores, y, weights)
    return hits / support


def _macro_f1(scores: Tensor, y: Tensor, weights: Tensor) -> Tensor:
    hits, support, predicted = _counts(scores, y, weights)
    return (2 * hits / (support + predicted)).nanmean(1)


def _auc_micro(scores: Tensor, y: Tensor, weights: Tensor) -> Tensor:
    right = F.one_hot(y, scores.shape[1]).flatten().bool()
    return areas(scores.flatten(), right, weights.repeat_interleave(scores.shape[1], 1))


def _score(scores: Tensor) -> Tensor:
    """Return the second class's score minus the first's."""
    return scores[:, 1] - scores[:, 0]


def _r2(scores: Tensor, y: Tensor, weights: Tensor) -> Tensor:
    truth = y.to(weights.dtype)
    total = weights.sum(1)
    residual = weights @ (scores[:, 0].to(weights.dtype) - truth).square()
    variation = weights @ truth.square() - (weights @ truth).square() / total
    return 1 - residual / variation


def _has_two_values(y: Tensor) -> bool:
    return bool((y != y[:1]).any())


class Metrics(dict[str, Metric]):
    """Comity's metrics by name. Custom metrics (`custom_metrics`) are found as well, but not
    listed.
    """

    custom: dict[str, Metric]

    def __missing__(self, name: str) -> Metric:
        return self.custom[name]


METRICS = Metrics(
    (metric.name, metric)
    for metric in (
        Metric(
            "accuracy",
            "accuracy",
            "the share of samples that are right",
            _accuracy,
            counts_only=True,
        ),
        Metric(
            "balanced_accuracy",
            "balanced accuracy",
            "the share of each class that is recognised, averaged over the classes that are there",
            lambda scores, y, weights: _recalls(scores, y, weights).nanmean(1),
            counts_only=True,
        ),
        Metric(
            "macro_f1",
            "macro F1",
            "the F1 of each class that is there or was answered, averaged over these classes",
            _macro_f1,
            counts_only=True,
        ),
        Metric(
            "auc",
            "AUC",
            "the chance that a sample of class 1 has a higher score than one of class 0",
            lambda scores, y, weights: areas(_score(scores), y == 1, weights),
            is_defined=_has_two_values,
            fits=lambda classes: classes == TWO,
            compares_scores=True,
            counts_only=True,
        ),
        Metric(
            "sensitivity",
            "sensitivity",
            "the share of class 1 that is recognised",
            lambda scores, y, weights: _recalls(scores, y, weights)[:, 1],
            is_defined=lambda y: bool((y == 1).any()),
            fits=lambda classes: classes == TWO,
            only=1,
            counts_only=True,
        ),
        Metric(
            "specificity",
            "specificity",
            "the share of class 0 that is recognised",
            lambda scores, y, weights: _recalls(scores, y, weights)[:, 0],
            is_defined=lambda y: bool((y == 0).any()),
            fits=lambda classes: classes == TWO,
            only=0,
            counts_only=True,
        ),
        Metric(
            "brier",
            "Brier score",
            "the squared difference between the probability of class 1 and the outcome, averaged;"
            " 0 is the best",
            lambda scores, y, weights: brier(_score(scores), y, weights),
            fits=lambda classes: classes == TWO,
            higher=False,
            percent=False,
            eligible=False,
        ),
        Metric(
            "calibration_slope",
            "calibration slope",
            "the slope of the outcome on the score: 1 is right, and less says that probabilities"
            " are too extreme",
            lambda scores, y, weights: calibration_slopes(_score(scores), y, weights),
            is_defined=_has_two_values,
            fits=lambda classes: classes == TWO,
            bounded=False,
            percent=False,
            eligible=False,
            can_be_infinite=True,
        ),
        Metric(
            "calibration_intercept",
            "calibration intercept",
            "what is to be added to all scores to predict class 1 as often as it occurs: 0 is"
            " right, and less says that its probabilities are too high",
            lambda scores, y, weights: calibration_intercepts(_score(scores), y, weights),
            is_defined=_has_two_values,
            fits=lambda classes: classes == TWO,
            bounded=False,
            percent=False,
            eligible=False,
        ),
        Metric(
            "auc_micro",
            "micro AUC",
            "the chance that a pair of a sample and its class has a higher score than one of a"
            " sample and another class",
            _auc_micro,
            is_defined=_has_two_values,
            fits=lambda classes: classes > TWO,
            eligible=False,
            counts_only=True,
        ),
        Metric(
            "r2",
            "R²",
            "the share of the label's variance among the party's samples that is explained",
            _r2,
            is_defined=_has_two_values,
            fits=lambda classes: classes == 0,
            bounded=False,
        ),
        Metric(
            "mae",
            "mean absolute error",
            "by how much a prediction is off, in the label's own unit",
            lambda scores, y, weights: (
                weights @ (scores[:, 0] - y).abs().to(weights.dtype) / weights.sum(1)
            ),
            fits=lambda classes: classes == 0,
            higher=False,
            bounded=False,
            percent=False,
            eligible=False,
        ),
    )
)
METRICS.custom = {}
ACCURACY = METRICS["accuracy"]
"""The default metric; it is computed for every run that predicts classes."""
EXPLAINED = METRICS["r2"]
"""The default metric of runs that predict a number."""
ELIGIBLE = tuple(name for name, metric in METRICS.items() if metric.eligible)
"""The names that `--metric` accepts, beside custom metrics."""


def metrics_for(classes: int) -> list[Metric]:
    """Return the metrics that fit that number of classes."""
    return [metric for metric in METRICS.values() if metric.fits(classes)]


def check_fits(name: str, classes: int) -> None:
    """Raise UsageError if a metric does not fit that number of classes."""
    display_name = METRICS[name].name
    if not classes and not METRICS[name].fits(0):
        raise UsageError(
            f"metric {display_name} is for classes, but the label of these data is a number: choose"
            f" {EXPLAINED.name}."
        )
    if classes and METRICS[name].fits(0):
        raise UsageError(
            f"metric {display_name} is for labels that are numbers, but these data have {classes}"
            " classes."
        )
    if not METRICS[name].fits(classes):
        others = ", ".join(metric.name for metric in metrics_for(classes) if metric.eligible)
        raise UsageError(
            f"metric {display_name} is for two classes, but these data have {classes}: choose one"
            f" of {others}."
        )


LEAST_OF_CLASS = 5
"""With two classes: the fewest test samples of a class that a party can be evaluated on."""
LEAST = 10
"""With more classes, or a label that is a number: the fewest test samples."""


def count_by_class(y: Tensor, classes: int) -> tuple[int, ...]:
    """Return the number of samples of each class; in total, where the label is a number."""
    return tuple(torch.bincount(y, minlength=classes).tolist()) if classes else (len(y),)


def relevant_classes(metric: Metric) -> Sequence[int]:
    """Return which of two classes a metric depends on."""
    return range(TWO) if metric.only is None else (metric.only,)


def has_too_few(tests: Sequence[int], metric: Metric) -> bool:
    """Return whether a party's test samples, counted by class, are too few to evaluate it."""
    if len(tests) != TWO:
        return sum(tests) < LEAST
    return any(tests[label] < LEAST_OF_CLASS for label in relevant_classes(metric))
