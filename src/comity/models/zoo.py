"""The networks by name. Each is sized to the shape of the samples.

The small networks of the papers are defined here, the others in the modules beside this one. The
docstrings are the descriptions that `comity list models` prints.
"""

from __future__ import annotations

from collections.abc import Callable

from comity.models.attention import transformer, vit
from comity.models.ends import image_builder, with_head
from comity.models.low_rank import LowRank
from comity.models.residual import resnet9, resnet18, resnet18_thesis, resnet50
from comity.models.sequences import bilstm, fasttext, har_cnn
from comity.models.stack import (
    Builder,
    Make,
    Shape,
    Stack,
    batchnorm,
    conv,
    dropout,
    flat,
    linear,
    max_pool,
    mean_over_image,
    pool,
    relu,
    tanh,
)


def linear_model(shape: Shape, classes: int) -> Stack:
    """Logistic regression: the representation is the input itself."""
    return Builder("linear", shape).stage("input", flat).stage("fc", linear(classes)).build()


def mlp2(shape: Shape, classes: int, width: int = 200, projection: int = 0) -> Stack:
    """McMahan's 2NN: two hidden layers of 200, representation = the second."""
    b = Builder("mlp2", shape).stage("fc1", flat, linear(width), relu)
    return with_head(b.stage("fc2", linear(width), relu), "fc3", classes, projection)


def lenet5(shape: Shape, classes: int, width: int = 84, projection: int = 0) -> Stack:
    """The thesis' LeNet5 (30,986 parameters on grey images, 10 classes): tanh representation of
    84.
    """
    b = (
        image_builder("lenet5", shape)
        .stage("conv1", conv(6, 5, 2), pool, relu)
        .stage("conv2", conv(16, 5, 2), pool, relu)
    )
    b = b.stage("conv3", conv(120, 3, 1), relu, mean_over_image).stage("fc1", linear(width), tanh)
    return with_head(b, "fc2", classes, projection)


def cnn4(shape: Shape, classes: int, width: int = 512, projection: int = 0) -> Stack:
    """DBE's 4-layer CNN: two 5x5 convolutions, representation of 512; images of at least 16x16."""
    b = (
        image_builder("cnn4", shape)
        .stage("conv1", conv(32, 5), pool, relu)
        .stage("conv2", conv(64, 5), pool, relu)
    )
    return with_head(b.stage("fc1", flat, linear(width), relu), "fc2", classes, projection)


def fedbn_cnn(shape: Shape, classes: int, scale: float = 1.0, projection: int = 0) -> Stack:
    """FedBN's digit net: three 5x5 convolutions and two FC layers, BatchNorm after each; `scale`
    thins all its widths.
    """
    c64, c128, f2048, f512 = (max(1, round(scale * n)) for n in (64, 128, 2048, 512))
    b = image_builder("fedbn-cnn", shape).stage("conv1", conv(c64, 5, 2), batchnorm(), pool, relu)
    b = b.stage("conv2", conv(c64, 5, 2), batchnorm(), pool, relu).stage(
        "conv3", conv(c128, 5, 2), batchnorm(), relu
    )
    b = b.stage("fc1", flat, linear(f2048), batchnorm(), relu).stage(
        "fc2", linear(f512), batchnorm(), relu
    )
    return with_head(b, "fc3", classes, projection)


def _two_convolutions(
    name: str, shape: Shape, classes: int, convs: tuple[int, int], fcs: tuple[int, int], *end: Make
) -> Stack:
    """Two 5x5 convolutions, two FC layers, the layers `end`, and the classifier."""
    b = (
        image_builder(name, shape)
        .stage("conv1", conv(convs[0], 5), pool, relu)
        .stage("conv2", conv(convs[1], 5), pool, relu)
    )
    b = b.stage("fc1", flat, linear(fcs[0]), relu).stage("fc2", linear(fcs[1]), relu, *end)
    return b.stage("fc3", linear(classes)).build()


def lg_cifar10(shape: Shape, classes: int) -> Stack:
    """LG-FedAvg's CIFAR-10 net, also of Fed-SPS and FedUFO: two 5x5 convolutions, representation of
    64; at least 16x16.
    """
    return _two_convolutions("lg-cifar10", shape, classes, (64, 64), (120, 64))


def lg_cifar100(shape: Shape, classes: int, drop: float = 0.6) -> Stack:
    """LG-FedAvg's CIFAR-100 net, also of Fed-SPS: representation of 128, of which dropout takes
    0.6; at least 16x16.
    """
    return _two_convolutions("lg-cifar100", shape, classes, (64, 128), (256, 128), dropout(drop))


def lg_femnist(shape: Shape, classes: int) -> Stack:
    """Fed-SPS's FEMNIST net: two thin 5x5 convolutions, representation of 100; at least 16x16."""
    return _two_convolutions("lg-femnist", shape, classes, (4, 12), (120, 100))


def tf_cifar10(shape: Shape, classes: int) -> Stack:
    """McMahan's CIFAR-10 net, of TensorFlow's tutorial (without its local response normalisation):
    representation of 192.
    """
    half = max_pool(3, 2, ceil=True)  # as TensorFlow's SAME where the side is even
    b = (
        image_builder("tf-cifar10", shape)
        .stage("conv1", conv(64, 5, 2), half, relu)
        .stage("conv2", conv(64, 5, 2), half, relu)
    )
    b = b.stage("fc1", flat, linear(384), relu).stage("fc2", linear(192), relu)
    return b.stage("fc3", linear(classes)).build()


ZOO: dict[str, Callable[..., Stack | LowRank]] = {
    "linear": linear_model,
    "mlp2": mlp2,
    "lenet5": lenet5,
    "cnn4": cnn4,
    "fedbn-cnn": fedbn_cnn,
    "lg-cifar10": lg_cifar10,
    "lg-cifar100": lg_cifar100,
    "lg-femnist": lg_femnist,
    "tf-cifar10": tf_cifar10,
    "resnet9": resnet9,
    "resnet18": resnet18,
    "resnet18-thesis": resnet18_thesis,
    "resnet50": resnet50,
    "fasttext": fasttext,
    "har-cnn": har_cnn,
    "bilstm": bilstm,
    "transformer": transformer,
    "vit": vit,
}
