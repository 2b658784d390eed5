"""Membership by updates: training moves the weights against the gradients of its samples.

The score of a candidate is the inner product of its gradient, at the weights that the party got,
with the difference between these weights and those that the party sent back, summed over rounds.
"""

from __future__ import annotations

from collections import defaultdict

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import jvp

from comity.auditing.chance import Scored
from comity.auditing.finding import Outcome, membership
from comity.auditing.observed import updates
from comity.auditing.view import View
from comity.base.record import Params, is_buffer
from comity.training.task import LearningTask

ATTACK = "membership: updates"
HOW = (
    "The server compares what each round's training took from the weights with the gradient of a"
    " candidate."
)
ROWS = 512


def attack_updates(view: View) -> list[Outcome]:
    """Attack all rounds in which a party got weights and sent weights back."""
    scores: dict[int, list[Tensor]] = defaultdict(list)
    for update in updates(view):
        x, y, _ = view.candidates(update.party)
        task = view.party(update.party).task
        step = {
            k: update.before[k] - v
            for k, v in update.after.items()
            if not is_buffer(k) and v.is_floating_point()
        }
        scores[update.party].append(
            descents(task, view.first(update.party) | update.before, step, x, y)
        )
    if not scores:
        return []
    parties = [
        Scored(sum(scores[i][1:], scores[i][0]), view.candidates(i).member) for i in sorted(scores)
    ]
    return [membership(ATTACK, HOW, parties, view.random_split, view.delta, view.key.fold(ATTACK))]


def descents(task: LearningTask, theta: Params, step: Params, x: Tensor, y: Tensor) -> Tensor:
    """The inner product of each sample's gradient with `step`.

    It is computed as a directional derivative, without the gradient of each sample.
    """
    parts = []
    fixed = {k: v for k, v in theta.items() if k not in step}
    for inputs, labels in zip(x.split(ROWS), y.split(ROWS), strict=True):

        def loss(free: Params, inputs: Tensor = inputs, labels: Tensor = labels) -> Tensor:
            return F.cross_entropy(task.logits(fixed | free, inputs), labels, reduction="none")

        parts.append(jvp(loss, ({k: theta[k] for k in step},), (step,))[1])
    return torch.cat(parts).detach()
