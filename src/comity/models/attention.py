"""Small transformers for texts and images.

Every token attends to all others, and the representation is the mean of the tokens.
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
from comity.models.ends import image_builder
from comity.models.low_rank import LowRank, low_rank
from comity.models.sequences import tokens_of
from comity.models.stack import Builder, Layer, Make, Shape, Stack, combine, linear

Adapted = Literal["qv", "attention", "all"]
LAYERS: dict[Adapted, tuple[str, ...]] = {"qv": ("q", "v"), "attention": ("q", "k", "v", "o")}
LAYERS["all"] = (*LAYERS["attention"], "fc1", "fc2")
"""The linear layers of a block that get low-rank factors, by the value of `adapt`."""
ALPHA = 8.0
DEEPEST = 100
NEVER = -1e9  # minus infinity would give NaN for a row of padding only


def layer_norm(name: str, shape: Shape) -> Layer:
    """Layer normalisation of each token."""
    weight, bias = f"{name}.weight", f"{name}.bias"
    width = shape[-1]
    return Layer(
        lambda p, x, train: F.layer_norm(x, (width,), p[weight], p[bias]),
        shape,
        lambda g: {weight: torch.ones(width), bias: torch.zeros(width)},
        values=2 * width,
    )


def positions(name: str, shape: Shape) -> Layer:
    """Learned position embeddings, added to the tokens."""
    weight = f"{name}.weight"
    return Layer(
        lambda p, x, train: x + p[weight],
        shape,
        lambda g: {weight: torch.randn(shape, generator=g) * 0.02},
        values=math.prod(shape),
    )


def vectors_of_words(vocabulary: int, width: int) -> Make:
    """An embedding of each token."""

    def make(name: str, shape: Shape) -> Layer:
        table = f"{name}.weight"

        def apply(p: Params, x: Tensor, train: bool) -> Tensor:
            return F.embedding(tokens_of("transformer", x, vocabulary), p[table])

        def weights(g: torch.Generator) -> Params:
            return {table: torch.randn((vocabulary, width), generator=g)}

        return Layer(apply, (*shape, width), weights, dense=False, values=vocabulary * width)

    return make


def patches(side: int) -> Make:
    """An image as a sequence of squares of `side` x `side` pixels, each flattened."""

    def make(name: str, shape: Shape) -> Layer:
        channels, height, width = shape
        if height % side or width % side:
            raise UsageError(
                f"vit cannot cut images of {height}x{width} into squares of {side}x{side}: give"
                " another patch."
            )
        down, across = height // side, width // side

        def apply(p: Params, x: Tensor, train: bool) -> Tensor:
            grid = x.unflatten(3, (across, side)).unflatten(2, (down, side))
            squares: Tensor = grid.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)
            return squares

        return Layer(apply, (down * across, channels * side * side))

    return make


@dataclass(frozen=True)
class Block:
    """A pre-norm block: y = x + attention(norm1(x)), then y + fc2(GELU(fc1(norm2(y))))."""

    layers: dict[str, Layer]
    heads: int

    @staticmethod
    def of(name: str, shape: Shape, heads: int) -> Block:
        """Return a block for tokens of the given shape (tokens x width)."""
        width = shape[-1]
        layers = {norm: layer_norm(f"{name}.{norm}", shape) for norm in ("norm1", "norm2")}
        layers |= {part: linear(width)(f"{name}.{part}", shape) for part in ("q", "k", "v", "o")}
        layers["fc1"] = linear(4 * width)(f"{name}.fc1", shape)
        layers["fc2"] = linear(width)(f"{name}.fc2", layers["fc1"].shape)
        return Block(layers, heads)

    def apply(self, p: Params, x: Tensor, train: bool, real: Tensor | None) -> Tensor:
        """Apply the block; no token attends to tokens that are not `real`."""

        def of(layer: str, x: Tensor) -> Tensor:
            return self.layers[layer].apply(p, x, train)

        normed = of("norm1", x)
        q, k, v = (
            of(part, normed).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in ("q", "k", "v")
        )
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        if real is not None:
            scores = scores.masked_fill(~real[:, None, None, :], NEVER)
        x = x + of("o", (scores.softmax(-1) @ v).transpose(1, 2).flatten(-2))
        return x + of("fc2", F.gelu(of("fc1", of("norm2", x))))


def encoder(*embed: Make, depth: int, heads: int, padded: bool) -> Make:
    """An encoder: two layers that embed the input (`embed`), `depth` blocks, and the mean.

    In `padded` rows, 0 is no token. The encoder is one stage: a representation that is cut between
    its blocks would contain padding.
    """

    def make(name: str, shape: Shape) -> Layer:
        first: list[Layer] = []
        for part, make_layer in zip(("begin", "positions"), embed, strict=True):
            first.append(make_layer(f"{name}.{part}", first[-1].shape if first else shape))
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

        return combine(
            apply,
            tokens[-1:],
            *first,
            *(layer for block in blocks for layer in block.layers.values()),
            last,
        )

    return make


def first_of(length: int) -> Make:
    """The first `length` values of a row."""
    return lambda name, shape: Layer(lambda p, x, train: x[:, :length], (min(length, *shape),))


def _build(
    b: Builder, classes: int, rank: int, alpha: float, adapt: Adapted, base: int | str
) -> Stack | LowRank:
    """Add the classifier and build the network; with a rank, only factors and head are trained."""
    if not rank and (alpha, adapt, base) != (ALPHA, "qv", 0):
        raise UsageError(
            f"{b.name}'s options alpha, adapt and base concern low-rank factors: give it a rank, as"
            f" in {b.name}(rank=4)."
        )
    whole = b.stage("fc", linear(classes)).build()
    return low_rank(whole, LAYERS[adapt], rank, alpha, base) if rank else whole


def _check_blocks(name: str, width: int, depth: int, heads: int) -> None:
    if width % heads:
        raise UsageError(
            f"{name} cannot divide {width} values among {heads} heads: width must be a multiple of"
            " heads."
        )
    if depth > DEEPEST:
        raise UsageError(f"{name} has at most {DEEPEST} blocks, not {depth}.")


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
    representation = the tokens' mean. With `rank`, LoRA: only the head and factors of q and v
    (adapt=attention: of q, k, v, o; adapt=all: of all linear layers) are trained and shared. The
    frozen weights come from `base`: a seed, or an exported model's folder.
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
    return _build(b, classes, rank, alpha, adapt, base)


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
    `rank`, `alpha`, `adapt` and `base` are those of transformer.
    """
    _check_blocks("vit", width, depth, heads)

    def squares(name: str, size: Shape) -> Layer:
        patch_layer = patches(patch)(name, size)
        projection = linear(width)(name, patch_layer.shape)

        def apply(p: Params, x: Tensor, train: bool) -> Tensor:
            return projection.apply(p, patch_layer.apply(p, x, train), train)

        return combine(apply, projection.shape, patch_layer, projection)

    b = image_builder("vit", shape).stage(
        "encoder", encoder(squares, positions, depth=depth, heads=heads, padded=False)
    )
    return _build(b, classes, rank, alpha, adapt, base)
