"""Residual networks: the places at which DBE cuts them, and their outputs against plain torch with
the same weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from comity import models
from comity.core import Key, LearningTask, Params

F64 = torch.float64


class Sum(nn.Module):
    """after(skip(x) + body(x)), in torchvision's order of parameters."""

    def __init__(self, body: nn.Module, skip: nn.Module, after: nn.Module) -> None:
        super().__init__()
        self.body, self.skip, self.after = body, skip, after

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self.skip(x) + self.body(x))


def conv(into: int, out: int, kernel: int, stride: int = 1) -> list[nn.Module]:
    return [nn.Conv2d(into, out, kernel, stride, kernel // 2, bias=False), nn.BatchNorm2d(out)]


def skip(into: int, out: int, stride: int) -> nn.Module:
    return (
        nn.Identity() if (into, stride) == (out, 1) else nn.Sequential(*conv(into, out, 1, stride))
    )


def basic(into: int, out: int, stride: int) -> nn.Module:
    body = nn.Sequential(*conv(into, out, 3, stride), nn.ReLU(), *conv(out, out, 3))
    return Sum(body, skip(into, out, stride), nn.ReLU())


def thesis(into: int, out: int, stride: int) -> nn.Module:
    body = nn.Sequential(*conv(into, out, 3, stride), nn.ReLU(), *conv(out, out, 3), nn.ReLU())
    return Sum(body, skip(into, out, stride), nn.Identity())


def bottleneck(into: int, out: int, stride: int) -> nn.Module:
    """torchvision has the stride in the 3x3 convolution."""
    inner = out // 4
    body = nn.Sequential(
        *conv(into, inner, 1),
        nn.ReLU(),
        *conv(inner, inner, 3, stride),
        nn.ReLU(),
        *conv(inner, out, 1),
    )
    return Sum(body, skip(into, out, stride), nn.ReLU())


Block = Callable[[int, int, int], nn.Module]


def plain(
    stem: list[nn.Module], block: Block, wider: int, counts: tuple[int, ...]
) -> nn.Sequential:
    layers, into = [*stem], 64
    for k, count in enumerate(counts):
        out = wider * 64 * 2**k
        for i in range(count):
            layers.append(block(into, out, 2 if k and i == 0 else 1))
            into = out
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())


def imagenet_stem() -> list[nn.Module]:
    return [*conv(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]


PLAIN = {
    "resnet18": lambda: plain(imagenet_stem(), basic, 1, (2, 2, 2, 2)).append(nn.Linear(512, 10)),
    "resnet50": lambda: plain(imagenet_stem(), bottleneck, 4, (3, 4, 6, 3)).append(
        nn.Linear(2048, 10)
    ),
    "resnet18-thesis": lambda: plain([*conv(3, 64, 3), nn.ReLU()], thesis, 1, (2, 2, 2, 2)).extend(
        [nn.Linear(512, 256), nn.Tanh(), nn.Linear(256, 10)]
    ),
}


def perturbed_norms(theta: Params) -> Params:
    """Weights in double precision, and BatchNorm's away from the ones and zeros that they begin
    with.
    """
    perturbed = {}
    for k, (name, value) in enumerate(theta.items()):
        noise = torch.randn(value.shape, generator=Key(k).generator(), dtype=F64)
        perturbed[name] = value.to(F64) + (0.1 * noise if ".bn." in name and "~" not in name else 0)
    return perturbed


@pytest.mark.sweep("resnet18")
@pytest.mark.parametrize("name", PLAIN)
def test_outputs_are_those_of_plain_torch(name: str) -> None:
    network = models.build(name, (3, 40, 32), 10)
    theta = perturbed_norms(network.init(Key(0)))
    module = PLAIN[name]().to(F64)
    names = [n for n in module.state_dict() if "num_batches" not in n]
    module.load_state_dict(
        dict(zip(names, (v.clone() for v in theta.values()), strict=True)), strict=False
    )
    x = torch.randn(2, 3, 40, 32, generator=Key(1).generator(), dtype=F64)
    task = LearningTask(network, 10, network.cut)
    with torch.no_grad():
        assert torch.allclose(
            task.head(theta, task.features(theta, x, train=True), train=True),
            module.train()(x),
            atol=1e-9,
        )
        assert torch.allclose(
            task.logits(theta, x), module.eval()(x), atol=1e-9
        )  # the running statistics moved alike


def test_resnet18_can_be_cut_where_dbe_cuts_it() -> None:
    """DBE, Table 7: offsets on images of 64x64."""
    offsets = {"conv": 16384, "b1": 16384, "b2": 8192, "b3": 4096, "b4": 2048, "pool": 512}
    network = models.build("resnet18", (3, 64, 64), 200)
    assert network.stages == (*offsets, "fc")
    theta, x = network.init(Key(0)), torch.zeros(1, 3, 64, 64)
    for stage, count in offsets.items():
        task = LearningTask(network, 200, stage)
        assert task.width == count
        assert task.features(theta, x).shape == (1, *task.z_shape)
        assert {n.partition(".")[0] for n in task.head_names} == set(
            network.stages[network.stages.index(stage) + 1 :]
        ) - {"pool"}


def test_resnet18_has_its_representation_after_the_mean_over_the_image() -> None:
    assert models.build("resnet18", (3, 64, 64), 200).cut == "pool"


@pytest.mark.parametrize("side", [28, 64])
def test_resnet50_takes_the_images_of_adcol(side: int) -> None:
    network = models.build("resnet50(projection=512)", (3, side, side), 7)
    task = LearningTask(network, 7, network.cut)
    theta, x = network.init(Key(0)), torch.zeros(2, 3, side, side)
    assert network.shape_after("pool") == (2048,)
    assert task.z_shape == (512,)
    assert task.logits(theta, x).shape == (2, 7)


def test_batchnorm_is_known_inside_blocks_and_skips() -> None:
    network = models.build("resnet18", (3, 64, 64), 10)
    names = {n for n in network.init(Key(0)) if ".bn." in n}
    assert network.norms == names
    assert len(names) == 4 * 20  # the stem, two in each of 8 blocks, three skips
    assert {"b2.0.skip.1.bn.~mean", "b4.1.4.bn.weight"} < names


def test_torchvisions_networks_begin_with_hes_values_and_the_thesis_with_pytorchs() -> None:
    name, he, bound = (
        "b4.0.0.weight",
        math.sqrt(2 / (512 * 9)),
        1 / math.sqrt(256 * 9),
    )  # by fan-out, and by fan-in
    ours, theirs = (
        models.build(server, (3, 32, 32), 10).init(Key(0))[name]
        for server in ("resnet18", "resnet18-thesis")
    )
    assert ours.std().item() == pytest.approx(he, rel=0.01)
    assert ours.abs().max() > 4 * he  # normal, not uniform
    assert theirs.abs().max() <= bound
    assert theirs.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.01)
