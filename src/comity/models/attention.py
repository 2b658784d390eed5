"""Small transformers, for texts and for images: every token looks at all others, and the
representation is the tokens' mean.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from comity.base.record import Params
from comity.errors import UsageError
from comity.models.ends import images
from comity.models.low_rank import LowRank, low_rank
from comity.models.sequences import tokens_of
from comity.models.stack import Builder, Layer, Make, Shape, Stack, joined, linear

Adapted = Literal["qv", "attention", "all"]
LAYERS: dict[Adapted, tuple[str, ...]] = {"qv": ("q", "v"), "attention": ("q", "k", "v", "o")}
LAYERS["all"] = (*LAYERS["attention"], "fc1", "fc2")
"""Which linear layers of a block get low-rank factors, by what `adapt` says."""
ALPHA = 8.0
DEEPEST = 100
NEVER = -1e9  # as good as minus infinity, but a row of padding alone has an answer


def layer_norm(name: str, shape: Shape) -> Layer:
    """Each token's values brought to mean 0 and variance 1, then scaled and moved."""
    weight, bias = f"{name}.weight", f"{name}.bias"
    width = shape[-1]
    return Layer(
        lambda p, x, train: F.layer_norm(x, (width,), p[weight], p[bias]),
        shape,
        lambda g: {weight: torch.ones(width), bias: torch.zeros(width)},
        values=2 * width,
    )


def positions(name: str, shape: Shape) -> Layer:
    """SumsReplies to each token a vector of its place."""
    weight = f"{name}.weight"
    return Layer(
        lambda p, x, train: x + p[weight],
        shape,
        lambda g: {weight: torch.randn(shape, generator=g) * 0.02},
        values=math.prod(shape),
    )


def vectors_of_words(vocabulary: int, width: int) -> Make:
    """Each token's row of a table."""

    def make(name: str, shape: Shape) -> Layer:
        table = f"{name}.weight"

        def apply(p: Params, x: Tensor, train: bool) -> Tensor:
            return F.embedding(tokens_of("transformer", x, vocabulary), p[table])

        def weights(g: torch.Generator) -> Params:
            return {table: torch.randn((vocabulary, width), generator=g)}

        return Layer(apply, (*shape, width), weights, dense=False, values=vocabulary * width)

    return make


def patches(side: int) -> Make:
    """An image cut into squares of `side` x `side` pixels, each a row of its values."""

    def make(name: str, shape: Shape) -> Layer:
        channels, height, width = shape
        if height % side or width % side:
            raise UsageError(
                f"vit cannot cut images of {height}x{width} into squares of {side}x{side}: give"
                " another patch."
            )
        down, across = height // side, width // side

        def apply(p: Params, x: Tensor, train: bool) -> Tensor:
            cut = x.unflatten(3, (across, side)).unflatten(2, (down, side))
            squares: Tensor = cut.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)
            return squares

        return Layer(apply, (down * across, channels * side * side))

    return make


@dataclass(frozen=True)
class Block:
    """x + attention of norm(x), and then that + fc2(GELU(fc1 of its norm))."""

    layers: dict[str, Layer]
    heads: int

    @staticmethod
    def of(name: str, shape: Shape, heads: int) -> Block:
        """A block for so many tokens of that width."""
        width = shape[-1]
        made = {each: layer_norm(f"{name}.{each}", shape) for each in ("norm1", "norm2")}
        made |= {each: linear(width)(f"{name}.{each}", shape) for each in ("q", "k", "v", "o")}
        made["fc1"] = linear(4 * width)(f"{name}.fc1", shape)
        made["fc2"] = linear(width)(f"{name}.fc2", made["fc1"].shape)
        return Block(made, heads)

    def apply(self, p: Params, x: Tensor, train: bool, real: Tensor | None) -> Tensor:
        """The block; nobody looks at tokens that are not `real`."""

        def of(layer: str, x: Tensor) -> Tensor:
            return self.layers[layer].apply(p, x, train)

        seen = of("norm1", x)
        q, k, v = (
            of(each, seen).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for each in ("q", "k", "v")
        )
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        if real is not None:
            scores = scores.masked_fill(~real[:, None, None, :], NEVER)
        x = x + of("o", (scores.softmax(-1) @ v).transpose(1, 2).flatten(-2))
        return x + of("fc2", F.gelu(of("fc1", of("norm2", x))))


