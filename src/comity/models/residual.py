"""Residual networks: those of torchvision, and those of the thesis on representation sharing."""

from __future__ import annotations

from collections.abc import Callable

from comity.models.ends import image_builder, with_head
from comity.models.stack import (
    Builder,
    Layer,
    Make,
    Shape,
    Stack,
    batchnorm,
    chain,
    conv,
    linear,
    max_pool,
    mean_over_image,
    pool,
    relu,
    residual,
    tanh,
)

Block = Callable[[int, int], Make]
"""A function of channels and stride that returns a residual block."""


def _tower(b: Builder, block: Block, counts: tuple[int, int, int, int]) -> Builder:
    """Add stages b1 to b4, each but the first with stride 2, and the mean over the image."""
    for k, (channels, count) in enumerate(zip((64, 128, 256, 512), counts, strict=True)):
        b = b.stage(
            f"b{k + 1}", chain(*(block(channels, 2 if k and not i else 1) for i in range(count)))
        )
    return b.stage("pool", mean_over_image)


def _conv(out: int, kernel: int, stride: int = 1) -> tuple[Make, Make]:
    """torchvision's convolution: without bias, as BatchNorm follows."""
    return conv(out, kernel, kernel // 2, bias=False, stride=stride, he=True), batchnorm()


def _torchvision_block(out: int, stride: int, *layers: Make) -> Make:
    """torchvision's block: x is projected where shapes differ, and ReLU follows the sum."""

    def make(name: str, shape: Shape) -> Layer:
        skip = () if (shape[0], stride) == (out, 1) else _conv(out, 1, stride)
        return residual(*layers, skip=skip, after=(relu,))(name, shape)

    return make


def _basic(out: int, stride: int) -> Make:
    return _torchvision_block(out, stride, *_conv(out, 3, stride), relu, *_conv(out, 3))


def _bottleneck(out: int, stride: int) -> Make:
    return _torchvision_block(
        4 * out, stride, *_conv(out, 1), relu, *_conv(out, 3, stride), relu, *_conv(4 * out, 1)
    )


def _stem(name: str, shape: Shape) -> Builder:
    return image_builder(name, shape).stage("conv", *_conv(64, 7, 2), max_pool(3, 2, 1), relu)


def resnet18(shape: Shape, classes: int, projection: int = 0) -> Stack:
    """torchvision's ResNet-18, as in DBE (11,689,512 parameters on RGB images, 1000 classes):
    representation of 512.
    """
    return with_head(
        _tower(_stem("resnet18", shape), _basic, (2, 2, 2, 2)), "fc", classes, projection
    )


def resnet50(shape: Shape, classes: int, projection: int = 0) -> Stack:
    """torchvision's ResNet-50 (25,557,032 parameters on RGB images, 1000 classes): representation
    of 2,048; ADCOL's model with projection=2048.
    """
    return with_head(
        _tower(_stem("resnet50", shape), _bottleneck, (3, 4, 6, 3)), "fc", classes, projection
    )


def _unit(out: int, stride: int = 1) -> tuple[Make, ...]:
    """The thesis' convolution, with PyTorch's default initial values."""
    return conv(out, 3, 1, bias=False, stride=stride), batchnorm(), relu


def _thesis_block(out: int, stride: int) -> Make:
    """The thesis' block: ReLU precedes the sum, and x is projected only with a stride above 1."""
    skip = () if stride == 1 else (conv(out, 1, bias=False, stride=stride), batchnorm())
    return residual(*_unit(out, stride), *_unit(out), skip=skip)


def resnet9(shape: Shape, classes: int, width: int = 128) -> Stack:
    """The thesis' ResNet9 (2,470,730 parameters on grey images, 10 classes): tanh representation of
    128; at least 16x16.
    """
    b = image_builder("resnet9", shape).stage("conv1", *_unit(64)).stage("conv2", *_unit(128), pool)
    b = b.stage("res1", _thesis_block(128, 1))
    b = b.stage("conv3", *_unit(256), pool).stage("conv4", *_unit(256), pool)
    b = b.stage("res2", _thesis_block(256, 1), pool, mean_over_image)
    return b.stage("fc1", linear(width), tanh).stage("fc2", linear(classes)).build()


def resnet18_thesis(shape: Shape, classes: int, width: int = 256) -> Stack:
    """The thesis' ResNet18 (11,302,730 parameters on RGB images, 10 classes): tanh representation
    of 256; any size.
    """
    b = _tower(
        image_builder("resnet18-thesis", shape).stage("conv", *_unit(64)),
        _thesis_block,
        (2, 2, 2, 2),
    )
    return b.stage("fc1", linear(width), tanh).stage("fc2", linear(classes)).build()
