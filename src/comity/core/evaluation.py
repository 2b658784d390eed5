"""How good a party's model is: on the party's own validation and test data, at the party."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from comity.core.record import Params, record
from comity.core.samples import PartyData, Samples
from comity.core.task import Task, in_chunks


@record
class Score:
    """How a model does on one split."""

    correct: int
    count: int
    loss: float


@record
class Evaluation:
    """A party's evaluation of what it would deploy.

    At the end only: which test samples were right, and the area under the ROC curve (binary, or over all pairs of sample and
    class) where there is one.
    """

    validation: Score
    test: Score
    outcomes: Tensor | None
    auc: float | None


def evaluate(task: Task, theta: Params, data: PartyData, final: bool) -> Evaluation:
    """A party's evaluation of a model."""

    def score(part: Samples) -> tuple[Score, Tensor, Tensor]:
        if not len(part):
            return Score(0, 0, 0.0), torch.zeros(0, dtype=torch.bool), torch.zeros(0)
        logits = in_chunks(lambda x: task.logits(theta, x), part.x)
        right = logits.argmax(1) == part.y
        return Score(int(right.sum()), len(part), float(F.cross_entropy(logits, part.y))), right.cpu(), logits

    validation, _, _ = score(data.validation)
    test, right, logits = score(data.test)
    if not final:
        return Evaluation(validation, test, None, None)
    return Evaluation(validation, test, right, _area(logits, data.test.y))


def _area(logits: Tensor, y: Tensor) -> float | None:
    """Under the ROC curve: for two classes of the second one's score; for more, over all pairs of sample and class."""
    from comity.measure.auc import auc, auc_micro  # lazily: measures know the core, not the other way round

    return auc(logits[:, 1] - logits[:, 0], y == 1) if logits.shape[1] == 2 else auc_micro(logits, y)


def evaluate_together(task: Task, theta: Params, parties: Sequence[PartyData]) -> list[Evaluation]:
    """Each party's evaluation of a model that all of them have: everybody's data in one pass."""
    parts = [part for data in parties for part in (data.validation, data.test)]
    there = [part for part in parts if len(part)]
    logits = in_chunks(lambda x: task.logits(theta, x), torch.cat([part.x for part in there]))
    y = torch.cat([part.y for part in there])
    begins = [0, *accumulate(len(part) for part in there)][:-1]
    right = np.add.reduceat((logits.argmax(1) == y).numpy(), begins, dtype=np.int64)
    losses = np.add.reduceat(F.cross_entropy(logits, y, reduction="none").double().numpy(), begins)
    found = zip(right.tolist(), losses.tolist(), strict=True)
    scores = []
    for n in map(len, parts):
        correct, loss = next(found) if n else (0, 0.0)
        scores.append(Score(correct, n, loss / max(1, n)))
    return [Evaluation(validation, test, None, None) for validation, test in zip(scores[::2], scores[1::2], strict=True)]