def encoder(*begin: Make, depth: int, heads: int, padded: bool) -> Make:
    """Tokens made by `begin`, `depth` blocks, and the mean of the tokens; of `padded` rows, 0 is no
    token.

    All in one: who cut between its blocks would have padding among the values.
    """

    def make(name: str, shape: Shape) -> Layer:
        first: list[Layer] = []
        for each, what in zip(("begin", "positions"), begin, strict=True):
            first.append(what(f"{name}.{each}", first[-1].shape if first else shape))
        tokens = first[-1].shape
        blocks = [Block.of(f"{name}.{k}", tokens, heads) for k in range(depth)]
        last = layer_norm(f"{name}.norm", tokens)

        def apply(p: Params, x: Tensor, train: bool) -> Tensor:
            real = x > 0 if padded else None
            for layer in first:
                x = layer.apply(p, x, train)
            for block in blocks:
                x = block.apply(p, x, train, real)
            x = last.apply(p, x, train)
            if real is None:
                return x.mean(1)
            return (x * real.unsqueeze(2)).sum(1) / real.sum(1, keepdim=True).clamp(min=1)

        return joined(
            apply,
            tokens[-1:],
            *first,
            *(layer for block in blocks for layer in block.layers.values()),
            last,
        )

    return make


def first_of(length: int) -> Make:
    """The first so many values of a row."""
    return lambda name, shape: Layer(lambda p, x, train: x[:, :length], (min(length, *shape),))


def _finished(
    b: Builder, classes: int, rank: int, alpha: float, adapt: Adapted, base: int | str
) -> Stack | LowRank:
    """The whole network; with a rank, only its factors and its head are trained."""
    if not rank and (alpha, adapt, base) != (ALPHA, "qv", 0):
        raise UsageError(
            f"{b.name}'s alpha, adapt and base are about factors, of which there are none: give it"
            " a rank."
        )
    whole = b.stage("fc", linear(classes)).build()
    return low_rank(whole, LAYERS[adapt], rank, alpha, base) if rank else whole


def _check_blocks(name: str, width: int, depth: int, heads: int) -> None:
    if width % heads:
        raise UsageError(
            f"{name} cannot deal {width} values among {heads} heads: width must be a multiple of"
            " heads."
        )
    if depth > DEEPEST:
        raise UsageError(f"{name} is a small one, of {DEEPEST} blocks at most, not {depth}.")


def transformer(
    shape: Shape,
    classes: int,
    vocabulary: int = 98_635,
    length: int = 64,
    width: int = 32,
    depth: int = 2,
    heads: int = 4,
    rank: int = 0,
    alpha: float = ALPHA,
    adapt: Adapted = "qv",
    base: int | str = 0,
) -> Stack | LowRank:
    """Small transformer for rows of token numbers (0 = padding), of which it reads the first 64:
    representation = the tokens' mean. With `rank`, LoRA: factors of q and v (adapt: of all of
    attention, or of all layers) and the head are trained and shared, the rest is the `base`: a
    seed, or an exported model's folder.
    """
    if len(shape) != 1:
        raise UsageError(
            f"transformer needs rows of token numbers, but a sample has shape {shape}. Try vit or"
            " mlp2."
        )
    _check_blocks("transformer", width, depth, heads)
    b = Builder("transformer", shape).stage("input", first_of(length))
    words = vectors_of_words(vocabulary, width)
    b = b.stage("encoder", encoder(words, positions, depth=depth, heads=heads, padded=True))
    return _finished(b, classes, rank, alpha, adapt, base)


def vit(
    shape: Shape,
    classes: int,
    patch: int = 4,
    width: int = 64,
    depth: int = 2,
    heads: int = 4,
    rank: int = 0,
    alpha: float = ALPHA,
    adapt: Adapted = "qv",
    base: int | str = 0,
) -> Stack | LowRank:
    """Small vision transformer on squares of 4x4 pixels: representation = their mean, 64 values.
    `rank` and what follows it: as in transformer.
    """
    _check_blocks("vit", width, depth, heads)

    def squares(name: str, size: Shape) -> Layer:
        cut = patches(patch)(name, size)
        row = linear(width)(name, cut.shape)
        return joined(
            lambda p, x, train: row.apply(p, cut.apply(p, x, train), train), row.shape, cut, row
        )

    b = images("vit", shape).stage(
        "encoder", encoder(squares, positions, depth=depth, heads=heads, padded=False)
    )
    return _finished(b, classes, rank, alpha, adapt, base)
