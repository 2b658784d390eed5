"""What knows of stacked parties: `over_rows`, a linear layer whose weight gradient is never written
out, and cross entropy.

`torch.func.vmap` computes a function of one party for many at once; it costs a quarter of a
millisecond a call, most of it for trees of any kind. `over_rows` is the same for dicts of tensors,
and two layers have kernels of their own.

The gradient of W in y = x Wᵀ + b is dyᵀ x, a product of two thin matrices for the small batches
that parties train with. While a model is trained, the descent asks autograd for dy alone and adds
the product to the weights in one pass, instead of writing a matrix as large as the weights and
reading it again: for small batches memory is what a step waits for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._C import _functorch as functorch


def over_rows(
    function: Callable[..., dict[str, Tensor]], *stacked: dict[str, Tensor]
) -> dict[str, Tensor]:
    """`vmap(function)` of dicts of tensors whose rows are the parties'."""
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
    """A loss differentiates its own gradient, which a tape would cut off from the weights."""


class Tape:
    """The uses of some weights by linear layers within one step: which weight, what went in, what
    came out.

    With several parties' weights stacked, a layer runs within `vmap`; there its batched tensors are
    taken out of their wrapping, so that the layer is one batched product and its gradient as thin
    as a single party's.
    """

    def __init__(self, weights: Sequence[Tensor]) -> None:
        self._place = {id(w): k for k, w in enumerate(weights)}
        self._fixed = [w.detach() for w in weights]
        self.places: list[int] = []
        self.inputs: list[Tensor] = []
        self.outputs: list[Tensor] = []

    def clear(self) -> None:
        """Forget the last step's uses."""
        self.places.clear()
        self.inputs.clear()
        self.outputs.clear()

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """A linear layer, on record if its weight is one of those that learn."""
        if functorch.is_batchedtensor(weight):
            return self._stacked(x, weight, bias)
        place = self._place.get(id(weight))
        if place is None or not torch.is_grad_enabled():
            return F.linear(x, weight, bias)
        return self._noted(place, x, F.linear(x, self._fixed[place], bias))

    def conv2d(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        stride: int,
        padding: int,
        order: torch.memory_format,
    ) -> Tensor:
        """A convolution: not on record, as its gradient is no larger than what it is made of."""
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
        if (
            place is None or not torch.is_grad_enabled()
        ):  # weights that were computed (APFL's mixture), or do not learn
            y = torch.baddbmm(offset, rows, _rows(weight).mT)
        else:
            y = self._noted(place, rows, torch.baddbmm(offset, rows, self._fixed[place].mT))
        return functorch._add_batch_dim(y, 0, level)

    def _noted(self, place: int, x: Tensor, y: Tensor) -> Tensor:
        if not y.requires_grad:
            y.requires_grad_()
        y.register_hook(_first_order)
        self.places.append(place)
        whole = x if x._base is None else x._base
        self.inputs.append(
            x.clone() if whole.is_leaf and whole.requires_grad else x
        )  # a weight moves before this is used
        self.outputs.append(y)
        return y

    def add(self, grads: Sequence[Tensor | None], into: Sequence[Tensor], scale: float) -> None:
        """Add `scale` times the weights' gradients to `into`, given those of the outputs."""
        for place, x, dy in zip(self.places, self.inputs, grads, strict=True):
            if dy is None:
                continue
            if into[place].dim() == 3:
                into[place].baddbmm_(dy.mT, x, alpha=scale)
            else:
                into[place].addmm_(dy.flatten(0, -2).t(), x.flatten(0, -2), alpha=scale)


def _rows(x: Tensor) -> Tensor:
    """The stacked tensor in a batched one's wrapping, its parties first."""
    inside = functorch.get_unwrapped(x)
    at = functorch.maybe_get_bdim(x)
    return inside if at == 0 else inside.movedim(at, 0)


def unwrapped(x: Tensor) -> Tensor:
    """The values of all parties, or of all samples, that a tensor within `vmap` stands for: to look
    at, not to compute with.
    """
    while functorch.maybe_get_level(x) >= 1:
        x = functorch.get_unwrapped(x)
    return x


def _first_order(dy: Tensor) -> None:
    if torch.is_grad_enabled():  # only while a graph of the gradient is made
        raise SecondOrder("it differentiates its own gradient")


TAPE: ContextVar[Tape | None] = ContextVar("record_messages", default=None)


def squared_error(answers: Tensor, y: Tensor) -> Tensor:
    """The mean over a batch, of one answer a sample."""
    return (answers.squeeze(-1) - y).square().mean()


def cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    """The mean over a batch; within `vmap` all parties' at once, where torch would take its long
    way round.
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
    each = F.cross_entropy(rows.flatten(0, 1), labels.flatten(), reduction="none").view(
        labels.shape
    )
    return functorch._add_batch_dim(each.mean(1), 0, level)


def input_gradient(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """The gradient of a function at x: within `vmap` by torch's transform, elsewhere by its tape,
    which takes half the time.
    """
    if functorch.maybe_get_level(x) >= 1:
        slope: Tensor = torch.func.grad(function)(x.detach())
        return slope
    x = x.detach().requires_grad_()
    (slope,) = torch.autograd.grad(function(x), x)
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
    """A 2-d convolution, with its tensors in that order of memory."""
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
    if functorch.maybe_get_level(x) < 1:  # within `vmap` there is no such order
        x, weight = x.to(memory_format=order), weight.to(memory_format=order)
    return F.conv2d(x, weight, bias, stride, padding)
