"""The papers' small networks, each sized to the data's shape."""

from __future__ import annotations

from comity.errors import Refusal
from comity.models.stack import (
    Builder,
    Make,
    Shape,
    Stack,
    batchnorm,
    conv,
    flat,
    linear,
    mean_over_image,
    pool,
    relu,
    residual,
    tanh,
)


def _images(name: str, shape: Shape) -> Builder:
    if len(shape) != 3:
        raise Refusal(f"{name} needs images (channels x height x width), but a sample has shape {shape}. Try mlp2.")
    return Builder(name, shape)


def _headed(b: Builder, head: str, classes: int, projection: int) -> Stack:
    """The classifier; with `projection` first ADCOL's projection head (three FC layers, BatchNorm after each, ReLU after two)
    that ends in a representation of that many values, and its predictor of two FC layers."""
    if not projection:
        return b.stage(head, linear(classes)).build()
    (width,) = b.shape
    for name in ("proj1", "proj2"):
        b = b.stage(name, linear(width), batchnorm(), relu)
    b = b.stage("proj3", linear(projection), batchnorm())
    b = b.stage("pred1", linear(max(1, projection // 4)), batchnorm(), relu)
    return b.stage("pred2", linear(classes)).build(cut="proj3")


def linear_model(shape: Shape, classes: int) -> Stack:
    """Logistic regression: the representation is the input itself."""
    return Builder("linear", shape).stage("input", flat).stage("fc", linear(classes)).build()


def mlp2(shape: Shape, classes: int, width: int = 200, projection: int = 0) -> Stack:
    """McMahan's 2NN: two hidden layers of 200, representation = the second."""
    b = Builder("mlp2", shape).stage("fc1", flat, linear(width), relu)
    return _headed(b.stage("fc2", linear(width), relu), "fc3", classes, projection)


def lenet5(shape: Shape, classes: int, width: int = 84, projection: int = 0) -> Stack:
    """The thesis' LeNet5 (30,986 parameters on grey images, 10 classes): tanh representation of 84."""
    b = _images("lenet5", shape).stage("conv1", conv(6, 5, 2), relu, pool).stage("conv2", conv(16, 5, 2), relu, pool)
    b = b.stage("conv3", conv(120, 3, 1), relu, mean_over_image).stage("fc1", linear(width), tanh)
    return _headed(b, "fc2", classes, projection)


def cnn4(shape: Shape, classes: int, width: int = 512, projection: int = 0) -> Stack:
    """DBE's 4-layer CNN: two 5x5 convolutions, representation of 512; images of at least 16x16."""
    b = _images("cnn4", shape).stage("conv1", conv(32, 5), relu, pool).stage("conv2", conv(64, 5), relu, pool)
    return _headed(b.stage("fc1", flat, linear(width), relu), "fc2", classes, projection)


def fedbn_cnn(shape: Shape, classes: int, scale: float = 1.0, projection: int = 0) -> Stack:
    """FedBN's digit net: three 5x5 convolutions and two FC layers, BatchNorm after each; `scale` thins all its widths."""
    c64, c128, f2048, f512 = (max(1, round(scale * n)) for n in (64, 128, 2048, 512))
    b = _images("fedbn-cnn", shape).stage("conv1", conv(c64, 5, 2), batchnorm(), relu, pool)
    b = b.stage("conv2", conv(c64, 5, 2), batchnorm(), relu, pool).stage("conv3", conv(c128, 5, 2), batchnorm(), relu)
    b = b.stage("fc1", flat, linear(f2048), batchnorm(), relu).stage("fc2", linear(f512), batchnorm(), relu)
    return _headed(b, "fc3", classes, projection)


def resnet9(shape: Shape, classes: int, width: int = 128) -> Stack:
    """The thesis' ResNet9 (2,470,730 parameters on grey images, 10 classes): tanh representation of 128; at least 16x16."""

    def block(out: int) -> tuple[Make, ...]:
        return conv(out, 3, 1, bias=False), batchnorm(), relu

    b = _images("resnet9", shape).stage("conv1", *block(64)).stage("conv2", *block(128), pool)
    b = b.stage("res1", residual(*block(128), *block(128)))
    b = b.stage("conv3", *block(256), pool).stage("conv4", *block(256), pool)
    b = b.stage("res2", residual(*block(256), *block(256)), pool, mean_over_image)
    return b.stage("fc1", linear(width), tanh).stage("fc2", linear(classes)).build()


ZOO = {"linear": linear_model, "mlp2": mlp2, "lenet5": lenet5, "cnn4": cnn4, "fedbn-cnn": fedbn_cnn, "resnet9": resnet9}
