"""What a work can ask for: a training (`FitRequest`), or a step of its own folded over batches
(`FoldRequest`).

A work makes such a request by `party.fit(...)` or `party.fold(...)` and awaits what comes of it.
Who answers is the engine's matter: it may train the party by itself or together with others. A
request and its result have no attribute in common, so that a forgotten `await` is an error, never
untrained weights.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

import torch
from torch import Tensor

from comity.base.key import Key
from comity.base.record import Params, is_buffer, record
from comity.base.samples import Samples
from comity.training.settings import Moments, Training
from comity.training.task import Batch, LearningTask

T = TypeVar("T")
S = TypeVar("S")
O = TypeVar("O")  # noqa: E741 - what is a party's own

Loss = Callable[[LearningTask, Params, Batch, O], Tensor]
"""loss(task, theta, batch, own): a pure function. All that differs between parties comes through
its arguments.
"""
Draw = Callable[[Batch, Key, O], Any]
"""draw(batch, key, own): a batch's random tensors, made a party at a time; the loss finds them in
`batch.drawn`.

The key is the batch's own: `key.fold("noise").generator()` draws anew for each.
"""


@record
class Pull:
    """A pull of what is trained to a fixed point: the gradient weight · (θ − to), which is that of
    weight/2 · ‖θ − to‖².
    """

    to: Params
    weight: float


@dataclass(frozen=True, eq=False)
class Private:
    """How a party trains so that no single record tells (Abadi et al. 2016): each step on a Poisson
    sample of the records, each record's gradient clipped, Gaussian noise on their sum, all divided
    by the sample's expected size.

    Nothing but the training itself sees the records: what a work has in `party.data` refuses to be
    looked at.
    """

    samples: Samples
    clip: float
    """C, the norm that each record's gradient is clipped to."""
    noise: float
    """σ, the noise's standard deviation in units of C."""
    made: list[tuple[float, int]]
    """The trainings that were made: chance of a record to be in a step, and steps."""


Level = Literal["row", "party"]
"""Whom noise on class means protects: a row (what a given model makes of one sample), or all that a
party has.
"""


@dataclass(frozen=True, eq=False)
class HiddenMeans:
    """How class means leave a party behind noise (`parts/hidden_means.py`).

    Nothing but trainings and these means see the records: what a work has in `party.data` refuses
    to be looked at.
    """

    samples: Samples
    level: Level
    clip: float
    """The norm that each row, or each class mean, is clipped to."""
    noise: float
    """The noise's standard deviation, in units of what one row, or one party, can change."""
    made: list[int]
    """How often such means were made, and of how many classes."""


@dataclass(frozen=True)
class Fitted:
    """What came of a training."""

    theta: Params
    moments: Moments | None
    steps: int
    loss: Tensor | None
    """The loss of the last batch, without a pull."""
    scratch: dict[str, Tensor]
    """What the loss left in `batch.scratch`."""


@dataclass(frozen=True, eq=False)
class FitRequest(Generic[O]):
    """A training that is asked for: minimise `objective` from `begin`. See `Party.fit`."""

    objective: Loss[O]
    begin: Params
    samples: Samples
    key: Key
    training: Training
    task: LearningTask
    own: O
    only: frozenset[str] | None = None
    """The names that are trained; all but the buffers unless told."""
    add: Params | None = None
    """Added to every gradient, as SCAFFOLD's control variates are."""
    pull: Pull | None = None
    """As FedProx's: cheaper than a term of the loss, since its gradient is known."""
    before: Moments | None = None
    """Continues an optimizer."""
    draw: Draw[O] | None = None
    batched: bool = True
    """Whether it may be done as one computation with other parties': False where that is slower."""
    private: Private | None = None
    """So that no record tells, if that is asked for."""

    def __await__(self) -> Generator[FitRequest[Any], Fitted, Fitted]:
        return (yield self)

    if (
        not TYPE_CHECKING
    ):  # for mypy a forgotten await is a missing attribute; this is for whoever runs without it

        def __getattr__(self, name: str) -> Any:
            raise AttributeError(
                f"A training that is asked for has no {name!r} yet: write `await party.fit(...)`."
            )

    @property
    def names(self) -> list[str]:
        """What is trained."""
        return [k for k in self.begin if not is_buffer(k) and (self.only is None or k in self.only)]

    @property
    def shift(self) -> Params | None:
        """What is added to every gradient, for all that is trained."""
        add = self.add
        return (
            None
            if add is None
            else {k: add[k] if k in add else torch.zeros_like(self.begin[k]) for k in self.names}
        )


@dataclass(frozen=True, eq=False)
class FoldRequest(Generic[S]):
    """A step of the method's own that is to be folded over batches. See `Party.fold`."""

    step: Callable[[S, Batch], S]
    first: S
    samples: Samples
    key: Key
    training: Training

    def __await__(self) -> Generator[FoldRequest[Any], S, S]:
        return (yield self)


Request = FitRequest[Any] | FoldRequest[Any]
Working = Coroutine[Any, Any, T]
"""A work under way: it asks for what it needs, and ends with a T."""


def plain(task: LearningTask, theta: Params, batch: Batch, own: object) -> Tensor:
    """The task's own loss: what a party minimises unless a method says otherwise."""
    return task.loss(theta, batch)


def gradient(value: Callable[[Params], Tensor], theta: Params) -> tuple[Tensor, Params]:
    """A function's value at `theta` and its gradient there, for steps that are not plain descent;
    buffers have none.
    """
    free = {k: v if is_buffer(k) else v.detach().requires_grad_() for k, v in theta.items()}
    names = [k for k in free if not is_buffer(k)]
    result = value(free)
    grads = torch.autograd.grad(result, [free[k] for k in names], materialize_grads=True)
    return result.detach(), dict(zip(names, grads, strict=True))


def curvature(value: Callable[[Params], Tensor], theta: Params, along: Params) -> Params:
    """A function's second derivative at `theta`, times `along`: how its gradient changes in that
    direction.
    """
    free = {k: v.clone() if is_buffer(k) else v.detach().requires_grad_() for k, v in theta.items()}
    params = [free[k] for k in along]
    grads = torch.autograd.grad(value(free), params, create_graph=True, materialize_grads=True)
    slope = torch.stack([(g * along[k]).sum() for k, g in zip(along, grads, strict=True)]).sum()
    return dict(zip(along, torch.autograd.grad(slope, params, materialize_grads=True), strict=True))
