"""Local training: a step folded over mini-batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor

from comity.core.key import Key
from comity.core.record import Params, is_buffer, record, tree_map
from comity.core.samples import Samples
from comity.core.task import Batch

S = TypeVar("S")
Loss = Callable[[Params, Batch], Tensor]
BLOCK = 64  # batches gathered at once: one indexing call for many steps, and bounded memory


@dataclass(frozen=True)
class Training:
    """How parties train: the experiment's settings, the same for every method so that a comparison is fair."""

    optimizer: Literal["sgd", "adam"] = "sgd"
    lr: float = 0.01
    momentum: float = 0.0
    decay: float = 0.0
    batch: int = 10
    epochs: int = 1
    steps: int | None = None
    """A fixed number of steps instead of epochs."""
    min_batch: int = 1
    """A smaller last batch is dropped: 2 with BatchNorm, `batch` if last batches are dropped."""
    keep: bool = False
    """Whether a party's optimizer remembers its moments from round to round."""
    augment: Callable[[Tensor, Key], Tensor] | None = None
    """Random changes to a batch's inputs, drawn from the batch's key."""

    def steps_for(self, samples: int) -> int:
        """How many steps a party with that many training samples makes in one local training."""
        whole, rest = divmod(samples, self.batch)
        an_epoch = (whole if self.batch >= self.min_batch else 0) + (rest >= self.min_batch and rest > 0)
        if self.steps is not None:
            return self.steps if an_epoch else 0
        return self.epochs * an_epoch


@record
class Moments:
    """What an optimizer remembers: momentum, or Adam's first and second moments and its step count."""

    first: Params
    second: Params
    count: int


@dataclass(frozen=True)
class Fit:
    """What came out of local training."""

    theta: Params
    moments: Moments | None
    steps: int
    loss: Tensor | None
    """The loss of the last batch."""


@dataclass
class Meter:
    """Counts gradient steps for whoever runs the work."""

    steps: int = 0


METER: ContextVar[Meter] = ContextVar("meter")


@dataclass
class Memory:
    """The moments of a party's optimizers: one for each `fit` of each work, found again by its place there."""

    moments: dict[str, Moments]
    work: str
    uses: int = 0

    def recall(self, params: Params) -> tuple[str, Moments | None]:
        """The place of the next `fit` of this work, and what was kept there if it trains the same tensors."""
        place = f"{self.work}.{self.uses}"
        self.uses += 1
        kept = self.moments.get(place)
        known = kept and {k: v.shape for k, v in kept.first.items()} == {k: v.shape for k, v in params.items()}
        return place, kept if known else None


MEMORY: ContextVar[Memory] = ContextVar("memory")


def batches(data: Samples, key: Key, training: Training) -> Iterator[Batch]:
    """Mini-batches in a fresh order each epoch."""
    scratch: dict[str, Tensor] = {}
    number, epoch = 0, 0
    while training.steps_for(len(data)) > number:
        order = key.fold("order", epoch).permutation(len(data)).to(data.x.device)
        for block in order.split(training.batch * BLOCK):
            xs = data.x.index_select(0, block).split(training.batch)
            ys = data.y.index_select(0, block).split(training.batch)
            for x, y, indices in zip(xs, ys, block.split(training.batch), strict=True):
                if len(y) < training.min_batch or number == training.steps:
                    break
                seen = training.augment(x, key.fold("augment", number)) if training.augment else x
                yield Batch(seen, y, indices, key, number, scratch)
                number += 1
        epoch += 1


def run(step: Callable[[S, Batch], S], state: S, stream: Iterable[Batch]) -> S:
    """Fold a step over batches; a method with a step of its own (an inner loop, a mixture) calls this directly.

    The state is copied once, because a training pass writes to BatchNorm's buffers, which may belong to a letter.
    """
    state = tree_map(lambda leaf: leaf.detach().clone() if isinstance(leaf, Tensor) else leaf, state)
    count = 0
    for batch in stream:
        state = step(state, batch)
        count += 1
    if meter := METER.get(None):
        meter.steps += count
    return state


def gradient(value: Callable[[Params], Tensor], theta: Params) -> tuple[Tensor, Params]:
    """A function's value at `theta` and its gradient there, for steps that are not plain descent; buffers have none."""
    free = {k: v if is_buffer(k) else v.detach().requires_grad_() for k, v in theta.items()}
    names = [k for k in free if not is_buffer(k)]
    result = value(free)
    grads = torch.autograd.grad(result, [free[k] for k in names], materialize_grads=True)
    return result.detach(), dict(zip(names, grads, strict=True))


