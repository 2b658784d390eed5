"""How models are judged: on a party's own validation and test data."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from comity.core.auc import area
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
class Judgement:
    """A party's evaluation of what it would deploy.

    At the end only: which test samples were right, and the area under the ROC curve (binary, or over all pairs of sample and
    class) where there is one.
    """

    validation: Score
    test: Score
    outcomes: Tensor | None
    auc: float | None


def judge(task: Task, theta: Params, data: PartyData, final: bool) -> Judgement:
    """A party's judgement of a model."""

    def score(part: Samples) -> tuple[Score, Tensor, Tensor]:
        if not len(part):
            return Score(0, 0, 0.0), torch.zeros(0, dtype=torch.bool), torch.zeros(0)
        logits = in_chunks(lambda x: task.logits(theta, x), part.x)
        right = logits.argmax(1) == part.y
        return Score(int(right.sum()), len(part), float(F.cross_entropy(logits, part.y))), right.cpu(), logits

    validation, _, _ = score(data.validation)
    test, right, logits = score(data.test)
    if not final:
        return Judgement(validation, test, None, None)
    return Judgement(validation, test, right, area(logits, data.test.y))


def judge_together(task: Task, theta: Params, parties: Sequence[PartyData]) -> list[Judgement]:
    """Each party's judgement of a model that all of them have: everybody's data in one pass."""
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
    return [Judgement(validation, test, None, None) for validation, test in zip(scores[::2], scores[1::2], strict=True)]
