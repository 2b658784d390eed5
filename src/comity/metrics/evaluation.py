"""How good a party's model is: on the party's own validation and test data, at the party."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from comity.base.content import Content, describe
from comity.base.record import Params, record
from comity.base.samples import PartyData, Samples
from comity.metrics.metrics import ACCURACY, METRICS, TWO, fitting
from comity.training.kernels import squared_error
from comity.training.task import LearningTask, in_chunks


@record
class Score:
    """How a model does on one split."""

    correct: int = describe(
        Content("how many validation records a model answers right", "", "validation")
    )
    """How many are right; none where the label is a number."""
    count: int = describe(Content("how many validation records there are", "", "validation"))
    loss: float = describe(
        Content("how wrong a model is on validation records, on average", "", "validation")
    )
    figures: dict[str, float] = describe(
        Content("further figures of how good a model is on validation records", "", "validation")
    )
    """What was asked for beside accuracy and loss, by metric, where there is such a figure."""


NOTHING = Score(0, 0, 0.0, {})
"""Of no samples."""


@record
class Answers:
    """What a model says of the test samples, in their order: enough to judge it by any metric that
    can be chosen.
    """

    truth: Tensor
    given: Tensor
    score: Tensor | None
    """For two classes: by how much the second one's logit is the larger. It orders samples as its
    probability does, but keeps apart what probabilities of almost 1 would not.
    """

    @property
    def right(self) -> Tensor:
        """Which of them are right; of numbers, those that are exactly so."""
        return self.given == self.truth

    @property
    def amounts(self) -> bool:
        """Whether they are numbers, not classes."""
        return self.truth.is_floating_point()

    def scores(self, classes: int) -> Tensor:
        """Scores for each of so many classes from which the same answers come."""
        if self.amounts:
            return self.given[:, None]
        if self.score is None:
            return F.one_hot(self.given.long(), classes).float()
        return torch.stack([torch.zeros_like(self.score), self.score], 1)


@record
class Gained:
    """What a party that keeps its answers to itself says of its gain over training alone, with its
    95% interval.
    """

    gain: float
    low: float
    high: float
    middle: float
    error: float


@record
class Evaluation:
    """A party's evaluation of what it would deploy; at the end only, its answers too."""

    validation: Score
    test: Score
    answers: Answers | None
    gained: Gained | None = None
    """Where parties are at sites of their own, and have trained alone before: the comparison, made
    at the site.
    """


def evaluate(
    task: LearningTask, theta: Params, data: PartyData, final: bool, metric: str = ACCURACY.name
) -> Evaluation:
    """A party's evaluation of a model, by accuracy, loss and `metric`; at the end (`final`) by all
    metrics that fit.
    """

    def logits_of(part: Samples) -> Tensor:
        return (
            in_chunks(lambda x: task.logits(theta, x), part.x) if len(part) else torch.zeros(0, 1)
        )

    asked = _beside_accuracy([metric])
    validation = _score(task, logits_of(data.validation), data.validation.y, asked, data.unit)
    logits = logits_of(data.test)
    if not final:
        return Evaluation(validation, _score(task, logits, data.test.y, asked, data.unit), None)
    every = _beside_accuracy(dict.fromkeys([*(one.name for one in fitting(task.classes)), metric]))
    answers = (
        _answers(logits, data.test.y) if task.classes else _amounts(logits, data.test.y, data.unit)
    )
    return Evaluation(validation, _score(task, logits, data.test.y, every, data.unit), answers)


def scored(task: LearningTask, theta: Params, on: Samples, unit: float = 1.0) -> Score:
    """How a model does on some samples, by accuracy and loss."""
    return (
        _score(task, in_chunks(lambda x: task.logits(theta, x), on.x), on.y, [], unit)
        if len(on)
        else NOTHING
    )


def validated(task: LearningTask, theta: Params, data: PartyData) -> Score:
    """How a model does on a party's validation samples, by accuracy and loss."""
    return scored(task, theta, data.validation, data.unit)


def _beside_accuracy(names: Iterable[str]) -> list[str]:
    return [name for name in names if name != ACCURACY.name]


def _score(
    task: LearningTask, logits: Tensor, y: Tensor, metrics: Sequence[str], unit: float
) -> Score:
    if not len(y):
        return NOTHING
    if not task.classes:
        return Score(
            0, len(y), float(squared_error(logits, y)), _figures(logits * unit, y * unit, metrics)
        )
    correct = int((logits.argmax(1) == y).sum())
    return Score(correct, len(y), float(F.cross_entropy(logits, y)), _figures(logits, y, metrics))


def _figures(logits: Tensor, y: Tensor, metrics: Sequence[str]) -> dict[str, float]:
    found = {name: METRICS[name].of(logits.cpu(), y.cpu()) for name in metrics}
    return {name: figure for name, figure in found.items() if figure is not None}


def _amounts(logits: Tensor, y: Tensor, unit: float) -> Answers:
    return Answers((y * unit).float().cpu(), (logits[:, 0] * unit).float().cpu(), None)


def _answers(logits: Tensor, y: Tensor) -> Answers:
    score = (logits[:, 1] - logits[:, 0]).float().cpu() if logits.shape[1] == TWO else None
    return Answers(y.int().cpu(), logits.argmax(1).int().cpu(), score)


def evaluate_together(
    task: LearningTask, theta: Params, parties: Sequence[PartyData], metric: str = ACCURACY.name
) -> list[Evaluation]:
    """Each party's evaluation of a model that all of them have: everybody's data in one pass."""
    if not task.classes:  # labels may be scaled by each party's own figures
        return [evaluate(task, theta, data, False, metric) for data in parties]
    parts = [part for data in parties for part in (data.validation, data.test)]
    there = [part for part in parts if len(part)]
    logits = in_chunks(lambda x: task.logits(theta, x), torch.cat([part.x for part in there]))
    y = torch.cat([part.y for part in there])
    begins = [0, *accumulate(len(part) for part in there)]
    right = np.add.reduceat((logits.argmax(1) == y).numpy(), begins[:-1], dtype=np.int64)
    losses = np.add.reduceat(
        F.cross_entropy(logits, y, reduction="none").double().numpy(), begins[:-1]
    )
    found = zip(right.tolist(), losses.tolist(), begins, strict=False)
    asked = _beside_accuracy([metric])
    scores = []
    for n in map(len, parts):
        correct, loss, begin = next(found) if n else (0, 0.0, 0)
        figures = (
            _figures(logits[begin : begin + n], y[begin : begin + n], asked) if asked and n else {}
        )
        scores.append(Score(correct, n, loss / max(1, n), figures))
    return [
        Evaluation(validation, test, None)
        for validation, test in zip(scores[::2], scores[1::2], strict=True)
    ]