@dataclass
class Descent:
    """Gradient descent in place on tensors of its own: the working state of `fit`."""

    loss: Loss
    training: Training
    theta: Params
    names: list[str]
    moments: Moments | None
    add: list[Tensor] | None
    steps: int = 0
    last: Tensor | None = None
    params: list[Tensor] = field(init=False)

    def __post_init__(self) -> None:
        self.params = [self.theta[name].requires_grad_() for name in self.names]

    def step(self, batch: Batch) -> None:
        """One step on one batch."""
        value = self.loss(self.theta, batch)
        grads = list(torch.autograd.grad(value, self.params, materialize_grads=True))
        with torch.no_grad():
            self.update(grads)
        self.steps += 1
        self.last = value

    def update(self, grads: list[Tensor]) -> None:
        """Apply gradients as torch.optim's SGD or Adam would."""
        how = self.training
        if self.add is not None:
            torch._foreach_add_(grads, self.add)
        if how.decay:
            torch._foreach_add_(grads, self.params, alpha=how.decay)
        if how.optimizer == "sgd" and not how.momentum:
            torch._foreach_add_(self.params, grads, alpha=-how.lr)
            return
        old = self.moments or Moments(
            {n: torch.zeros_like(p) for n, p in zip(self.names, self.params, strict=True)},
            {n: torch.zeros_like(p) for n, p in zip(self.names, self.params, strict=True) if how.optimizer == "adam"},
            0,
        )
        first, second = ([part[n] for n in self.names if n in part] for part in (old.first, old.second))
        self.moments = Moments(old.first, old.second, old.count + 1)
        if how.optimizer == "sgd":
            torch._foreach_mul_(first, how.momentum)
            torch._foreach_add_(first, grads)
            torch._foreach_add_(self.params, first, alpha=-how.lr)
            return
        beta1, beta2, count = 0.9, 0.999, self.moments.count
        torch._foreach_lerp_(first, grads, 1 - beta1)
        torch._foreach_mul_(second, beta2)
        torch._foreach_addcmul_(second, grads, grads, value=1 - beta2)
        scale = torch._foreach_sqrt(second)
        torch._foreach_div_(scale, (1 - beta2**count) ** 0.5)
        torch._foreach_add_(scale, 1e-8)
        torch._foreach_addcdiv_(self.params, first, scale, value=-how.lr / (1 - beta1**count))


class Stepper(Descent):
    """Steps one at a time, for a model that learns between another's batches; they count as all others do."""

    @staticmethod
    def on(loss: Loss, theta: Params, training: Training) -> Stepper:
        """Ready at `theta`, which is not changed."""
        theta = {k: v.detach().clone() for k, v in theta.items()}
        return Stepper(loss, training, theta, [k for k in theta if not is_buffer(k)], None, None)

    def after(self, batch: Batch) -> Params:
        """What is learned after one more step."""
        self.step(batch)
        if meter := METER.get(None):
            meter.steps += 1
        return {k: v.detach().clone() for k, v in self.theta.items()}


def fit(
    loss: Loss,
    theta: Params,
    data: Samples,
    key: Key,
    training: Training,
    *,
    only: frozenset[str] | None = None,
    add: Params | None = None,
    moments: Moments | None = None,
) -> Fit:
    """Minimise `loss` from `theta`, which is not changed: it is copied once and then updated in place.

    `only` names what is trained (all but the buffers, unless told); `add` is added to every gradient, as SCAFFOLD's
    control variates are; `moments` continues an optimizer, as an experiment with `opt_state=keep` does by itself.
    """
    theta = {k: v.detach().clone() for k, v in theta.items()}
    names = [k for k in theta if not is_buffer(k) and (only is None or k in only)]
    shift = None if add is None else [add[k] if k in add else torch.zeros_like(theta[k]) for k in names]
    memory = MEMORY.get(None) if training.keep else None
    place, before = memory.recall({k: theta[k] for k in names}) if memory else ("", None)
    moments = moments or before
    # In-place moments must not touch the caller's record.
    kept: Any = moments and Moments(
        {k: v.clone() for k, v in moments.first.items()}, {k: v.clone() for k, v in moments.second.items()}, moments.count
    )
    work = Descent(loss, training, theta, names, kept, shift)

    def step(state: Descent, batch: Batch) -> Descent:
        state.step(batch)
        return state

    run(step, work, batches(data, key, training))
    for param in work.params:
        param.requires_grad_(False)
    if memory and work.moments:
        memory.moments[place] = work.moments
    return Fit(theta, work.moments, work.steps, None if work.last is None else work.last.detach())
