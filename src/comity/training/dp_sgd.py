"""DP-SGD: Poisson-sampled batches, gradients clipped per record, and noise on their sum (Abadi et
al. 2016). The unit that is sampled and protected is a record, or a patient with all its records.

Clipping needs the norm of each record's gradient, but seldom the gradient itself. For a linear
layer y = x Wᵀ + b it is dy xᵀ, whose norm is ‖dy‖ · ‖x‖, and the clipped sum over records is one
product of thin matrices; for a convolution it is such a product of patches. Layers are recorded
while the loss runs (`kernels.TAPE`). The gradients of other parameters are computed per record, by
`vmap`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

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
PER_RECORD_BYTES = 2**27
"""The memory limit for per-record gradients that are computed at a time."""
DRAWS_PER_CALL = 2**17
"""The number of Poisson draws per call of the generator: a call takes longer than a draw."""
SEPARABLE_TOLERANCE = 1e-3
"""How far the loss of two records may differ from the mean of their losses, because of rounding."""


class Sampling(NamedTuple):
    """The Poisson sampling of a training."""

    rate: float
    """The probability of each unit to be in a step's batch."""
    steps: int

    @staticmethod
    def of(training: Training, units: int) -> Sampling:
        """The sampling of a training on this many units, which are records or patients."""
        # Poisson sampling has no last batch to drop: a training on few units takes a step as well.
        least = min(training.min_batch, units)
        steps = replace(training, min_batch=least).steps_for(units)
        return Sampling(min(1.0, training.batch / units), steps)


