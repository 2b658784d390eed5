"""Models as an ordered stack of named stages, written as functions of their parameters.

A stage ends where a representation may be cut (after activation and pooling), so `cut="fc1"` is a name, wrappers can sit
at any layer, and measurements per layer need no hooks.
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

from comity.core.key import Key
from comity.core.record import Params
from comity.errors import Refusal

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
        begins, at = [0], 0
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

    def drawing(self, key: Key) -> AbstractContextManager[None]:
        """No layer here draws at random."""
        return nullcontext()

    def shape_after(self, stage: str) -> Shape:
        """The shape of one sample after a stage."""
        return self.all_stages[self.stages.index(stage)].layers[-1].shape


def _uniform(shape: Shape, fan_in: int, generator: torch.Generator) -> Tensor:
    bound = 1 / math.sqrt(fan_in)  # kaiming_uniform with a=sqrt(5), and nn.Linear's bias: both come to this
    return (torch.rand(shape, generator=generator) * 2 - 1) * bound


class Builder:
    """Grows a stack layer by layer, each sized to what the layer before leaves."""

    def __init__(self, name: str, shape: Shape) -> None:
        self.name = name
        self.shape = shape
        self._stages: list[Stage] = []

    def stage(self, name: str, *layers: Callable[[str, Shape], Layer]) -> Builder:
        """Add a stage; its parameters are called `name.weight`, `name.bias`, `name.bn.weight`, ..."""
        made = []
        for layer in layers:
            made.append(layer(name, self.shape))
            self.shape = made[-1].shape
            if min(self.shape) < 1:
                raise Refusal(f"{self.name} needs larger images: after {name} nothing is left. Try lenet5 or mlp2.")
        self._stages.append(Stage(name, tuple(made)))
        return self

    def build(self, cut: str = "") -> Stack:
        """The finished stack, with its representation after the stage `cut`: the last but one unless told."""
        return Stack(self.name, tuple(self._stages), cut)


Make = Callable[[str, Shape], Layer]


def linear(out: int) -> Make:
    """A fully connected layer with bias."""

    def make(name: str, shape: Shape) -> Layer:
        (into,) = shape
        weight, bias = f"{name}.weight", f"{name}.bias"
        return Layer(
            lambda p, x, train: F.linear(x, p[weight], p[bias]),
            (out,),
            lambda g: {weight: _uniform((out, into), into, g), bias: _uniform((out,), into, g)},
        )

    return make


def conv(out: int, kernel: int, padding: int = 0, bias: bool = True) -> Make:
    """A 2-d convolution, stride 1."""

    def make(name: str, shape: Shape) -> Layer:
        channels, height, width = shape
        kernels, offsets, fan = f"{name}.weight", f"{name}.bias", channels * kernel * kernel
        grow = 2 * padding - kernel + 1

        def weights(g: torch.Generator) -> Params:
            made = {kernels: _uniform((out, channels, kernel, kernel), fan, g)}
            return made | {offsets: _uniform((out,), fan, g)} if bias else made

        return Layer(
            lambda p, x, train: F.conv2d(x, p[kernels], p[offsets] if bias else None, padding=padding),
            (out, height + grow, width + grow),
            weights,
        )

    return make


def residual(*layers: Make) -> Make:
    """x + layers(x), whose shape must be x's; the layers' parameters are called `name.0.weight`, `name.1.bn.weight`, ..."""

    def make(name: str, shape: Shape) -> Layer:
        made = [layer(f"{name}.{k}", shape) for k, layer in enumerate(layers)]

        def apply(p: Params, x: Tensor, train: bool) -> Tensor:
            inner = x
            for layer in made:
                inner = layer.apply(p, inner, train)
            return x + inner

        norms = frozenset(n for layer in made for n in layer.norms)
        return Layer(apply, shape, lambda g: {k: v for layer in made for k, v in layer.weights(g).items()}, norms)

    return make


def batchnorm() -> Make:
    """BatchNorm over channels (images) or values (vectors), with running statistics as buffers."""

    def make(name: str, shape: Shape) -> Layer:
        n = shape[0]
        weight, bias, mean, var = (f"{name}.bn.{part}" for part in ("weight", "bias", "~mean", "~var"))
        return Layer(
            lambda p, x, train: F.batch_norm(x, p[mean], p[var], p[weight], p[bias], train, 0.1, 1e-5),
            shape,
            lambda g: {weight: torch.ones(n), bias: torch.zeros(n), mean: torch.zeros(n), var: torch.ones(n)},
            frozenset({weight, bias, mean, var}),
        )

    return make


def relu(name: str, shape: Shape) -> Layer:
    """max(x, 0)."""
    return Layer(lambda p, x, train: F.relu(x), shape)


def tanh(name: str, shape: Shape) -> Layer:
    """tanh(x)."""
    return Layer(lambda p, x, train: torch.tanh(x), shape)


def pool(name: str, shape: Shape) -> Layer:
    """2x2 max pooling."""
    channels, height, width = shape
    return Layer(lambda p, x, train: F.max_pool2d(x, 2), (channels, height // 2, width // 2))


def mean_over_image(name: str, shape: Shape) -> Layer:
    """Global average pooling."""
    return Layer(lambda p, x, train: x.mean((2, 3)), shape[:1])


def image(name: str, shape: Shape) -> Layer:
    """A row of values as a square image: in whole channels if that leaves at least 4x4, else padded with zeros."""
    (values,) = shape
    side = max(s for s in range(1, math.isqrt(values) + 1) if values % (s * s) == 0)
    if side < 4:
        side = max(4, math.isqrt(values - 1) + 1)
    channels = -(-values // (side * side))
    missing = channels * side * side - values
    return Layer(lambda p, x, train: F.pad(x, (0, missing)).unflatten(1, (channels, side, side)), (channels, side, side))


def flat(name: str, shape: Shape) -> Layer:
    """All values of a sample in a row."""
    return Layer(lambda p, x, train: x.flatten(1), (math.prod(shape),))
