"""Training of which no single record tells: Poisson samples, gradients clipped record by record,
and noise on their sum.

The gradient of each record is needed for its norm, but seldom whole. For a linear layer y = x Wᵀ +
b it is dy xᵀ, whose norm is ‖dy‖ · ‖x‖, and the clipped sum over records is one product of thin
matrices; for a convolution it is such a product of patches. Layers are recorded while the loss runs
(`kernels.TAPE`). What else is trained gets its gradients record by record, by `vmap`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import grad, vmap

from comity.base.key import Key
from comity.base.noise import gaussian, uniform
from comity.base.record import Params, ReadOnlyDict
from comity.base.samples import Samples
from comity.errors import UsageError
from comity.training.kernels import TAPE, Tape
from comity.training.requests import Private
from comity.training.settings import Training
from comity.training.task import Batch

if TYPE_CHECKING:
    from comity.training.descent import Descent

Loss = Callable[[Params, Batch], Tensor]
WHOLE_BYTES = 2**27
"""How much the gradients of records may take that are whole at one time."""
DRAWN_AT_ONCE = 2**17
APART = 1e-3
"""By how much the loss of two records may differ from the mean of their losses: rounding, and no
more.
"""


def poisson_batches(
    samples: Samples, rate: float, steps: int, key: Key, how: Training
) -> Iterator[Batch]:
    """For each step each sample with that chance, independently of all others: it may be none. Who
    it is is as secret as noise.

    Whoever is in many steps is drawn by one call, as a call takes longer than a draw.
    """
    scratch = NoScratch()
    many = max(1, DRAWN_AT_ONCE // len(samples))
    for begin in range(0, steps, many):
        drawn = uniform(key.fold("sample", begin), [min(many, steps - begin), len(samples)]) < rate
        each = drawn.nonzero()[:, 1].to(samples.x.device).split(drawn.sum(1).tolist())
        for number, at in enumerate(each, begin):
            x = samples.x.index_select(0, at)
            seen = how.augment(x, key.fold("augment", number)) if how.augment and len(at) else x
            rows = {name: every.index_select(0, at) for name, every in samples.rows.items()}
            yield Batch(seen, samples.y.index_select(0, at), at, number, scratch, rows)


class NoScratch(ReadOnlyDict):
    """What a loss may not leave anything in: that would be of records that nobody clipped."""

    def _refuse(self, *args: object, **kwargs: object) -> None:
        raise UsageError(
            "The method cannot be trained privately: its loss keeps something from batch to batch."
        )

    __setitem__ = __delitem__ = __ior__ = update = setdefault = pop = popitem = clear = _refuse


def check_separable(loss: Loss, theta: Params, like: Samples) -> None:
    """Refuse a loss that is no mean over records: what is clipped of it would not be a record's
    part in it.

    It is tried on two inputs that nobody's records are: data-dependent refusals would tell
    something. They are whole numbers, as words are.
    """
    x = torch.stack([torch.full(like.shape, value) for value in (0.0, 1.0)]).to(like.x)
    y = torch.zeros(2, dtype=like.y.dtype, device=like.y.device)
    rows = {
        name: torch.zeros_like(every[:1]).expand(2, *every.shape[1:])
        for name, every in like.rows.items()
    }

    def of(at: slice) -> float:
        indices = torch.arange(2, device=x.device)[at]
        part = {name: every[at] for name, every in rows.items()}
        with torch.no_grad():
            return float(loss(theta, Batch(x[at], y[at], indices, 0, NoScratch(), part)))

    together, apart = of(slice(0, 2)), (of(slice(0, 1)) + of(slice(1, 2))) / 2
    if math.isfinite(apart) and abs(together - apart) > APART * max(1.0, abs(apart)):
        raise UsageError(
            "The method cannot be trained privately: its loss couples the samples of a batch."
        )


class PrivateGradients:
    """Makes the gradients of one training's steps, all in the same memory: fresh memory would take
    a third of a step.
    """

    def __init__(self, descent: Descent, private: Private, expected: float) -> None:
        self._descent, self._private, self._expected = descent, private, expected
        sizes = [param.numel() for param in descent.params]
        self._flat = torch.empty(sum(sizes))
        parts = zip(self._flat.split(sizes), descent.params, strict=True)
        self._parts = [part.view(param.shape) for part, param in parts]
        self._tape = SampleTape(descent.params)

    def of(self, batch: Batch, key: Key) -> list[Tensor]:
        """Σ clipped gradients of the batch's records, and N(0, (σC)²) on each number, over the
        expected size of a batch.

        They hold until the next are made.
        """
        descent, private = self._descent, self._private
        spread = private.noise * private.clip / self._expected
        gaussian(key, [len(self._flat)], spread, self._flat)
        found = {
            n: part.to(param)
            for n, part, param in zip(descent.names, self._parts, descent.params, strict=True)
        }
        add_clipped(
            found, descent.loss, descent.theta, batch, private.clip, 1 / self._expected, self._tape
        )
        return list(found.values())


def add_clipped(
    into: Params,
    loss: Loss,
    theta: Params,
    batch: Batch,
    clip: float,
    scale: float,
    tape: SampleTape | None = None,
) -> None:
    """Add `scale` times the records' gradients, each of the norm `clip` at most, to tensors of the
    parameters' names.

    A `tape` of these parameters may be given, to be used again.
    """
    if not len(batch.y):
        return
    names = list(into)
    tape = tape or SampleTape([theta[name] for name in names])
    tape.clear()
    token = TAPE.set(tape)
    try:
        value = loss(theta, batch) * len(batch.y)
    finally:
        TAPE.reset(token)
    layers = tape.layers(value)
    covered = {place for layer in layers for place in layer.places}
    rest = [name for place, name in enumerate(names) if place not in covered]
    whole = per_record(loss, theta, rest, batch) if rest else {}
    with torch.no_grad():
        squares = [
            *(g.flatten(1).square().sum(1) for g in whole.values()),
            *(layer.squares for layer in layers),
        ]
        share = scale * clip / torch.stack(squares).sum(0).sqrt().clamp(min=clip)
        for name, g in whole.items():
            into[name].add_(torch.tensordot(share, g, dims=1))
        for layer in layers:
            layer.add([into[names[place]] for place in layer.places], share)


def per_record(loss: Loss, theta: Params, names: Sequence[str], batch: Batch) -> Params:
    """Each record's gradient, whole, of some of the parameters."""
    fixed = {name: value.detach() for name, value in theta.items()}
    rows = list(batch.rows)

    def one(free: Params, x: Tensor, y: Tensor, at: Tensor, own: list[Tensor]) -> Tensor:
        mine = {name: value[None] for name, value in zip(rows, own, strict=True)}
        return loss(
            {**fixed, **free}, Batch(x[None], y[None], at[None], batch.number, batch.scratch, mine)
        )

    free = {name: fixed[name] for name in names}
    many = max(1, WHOLE_BYTES // sum(value.nbytes for value in free.values()))
    each = vmap(grad(one), in_dims=(None, 0, 0, 0, 0), randomness="different", chunk_size=many)
    found: Params = each(free, batch.x, batch.y, batch.indices, [batch.rows[name] for name in rows])
    return found


class _Linear:
    """A linear layer's part in each record's gradient: of its weight, and of its bias if that is
    trained.
    """

    def __init__(self, weight: int, bias: int | None, x: Tensor, dy: Tensor) -> None:
        self.places = [weight] if bias is None else [weight, bias]
        self._x, self._dy = x, dy
        inputs, outputs = torch.linalg.vecdot(x, x), torch.linalg.vecdot(dy, dy)
        self.squares = outputs * inputs if bias is None else torch.addcmul(outputs, outputs, inputs)

    def add(self, into: Sequence[Tensor], share: Tensor) -> None:
        """Add the records' parts, each as much of it as its share."""
        into[0].addmm_((self._dy * share[:, None]).t(), self._x)
        if len(into) > 1:
            into[1].addmv_(self._dy.t(), share)


class _Whole:
    """A layer's part in each record's gradient, written out: for a convolution, whose weights are
    few.
    """

    def __init__(
        self, weight: int, bias: int | None, weights: Tensor, shape: torch.Size, biases: Tensor
    ) -> None:
        self.places = [weight] if bias is None else [weight, bias]
        self._weights, self._shape, self._biases = weights.flatten(1), shape, biases
        self.squares = torch.linalg.vector_norm(self._weights, dim=1).square()
        if bias is not None:
            self.squares = self.squares + torch.linalg.vecdot(biases, biases)

    def add(self, into: Sequence[Tensor], share: Tensor) -> None:
        """Add the records' parts, each as much of it as its share."""
        into[0].add_((share @ self._weights).view(self._shape))
        if len(into) > 1:
            into[1].addmv_(self._biases.t(), share)


Layer = _Linear | _Whole


class SampleTape(Tape):
    """The layers that a loss runs through once, with their inputs: what is needed for each record's
    part in their gradients.
    """

    def __init__(self, weights: Sequence[Tensor]) -> None:
        super().__init__(weights)
        self._weights = weights
        self._uses: list[Callable[[Tensor], Layer]] = []

    def clear(self) -> None:
        super().clear()
        self._uses.clear()

    def layers(self, value: Tensor) -> list[Layer]:
        """Each layer's part in the gradients of the records whose losses `value` is the sum of.

        None at all if a weight has a part in them elsewhere too, in another layer or in none: its
        gradient would not be whole.
        """
        slopes = torch.autograd.grad(value, [*self.outputs, *self._weights], allow_unused=True)
        elsewhere = {
            place for place, slope in enumerate(slopes[len(self.outputs) :]) if slope is not None
        }
        with torch.no_grad():
            found = [
                occurrence(dy)
                for occurrence, dy in zip(self._uses, slopes, strict=False)
                if dy is not None
            ]
        places = [place for layer in found for place in layer.places]
        return [] if len(set(places)) < len(places) or elsewhere.intersection(places) else found

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        place, with_bias = self._places(weight, bias)
        if place is None or x.dim() != 2:
            return F.linear(x, weight, bias)
        inputs = x.detach()
        y = F.linear(
            x,
            self._fixed[place],
            bias if bias is None or with_bias is None else self._fixed[with_bias],
        )
        return self._use(y, lambda dy: _Linear(place, with_bias, inputs, dy))

    def conv2d(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        stride: int,
        padding: int,
        order: torch.memory_format,
    ) -> Tensor:
        """A convolution, on record if its weight is one of those that learn."""
        place, with_bias = self._places(weight, bias)
        if place is None:
            return super().conv2d(x, weight, bias, stride, padding, order)
        inputs, shape = x.detach(), weight.shape
        y = super().conv2d(
            x, self._fixed[place], None if bias is None else bias.detach(), stride, padding, order
        )

        def occurrence(dy: Tensor) -> Layer:
            patches = F.unfold(inputs, shape[2:], stride=stride, padding=padding)
            slopes = dy.flatten(2)
            return _Whole(place, with_bias, slopes @ patches.mT, shape, slopes.sum(2))

        return self._use(y, occurrence)

    def _places(self, weight: Tensor, bias: Tensor | None) -> tuple[int | None, int | None]:
        """Where a layer's weight and bias are among those that learn; None if they are not, or if
        nothing is to be learned.
        """
        if not torch.is_grad_enabled():
            return None, None
        found = self._place.get(id(weight)), None if bias is None else self._place.get(id(bias))
        return (
            (None, None)
            if found[0] is None or (bias is not None and found[1] is None and bias.requires_grad)
            else found
        )

    def _use(self, y: Tensor, occurrence: Callable[[Tensor], Layer]) -> Tensor:
        if not y.requires_grad:
            y.requires_grad_()
        self.outputs.append(y)
        self._uses.append(occurrence)
        return y
