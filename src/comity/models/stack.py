"""Models as an ordered stack of named stages, written as functions of their parameters.

A stage ends where a representation may be taken (after activation and pooling). So `cut="fc1"`
names a stage, wrappers can be placed after any stage, and measurements per layer need no hooks. Max
pooling precedes ReLU: the two commute, in values and gradients, and ReLU has fewer values to
process.
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
    """One operation: its initial parameters, its function, and the shape of its output."""

    apply: Apply
    shape: Shape
    weights: Callable[[torch.Generator], Params] = lambda generator: {}
    norms: frozenset[str] = frozenset()
    """The names of the parameters and buffers of BatchNorm."""
    draws: bool = False
    """Whether it draws random numbers in training."""
    dense: bool = True
    """Whether it is a linear layer, or takes negligible time beside one."""
    values: int = 0
    """The number of values in its parameters."""


@dataclass(frozen=True)
class Stage:
    """A named sequence of layers."""

    name: str
    layers: tuple[Layer, ...]


@dataclass(frozen=True)
class Stack:
    """A network of stages. By default the last stage is the head."""

    name: str
    all_stages: tuple[Stage, ...]
    ends: str = ""
    """The stage whose output is the representation. Default: the last but one."""

    @cached_property
    def stages(self) -> tuple[str, ...]:
        """The stages' names in order."""
        return tuple(stage.name for stage in self.all_stages)

    @cached_property
    def cut(self) -> str:
        """The stage whose output is the representation, unless the experiment sets `cut`."""
        return self.ends or self.stages[-2]

    @cached_property
    def norms(self) -> frozenset[str]:
        """The names of the parameters and buffers of BatchNorm layers."""
        return frozenset(n for s in self.all_stages for layer in s.layers for n in layer.norms)

    @cached_property
    def _flat(self) -> tuple[tuple[Apply, ...], tuple[int, ...]]:
        """All layers in order, and the index of each stage's first layer."""
        applies = tuple(layer.apply for stage in self.all_stages for layer in stage.layers)
        begins = [0]
        at = 0
        for stage in self.all_stages:
            at += len(stage.layers)
            begins.append(at)
        return applies, tuple(begins)

    def init(self, key: Key) -> Params:
        """Return PyTorch's default initial values; each stage has its own random stream."""
        theta: Params = {}
        for stage in self.all_stages:
            generator = key.fold("weights", stage.name).generator()
            for layer in stage.layers:
                theta |= layer.weights(generator)
        return theta

    def run(self, theta: Params, x: Tensor, train: bool, begin: int, end: int) -> Tensor:
        """Apply the stages begin..end-1 to x."""
        applies, begins = self._flat
        for apply in applies[begins[begin] : begins[end]]:
            x = apply(theta, x, train)
        return x

    @cached_property
    def draws(self) -> bool:
        """Whether any layer draws random numbers in training."""
        return any(layer.draws for stage in self.all_stages for layer in stage.layers)

    @cached_property
    def dense(self) -> bool:
        """Whether linear layers take all the time: then many parties' copies are faster when they
        are batched.
        """
        return all(layer.dense for stage in self.all_stages for layer in stage.layers)

    def layer_stream(self, key: Key) -> AbstractContextManager[object]:
        """Return a context in which layers draw random numbers from `key`; empty if none does."""
        return LayerStream(key) if self.draws else nullcontext()

    def shape_after(self, stage: str) -> Shape:
        """Return the shape of one sample after a stage."""
        return self.all_stages[self.stages.index(stage)].layers[-1].shape


def uniform(shape: Shape, fan_in: int, generator: torch.Generator) -> Tensor:
    """Draw PyTorch's default initial values of linear and convolutional layers."""
    # kaiming_uniform with a=sqrt(5), and the bias of nn.Linear: both have this bound.
    bound = 1 / math.sqrt(fan_in)
    return (torch.rand(shape, generator=generator) * 2 - 1) * bound


class Builder:
    """Builds a stack stage by stage, each sized to the output of the stage before.

    Raises UsageError where the output would be empty. The message says what samples the stack
    `needs`, and which models to try `instead`.
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
        """Add a stage with parameters `name.weight`, `name.bias`, `name.bn.weight`, ..."""
        sized = []
        for layer in layers:
            sized.append(layer(name, self.shape))
            self.shape = sized[-1].shape
            if min(self.shape) < 1:
                raise UsageError(
                    f"{self.name} needs {self.needs}: after {name} nothing is left. Try"
                    f" {self.instead}."
                )
        self._stages.append(Stage(name, tuple(sized)))
        return self

    def build(self, cut: str = "") -> Stack:
        """Return the stack. Its representation is the output of the stage `cut` (default: the last
        but one).
        """
        values = sum(layer.values for stage in self._stages for layer in stage.layers)
        check_fits(
            f"{self.name} of {values:.3g} values, with its gradients and what is sent",
            3 * 4 * values,
        )
        return Stack(self.name, tuple(self._stages), cut)


Make = Callable[[str, Shape], Layer]


def linear(out: int) -> Make:
    """A fully connected layer with bias, on the last dimension.

    If the parameters hold `name.A` and `name.B`, their low-rank product is added to the weights.
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
"""Convolutions with at most this many weights per output value of one image are faster in
channels-last order (docs/results/performance.md).
"""


