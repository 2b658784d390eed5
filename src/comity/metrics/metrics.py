"""What models are judged by: each metric is a name, a meaning, a direction, and one pure function
of scores and labels.

The function works out a figure for each row of a table of weights, which say how many times each
sample counts. So an interval that comes of drawing samples again (`measure/gain.py`) is of the very
figure that it stands beside.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from comity.errors import UsageError
from comity.metrics.auc import areas

TWO = 2


@dataclass(frozen=True)
class Metric:
    """A way to judge a model's answers."""

    name: str
    """As in metrics.csv and --metric."""
    title: str
    """As people read it."""
    about: str
    """What it is, in a few words."""
    figures: Callable[[Tensor, Tensor, Tensor], Tensor]
    """From scores (samples x classes), labels and weights (figures x samples) to the figures."""
    needs: Callable[[Tensor], bool] = lambda y: len(y) > 0
    """Whether samples of these labels have such a figure."""
    fits: Callable[[int], bool] = lambda classes: classes > 0
    """Whether it is for so many classes; 0 where the label is a number."""
    only: int | None = None
    """The one class that it looks at, if it is one."""
    higher: bool = True
    """Whether more is better."""
    bounded: bool = True
    """Whether it is a share, between 0 and 1."""
    percent: bool = True
    """Whether people read it in hundredths."""
    eligible: bool = True
    """Whether methods can be judged by it: their answers alone must tell it, and for two classes
    their scores.
    """
    draws: int = 2_000
    """How often test samples are drawn again for an interval."""
    known: bool = True
    """Whether its function is here; of a user's own there may be a description only
    (`own_metrics`).
    """

    @property
    def sign(self) -> int:
        """What a figure is multiplied with so that more is better."""
        return 1 if self.higher else -1

    def text(self, figure: float) -> str:
        """A figure as people read it."""
        return f"{figure:.1%}" if self.percent else f"{figure:.4g}"

    def of(self, scores: Tensor, y: Tensor) -> float | None:
        """The figure of a model's scores for each class; None where there is none, NaN where the
        model has diverged.
        """
        if not self.needs(y):
            return None
        return float(
            self.figures(scores, y, torch.ones(1, len(y), dtype=torch.double, device=y.device))
        )


