"""Local training: a step folded over mini-batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import TypeVar

import torch
from torch import Tensor

from comity.core.kernels import TAPE, SecondOrder, Tape
from comity.core.key import Key
from comity.core.moments import MEMORY, Moments
from comity.core.record import Params, is_buffer, tree_map
from comity.core.samples import Samples
from comity.core.task import Batch
from comity.core.training import Training, batches

S = TypeVar("S")
Loss = Callable[[Params, Batch], Tensor]


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
    thin: bool = True
    """Whether gradients of linear layers stay products of thin matrices until they are added up."""
    steps: int = 0
    last: Tensor | None = None
    params: list[Tensor] = field(init=False)
    tape: Tape | None = field(init=False)

    def __post_init__(self) -> None:
        self.params = [self.theta[name].requires_grad_() for name in self.names]
        self.tape = Tape(self.params) if self.thin and self.training.optimizer == "sgd" else None

    def step(self, batch: Batch) -> None:
        """One step on one batch."""
        token = TAPE.set(self.tape)
        try:
            value = self.loss(self.theta, batch)
        finally:
            TAPE.reset(token)
        outputs = self.tape.outputs if self.tape else []
        grads = torch.autograd.grad(value, [*outputs, *self.params], allow_unused=True)
        with torch.no_grad():
            self.update(grads[: len(outputs)], grads[len(outputs) :])
        self.steps += 1
        self.last = value

    def update(self, thin: Sequence[Tensor | None], dense: Sequence[Tensor | None]) -> None:
        """Apply gradients, of linear layers' outputs and of parameters, as torch.optim's SGD or Adam would."""
        how = self.training
        if how.optimizer == "sgd" and not how.momentum:
            self.gather(self.params, -how.lr, thin, dense)
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
            self.gather(first, 1.0, thin, dense)
            torch._foreach_add_(self.params, first, alpha=-how.lr)
            return
        grads = [torch.zeros_like(p) for p in self.params]
        self.gather(grads, 1.0, thin, dense)
        beta1, beta2, count = 0.9, 0.999, self.moments.count
        torch._foreach_lerp_(first, grads, 1 - beta1)
        torch._foreach_mul_(second, beta2)
        torch._foreach_addcmul_(second, grads, grads, value=1 - beta2)
        scale = torch._foreach_sqrt(second)
        torch._foreach_div_(scale, (1 - beta2**count) ** 0.5)
        torch._foreach_add_(scale, 1e-8)
        torch._foreach_addcdiv_(self.params, first, scale, value=-how.lr / (1 - beta1**count))

    def gather(self, into: list[Tensor], scale: float, thin: Sequence[Tensor | None], dense: Sequence[Tensor | None]) -> None:
        """Add `scale` times the whole gradient to `into`."""
        if self.training.decay:
            torch._foreach_add_(into, self.params, alpha=scale * self.training.decay)
        if self.add is not None:
            torch._foreach_add_(into, self.add, alpha=scale)
        there = [(to, grad) for to, grad in zip(into, dense, strict=True) if grad is not None]
        if there:
            torch._foreach_add_([to for to, _ in there], [grad for _, grad in there], alpha=scale)
        if self.tape:
            self.tape.add(thin, into, scale)
            self.tape.clear()

    def done(self) -> Fit:
        """What came out; no further step is made."""
        for param in self.params:
            param.requires_grad_(False)
        return Fit(self.theta, self.moments, self.steps, None if self.last is None else self.last.detach())


class Stepper(Descent):
    """Steps one at a time, for a model that learns between another's batches; they count as all others do."""

    @staticmethod
    def on(loss: Loss, theta: Params, training: Training) -> Stepper:
        """Ready at `theta`, which is not changed."""
        theta = {k: v.detach().clone() for k, v in theta.items()}
        return Stepper(loss, training, theta, [k for k in theta if not is_buffer(k)], None, None, thin=False)

    def after(self, batch: Batch) -> Params:
        """What is learned after one more step."""
        self.step(batch)
        if meter := METER.get(None):
            meter.steps += 1
        return {k: v.detach().clone() for k, v in self.theta.items()}


@dataclass(frozen=True)
class Request:
    """A training that is asked for; see `fit`."""

    loss: Loss
    theta: Params
    data: Samples
    key: Key
    training: Training
    only: frozenset[str] | None = None
    add: Params | None = None
    moments: Moments | None = None

    @property
    def names(self) -> list[str]:
        """What is trained."""
        return [k for k in self.theta if not is_buffer(k) and (self.only is None or k in self.only)]

    @property
    def shift(self) -> Params | None:
        """What is added to every gradient, for all that is trained."""
        add = self.add
        return None if add is None else {k: add[k] if k in add else torch.zeros_like(self.theta[k]) for k in self.names}


FITTER: ContextVar[Callable[[Request], Fit]] = ContextVar("fitter")
"""Who trains instead of `alone`: the stacked engine, for many parties at once."""


def alone(request: Request) -> Fit:
    """Train one party's model; should the loss turn out to be of second order, begin anew with whole gradients."""
    try:
        return _descend(request, thin=True)
    except SecondOrder:
        return _descend(request, thin=False)


def _descend(asked: Request, thin: bool) -> Fit:
    theta = {k: v.detach().clone() for k, v in asked.theta.items()}
    # In-place moments must not touch the caller's record.
    moments: Moments | None = asked.moments and tree_map(lambda v: v.clone() if isinstance(v, Tensor) else v, asked.moments)
    shift = asked.shift
    work = Descent(asked.loss, asked.training, theta, asked.names, moments, None if shift is None else list(shift.values()), thin)
    for batch in batches(asked.data, asked.key, asked.training):
        work.step(batch)
    return work.done()


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
    asked = Request(loss, theta, data, key, training, only, add, moments)
    memory = MEMORY.get(None) if training.keep else None
    place, before = memory.recall({k: theta[k] for k in asked.names}) if memory else ("", None)
    if before and not moments:
        asked = replace(asked, moments=before)
    done = FITTER.get(alone)(asked)
    if memory and done.moments:
        memory.moments[place] = done.moments
    if meter := METER.get(None):
        meter.steps += done.steps
    return done