def poisson_batches(
    samples: Samples,
    rate: float,
    steps: int,
    key: Key,
    training: Training,
    patients: Tensor | None = None,
) -> Iterator[Batch]:
    """Poisson-sampled batches: each sample is in each step's batch with probability `rate`,
    independently. With the number of each sample's patient, all samples of a patient are in a batch
    together.

    A batch may be empty. The draws are as secret as the noise.
    """
    scratch = NoScratch()
    units = len(samples) if patients is None else int(patients.max()) + 1
    steps_per_call = max(1, DRAWS_PER_CALL // units)
    for begin in range(0, steps, steps_per_call):
        is_sampled = (
            uniform(key.fold("sample", begin), [min(steps_per_call, steps - begin), units]) < rate
        )
        if patients is not None:
            is_sampled = is_sampled[:, patients]
        indices_by_step = (
            is_sampled.nonzero()[:, 1].to(samples.x.device).split(is_sampled.sum(1).tolist())
        )
        for number, indices in enumerate(indices_by_step, begin):
            x = samples.x.index_select(0, indices)
            if training.augment and len(indices):
                x = training.augment(x, key.fold("augment", number))
            rows = {name: values.index_select(0, indices) for name, values in samples.rows.items()}
            yield Batch(x, samples.y.index_select(0, indices), indices, number, scratch, rows)


class NoScratch(ReadOnlyDict):
    """A scratch that a loss may not write to: its values would come from gradients that are not
    clipped.
    """

    def _refuse(self, *args: object, **kwargs: object) -> None:
        raise UsageError(
            "The method cannot be trained privately: its loss keeps something from batch to batch."
        )

    __setitem__ = __delitem__ = __ior__ = update = setdefault = pop = popitem = clear = _refuse


def check_separable(loss: Loss, theta: Params, like: Samples) -> None:
    """Refuse a loss that is not a mean over records: clipping would not bound a record's influence
    on it.

    The check uses two constant inputs instead of records, since a refusal that depends on data
    would reveal something. They are whole numbers, so that they are valid tokens, too.
    """
    x = torch.stack([torch.full(like.shape, value) for value in (0.0, 1.0)]).to(like.x)
    y = torch.zeros(2, dtype=like.y.dtype, device=like.y.device)
    rows = {
        name: torch.zeros_like(values[:1]).expand(2, *values.shape[1:])
        for name, values in like.rows.items()
    }

    def loss_of(part: slice) -> float:
        indices = torch.arange(2, device=x.device)[part]
        part_rows = {name: values[part] for name, values in rows.items()}
        with torch.no_grad():
            return float(loss(theta, Batch(x[part], y[part], indices, 0, NoScratch(), part_rows)))

    joint, mean = loss_of(slice(0, 2)), (loss_of(slice(0, 1)) + loss_of(slice(1, 2))) / 2
    if math.isfinite(mean) and abs(joint - mean) > SEPARABLE_TOLERANCE * max(1.0, abs(mean)):
        raise UsageError(
            "The method cannot be trained privately: its loss couples the samples of a batch."
        )


class PrivateGradients:
    """Computes the clipped, noisy gradients of a training's steps. All steps reuse one buffer,
    since allocating it takes a third of a step.
    """

    def __init__(self, descent: Descent, private: Private, expected: float) -> None:
        self._descent, self._private, self._expected = descent, private, expected
        sizes = [param.numel() for param in descent.params]
        self._flat = torch.empty(sum(sizes))
        parts = zip(self._flat.split(sizes), descent.params, strict=True)
        self._parts = [part.view(param.shape) for part, param in parts]
        self._tape = SampleTape(descent.params)
        self._weights = _record_weights(private)

    def of(self, batch: Batch, key: Key) -> list[Tensor]:
        """Σ clipped gradients of the batch's records plus N(0, (σC)²) on each number, over the
        expected batch size. A patient's records share one patient's weight.

        The result is valid until the next call.
        """
        descent, private = self._descent, self._private
        spread = private.noise * private.clip / self._expected
        gaussian(key, [len(self._flat)], spread, self._flat)
        gradients = {
            n: part.to(param)
            for n, part, param in zip(descent.names, self._parts, descent.params, strict=True)
        }
        add_clipped(
            gradients,
            descent.loss,
            descent.theta,
            batch,
            private.clip,
            1 / self._expected
            if self._weights is None
            else self._weights[batch.indices] / self._expected,
            self._tape,
        )
        return list(gradients.values())


def _record_weights(private: Private) -> Tensor | None:
    """The weight of each record in its patient's mean; None if every record has weight 1."""
    if private.patients is None or private.units == len(private.samples):
        return None
    weights = 1 / torch.bincount(private.patients)[private.patients]
    return weights.to(private.samples.x.device)


def add_clipped(
    into: Params,
    loss: Loss,
    theta: Params,
    batch: Batch,
    clip: float,
    scale: float | Tensor,
    tape: SampleTape | None = None,
) -> None:
    """Add `scale` times the sum of the records' gradients, each clipped to norm `clip`, to `into`,
    by parameter name. `scale` is one number, or one for each record.

    A record whose gradient overflows adds nothing, so that one record cannot ruin the sum of the
    others: zero is within every clipping bound, as the guarantee requires.

    A `tape` of these parameters can be passed, to be reused.
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
    other_names = [name for place, name in enumerate(names) if place not in covered]
    whole = per_record(loss, theta, other_names, batch) if other_names else {}
    with torch.no_grad():
        squares = [
            *(g.flatten(1).square().sum(1) for g in whole.values()),
            *(layer.squares for layer in layers),
        ]
        norms = torch.stack(squares).sum(0).sqrt()
        share = scale * clip / norms.clamp(min=clip)
        overflowing = ~norms.isfinite()
        if overflowing.any():
            share = share.masked_fill(overflowing, 0)
            whole = {name: _without(g, overflowing) for name, g in whole.items()}
            for layer in layers:
                layer.blank(overflowing)
        for name, g in whole.items():
            into[name].add_(torch.tensordot(share, g, dims=1))
        for layer in layers:
            layer.add([into[names[place]] for place in layer.places], share)


def _without(rows: Tensor, records: Tensor) -> Tensor:
    """The rows of a batch, with zeros for some of the records: even zero times infinity is not
    finite.
    """
    return rows.masked_fill(records.view(-1, *[1] * (rows.dim() - 1)), 0)


def per_record(loss: Loss, theta: Params, names: Sequence[str], batch: Batch) -> Params:
    """Each record's gradient of the named parameters."""
    fixed = {name: value.detach() for name, value in theta.items()}
    rows = list(batch.rows)

    def record_loss(
        free: Params, x: Tensor, y: Tensor, index: Tensor, row_values: list[Tensor]
    ) -> Tensor:
        record_rows = {name: value[None] for name, value in zip(rows, row_values, strict=True)}
        record = Batch(x[None], y[None], index[None], batch.number, batch.scratch, record_rows)
        return loss({**fixed, **free}, record)

    free = {name: fixed[name] for name in names}
    chunk = max(1, PER_RECORD_BYTES // sum(value.nbytes for value in free.values()))
    gradients_of = vmap(
        grad(record_loss), in_dims=(None, 0, 0, 0, 0), randomness="different", chunk_size=chunk
    )
    row_values = [batch.rows[name] for name in rows]
    gradients: Params = gradients_of(free, batch.x, batch.y, batch.indices, row_values)
    return gradients


class _Linear:
    """The per-record gradients of a linear layer: of its weight, and of its bias if that is
    trained.
    """

    def __init__(self, weight: int, bias: int | None, x: Tensor, dy: Tensor) -> None:
        self.places = [weight] if bias is None else [weight, bias]
        self._x, self._dy = x, dy
        inputs, outputs = torch.linalg.vecdot(x, x), torch.linalg.vecdot(dy, dy)
        self.squares = outputs * inputs if bias is None else torch.addcmul(outputs, outputs, inputs)

    def blank(self, records: Tensor) -> None:
        """Set the gradients of some records to zero."""
        self._x, self._dy = _without(self._x, records), _without(self._dy, records)

    def add(self, into: Sequence[Tensor], share: Tensor) -> None:
        """Add the sum of the records' gradients, weighted by `share`."""
        into[0].addmm_((self._dy * share[:, None]).t(), self._x)
        if len(into) > 1:
            into[1].addmv_(self._dy.t(), share)


class _Dense:
    """The per-record gradients of a layer with few weights, such as a convolution, as dense
    tensors.
    """

    def __init__(
        self, weight: int, bias: int | None, weights: Tensor, shape: torch.Size, biases: Tensor
    ) -> None:
        self.places = [weight] if bias is None else [weight, bias]
        self._weights, self._shape, self._biases = weights.flatten(1), shape, biases
        self.squares = torch.linalg.vector_norm(self._weights, dim=1).square()
        if bias is not None:
            self.squares = self.squares + torch.linalg.vecdot(biases, biases)

    def blank(self, records: Tensor) -> None:
        """Set the gradients of some records to zero."""
        self._weights = _without(self._weights, records)
        self._biases = _without(self._biases, records)

    def add(self, into: Sequence[Tensor], share: Tensor) -> None:
        """Add the sum of the records' gradients, weighted by `share`."""
        into[0].add_((share @ self._weights).view(self._shape))
        if len(into) > 1:
            into[1].addmv_(self._biases.t(), share)


Layer = _Linear | _Dense


class SampleTape(Tape):
    """The layers that a loss calls, with their inputs: what their per-record gradients are computed
    from.
    """

    def __init__(self, weights: Sequence[Tensor]) -> None:
        super().__init__(weights)
        self._weights = weights
        self._gradient_of_layers: list[Callable[[Tensor], Layer]] = []

    def clear(self) -> None:
        """Remove the records of the last batch."""
        self.outputs.clear()
        self._gradient_of_layers.clear()

    def layers(self, value: Tensor) -> list[Layer]:
        """The per-record gradients of the recorded layers, where `value` is the sum of the records'
        losses.

        Empty if a recorded weight is also used elsewhere, since its gradient would be incomplete.
        """
        slopes = torch.autograd.grad(value, [*self.outputs, *self._weights], allow_unused=True)
        elsewhere = {
            place for place, slope in enumerate(slopes[len(self.outputs) :]) if slope is not None
        }
        with torch.no_grad():
            layers = [
                gradient_of(dy)
                for gradient_of, dy in zip(self._gradient_of_layers, slopes, strict=False)
                if dy is not None
            ]
        places = [place for layer in layers for place in layer.places]
        return [] if len(set(places)) < len(places) or elsewhere.intersection(places) else layers

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
        return self._record_layer(y, lambda dy: _Linear(place, with_bias, inputs, dy))

    def conv2d(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        stride: int,
        padding: int,
        order: torch.memory_format,
    ) -> Tensor:
        """A convolution, which is recorded if its weight is trained."""
        place, with_bias = self._places(weight, bias)
        if place is None:
            return super().conv2d(x, weight, bias, stride, padding, order)
        inputs, shape = x.detach(), weight.shape
        y = super().conv2d(
            x, self._fixed[place], None if bias is None else bias.detach(), stride, padding, order
        )

        def gradient_of(dy: Tensor) -> Layer:
            patches = F.unfold(inputs, shape[2:], stride=stride, padding=padding)
            slopes = dy.flatten(2)
            return _Dense(place, with_bias, slopes @ patches.mT, shape, slopes.sum(2))

        return self._record_layer(y, gradient_of)

    def _places(self, weight: Tensor, bias: Tensor | None) -> tuple[int | None, int | None]:
        """The positions of a layer's weight and bias among the trained ones; None if they are not
        trained, or gradients are disabled.
        """
        if not torch.is_grad_enabled():
            return None, None
        weight_place = self._place.get(id(weight))
        bias_place = None if bias is None else self._place.get(id(bias))
        if weight_place is None:
            return None, None
        if bias is not None and bias_place is None and bias.requires_grad:
            return None, None
        return weight_place, bias_place

    def _record_layer(self, y: Tensor, gradient_of: Callable[[Tensor], Layer]) -> Tensor:
        if not y.requires_grad:
            y.requires_grad_()
        self.outputs.append(y)
        self._gradient_of_layers.append(gradient_of)
        return y
