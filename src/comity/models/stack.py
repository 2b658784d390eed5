"""Models as an ordered stack of named stages, written as functions of their parameters.

A stage ends where a representation may be cut (after activation and pooling), so `cut="fc1"` is a
name, wrappers can sit at any layer, and measurements per layer need no hooks. Max pooling comes
before ReLU: the two commute, values and gradients, and fewer values are left for the second.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from comity.base.key import Key
from comity.base.record import Params
from comity.errors import UsageError
from comity.machine import check_fits
from comity.models.layer_stream import LayerStream
from comity.training.kernels import conv2d as conv_layer
from comity.training.kernels import linear as linear_layer

Shape = tuple[int, ...]
Apply = Callable[[Params, Tensor, bool], Tensor]


@dataclass(frozen=True)
class Layer:
    """One operation: its parameters' initial values, what it does, and the shape it leaves."""

    apply: Apply
    shape: Shape
    weights: Callable[[torch.Generator], Params] = lambda generator: {}
    norms: frozenset[str] = frozenset()
    """The names that belong to BatchNorm."""
    draws: bool = False
    """Whether it draws at random while it trains."""
    dense: bool = True
    """Whether it is a linear layer or takes no time beside one."""
    values: int = 0
    """How many values its parameters have."""


@dataclass(frozen=True)
class Stage:
    """A named run of layers."""

    name: str
    layers: tuple[Layer, ...]


@dataclass(frozen=True)
class Stack:
    """A network of stages; the last is the head unless the cut says otherwise."""

    name: str
    all_stages: tuple[Stage, ...]
    ends: str = ""
    """The stage that makes the representation; the last but one unless told."""

    @cached_property
    def stages(self) -> tuple[str, ...]:
        """The stages' names in order."""
        return tuple(stage.name for stage in self.all_stages)

    @cached_property
    def cut(self) -> str:
        """Where the representation is, unless the experiment says otherwise."""
        return self.ends or self.stages[-2]

    @cached_property
    def norms(self) -> frozenset[str]:
        """The names that belong to BatchNorm layers."""
        return frozenset(n for s in self.all_stages for layer in s.layers for n in layer.norms)

    @cached_property
    def _flat(self) -> tuple[tuple[Apply, ...], tuple[int, ...]]:
        """All layers in a row, and where each stage begins: what `run` walks through."""
        applies = tuple(layer.apply for stage in self.all_stages for layer in stage.layers)
        begins = [0]
        at = 0
        for stage in self.all_stages:
            at += len(stage.layers)
            begins.append(at)
        return applies, tuple(begins)

    def init(self, key: Key) -> Params:
        """PyTorch's usual initial values, drawn stage by stage from keys of their own."""
        theta: Params = {}
        for stage in self.all_stages:
            generator = key.fold("weights", stage.name).generator()
            for layer in stage.layers:
                theta |= layer.weights(generator)
        return theta

    def run(self, theta: Params, x: Tensor, train: bool, begin: int, end: int) -> Tensor:
        """Stages begin..end-1 applied to x."""
        applies, begins = self._flat
        for apply in applies[begins[begin] : begins[end]]:
            x = apply(theta, x, train)
        return x

    @cached_property
    def draws(self) -> bool:
        """Whether any layer draws at random while it trains."""
        return any(layer.draws for stage in self.all_stages for layer in stage.layers)

    @cached_property
    def dense(self) -> bool:
        """Whether all work is in linear layers: then many parties' copies are faster as one
        computation.
        """
        return all(layer.dense for stage in self.all_stages for layer in stage.layers)

    def layer_stream(self, key: Key) -> AbstractContextManager[object]:
        """Where the layers that draw at random draw from `key`; without such layers nothing is
        done.
        """
        return LayerStream(key) if self.draws else nullcontext()

    def shape_after(self, stage: str) -> Shape:
        """The shape of one sample after a stage."""
        return self.all_stages[self.stages.index(stage)].layers[-1].shape


def uniform(shape: Shape, fan_in: int, generator: torch.Generator) -> Tensor:
    """The values with which PyTorch's layers begin."""
    bound = 1 / math.sqrt(
        fan_in
    )  # kaiming_uniform with a=sqrt(5), and nn.Linear's bias: both come to this
    return (torch.rand(shape, generator=generator) * 2 - 1) * bound


