"""How one model is trained: a step folded over mini-batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor

from comity.base.key import BatchKey
from comity.base.record import Params, ReadOnlyDict, marks, read_only, tree_map
from comity.errors import ComityError
from comity.training.dp_sgd import PrivateGradients, check_separable, poisson_batches
from comity.training.kernels import TAPE, SecondOrder, Tape
from comity.training.requests import FitRequest, Fitted, FoldRequest, Private
from comity.training.settings import Moments, Training, batches
from comity.training.task import Batch, LearningTask

S = TypeVar("S")
BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8  # of Adam, as torch's


def train(request: FitRequest[Any]) -> Fitted:
    """Do one training; should its loss turn out to be of second order, begin anew with whole
    gradients.
    """
    if request.private:
        return train_privately(request, request.private)
    try:
        return _train(request, thin=True)
    except SecondOrder:
        return _train(request, thin=False)


def train_outside(request: FitRequest[Any]) -> Fitted:
    """Do one training that no work asked for, with the random stream for layers that a work would
    have lent it.
    """
    with request.task.network.layer_stream(request.key.fold("layers")):
        return train(request)


def _train(request: FitRequest[Any], thin: bool) -> Fitted:
    own, given = _given(request)
    before = marks(given)
    descent = _descent(request, own, thin)
    scratch: dict[str, Tensor] = {}
    for batch in batches(request.samples, request.key, request.training):
        scratch = batch.scratch
        if request.draw:
            batch.drawn = request.draw(batch, BatchKey(request.key.bits, batch.number), own)
        descent.step(batch)
    check_unwritten(given, before)
    return descent.done(scratch)


def _given(request: FitRequest[Any]) -> tuple[Any, Any]:
    """What the loss gets of the party's own, and all that it must not write to."""
    own = read_only(request.own)
    return own, (
        own
        if type(request.task) is LearningTask
        else (
            own,
            request.task,
        )
    )  # a plain task holds no tensors


def _descent(request: FitRequest[Any], own: Any, thin: bool) -> Descent:
    def loss(theta: Params, batch: Batch) -> Tensor:
        return request.objective(request.task, theta, batch, own)

    shift = request.shift
    return Descent(
        loss,
        request.training,
        ReadOnlyDict({k: v.detach().clone() for k, v in request.begin.items()}),
        request.names,
        _copied(request.before),  # updated in place, so it must not be the caller's
        None if shift is None else list(shift.values()),
        Anchor.of(request),
        thin,
    )


def train_privately(request: FitRequest[Any], private: Private) -> Fitted:
    """Do one training of which no single record tells: as any other, but for its batches and what
    is done to gradients.
    """
    own, given = _given(request)
    before = marks(given)
    descent = _descent(request, own, thin=False)
    if not request.task.network.draws:  # what layers draw at random differs from try to try
        check_separable(descent.loss, descent.theta, private.samples)
    samples, how = private.samples, request.training
    rate = min(1.0, how.batch / len(samples))
    steps = how.steps_for(len(samples))
    gradients = PrivateGradients(descent, private, rate * len(samples))
    for batch in poisson_batches(samples, rate, steps, request.key, how):
        descent.apply(gradients.of(batch, request.key.fold("noise", batch.number)))
    private.made.append((rate, steps))
    check_unwritten(given, before)
    return descent.done({})


def fold(request: FoldRequest[S]) -> S:
    """A step of a method's own, folded over batches.

    The state is copied once, because a training pass writes to BatchNorm's buffers, which may
    belong to a letter.
    """
    state: S = tree_map(
        lambda leaf: leaf.detach().clone() if isinstance(leaf, Tensor) else leaf, request.first
    )
    for batch in batches(request.samples, request.key, request.training):
        state = request.step(state, batch)
    return state


def check_unwritten(given: Any, before: list[int]) -> None:
    """Refuse a loss that wrote to tensors that it was given: other engines would make something
    else of that.
    """
    if marks(given) != before:
        raise ComityError(
            "A loss wrote to a tensor of its `own` or of its task, which is not its own: let it"
            " make a new one."
        )


def _copied(moments: Moments | None) -> Moments | None:
    if moments is None:
        return None
    copied: Moments = tree_map(lambda v: v.clone() if isinstance(v, Tensor) else v, moments)
    return copied


