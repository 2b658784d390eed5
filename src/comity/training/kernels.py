"""Kernels that work on one party or on many stacked ones: `over_rows`, linear layers without dense
gradients, cross entropy.

`torch.func.vmap` computes a function of one party for many at once. It costs a quarter of a
millisecond per call, mostly because it supports arbitrary trees. `over_rows` does the same for
dicts of tensors, and two layers have kernels of their own.

The gradient of W in y = x Wᵀ + b is dyᵀ x, a product of two thin matrices for the small batches
that parties train with. While a model is trained, the descent asks autograd for dy only and adds
the product to the weights in one pass. This avoids writing and reading a matrix as large as the
weights: with small batches, a step is limited by memory bandwidth.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._C import _functorch as functorch

from comity.training.gradient_count import GradientCount, add_gradients


def over_rows(
    function: Callable[..., dict[str, Tensor]], *stacked: dict[str, Tensor]
) -> dict[str, Tensor]:
    """`vmap(function)` for dicts of tensors whose rows belong to the parties."""
    n = next(iter(stacked[0].values())).shape[0]
    level = functorch._vmap_increment_nesting(n, "error")
    try:
        out = function(
            *(
                {k: functorch._add_batch_dim(v, 0, level) for k, v in part.items()}
                for part in stacked
            )
        )
        return {k: functorch._remove_batch_dim(v, level, n, 0) for k, v in out.items()}
    finally:
        functorch._vmap_decrement_nesting()


class SecondOrder(Exception):
    """A loss differentiates its own gradient, which the tape has detached from the weights."""


class Tape:
    """Records the calls of linear layers within one step: which weight, the input and the output.

    With several parties' weights stacked, a layer runs within `vmap`. There the tape unwraps the
    batched tensors, so that the layer is one batched product and its gradient is as thin as that of
    a single party.
    """

    def __init__(self, weights: Sequence[Tensor]) -> None:
        self._place = {id(w): k for k, w in enumerate(weights)}
        self._fixed = [w.detach() for w in weights]
        self.places: list[int] = []
        self.inputs: list[Tensor] = []
        self.outputs: list[Tensor] = []

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """A linear layer, which is recorded if its weight is trained."""
        if functorch.is_batchedtensor(weight):
            return self._stacked(x, weight, bias)
        place = self._place.get(id(weight))
        if place is None or not torch.is_grad_enabled():
            return F.linear(x, weight, bias)
        return self._record(place, x, F.linear(x, self._fixed[place], bias))

    def conv2d(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        stride: int,
        padding: int,
        order: torch.memory_format,
    ) -> Tensor:
        """A convolution. It is not recorded, since its gradient is no larger than its inputs."""
        return _conv2d(x, weight, bias, stride, padding, order)

    def _stacked(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        level = functorch.maybe_get_level(weight)
        if (
            bias is None
            or x.dim() != 2
            or any(functorch.maybe_get_level(part) != level for part in (x, bias))
        ):
            return F.linear(x, weight, bias)
        rows = _rows(x)
        offset = _rows(bias).unsqueeze(1)
        place = self._place.get(id(functorch.get_unwrapped(weight)))
        if place is None or not torch.is_grad_enabled():
            # The weights were computed (as APFL's mixture), or are not trained.
            y = torch.baddbmm(offset, rows, _rows(weight).mT)
        else:
            y = self._record(place, rows, torch.baddbmm(offset, rows, self._fixed[place].mT))
        return functorch._add_batch_dim(y, 0, level)

    def _record(self, place: int, x: Tensor, y: Tensor) -> Tensor:
        if not y.requires_grad:
            y.requires_grad_()
        y.register_hook(_first_order)
        self.places.append(place)
        base = x if x._base is None else x._base
        is_weight = base.is_leaf and base.requires_grad
        self.inputs.append(x.clone() if is_weight else x)  # weights change before this is used
        self.outputs.append(y)
        return y

    def add(self, grads: Sequence[Tensor | None], into: Sequence[Tensor], scale: float) -> None:
        """End a step: add `scale` times the weights' gradients to `into`, from the gradients of the
        outputs, and remove the records of the step.
        """
        for place, x, dy in zip(self.places, self.inputs, grads, strict=True):
            if dy is None:
                continue
            if into[place].dim() == 3:
                into[place].baddbmm_(dy.mT, x, alpha=scale)
            else:
                into[place].addmm_(dy.flatten(0, -2).t(), x.flatten(0, -2), alpha=scale)
        self.places.clear()
        self.inputs.clear()
        self.outputs.clear()


def _rows(x: Tensor) -> Tensor:
    """The stacked tensor inside a batched one, with the parties as first dimension."""
    stacked = functorch.get_unwrapped(x)
    dimension = functorch.maybe_get_bdim(x)
    return stacked if dimension == 0 else stacked.movedim(dimension, 0)


def unwrapped(x: Tensor) -> Tensor:
    """The values of all parties, or of all samples, that a tensor within `vmap` stands for. For
    inspection, not for computation.
    """
    while functorch.maybe_get_level(x) >= 1:
        x = functorch.get_unwrapped(x)
    return x


def _first_order(dy: Tensor) -> None:
    if torch.is_grad_enabled():  # only while autograd builds a graph of the gradient
        raise SecondOrder("it differentiates its own gradient")


TAPE: ContextVar[Tape | None] = ContextVar("tape", default=None)


def squared_error(predictions: Tensor, y: Tensor) -> Tensor:
    """The mean squared error of a batch, with one prediction per sample."""
    return (predictions.squeeze(-1) - y).square().mean()


def mean_cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    """The mean cross entropy of a batch. Within `vmap` it is one batched call for all parties,
    which is faster than torch's rule.
    """
    level = functorch.maybe_get_level(logits)
    if (
        level < 1
        or level != functorch.maybe_get_level(y)
        or logits.dim() != 2
        or functorch.is_gradtrackingtensor(logits)
    ):
        return F.cross_entropy(logits, y)
    rows, labels = _rows(logits), _rows(y)
    if functorch.is_batchedtensor(rows):
        return F.cross_entropy(logits, y)
    losses = F.cross_entropy(rows.flatten(0, 1), labels.flatten(), reduction="none")
    return functorch._add_batch_dim(losses.view(labels.shape).mean(1), 0, level)


def input_gradient(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """The gradient of a function at x: within `vmap` by `torch.func.grad`, elsewhere by autograd,
    which takes half the time.
    """
    with GradientCount() as count:
        if functorch.maybe_get_level(x) >= 1:
            slope: Tensor = torch.func.grad(function)(x.detach())
        else:
            x = x.detach().requires_grad_()
            (slope,) = torch.autograd.grad(function(x), x)
    add_gradients(count.at_least_one)
    return slope


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x Wᵀ + b."""
    tape = TAPE.get()
    return F.linear(x, weight, bias) if tape is None else tape.linear(x, weight, bias)


def conv2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: int,
    padding: int,
    order: torch.memory_format,
) -> Tensor:
    """A 2-d convolution with this memory format."""
    tape = TAPE.get()
    return (_conv2d if tape is None else tape.conv2d)(x, weight, bias, stride, padding, order)


def _conv2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: int,
    padding: int,
    order: torch.memory_format,
) -> Tensor:
    if functorch.maybe_get_level(x) < 1:  # `vmap` supports no memory formats
        x, weight = x.to(memory_format=order), weight.to(memory_format=order)
    return F.conv2d(x, weight, bias, stride, padding)
