"""Self-supervised learning: two views of a sample should have equal representations."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from comity.core import Batch, Fitted, Key, LearningTask, Loss, Params, Party

PREDICTOR = ("simsiam.down", "simsiam.up")


def augment_view(x: Tensor, key: Key) -> Tensor:
    """Augment samples: roll images by up to an eighth in both directions, then add noise with a
    tenth of the batch's standard deviation.
    """
    generator = key.generator()
    if x.dim() == 4:
        for axis in (2, 3):
            size = x.shape[axis]
            reach = max(1, x.shape[axis] // 8)
            roll = torch.randint(-reach, reach + 1, (len(x), 1), generator=generator)
            index = (torch.arange(size) + roll) % size
            shape = (len(x), 1, size, 1) if axis == 2 else (len(x), 1, 1, size)
            x = x.gather(axis, index.view(shape).expand(x.shape).to(x.device))
    return x + 0.1 * x.std(correction=0) * torch.randn(x.shape, generator=generator).to(x.device)


def ntxent(a: Tensor, b: Tensor, temperature: float) -> Tensor:
    """NT-Xent: each view identifies its partner among all other views of the batch by cosine
    similarity.
    """
    z = F.normalize(torch.cat([a, b]), dim=1)
    similar = (z @ z.T / temperature).fill_diagonal_(-torch.inf)
    partner = torch.arange(len(z), device=z.device).roll(len(a))
    return F.cross_entropy(similar, partner)


def simsiam(a: Tensor, b: Tensor, theta: Params) -> Tensor:
    """SimSiam: the negative cosine between one view's prediction and the other's constant
    representation, symmetrised.
    """
    down, up = (theta[name] for name in PREDICTOR)

    def half(from_: Tensor, to: Tensor) -> Tensor:
        return -F.cosine_similarity(F.linear(F.relu(F.linear(from_, down)), up), to.detach()).mean()

    return (half(a, b) + half(b, a)) / 2


@dataclass(frozen=True)
class SelfSupervised(LearningTask):
    """A task without labels. View 1 is the sample, view 2 is an augmented one. A probe trains the
    head later.
    """

    kind: str = "simsiam"
    temperature: float = 0.5

    def init(self, key: Key) -> Params:
        theta = super().init(key)
        d = self.width
        if self.kind != "simsiam":
            return theta
        hidden = max(8, d // 4)
        shapes = ((hidden, d), (d, hidden))
        both = zip(PREDICTOR, shapes, strict=True)
        return theta | {
            n: torch.randn(s, generator=key.fold(n).generator()) / s[1] ** 0.5 for n, s in both
        }

    def objective(self, theta: Params, z: Tensor, batch: Batch) -> Tensor:
        other = self.features(theta, batch.draws, train=True).flatten(1)
        if self.kind == "simsiam":
            return simsiam(z.flatten(1), other, theta)
        return ntxent(z.flatten(1), other, self.temperature)


def second_view(batch: Batch, key: Key, aux: object) -> Tensor:
    """Draw the second view of a batch for a self-supervised task."""
    return augment_view(batch.x, key.fold("view"))


def probe(task: LearningTask, theta: Params, batch: Batch, aux: object) -> Tensor:
    """The loss of a head on frozen representations. The body runs in evaluation mode, so that its
    statistics do not change.
    """
    return task.objective(theta, task.features(theta, batch.x), batch)


@dataclass(frozen=True)
class Supervision:
    """Supervision by the labels."""

    def task(self, task: LearningTask) -> LearningTask:
        """The task that is trained."""
        return task

    async def fit(self, party: Party, loss: Loss[Any], theta: Params, key: Key, aux: Any) -> Fitted:
        """Train a party's model by a loss that contains `task.objective`."""
        return await party.fit(loss, theta, key, aux, task=self.task(party.task))


@dataclass(frozen=True)
class SelfSupervision(Supervision):
    """Supervision by a second view of each sample. A linear probe learns the labels afterwards."""

    kind: str

    def task(self, task: LearningTask) -> LearningTask:
        return SelfSupervised(task.network, task.classes, task.cut, kind=self.kind)

    async def fit(self, party: Party, loss: Loss[Any], theta: Params, key: Key, aux: Any) -> Fitted:
        task = self.task(party.task)
        fitted = await party.fit(loss, theta, key, aux, task=task, draw=second_view)
        head = await party.fit(probe, fitted.theta, key.fold("probe"), only=task.head_names)
        return replace(fitted, theta=head.theta)


def supervision(objective: str) -> Supervision:
    """The supervision that an objective names: "ce" for labels, else a self-supervised loss."""
    return Supervision() if objective == "ce" else SelfSupervision(objective)