class Builder:
    """Grows a stack layer by layer, each sized to what the layer before leaves.

    Where nothing is left of a sample, it is refused: the stack `needs` other ones, or the data
    another model, `instead`.
    """

    def __init__(
        self, name: str, shape: Shape, needs: str = "larger images", instead: str = "lenet5 or mlp2"
    ) -> None:
        self.name = name
        self.shape = shape
        self.needs = needs
        self.instead = instead
        self._stages: list[Stage] = []

    def stage(self, name: str, *layers: Callable[[str, Shape], Layer]) -> Builder:
        """Add a stage; its parameters are called `name.weight`, `name.bias`, `name.bn.weight`, ..."""
        made = []
        for layer in layers:
            made.append(layer(name, self.shape))
            self.shape = made[-1].shape
            if min(self.shape) < 1:
                raise UsageError(
                    f"{self.name} needs {self.needs}: after {name} nothing is left. Try"
                    f" {self.instead}."
                )
        self._stages.append(Stage(name, tuple(made)))
        return self

    def build(self, cut: str = "") -> Stack:
        """The finished stack, with its representation after the stage `cut`: the last but one
        unless told.
        """
        values = sum(layer.values for stage in self._stages for layer in stage.layers)
        check_fits(
            f"{self.name} of {values:.3g} values, with its gradients and what is sent",
            3 * 4 * values,
        )
        return Stack(self.name, tuple(self._stages), cut)


Make = Callable[[str, Shape], Layer]


def linear(out: int) -> Make:
    """A fully connected layer with bias, of the last values of a sample; with factors beside its
    weights, if it has them.
    """

    def make(name: str, shape: Shape) -> Layer:
        *others, into = shape
        weight, bias, a, b = (f"{name}.{part}" for part in ("weight", "bias", "A", "B"))

        def apply(p: Params, x: Tensor, train: bool) -> Tensor:
            y = linear_layer(x, p[weight], p[bias])
            return y + linear_layer(linear_layer(x, p[a], None), p[b], None) if a in p else y

        return Layer(
            apply,
            (*others, out),
            lambda g: {weight: uniform((out, into), into, g), bias: uniform((out,), into, g)},
            values=out * (into + 1),
        )

    return make


Size = int | tuple[int, int]
"""Height and width, or one number for both."""


def _both(size: Size) -> tuple[int, int]:
    return size if isinstance(size, tuple) else (size, size)


WEIGHTS_PER_VALUE = 100
"""Up to so many weights for each value that a convolution makes of one image, channels last is
faster (docs/performance.md).
"""


def conv(
    out: int, kernel: Size, padding: int = 0, bias: bool = True, stride: int = 1, he: bool = False
) -> Make:
    """A 2-d convolution; `he` begins with He's normal values by fan-out, as torchvision's ResNets
    do.
    """

    def make(name: str, shape: Shape) -> Layer:
        channels, height, width = shape
        high, wide = _both(kernel)
        kernels = f"{name}.weight"
        offsets = f"{name}.bias"
        fan = channels * high * wide

        def weights(g: torch.Generator) -> Params:
            size = (out, channels, high, wide)
            first = (
                torch.randn(size, generator=g) * math.sqrt(2 / (out * high * wide))
                if he
                else uniform(size, fan, g)
            )
            return {kernels: first} | ({offsets: uniform((out,), fan, g)} if bias else {})

        left = (
            out,
            (height + 2 * padding - high) // stride + 1,
            (width + 2 * padding - wide) // stride + 1,
        )
        # With channels last, convolutions and poolings of few images are faster, unless large
        # weights must be rearranged.
        few_weights = out * fan <= WEIGHTS_PER_VALUE * math.prod(left)
        order = torch.channels_last if few_weights else torch.contiguous_format

        def apply(p: Params, x: Tensor, train: bool) -> Tensor:
            return conv_layer(x, p[kernels], p[offsets] if bias else None, stride, padding, order)

        return Layer(apply, left, weights, dense=False, values=out * (fan + bias))

    return make


def chain(*layers: Make) -> Make:
    """One layer after another as a single one; their parameters are called `name.0.weight`,
    `name.1.bn.weight`, ...
    """

    def make(name: str, shape: Shape) -> Layer:
        made: list[Layer] = []
        for k, layer in enumerate(layers):
            made.append(layer(f"{name}.{k}", made[-1].shape if made else shape))

        def apply(p: Params, x: Tensor, train: bool) -> Tensor:
            for layer in made:
                x = layer.apply(p, x, train)
            return x

        return joined(apply, made[-1].shape if made else shape, *made)

    return make


