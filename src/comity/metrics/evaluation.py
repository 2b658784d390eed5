"""Evaluation of a party's model at the party, on its own validation and test samples."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from comity.base.content import Content, describe
from comity.base.record import Params, record
from comity.base.samples import PartyData, Samples
from comity.metrics.calibration import UNCALIBRATED, Calibration
from comity.metrics.cohort import Predictions, blocks_of, figures_of
from comity.metrics.metrics import ACCURACY, LEAST, METRICS, TWO, metrics_for
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

    def never_predicted(self) -> list[int]:
        """Return the classes that no sample is predicted as, although at least `LEAST` samples are
        of them.

        Empty for a model that is wrong in half of the samples: then the accuracy says enough.
        """
        if self.amounts or not self.right.float().mean() > 0.5:
            return []
        labels, counts = self.truth.unique(return_counts=True)
        frequent = labels[counts >= LEAST]
        missed: list[int] = frequent[~torch.isin(frequent, self.given)].tolist()
        return missed

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


@dataclass(frozen=True, eq=False)
class Predicted:
    """A model's logits for a party's validation and test samples."""

    classes: int
    """The number of classes; 0 where the label is a number."""
    data: PartyData
    validation: Tensor
    test: Tensor


def predict(
    logits_of: Callable[[Tensor], Tensor],
    classes: int,
    data: PartyData,
    calibration: Calibration = UNCALIBRATED,
) -> Predicted:
    """Apply a model, given as the function from inputs to logits, to a party's data.

    The calibration is applied to test samples only: it may have been fitted on the validation
    samples, whose scores would then be too good.
    """

    def logits_on(part: Samples) -> Tensor:
        return logits_of(part.x) if len(part) else torch.zeros(0, 1)

    test = logits_on(data.test)
    return Predicted(
        classes,
        data,
        logits_on(data.validation),
        calibration.apply(test) if len(data.test) else test,
    )


def predict_by(
    task: LearningTask, theta: Params, data: PartyData, calibration: Calibration = UNCALIBRATED
) -> Predicted:
    """Apply a model to a party's data, as `predict` does."""
    return predict(
        lambda x: in_chunks(lambda chunk: task.logits(theta, chunk), x),
        task.classes,
        data,
        calibration,
    )


def evaluate(
    task: LearningTask,
    theta: Params,
    data: PartyData,
    final: bool,
    metric: str = ACCURACY.name,
    calibration: Calibration = UNCALIBRATED,
) -> Evaluation:
    """Evaluate a model on a party's data, as `score_predicted` does."""
    return score_predicted([predict_by(task, theta, data, calibration)], final, metric)[0]


def evaluate_logits(
    logits_of: Callable[[Tensor], Tensor],
    classes: int,
    data: PartyData,
    final: bool,
    metric: str = ACCURACY.name,
) -> Evaluation:
    """Evaluate a model, given as the function from inputs to logits, as `evaluate` does.

    `classes` is their number; 0 where the label is a number.
    """
    return score_predicted([predict(logits_of, classes, data)], final, metric)[0]


def score_predicted(
    parties: Sequence[Predicted], final: bool, metric: str = ACCURACY.name
) -> list[Evaluation]:
    """Evaluate predictions of one or more parties with as many classes, by accuracy, loss and
    `metric`.

    After the last round (`final`), all metrics that fit the task are computed, and the predictions
    of the test samples are returned, too. The result for a party does not depend on the others.
    """
    classes = parties[0].classes
    fitting = [fitting_metric.name for fitting_metric in metrics_for(classes)] if final else []
    validation = [Predictions(party.validation, party.data.validation.y) for party in parties]
    test = [Predictions(party.test, party.data.test.y) for party in parties]
    units = [party.data.unit for party in parties]
    scores = zip(
        _scores(classes, validation, units, [metric]),
        _scores(classes, test, units, list(dict.fromkeys([*fitting, metric]))),
        strict=True,
    )
    answers = [
        _answers(classes, *predictions, unit) if final else None
        for predictions, unit in zip(test, units, strict=True)
    ]
    return [Evaluation(*row, answer) for row, answer in zip(scores, answers, strict=True)]


def score_model(task: LearningTask, theta: Params, on: Samples, unit: float = 1.0) -> Score:
    """Return the accuracy and loss of a model on samples; `unit` is that of a label."""
    if not len(on):
        return NOTHING
    logits = in_chunks(lambda x: task.logits(theta, x), on.x)
    return _scores(task.classes, [Predictions(logits, on.y)], [unit], [])[0]


def score_on_validation(task: LearningTask, theta: Params, data: PartyData) -> Score:
    """Return the accuracy and loss of a model on a party's validation samples."""
    return score_model(task, theta, data.validation, data.unit)


def _scores(
    classes: int, parties: Sequence[Predictions], units: Sequence[float], metrics: Sequence[str]
) -> list[Score]:
    """Each party's accuracy, loss and `metrics`; `units` are those of labels that are numbers."""
    if not classes:
        rows = zip(parties, units, strict=True)
        return [_score_amounts(*predictions, unit, metrics) for predictions, unit in rows]
    present = [party for party in parties if len(party.y)]
    losses = [float(F.cross_entropy(logits, y)) for logits, y in present]
    scores = iter(_class_scores([party.cpu() for party in present], losses, metrics))
    return [next(scores) if len(party.y) else NOTHING for party in parties]


def _class_scores(
    parties: Sequence[Predictions], losses: Iterable[float], metrics: Sequence[str]
) -> list[Score]:
    """The scores of parties that have samples, whose losses are known."""
    blocks = list(blocks_of(parties))
    right = [count for block in blocks for count in block.right()]
    figures = figures_of(blocks, [name for name in metrics if name != ACCURACY.name])
    return [
        Score(correct, len(party.y), loss, further)
        for party, correct, loss, further in zip(parties, right, losses, figures, strict=True)
    ]


def _score_amounts(logits: Tensor, y: Tensor, unit: float, metrics: Sequence[str]) -> Score:
    """The loss and the metrics where the label is a number."""
    if not len(y):
        return NOTHING
    amounts = (logits * unit).cpu(), (y * unit).cpu()
    values = {name: METRICS[name].of(*amounts) for name in metrics if name != ACCURACY.name}
    figures = {name: value for name, value in values.items() if value is not None}
    return Score(0, len(y), float(squared_error(logits, y)), figures)


def _answers(classes: int, logits: Tensor, y: Tensor, unit: float) -> Answers:
    if not classes:
        return Answers((y * unit).float().cpu(), (logits[:, 0] * unit).float().cpu(), None)
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
    present = [part for data in parties for part in (data.validation, data.test) if len(part)]
    sizes = [len(part) for part in present]
    logits = in_chunks(lambda x: task.logits(theta, x), torch.cat([part.x for part in present]))
    y = torch.cat([part.y for part in present])
    losses = F.cross_entropy(logits, y, reduction="none").double().numpy()
    begins = [0, *accumulate(sizes)][:-1]
    means = (np.add.reduceat(losses, begins) / sizes).tolist()
    predictions = list(map(Predictions, logits.split(sizes), y.split(sizes)))
    scores = iter(_class_scores(predictions, means, [metric]))

    def next_score(part: Samples) -> Score:
        return next(scores) if len(part) else NOTHING

    return [
        Evaluation(next_score(data.validation), next_score(data.test), None) for data in parties
    ]