def conv(
    out: int, kernel: Size, padding: int = 0, bias: bool = True, stride: int = 1, he: bool = False
) -> Make:
    """A 2-d convolution. `he` selects He's normal initial values by fan-out, as in torchvision's
    ResNets.
    """

    def make(name: str, shape: Shape) -> Layer:
        channels, height, width = shape
        high, wide = _both(kernel)
        kernels = f"{name}.weight"
        offsets = f"{name}.bias"
        fan = channels * high * wide

        def weights(g: torch.Generator) -> Params:
            size = (out, channels, high, wide)
            initial = (
                torch.randn(size, generator=g) * math.sqrt(2 / (out * high * wide))
                if he
                else uniform(size, fan, g)
            )
            return {kernels: initial} | ({offsets: uniform((out,), fan, g)} if bias else {})

        output = (
            out,
            (height + 2 * padding - high) // stride + 1,
            (width + 2 * padding - wide) // stride + 1,
        )
        # Channels-last order makes convolutions and poolings of few images faster, unless large
        # weights must be copied into that order.
        few_weights = out * fan <= WEIGHTS_PER_VALUE * math.prod(output)
        order = torch.channels_last if few_weights else torch.contiguous_format

        def apply(p: Params, x: Tensor, train: bool) -> Tensor:
            return conv_layer(x, p[kernels], p[offsets] if bias else None, stride, padding, order)

        return Layer(apply, output, weights, dense=False, values=out * (fan + bias))

    return make


def chain(*layers: Make) -> Make:
    """Layers in sequence as one layer, with parameters `name.0.weight`, `name.1.bn.weight`, ..."""

    def make(name: str, shape: Shape) -> Layer:
        sized: list[Layer] = []
        for k, layer in enumerate(layers):
            sized.append(layer(f"{name}.{k}", sized[-1].shape if sized else shape))

        def apply(p: Params, x: Tensor, train: bool) -> Tensor:
            for layer in sized:
                x = layer.apply(p, x, train)
            return x

        return combine(apply, sized[-1].shape if sized else shape, *sized)

    return make


def residual(*layers: Make, skip: tuple[Make, ...] = (), after: tuple[Make, ...] = ()) -> Make:
    """after(skip(x) + layers(x)), with parameters named as in `chain`.

    `skip` (`name.skip.0.weight`, ...) projects x to the shape of layers(x).
    """

    def make(name: str, shape: Shape) -> Layer:
        body = chain(*layers)(name, shape)
        way = chain(*skip)(f"{name}.skip", shape)
        end = chain(*after)(f"{name}.after", body.shape)

        def apply(p: Params, x: Tensor, train: bool) -> Tensor:
            return end.apply(p, way.apply(p, x, train) + body.apply(p, x, train), train)

        return combine(apply, end.shape, body, way, end)

    return make


def combine(apply: Apply, shape: Shape, *parts: Layer) -> Layer:
    """A layer with the function `apply` and the parameters of all parts."""
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
    """Dropout: in training, set that fraction of the values to zero and scale the others up."""
    if not 0 < rate < 1:
        raise UsageError(f"A dropout of {rate} is out of range: it must be between 0 and 1.")
    return lambda name, shape: Layer(
        lambda p, x, train: F.dropout(x, rate, train), shape, draws=True
    )


def max_pool(kernel: Size, stride: int = 0, padding: int = 0, ceil: bool = False) -> Make:
    """Max pooling. Default stride: the kernel. `ceil` keeps a last window that is not full."""

    def make(name: str, shape: Shape) -> Layer:
        channels, *sides = shape
        steps = _both(stride or kernel)

        def output_side(side: int, window: int, step: int) -> int:
            last_start = side + 2 * padding - window
            return (-(-last_start // step) if ceil else last_start // step) + 1

        return Layer(
            lambda p, x, train: F.max_pool2d(x, kernel, steps, padding, ceil_mode=ceil),
            (channels, *map(output_side, sides, _both(kernel), steps)),
        )

    return make


def pool(name: str, shape: Shape) -> Layer:
    """2x2 max pooling."""
    return max_pool(2)(name, shape)


def mean_over_image(name: str, shape: Shape) -> Layer:
    """Global average pooling."""
    # In channels-last order, neither this permutation nor its gradient copies any memory.
    return Layer(lambda p, x, train: x.permute(0, 2, 3, 1).flatten(1, 2).mean(1), shape[:1])


def image(name: str, shape: Shape) -> Layer:
    """A row of values as a square image of whole channels, or padded with zeros where that would be
    smaller than 4x4.
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
    """All values of a sample in one row."""
    return Layer(lambda p, x, train: x.flatten(1), (math.prod(shape),))