@dataclass(frozen=True)
class Anchor:
    """A pull, as the descent applies it: which of the trained tensors are pulled, where to, and how
    strongly.
    """

    places: list[int]
    to: list[Tensor]
    weight: float

    @staticmethod
    def of(request: FitRequest[Any]) -> Anchor | None:
        """A single party's pull; None if nothing that is trained is pulled."""
        return (
            None
            if request.pull is None
            else Anchor.at(request.names, request.pull.to, request.pull.weight)
        )

    @staticmethod
    def at(names: list[str], to: Params, weight: float) -> Anchor | None:
        """The pull of what is trained, by its names, to some tensors."""
        places = [n for n, name in enumerate(names) if name in to]
        return Anchor(places, [to[names[n]] for n in places], weight) if places else None


@dataclass
class Descent:
    """Gradient descent in place on tensors of its own, one step a batch, as torch.optim's SGD or
    Adam would do it.
    """

    loss: Callable[[Params, Batch], Tensor]
    training: Training
    theta: Params
    names: list[str]
    moments: Moments | None
    add: list[Tensor] | None
    anchor: Anchor | None
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
            self._update(grads[: len(outputs)], grads[len(outputs) :])
        self.steps += 1
        self.last = value

    def apply(self, grads: Sequence[Tensor]) -> None:
        """One step by gradients that were made elsewhere."""
        with torch.no_grad():
            self._update([], grads)
        self.steps += 1

    def _update(self, thin: Sequence[Tensor | None], dense: Sequence[Tensor | None]) -> None:
        """Apply gradients: `thin` of linear layers' outputs, `dense` of the parameters themselves."""
        how = self.training
        if how.optimizer == "sgd" and not how.momentum:
            self._gather(self.params, -how.lr, thin, dense)
            return
        old = self.moments or self._no_moments()
        first = [old.first[n] for n in self.names]
        second = [old.second[n] for n in self.names if n in old.second]
        self.moments = Moments(old.first, old.second, old.count + 1)
        if how.optimizer == "sgd":
            torch._foreach_mul_(first, how.momentum)
            self._gather(first, 1.0, thin, dense)
            torch._foreach_add_(self.params, first, alpha=-how.lr)
            return
        grads = [torch.zeros_like(p) for p in self.params]
        self._gather(grads, 1.0, thin, dense)
        count = self.moments.count
        torch._foreach_lerp_(first, grads, 1 - BETA1)
        torch._foreach_mul_(second, BETA2)
        torch._foreach_addcmul_(second, grads, grads, value=1 - BETA2)
        scale = torch._foreach_sqrt(second)
        torch._foreach_div_(scale, (1 - BETA2**count) ** 0.5)
        torch._foreach_add_(scale, EPSILON)
        torch._foreach_addcdiv_(self.params, first, scale, value=-how.lr / (1 - BETA1**count))

    def _no_moments(self) -> Moments:
        def zeros() -> Params:
            return {n: torch.zeros_like(p) for n, p in zip(self.names, self.params, strict=True)}

        return Moments(zeros(), zeros() if self.training.optimizer == "adam" else {}, 0)

    def _gather(
        self,
        into: list[Tensor],
        scale: float,
        thin: Sequence[Tensor | None],
        dense: Sequence[Tensor | None],
    ) -> None:
        """Add `scale` times the whole gradient to `into`, which may be the parameters themselves."""
        if self.anchor:
            self._pull_and_decay(self.anchor, into, scale)
        elif self.training.decay:
            torch._foreach_add_(into, self.params, alpha=scale * self.training.decay)
        if self.add is not None:
            torch._foreach_add_(into, self.add, alpha=scale)
        there = [(to, grad) for to, grad in zip(into, dense, strict=True) if grad is not None]
        if there:
            torch._foreach_add_([to for to, _ in there], [grad for _, grad in there], alpha=scale)
        if self.tape:
            self.tape.add(thin, into, scale)
            self.tape.clear()

    def _pull_and_decay(self, anchor: Anchor, into: list[Tensor], scale: float) -> None:
        """Both look at the parameters as they are before either is added."""
        params = [self.params[n] for n in anchor.places]
        if into is self.params and not self.training.decay:
            torch._foreach_lerp_(params, anchor.to, -scale * anchor.weight)  # in one pass
            return
        gaps = torch._foreach_sub(params, anchor.to)
        if self.training.decay:
            torch._foreach_add_(into, self.params, alpha=scale * self.training.decay)
        torch._foreach_add_([into[n] for n in anchor.places], gaps, alpha=scale * anchor.weight)

    def done(self, scratch: dict[str, Tensor]) -> Fitted:
        """What came out; no further step is made."""
        for param in self.params:
            param.requires_grad_(False)
        return Fitted(
            dict(self.theta),
            self.moments,
            self.steps,
            None if self.last is None else self.last.detach(),
            scratch,
        )
