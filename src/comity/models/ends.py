"""How networks begin and end: what they ask of the data, and their classifiers."""

from __future__ import annotations

from comity.errors import UsageError
from comity.models.stack import Builder, Shape, Stack, batchnorm, linear, relu


def images(name: str, shape: Shape) -> Builder:
    """The beginning of a network for images."""
    if len(shape) != 3:
        raise UsageError(
            f"{name} needs images (channels x height x width), but a sample has shape {shape}. Try"
            " mlp2."
        )
    return Builder(name, shape)


def headed(b: Builder, head: str, classes: int, projection: int) -> Stack:
    """The classifier; with `projection` first ADCOL's projection head (three FC layers, BatchNorm
    after each, ReLU after two) that ends in a representation of that many values, and its predictor
    of two FC layers.
    """
    if not projection:
        return b.stage(head, linear(classes)).build()
    (width,) = b.shape
    for name in ("proj1", "proj2"):
        b = b.stage(name, linear(width), batchnorm(), relu)
    b = b.stage("proj3", linear(projection), batchnorm())
    b = b.stage("pred1", linear(max(1, projection // 4)), batchnorm(), relu)
    return b.stage("pred2", linear(classes)).build(cut="proj3")