def residual(*layers: Make, skip: tuple[Make, ...] = (), after: tuple[Make, ...] = ()) -> Make:
    """after(skip(x) + layers(x)), named as by `chain`; `skip` (`name.skip.0.weight`, ...) brings x
    to the shape of the rest.
    """

    def make(name: str, shape: Shape) -> Layer:
        body = chain(*layers)(name, shape)
        way = chain(*skip)(f"{name}.skip", shape)
        end = chain(*after)(f"{name}.after", body.shape)

        def apply(p: Params, x: Tensor, train: bool) -> Tensor:
            return end.apply(p, way.apply(p, x, train) + body.apply(p, x, train), train)

        return joined(apply, end.shape, body, way, end)

    return make


def joined(apply: Apply, shape: Shape, *parts: Layer) -> Layer:
    """A layer that holds what its parts hold."""
    return Layer(
        apply,
        shape,
        lambda g: {k: v for part in parts for k, v in part.weights(g).items()},
        frozenset(n for part in parts for n in part.norms),
        any(part.draws for part in parts),
        all(part.dense for part in parts),
        sum(part.values for part in parts),
    )


def batchnorm() -> Make:
    """BatchNorm over channels (images) or values (vectors), with running statistics as buffers."""

    def make(name: str, shape: Shape) -> Layer:
        n = shape[0]
        weight, bias, mean, var = (
            f"{name}.bn.{part}" for part in ("weight", "bias", "~mean", "~var")
        )
        return Layer(
            lambda p, x, train: F.batch_norm(
                x, p[mean], p[var], p[weight], p[bias], train, 0.1, 1e-5
            ),
            shape,
            lambda g: {
                weight: torch.ones(n),
                bias: torch.zeros(n),
                mean: torch.zeros(n),
                var: torch.ones(n),
            },
            frozenset({weight, bias, mean, var}),
            values=4 * n,
        )

    return make


def relu(name: str, shape: Shape) -> Layer:
    """max(x, 0)."""
    return Layer(lambda p, x, train: F.relu(x), shape)


def tanh(name: str, shape: Shape) -> Layer:
    """tanh(x)."""
    return Layer(lambda p, x, train: torch.tanh(x), shape)


def dropout(rate: float) -> Make:
    """Sets that share of the values to zero while training, and makes the others as much larger."""
    if not 0 < rate < 1:
        raise UsageError(f"A dropout of {rate} is out of range: it is a share between 0 and 1.")
    return lambda name, shape: Layer(
        lambda p, x, train: F.dropout(x, rate, train), shape, draws=True
    )


def max_pool(kernel: Size, stride: int = 0, padding: int = 0, ceil: bool = False) -> Make:
    """Max pooling, side by side unless a stride is given; `ceil` keeps a last window that is not
    full.
    """

    def make(name: str, shape: Shape) -> Layer:
        channels, *sides = shape
        steps = _both(stride or kernel)

        def left(side: int, window: int, step: int) -> int:
            free = side + 2 * padding - window
            return (-(-free // step) if ceil else free // step) + 1

        return Layer(
            lambda p, x, train: F.max_pool2d(x, kernel, steps, padding, ceil_mode=ceil),
            (channels, *map(left, sides, _both(kernel), steps)),
        )

    return make


def pool(name: str, shape: Shape) -> Layer:
    """2x2 max pooling."""
    return max_pool(2)(name, shape)


def mean_over_image(name: str, shape: Shape) -> Layer:
    """Global average pooling."""
    # One row of channels a pixel: with channels last neither this nor its gradient moves anything.
    return Layer(lambda p, x, train: x.permute(0, 2, 3, 1).flatten(1, 2).mean(1), shape[:1])


def image(name: str, shape: Shape) -> Layer:
    """A row of values as a square image: in whole channels if that leaves at least 4x4, else padded
    with zeros.
    """
    (values,) = shape
    side = max(s for s in range(1, math.isqrt(values) + 1) if values % (s * s) == 0)
    if side < 4:
        side = max(4, math.isqrt(values - 1) + 1)
    channels = -(-values // (side * side))
    missing = channels * side * side - values
    return Layer(
        lambda p, x, train: F.pad(x, (0, missing)).unflatten(1, (channels, side, side)),
        (channels, side, side),
    )


def flat(name: str, shape: Shape) -> Layer:
    """All values of a sample in a row."""
    return Layer(lambda p, x, train: x.flatten(1), (math.prod(shape),))
