"""The first and the last stages that networks have in common."""

from __future__ import annotations

from comity.errors import UsageError
from comity.models.stack import Builder, Shape, Stack, batchnorm, linear, relu


def image_builder(name: str, shape: Shape) -> Builder:
    """Return a builder of a network for images. Raises UsageError for samples of another shape."""
    if len(shape) != 3:
        raise UsageError(
            f"{name} needs images (channels x height x width), but a sample has shape {shape}. Try"
            " mlp2."
        )
    return Builder(name, shape)


def with_head(b: Builder, head: str, classes: int, projection: int) -> Stack:
    """Add the classifier and build the network.

    With `projection`, ADCOL's projection head comes first: three FC layers, BatchNorm after each,
    ReLU after the first two. Its output, of `projection` values, is the representation. ADCOL's
    predictor of two FC layers follows it.
    """
    if not projection:
        return b.stage(head, linear(classes)).build()
    (width,) = b.shape
    for name in ("proj1", "proj2"):
        b = b.stage(name, linear(width), batchnorm(), relu)
    b = b.stage("proj3", linear(projection), batchnorm())
    b = b.stage("pred1", linear(max(1, projection // 4)), batchnorm(), relu)
    return b.stage("pred2", linear(classes)).build(cut="proj3")
