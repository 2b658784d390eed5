"""What a party function can await: a training (`FitRequest`), or a fold of its own step over
batches (`FoldRequest`).

A party function creates a request with `party.fit(...)` or `party.fold(...)` and awaits its result.
The engine decides how to compute it: the party alone, or batched with others. A request and its
result have no attribute in common, so that a forgotten `await` is an error and never yields
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
from comity.training.gradient_count import GradientCount, add_gradients
from comity.training.settings import Moments, Training
from comity.training.task import Batch, LearningTask

T = TypeVar("T")
S = TypeVar("S")
O = TypeVar("O")  # noqa: E741 - the type of a loss's aux argument

Loss = Callable[[LearningTask, Params, Batch, O], Tensor]
"""loss(task, theta, batch, aux): a pure function. Everything that differs between parties is in its
arguments.
"""
Draw = Callable[[Batch, Key, O], Any]
"""draw(batch, key, aux): a batch's random tensors, computed for one party at a time. The loss finds
them in `batch.draws`.

The key belongs to the batch: `key.fold("noise").generator()` draws other values for each batch.
"""


@record
class Pull:
    """A proximal term, which pulls the trained tensors to a fixed point: its gradient is weight ·
    (θ − to), that of weight/2 · ‖θ − to‖².
    """

    to: Params
    weight: float


@dataclass(frozen=True, eq=False)
class Private:
    """DP-SGD settings of a training (Abadi et al. 2016).

    Each step uses a Poisson sample of the records, clips each record's gradient, adds Gaussian
    noise to their sum, and divides by the expected sample size. Only the training itself sees the
    records: `party.data` raises an error in a party function.

    With `patients`, each step uses a Poisson sample of the patients, with all records of each. A
    patient adds the mean of the clipped gradients of its records, whose norm is at most C as well.
    """

    samples: Samples
    clip: float
    """C, the norm that each record's gradient is clipped to."""
    noise: float
    """σ, the standard deviation of the noise in units of C."""
    trainings: list[tuple[float, int]]
    """The completed trainings: sampling rate and number of steps."""
    patients: Tensor | None = None
    """The number of each record's patient, from 0; None if each record is a unit of its own."""

    @property
    def units(self) -> int:
        """How many units there are to sample from: patients, or records."""
        return len(self.samples) if self.patients is None else int(self.patients.max()) + 1


Level = Literal["row", "party"]
"""The unit that noise on class means protects: a row (a model's output for one sample), or all data
of a party.
"""


@dataclass(frozen=True, eq=False)
class HiddenMeans:
    """How a party releases class means with noise (`components/hidden_means.py`).

    Only trainings and these means see the records: `party.data` raises an error in a party
    function.
    """

    samples: Samples
    level: Level
    clip: float
    """The norm that each row, or each class mean, is clipped to."""
    noise: float
    """The standard deviation of the noise, in units of the largest change by one row or one
    party.
    """
    class_counts: list[int]
    """The number of classes of each release of means."""


@dataclass(frozen=True)
class Fitted:
    """The result of a training."""

    theta: Params
    moments: Moments | None
    steps: int
    gradients: int
    """The number of gradient evaluations, which is larger where a step takes several."""
    loss: Tensor | None
    """The loss of the last batch, without the proximal term."""
    scratch: dict[str, Tensor]
    """What the loss wrote to `batch.scratch`."""

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"the result of party.fit has no {name!r}: for its weights, write (await"
            " party.fit(...)).theta"
        )


@dataclass(frozen=True, eq=False)
class FitRequest(Generic[O]):
    """A requested training: minimise `objective` from `begin`. See `Party.fit`."""

    objective: Loss[O]
    begin: Params
    samples: Samples
    key: Key
    training: Training
    task: LearningTask
    aux: O
    """Further arguments of the loss, as a record."""
    only: frozenset[str] | None = None
    """The names of the trained parameters. Default: all but the buffers."""
    add: Params | None = None
    """Added to every gradient, as SCAFFOLD's control variates are."""
    pull: Pull | None = None
    """A proximal term, as FedProx has. Cheaper than a term of the loss, since its gradient is
    known.
    """
    before: Moments | None = None
    """The optimizer state to continue from."""
    draw: Draw[O] | None = None
    batched: bool = True
    """Whether it may be batched with other parties' trainings. False where that is slower."""
    private: Private | None = None
    """Train with DP-SGD and these settings."""

    def __await__(self) -> Generator[FitRequest[Any], Fitted, Fitted]:
        return (yield self)

    # mypy reports a forgotten await as a missing attribute. This reports it at run time.
    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise AttributeError(
                f"A training has no {name!r} before it is awaited: write `await party.fit(...)`."
            )

    @property
    def names(self) -> list[str]:
        """The names of the trained parameters."""
        return [k for k in self.begin if not is_buffer(k) and (self.only is None or k in self.only)]

    @property
    def shift(self) -> Params:
        """What is added to every gradient, for all trained parameters; empty if nothing is."""
        add = self.add
        if add is None:
            return {}
        return {k: add[k] if k in add else torch.zeros_like(self.begin[k]) for k in self.names}


@dataclass(frozen=True, eq=False)
class FoldRequest(Generic[S]):
    """A method's own step, to be folded over batches. See `Party.fold`."""

    step: Callable[[S, Batch], S]
    first: S
    samples: Samples
    key: Key
    training: Training
    mini_batch: int = 0
    """The size of the party's mini-batches. A gradient of a larger batch counts as several; 0: as
    one.
    """

    def __await__(self) -> Generator[FoldRequest[Any], S, S]:
        return (yield self)


Request = FitRequest[Any] | FoldRequest[Any]
PartyCoroutine = Coroutine[Any, Any, T]
"""A running party function: it awaits requests and returns a T."""


def plain(task: LearningTask, theta: Params, batch: Batch, aux: object) -> Tensor:
    """The loss of the learning task: the default objective of a party."""
    return task.loss(theta, batch)


def value_and_gradient(value: Callable[[Params], Tensor], theta: Params) -> tuple[Tensor, Params]:
    """A function's value at `theta` and its gradient there, for steps other than plain descent.
    Buffers have no gradient.
    """
    free = {k: v if is_buffer(k) else v.detach().requires_grad_() for k, v in theta.items()}
    names = [k for k in free if not is_buffer(k)]
    with GradientCount() as count:
        result = value(free)
    add_gradients(count.at_least_one)
    grads = torch.autograd.grad(result, [free[k] for k in names], materialize_grads=True)
    return result.detach(), dict(zip(names, grads, strict=True))


def curvature(value: Callable[[Params], Tensor], theta: Params, along: Params) -> Params:
    """The Hessian of a function at `theta`, times the vector `along`. It counts as two gradient
    evaluations: it differentiates a gradient.
    """
    free = {k: v.clone() if is_buffer(k) else v.detach().requires_grad_() for k, v in theta.items()}
    params = [free[k] for k in along]
    with GradientCount() as count:
        result = value(free)
    add_gradients(2 * count.at_least_one)
    grads = torch.autograd.grad(result, params, create_graph=True, materialize_grads=True)
    slope = torch.stack([(g * along[k]).sum() for k, g in zip(along, grads, strict=True)]).sum()
    return dict(zip(along, torch.autograd.grad(slope, params, materialize_grads=True), strict=True))
