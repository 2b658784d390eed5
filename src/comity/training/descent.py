"""Local training of one model: gradient steps over mini-batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from comity.base.key import BatchKey
from comity.base.record import Params, ReadOnlyDict, read_only, tensor_versions, tree_map
from comity.errors import ComityError, quote
from comity.training.dp_sgd import PrivateGradients, Sampling, check_separable, poisson_batches
from comity.training.gradient_count import GradientCount, add_gradients
from comity.training.kernels import TAPE, SecondOrder, Tape
from comity.training.requests import FitRequest, Fitted, FoldRequest, Private
from comity.training.settings import Moments, Training, batches
from comity.training.task import Batch, LearningTask

S = TypeVar("S")
BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8  # of Adam, as torch's


def train(request: FitRequest[Any]) -> Fitted:
    """Run one training. If the loss differentiates its own gradient, start again with dense
    gradients.
    """
    if request.private:
        return train_privately(request, request.private)
    try:
        return _train(request, thin=True)
    except SecondOrder:
        return _train(request, thin=False)


def train_outside(request: FitRequest[Any]) -> Fitted:
    """Run one training outside of a party function, with the random stream for layers that a party
    function would have set.
    """
    with request.task.network.layer_stream(request.key.fold("layers")):
        return train(request)


def _train(request: FitRequest[Any], thin: bool) -> Fitted:
    aux, read_only_arguments = _read_only_arguments(request)
    before = tensor_versions(read_only_arguments)
    descent = _descent(request, aux, thin)
    scratch: dict[str, Tensor] = {}
    for batch in batches(request.samples, request.key, request.training):
        scratch = batch.scratch
        if request.draw:
            batch.draws = request.draw(batch, BatchKey(request.key.bits, batch.number), aux)
        descent.step(batch)
    check_unwritten(read_only_arguments, before)
    return descent.finish(scratch)


def _read_only_arguments(request: FitRequest[Any]) -> tuple[Any, Any]:
    """The loss's `aux` argument, and all arguments that the loss must not write to."""
    aux = read_only(request.aux)
    if type(request.task) is LearningTask:  # a plain task holds no tensors
        return aux, aux
    return aux, (aux, request.task)


def _descent(request: FitRequest[Any], aux: Any, thin: bool) -> Descent:
    """The gradient descent that a request describes, on copies of its tensors."""

    def loss(theta: Params, batch: Batch) -> Tensor:
        value = request.objective(request.task, theta, batch, aux)
        if not isinstance(value, Tensor) or value.numel() != 1:
            raise ComityError(_not_a_number(request.objective, value))
        return value

    names, pull = request.names, request.pull
    return Descent(
        loss,
        request.training,
        ReadOnlyDict({k: v.detach().clone() for k, v in request.begin.items()}),
        names,
        _copy_moments(request.before) if request.before else None,
        list(request.shift.values()) if request.add is not None else None,
        Anchor.at(names, pull.to, pull.weight) if pull else None,
        thin,
    )


def _not_a_number(loss: Any, value: Any) -> str:
    """The message for a loss that returned something else than one number."""
    code = getattr(loss, "__code__", None)
    place = f" ({Path(code.co_filename).name}:{code.co_firstlineno})" if code else ""
    name = getattr(loss, "__name__", type(loss).__name__)
    if isinstance(value, Tensor):
        return (
            f"{name}{place} must return one number, but returned a tensor of shape"
            f" {[*value.shape]}: return its mean."
        )
    return f"{name}{place} must return a tensor of one number, but returned {quote(value)}."


def train_privately(request: FitRequest[Any], private: Private) -> Fitted:
    """Run one training with DP-SGD: Poisson-sampled batches, clipped gradients and noise."""
    aux, read_only_arguments = _read_only_arguments(request)
    before = tensor_versions(read_only_arguments)
    descent = _descent(request, aux, thin=False)
    if not request.task.network.draws:  # the check needs a loss without random layers
        check_separable(descent.loss, descent.theta, private.samples)
    sampling = Sampling.of(request.training, private.units)
    gradients = PrivateGradients(descent, private, sampling.rate * private.units)
    for batch in poisson_batches(
        private.samples, *sampling, request.key, request.training, private.patients
    ):
        descent.apply(gradients.of(batch, request.key.fold("noise", batch.number)))
    private.trainings.append(sampling)
    check_unwritten(read_only_arguments, before)
    return descent.finish({})


def fold(request: FoldRequest[S]) -> S:
    """Fold a method's own step over batches. Each step counts as one gradient evaluation at least.

    The state is copied once: a forward pass in training mode writes to BatchNorm's buffers, which
    may belong to a message.
    """
    state: S = tree_map(
        lambda leaf: leaf.detach().clone() if isinstance(leaf, Tensor) else leaf, request.first
    )
    for batch in batches(request.samples, request.key, request.training):
        with GradientCount(request.mini_batch) as count:
            state = request.step(state, batch)
        add_gradients(count.at_least_one)
    return state


def check_unwritten(arguments: Any, before: list[int]) -> None:
    """Refuse a loss that wrote to its arguments: its result would depend on the engine."""
    if tensor_versions(arguments) != before:
        raise ComityError(
            "A loss wrote to a tensor of its aux argument or of its task: create a new tensor"
            " instead."
        )


