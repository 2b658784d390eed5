"""Evaluation of a party's model at the party, on its own validation and test samples."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from comity.base.content import Content, describe
from comity.base.record import Params, record
from comity.base.samples import PartyData, Samples
from comity.metrics.calibration import UNCALIBRATED, Calibration
from comity.metrics.metrics import ACCURACY, METRICS, TWO, metrics_for
from comity.training.kernels import squared_error
from comity.training.task import LearningTask, in_chunks


@record
class Score:
    """The performance of a model on one split."""

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
"""The score on no samples."""


@record
class Answers:
    """A model's predictions of the test samples, in their order.

    They are sufficient to compute every metric that `--metric` can choose.
    """

    truth: Tensor
    given: Tensor
    score: Tensor | None
    """For two classes: the second logit minus the first. It orders samples as the probability of
    the second class does, but probabilities of almost 1 would be rounded to equal values.
    """

    @property
    def right(self) -> Tensor:
        """Which predictions equal the label."""
        return self.given == self.truth

    @property
    def amounts(self) -> bool:
        """Whether the label is a number, not a class."""
        return self.truth.is_floating_point()

    def scores(self, classes: int) -> Tensor:
        """Return scores of all classes (samples x classes) that give the same predictions."""
        if self.amounts:
            return self.given[:, None]
        if self.score is None:
            return F.one_hot(self.given.long(), classes).float()
        return torch.stack([torch.zeros_like(self.score), self.score], 1)


@record
class Gained:
    """A party's gain over training alone with its 95% interval, computed at the party.

    A party whose predictions may not leave its site reports this instead of them.
    """

    gain: float
    low: float
    high: float
    middle: float
    error: float


@record
class Evaluation:
    """A party's evaluation of its deployed model; `answers` is set after the last round only."""

    validation: Score
    test: Score
    answers: Answers | None
    gained: Gained | None = None
    """The comparison with training alone, for a party at a site that has trained alone before."""


def evaluate(
    task: LearningTask,
    theta: Params,
    data: PartyData,
    final: bool,
    metric: str = ACCURACY.name,
    calibration: Calibration = UNCALIBRATED,
) -> Evaluation:
    """Evaluate a model on a party's data, by accuracy, loss and `metric`.

    After the last round (`final`), all metrics that fit the task are computed, and the predictions
    of the test samples are returned, too.

    The calibration is applied to test samples only: it may have been fitted on the validation
    samples, whose scores would then be too good.
    """

    return evaluate_logits(
        lambda x: in_chunks(lambda chunk: task.logits(theta, chunk), x),
        task.classes,
        data,
        final,
        metric,
        calibration,
    )


def evaluate_logits(
    logits_of: Callable[[Tensor], Tensor],
    classes: int,
    data: PartyData,
    final: bool,
    metric: str = ACCURACY.name,
    calibration: Calibration = UNCALIBRATED,
) -> Evaluation:
    """Evaluate a model, given as the function from inputs to logits, as `evaluate` does.

    `classes` is their number; 0 where the label is a number.
    """

    def logits_on(part: Samples) -> Tensor:
        return logits_of(part.x) if len(part) else torch.zeros(0, 1)

    names = _except_accuracy([metric])
    validation = _score(classes, logits_on(data.validation), data.validation.y, names, data.unit)
    logits = logits_on(data.test)
    if len(data.test):
        logits = calibration.apply(logits)
    if not final:
        return Evaluation(validation, _score(classes, logits, data.test.y, names, data.unit), None)
    fitting = [fitting_metric.name for fitting_metric in metrics_for(classes)]
    all_names = _except_accuracy(dict.fromkeys([*fitting, metric]))
    answers = _answers(logits, data.test.y) if classes else _amounts(logits, data.test.y, data.unit)
    return Evaluation(
        validation, _score(classes, logits, data.test.y, all_names, data.unit), answers
    )


def score_model(task: LearningTask, theta: Params, on: Samples, unit: float = 1.0) -> Score:
    """Return the accuracy and loss of a model on samples; `unit` is that of a label."""
    return (
        _score(task.classes, in_chunks(lambda x: task.logits(theta, x), on.x), on.y, [], unit)
        if len(on)
        else NOTHING
    )


def score_on_validation(task: LearningTask, theta: Params, data: PartyData) -> Score:
    """Return the accuracy and loss of a model on a party's validation samples."""
    return score_model(task, theta, data.validation, data.unit)


def _except_accuracy(names: Iterable[str]) -> list[str]:
    return [name for name in names if name != ACCURACY.name]


def _score(classes: int, logits: Tensor, y: Tensor, metrics: Sequence[str], unit: float) -> Score:
    if not len(y):
        return NOTHING
    if not classes:
        return Score(
            0, len(y), float(squared_error(logits, y)), _figures(logits * unit, y * unit, metrics)
        )
    correct = int((logits.argmax(1) == y).sum())
    return Score(correct, len(y), float(F.cross_entropy(logits, y)), _figures(logits, y, metrics))


def _figures(logits: Tensor, y: Tensor, metrics: Sequence[str]) -> dict[str, float]:
    figures = {name: METRICS[name].of(logits.cpu(), y.cpu()) for name in metrics}
    return {name: figure for name, figure in figures.items() if figure is not None}


def _amounts(logits: Tensor, y: Tensor, unit: float) -> Answers:
    return Answers((y * unit).float().cpu(), (logits[:, 0] * unit).float().cpu(), None)


def _answers(logits: Tensor, y: Tensor) -> Answers:
    score = (logits[:, 1] - logits[:, 0]).float().cpu() if logits.shape[1] == TWO else None
    return Answers(y.int().cpu(), logits.argmax(1).int().cpu(), score)


def evaluate_batched(
    task: LearningTask, theta: Params, parties: Sequence[PartyData], metric: str = ACCURACY.name
) -> list[Evaluation]:
    """Evaluate one model on the data of several parties, in one batched pass.

    The result equals `evaluate(..., final=False)` of each party.
    """
    if not task.classes:  # each party may have its own scale of labels
        return [evaluate(task, theta, data, False, metric) for data in parties]
    parts = [part for data in parties for part in (data.validation, data.test)]
    nonempty = [part for part in parts if len(part)]
    logits = in_chunks(lambda x: task.logits(theta, x), torch.cat([part.x for part in nonempty]))
    y = torch.cat([part.y for part in nonempty])
    begins = [0, *accumulate(len(part) for part in nonempty)]
    right = np.add.reduceat((logits.argmax(1) == y).numpy(), begins[:-1], dtype=np.int64)
    losses = np.add.reduceat(
        F.cross_entropy(logits, y, reduction="none").double().numpy(), begins[:-1]
    )
    sums = zip(right.tolist(), losses.tolist(), begins, strict=False)
    names = _except_accuracy([metric])
    scores = []
    for n in map(len, parts):
        correct, loss, begin = next(sums) if n else (0, 0.0, 0)
        figures = (
            _figures(logits[begin : begin + n], y[begin : begin + n], names) if names and n else {}
        )
        scores.append(Score(correct, n, loss / max(1, n), figures))
    return [
        Evaluation(validation, test, None)
        for validation, test in zip(scores[::2], scores[1::2], strict=True)
    ]
