"""Networks for sequences: texts, sensor signals, and patient records."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from comity.base.record import Params
from comity.errors import UsageError
from comity.models.stack import (
    Builder,
    Layer,
    Make,
    Shape,
    Stack,
    conv,
    flat,
    linear,
    max_pool,
    relu,
    tanh,
    uniform,
)
from comity.training.kernels import unwrapped


def mean_of_words(vocabulary: int, width: int, mean: str) -> Make:
    """The mean of the tokens' embeddings; token 0 is padding and adds nothing.

    `mean` is "tokens" (divide by the number of tokens) or "positions" (divide by the row's length).
    """

    def make(name: str, shape: Shape) -> Layer:
        (length,) = shape
        table = f"{name}.weight"

        def weights(g: torch.Generator) -> Params:
            rows = torch.randn((vocabulary, width), generator=g)
            rows[0] = 0  # as nn.Embedding(padding_idx=0) has it
            return {table: rows}

        def apply(p: Params, x: Tensor, train: bool) -> Tensor:
            words = tokens_of("fasttext", x, vocabulary)
            real = (words > 0).unsqueeze(2)
            total = (F.embedding(words, p[table]) * real).sum(1)
            return total / (real.sum(1).clamp(min=1) if mean == "tokens" else length)

        return Layer(apply, (width,), weights, dense=False, values=vocabulary * width)

    return make


def tokens_of(model: str, x: Tensor, vocabulary: int) -> Tensor:
    """Return the token numbers that samples hold as floats.

    Raises UsageError if a value is no token number of the vocabulary.
    """
    if x.requires_grad:
        raise UsageError(
            f"{model} has no gradients with respect to its tokens: choose a method that does not"
            " perturb samples."
        )
    words = x.long()
    if torch.compiler.is_exporting():  # a traced tensor has no values to check
        return words
    x = unwrapped(x)
    if not torch.equal(x.long().to(x.dtype), x) or x.min() < 0 or x.max() >= vocabulary:
        raise UsageError(
            f"{model} needs token numbers from 0 (padding) to {vocabulary - 1}, but not all values"
            f" of the samples, {x.min():g} to {x.max():g}, are such. Give it another vocabulary, or"
            " try mlp2."
        )
    return words


def log_softmax(name: str, shape: Shape) -> Layer:
    """log(softmax(x))."""
    return Layer(lambda p, x, train: F.log_softmax(x, 1), shape)


def bidirectional_lstm(width: int) -> Make:
    """A bidirectional LSTM without bias, with `width` hidden values in each direction."""

    def make(name: str, shape: Shape) -> Layer:
        steps, features = shape
        sizes = {
            f"{name}.{part}_{way}": (4 * width, into)
            for way in ("forward", "backward")
            for part, into in (("input", features), ("hidden", width))
        }

        def apply(p: Params, x: Tensor, train: bool) -> Tensor:
            begin = x.new_zeros(2, len(x), width)
            return torch.lstm(
                x, (begin, begin), [p[k] for k in sizes], False, 1, 0.0, train, True, True
            )[0]

        def weights(g: torch.Generator) -> Params:
            return {k: uniform(size, width, g) for k, size in sizes.items()}

        values = sum(rows * columns for rows, columns in sizes.values())
        return Layer(apply, (steps, 2 * width), weights, dense=False, values=values)

    return make


def max_over_time(name: str, shape: Shape) -> Layer:
    """Max pooling over time."""
    return Layer(lambda p, x, train: x.amax(1), shape[1:])


def line_of_images(name: str, shape: Shape) -> Layer:
    """Signals (channels x time, or channels x 1 x time) as images of height 1."""
    channels, *_, time = shape
    return Layer(lambda p, x, train: x.reshape(len(x), channels, 1, time), (channels, 1, time))


def fasttext(
    shape: Shape,
    classes: int,
    vocabulary: int = 98_635,
    width: int = 32,
    mean: Literal["tokens", "positions"] = "tokens",
    compat_logsoftmax: bool = False,
) -> Stack:
    """DBE's fastText for rows of token numbers (0 = padding): mean of the tokens' vectors, FC
    representation of 32. Its code divides by the row's length, padding too (mean=positions), and
    takes log_softmax of the representation.
    """
    if len(shape) != 1:
        raise UsageError(
            f"fasttext needs rows of token numbers, but a sample has shape {shape}. Try mlp2."
        )
    b = Builder("fasttext", shape).stage("embedding", mean_of_words(vocabulary, width, mean))
    b = b.stage("fc1", linear(width), *([log_softmax] if compat_logsoftmax else []))
    return b.stage("fc2", linear(classes)).build()


def har_cnn(shape: Shape, classes: int) -> Stack:
    """DBE's HAR-CNN for signals (channels x time): two convolutions, representation of 1,664
    (9x128); the head is 3 FC layers.
    """
    if len(shape) != 2 and not (len(shape) == 3 and shape[1] == 1):
        raise UsageError(
            f"har-cnn needs signals (channels x time), but a sample has shape {shape}. Try mlp2."
        )
    b = Builder("har-cnn", shape, "longer signals", "mlp2")
    b = b.stage("conv1", line_of_images, conv(32, (1, 9)), max_pool((1, 2)), relu)
    b = b.stage("conv2", conv(64, (1, 9)), max_pool((1, 2)), relu, flat)
    b = b.stage("fc1", linear(1024), relu).stage("fc2", linear(512), relu)
    return b.stage("fc3", linear(classes)).build(cut="conv2")


def bilstm(shape: Shape, classes: int, width: int = 20) -> Stack:
    """Fed-SPS's LSTM for records (steps x features), read both ways: representation of 40 = tanh's
    largest over time.
    """
    if len(shape) != 2:
        raise UsageError(
            f"bilstm needs records (steps x features), but a sample has shape {shape}. Try mlp2."
        )
    b = Builder("bilstm", shape).stage("lstm", bidirectional_lstm(width), tanh, max_over_time)
    return b.stage("fc", linear(classes)).build()