def _copy_moments(moments: Moments) -> Moments:
    """A copy of an optimizer's state: the descent updates it in place."""
    copy: Moments = tree_map(lambda v: v.clone() if isinstance(v, Tensor) else v, moments)
    return copy


@dataclass(frozen=True)
class Anchor:
    """A proximal term as the descent applies it: which trained tensors are pulled, where to, and
    how strongly.
    """

    places: list[int]
    to: list[Tensor]
    weight: float

    @staticmethod
    def at(names: list[str], to: Params, weight: float) -> Anchor | None:
        """The pull of the trained tensors, by name, to those in `to`; None if none of them is in
        `to`.
        """
        places = [n for n, name in enumerate(names) if name in to]
        return Anchor(places, [to[names[n]] for n in places], weight) if places else None


@dataclass
class Descent:
    """Gradient descent in place, one step per batch, with the update rules of torch.optim's SGD and
    Adam.
    """

    loss: Callable[[Params, Batch], Tensor]
    training: Training
    theta: Params
    names: list[str]
    moments: Moments | None
    add: list[Tensor] | None
    anchor: Anchor | None
    thin: bool = True
    """Whether gradients of linear layers stay products of thin matrices until they are summed."""
    steps: int = 0
    gradients: int = 0
    """The number of gradient evaluations (see `gradient_count`)."""
    last_loss: Tensor | None = None
    params: list[Tensor] = field(init=False)
    tape: Tape | None = field(init=False)

    def __post_init__(self) -> None:
        self.params = [self.theta[name].requires_grad_() for name in self.names]
        self.tape = Tape(self.params) if self.thin and self.training.optimizer == "sgd" else None

    def step(self, batch: Batch) -> None:
        """Take one step on one batch."""
        token = TAPE.set(self.tape)
        try:
            with GradientCount() as count, self._autocast(batch):
                value = self.loss(self.theta, batch).float()
        finally:
            TAPE.reset(token)
        outputs = self.tape.outputs if self.tape else []
        if self.params:  # there are none where all that would be trained is frozen
            grads = torch.autograd.grad(value, [*outputs, *self.params], allow_unused=True)
            with torch.no_grad():
                self._update(grads[: len(outputs)], grads[len(outputs) :])
        self.steps += 1
        self.gradients += count.at_least_one
        self.last_loss = value

    def _autocast(self, batch: Batch) -> AbstractContextManager[object]:
        """The context of one forward pass. Autocast keeps rounded copies of the weights until it is
        left, so that each step needs one of its own.
        """
        if self.training.precision == "float32":
            return nullcontext()
        return torch.autocast(batch.x.device.type, torch.bfloat16)

    def apply(self, grads: Sequence[Tensor]) -> None:
        """Take one step with gradients computed elsewhere."""
        with torch.no_grad():
            self._update([], grads)
        self.steps += 1
        self.gradients += 1

    def _update(self, thin: Sequence[Tensor | None], dense: Sequence[Tensor | None]) -> None:
        """Apply gradients: `thin` of the outputs of linear layers, `dense` of the parameters
        themselves.
        """
        training = self.training
        if training.optimizer == "sgd" and not training.momentum:
            self._gather(self.params, -training.lr, thin, dense)
            return
        old = self.moments or self._no_moments()
        first = [old.first[n] for n in self.names]
        second = [old.second[n] for n in self.names if n in old.second]
        self.moments = Moments(old.first, old.second, old.count + 1)
        if training.optimizer == "sgd":
            torch._foreach_mul_(first, training.momentum)
            self._gather(first, 1.0, thin, dense)
            torch._foreach_add_(self.params, first, alpha=-training.lr)
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
        torch._foreach_addcdiv_(self.params, first, scale, value=-training.lr / (1 - BETA1**count))

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
        """Add `scale` times the whole gradient to `into`, which may be the parameters
        themselves.
        """
        if self.anchor:
            self._pull_and_decay(self.anchor, into, scale)
        elif self.training.decay:
            torch._foreach_add_(into, self.params, alpha=scale * self.training.decay)
        if self.add is not None:
            torch._foreach_add_(into, self.add, alpha=scale)
        pairs = [(to, grad) for to, grad in zip(into, dense, strict=True) if grad is not None]
        if pairs:
            torch._foreach_add_([to for to, _ in pairs], [grad for _, grad in pairs], alpha=scale)
        if self.tape:
            self.tape.add(thin, into, scale)

    def _pull_and_decay(self, anchor: Anchor, into: list[Tensor], scale: float) -> None:
        """Add the proximal term and the weight decay, both computed from the parameters before
        either is added.
        """
        params = [self.params[n] for n in anchor.places]
        if into is self.params and not self.training.decay:
            torch._foreach_lerp_(params, anchor.to, -scale * anchor.weight)  # in one pass
            return
        gaps = torch._foreach_sub(params, anchor.to)
        if self.training.decay:
            torch._foreach_add_(into, self.params, alpha=scale * self.training.decay)
        torch._foreach_add_([into[n] for n in anchor.places], gaps, alpha=scale * anchor.weight)

    def finish(self, scratch: dict[str, Tensor]) -> Fitted:
        """The result of the training. No further step may be taken."""
        for param in self.params:
            param.requires_grad_(False)
        return Fitted(
            dict(self.theta),
            self.moments,
            self.steps,
            self.gradients,
            None if self.last_loss is None else self.last_loss.detach(),
            scratch,
        )