def _counts(scores: Tensor, y: Tensor, weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """For each class: how many samples of it were recognised, how many there are, how often it was
    the answer.
    """
    truth = F.one_hot(y, scores.shape[1]).to(weights.dtype)
    answer = F.one_hot(scores.argmax(1), scores.shape[1]).to(weights.dtype)
    return weights @ (truth * answer), weights @ truth, weights @ answer


def _accuracy(scores: Tensor, y: Tensor, weights: Tensor) -> Tensor:
    hits, held, _ = _counts(scores, y, weights)
    return hits.sum(1) / held.sum(1)


def _recalls(scores: Tensor, y: Tensor, weights: Tensor) -> Tensor:
    """The share of each class that was recognised; NaN where there is none of it."""
    hits, held, _ = _counts(scores, y, weights)
    return hits / held


def _macro_f1(scores: Tensor, y: Tensor, weights: Tensor) -> Tensor:
    hits, held, answered = _counts(scores, y, weights)
    return (2 * hits / (held + answered)).nanmean(1)


def _auc_micro(scores: Tensor, y: Tensor, weights: Tensor) -> Tensor:
    right = F.one_hot(y, scores.shape[1]).flatten().bool()
    return areas(scores.flatten(), right, weights.repeat_interleave(scores.shape[1], 1))


def _r2(scores: Tensor, y: Tensor, weights: Tensor) -> Tensor:
    truth = y.to(weights.dtype)
    total = weights.sum(1)
    off = weights @ (scores[:, 0].to(weights.dtype) - truth).square()
    spread = weights @ truth.square() - (weights @ truth).square() / total
    return 1 - off / spread


def _both(y: Tensor) -> bool:
    return bool((y != y[:1]).any())


class Metrics(dict[str, Metric]):
    """The metrics that Comity has, by name. A user's own (`own_metrics`) are found by theirs as
    well, but are listed nowhere.
    """

    own: dict[str, Metric]

    def __missing__(self, name: str) -> Metric:
        return self.own[name]


METRICS = Metrics(
    (metric.name, metric)
    for metric in (
        Metric("accuracy", "accuracy", "the share of samples that are right", _accuracy),
        Metric(
            "balanced_accuracy",
            "balanced accuracy",
            "the share of each class that is recognised, averaged over the classes that are there",
            lambda scores, y, weights: _recalls(scores, y, weights).nanmean(1),
        ),
        Metric(
            "macro_f1",
            "macro F1",
            "the F1 of each class that is there or was answered, averaged over these classes",
            _macro_f1,
        ),
        Metric(
            "auc",
            "AUC",
            "the chance that a sample of class 1 has a higher score than one of class 0",
            lambda scores, y, weights: areas(scores[:, 1] - scores[:, 0], y == 1, weights),
            needs=_both,
            fits=lambda classes: classes == TWO,
        ),
        Metric(
            "sensitivity",
            "sensitivity",
            "the share of class 1 that is recognised",
            lambda scores, y, weights: _recalls(scores, y, weights)[:, 1],
            needs=lambda y: bool((y == 1).any()),
            fits=lambda classes: classes == TWO,
            only=1,
        ),
        Metric(
            "specificity",
            "specificity",
            "the share of class 0 that is recognised",
            lambda scores, y, weights: _recalls(scores, y, weights)[:, 0],
            needs=lambda y: bool((y == 0).any()),
            fits=lambda classes: classes == TWO,
            only=0,
        ),
        Metric(
            "auc_micro",
            "micro AUC",
            "the chance that a pair of a sample and its class has a higher score than one of a"
            " sample and another class",
            _auc_micro,
            needs=_both,
            fits=lambda classes: classes > TWO,
            eligible=False,
        ),
        Metric(
            "r2",
            "R²",
            "the share of the label's variance among the party's samples that is explained",
            _r2,
            needs=_both,
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
METRICS.own = {}
ACCURACY = METRICS["accuracy"]
"""What everything is judged by unless told, and what is told of every run that predicts classes."""
EXPLAINED = METRICS["r2"]
"""What runs are judged by that predict a number."""
ELIGIBLE = tuple(name for name, metric in METRICS.items() if metric.eligible)
"""The metrics that --metric can choose."""


def fitting(classes: int) -> list[Metric]:
    """The metrics for so many classes."""
    return [metric for metric in METRICS.values() if metric.fits(classes)]


def check_fits(name: str, classes: int) -> None:
    """Refuse to judge by a metric that is not for so many classes."""
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
        others = ", ".join(metric.name for metric in fitting(classes) if metric.eligible)
        raise UsageError(
            f"metric {display_name} is for two classes, but these data have {classes}: choose one"
            f" of {others}."
        )


LEAST_OF_CLASS = 5
"""Test samples of each of two classes without which a party's figures tell nothing."""
LEAST = 10
"""Test samples, of whatever class, where there are more classes, or none."""


def by_class(y: Tensor, classes: int) -> tuple[int, ...]:
    """How many samples there are of each class; in all, where the label is a number."""
    return tuple(torch.bincount(y, minlength=classes).tolist()) if classes else (len(y),)


def looked_at(metric: Metric) -> Sequence[int]:
    """Which of two classes a metric looks at."""
    return range(TWO) if metric.only is None else (metric.only,)


def too_few(tests: Sequence[int], metric: Metric) -> bool:
    """Whether a party's test samples, counted by class, are too few to judge it by."""
    if len(tests) != TWO:
        return sum(tests) < LEAST
    return any(tests[label] < LEAST_OF_CLASS for label in looked_at(metric))
