"""The overlap of two parties' data: samples that one party perturbed against its own model and that
also fool the other's model.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from comity.base.content import Content, describe
from comity.core import (
    Accounting,
    Batch,
    LearningTask,
    Params,
    Samples,
    WireShapes,
    drop,
    in_chunks,
    record,
    trainable,
    value_and_gradient,
)


@record
class Help:
    """What party j sends to i about their overlap: a gradient or the samples, with their mean loss,
    number and share.
    """

    grads: Params = describe(
        Content(
            "in which direction a batch of training records would change a peer's weights (a"
            " gradient)",
            "gradients",
            "single",
        )
    )
    x: Tensor | None = describe(
        Content("training records themselves, slightly changed", "samples", "single")
    )
    y: Tensor | None = describe(Content("the right answers to these records", "samples", "single"))
    loss: float = describe(
        Content(
            "how wrong a peer's model is on a batch of training records, on average",
            "gradients",
            "single",
        )
    )
    count: int = describe(
        Content("how many records of a batch overlap with a peer's", "gradients", "single")
    )
    overlap: float = describe(
        Content("the share of a batch that overlaps with a peer's", "gradients", "single")
    )


class Overlaps:
    """A method whose parties compute overlaps for each other. Subclasses declare these options."""

    select: Literal["strict", "geq", "all"]
    mode: Literal["gradient", "samples"]
    reduce: Literal["mean", "sum", "pool"]
    overlap_batch: int

    @property
    def holds(self) -> bool:
        """Whether parties keep their peers' samples, so that each step takes a new gradient of them
        without another request.
        """
        return self.mode == "samples"


A = TypeVar("A", bound=Overlaps)


class OverlapsAccounting(Accounting[A]):
    """The accounting of a method whose parties compute overlaps for each other."""

    def wire_shapes(self, task: LearningTask, parties: int) -> WireShapes:
        """The shapes of a `Help`'s fields other than gradients."""
        return {"Help.x": None, "Help.y": (-1,)}


def losses(task: LearningTask, h: Params, x: Tensor, y: Tensor) -> Tensor:
    """The loss of each sample."""
    return F.cross_entropy(in_chunks(lambda part: task.logits(h, part), x), y, reduction="none")


def overlap(
    task: LearningTask, h: Params, clean: Samples, bad: Tensor, select: str, use_clean: bool
) -> tuple[Samples, float, float]:
    """Eq. 12: the perturbed samples whose loss under h rose (`strict`), did not fall (`geq`), or
    `all`. Also returns their mean loss and share.

    `use_clean` returns the selected samples unperturbed, as the authors' code does.
    """
    before, after = losses(task, h, clean.x, clean.y), losses(task, h, bad, clean.y)
    rules = {
        "strict": after > before,
        "geq": after >= before,
        "all": torch.ones_like(before, dtype=torch.bool),
    }
    mask = rules[select]
    x, loss = (clean.x, before) if use_clean else (bad, after)
    mean = loss[mask].mean().item() if mask.any() else 0.0
    return Samples(x[mask], clean.y[mask]), mean, mask.float().mean().item()


def eval_loss(task: LearningTask, h: Params, batch: Batch) -> Tensor:
    """The loss of a batch in evaluation mode: BatchNorm uses its running statistics and does not
    update them, and there is no dropout.
    """
    z = task.features(h, batch.x)
    return task.criterion(task.head(h, z), z, batch)


def slope(task: LearningTask, h: Params, data: Samples) -> Params:
    """The gradient of the mean loss on these samples in evaluation mode; zeros if there are
    none.
    """
    if not len(data):
        return {k: torch.zeros_like(v) for k, v in trainable(h).items()}
    return value_and_gradient(lambda free: F.cross_entropy(task.logits(free, data.x), data.y), h)[1]


def help_for(
    task: LearningTask,
    h: Params,
    clean: Samples,
    bad: Tensor,
    select: str,
    use_clean: bool,
    samples: bool,
) -> Help:
    """The reply to the owner of h from a party with these clean and perturbed samples: a gradient,
    or samples.
    """
    subset, loss, share = overlap(task, h, clean, bad, select, use_clean)
    if samples:
        return Help({}, subset.x, subset.y.int(), loss, len(subset), share)
    return Help(drop(slope(task, h, subset), task.private), None, None, loss, len(subset), share)


def gradients(task: LearningTask, h: Params, helps: Mapping[int, Help]) -> dict[int, Params]:
    """The received gradients, or those of the received samples."""
    grads = {}
    for j, reply in helps.items():
        if reply.x is None or reply.y is None:
            grads[j] = reply.grads
        else:
            grads[j] = drop(slope(task, h, Samples(reply.x, reply.y.long())), task.private)
    return grads


def pull(task: LearningTask, h: Params, helps: Mapping[int, Help], how: str) -> Params:
    """The combined gradient of all peers. Gradients of received samples are taken at h. Empty if no
    peer helped.
    """
    here = {k: v.detach() for k, v in h.items()}
    return combine_gradients(
        gradients(task, here, helps), {j: reply.count for j, reply in helps.items()}, how
    )


def linear_in(h: Params, g: Params) -> Tensor:
    """Σ h·g, whose gradient by h is g: it adds a given gradient to a loss."""
    return torch.stack([(h[k] * slope).sum() for k, slope in g.items()]).sum()


def combine_gradients(grads: Mapping[int, Params], counts: Mapping[int, int], how: str) -> Params:
    """Combine the peers' gradients: their `mean`, their `sum`, or the gradient of the mean over all
    samples (`pool`).
    """
    weights = dict(counts) if how == "pool" else dict.fromkeys(grads, 1)
    total = 1 if how == "sum" else max(1, sum(weights.values()))
    names = next(iter(grads.values())) if grads else {}
    return {
        k: torch.stack([weights[j] * g[k] for j, g in grads.items()]).sum(0) / total for k in names
    }


def gains(
    task: LearningTask, h: Params, grads: Mapping[int, Params], holdout: Samples, lr: float
) -> dict[int, float]:
    """For each peer: how much one step along its gradient alone lowers the loss on held-out
    samples.
    """

    def loss(theta: Params) -> float:
        return losses(task, theta, holdout.x, holdout.y).mean().item()

    def after(g: Params) -> Params:
        return h | {k: h[k] - lr * v for k, v in g.items()}

    before = loss(h)
    return {j: before - loss(after(g)) for j, g in grads.items()}
