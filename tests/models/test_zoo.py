"""The papers' networks: their printed sizes, their layers against plain torch, and any pair of
modules.
"""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import nn

import comity
from comity import models
from comity.core import Key, LearningTask, trainable


def parameters(name: str, shape: tuple[int, ...], classes: int = 10) -> int:
    return sum(
        p.numel() for p in trainable(models.build(name, shape, classes).init(Key(0))).values()
    )


@pytest.mark.parametrize(
    ("name", "shape", "classes", "count"),
    [
        ("lenet5", (1, 28, 28), 10, 30_986),  # thesis, Table of models, d' = 84
        ("mlp2", (1, 28, 28), 10, 199_210),  # McMahan et al.: 2NN
        ("cnn4", (1, 28, 28), 10, 582_026),  # 832 + 51,264 + 524,800 + 5,130
        ("linear", (1, 28, 28), 10, 7_850),
        ("resnet9", (1, 28, 28), 10, 2_470_730),  # thesis, Table of models, d' = 128
        ("resnet18-thesis", (3, 32, 32), 10, 11_302_730),  # thesis, Table of models, d' = 256
        ("resnet18", (3, 224, 224), 1000, 11_689_512),  # torchvision
        ("resnet50", (3, 224, 224), 1000, 25_557_032),  # torchvision
        (
            "tf-cifar10",
            (3, 24, 24),
            10,
            1_068_298,
        ),  # McMahan et al.: "about 10^6" on crops of 24x24
        ("lg-cifar10", (3, 32, 32), 10, 307_842),  # 4,864 + 102,464 + 192,120 + 7,744 + 650
        ("lg-cifar100", (3, 32, 32), 100, 1_075_044),  # 4,864 + 204,928 + 819,456 + 32,896 + 12,900
        ("lg-femnist", (1, 28, 28), 10, 37_586),  # 104 + 1,212 + 23,160 + 12,100 + 1,010
        ("fasttext", (200,), 4, 3_157_508),  # 98,635 x 32 + 1,056 + 132
        ("har-cnn", (9, 128), 6, 2_253_958),  # 2,624 + 18,496 + 1,704,960 + 524,800 + 3,078
        ("bilstm", (200, 442), 2, 74_002),  # 2 x 80 x (442 + 20) + 82
    ],
)
def test_parameter_counts_as_printed(name, shape, classes, count):
    assert parameters(name, shape, classes) == count


def test_resnet50_with_adcols_projection_has_the_size_of_its_traffic():
    """ADCOL's FedAvg sends 0.284 "GB" a round: 2 x 37,231,107 values, 57 of them torch's counters
    of BatchNorm's batches.
    """
    weights = models.build("resnet50(projection=2048)", (3, 28, 28), 10).init(Key(0))
    layers = sum(name.endswith("~mean") for name in weights)
    assert layers == 57
    assert sum(value.numel() for value in weights.values()) + layers == 37_231_107


def test_fedbn_cnn_layers_add_up():
    convs = (3 * 25 + 1) * 64 + (64 * 25 + 1) * 64 + (64 * 25 + 1) * 128
    fcs = (6272 + 1) * 2048 + (2048 + 1) * 512 + (512 + 1) * 10
    norms = 2 * (64 + 64 + 128 + 2048 + 512)
    assert parameters("fedbn-cnn", (3, 28, 28)) == convs + fcs + norms


@pytest.mark.parametrize(("size", "dim"), [(28, 1024), (32, 1600), (64, 10816)])
def test_cnn4_flattens_to_the_sizes_of_dbe(size, dim):
    weights = models.build("cnn4", (3, size, size), 10).init(Key(0))
    assert tuple(weights["fc1.weight"].shape) == (512, dim)


@pytest.mark.parametrize(
    "name", ["linear", "mlp2", "lenet5", "fedbn-cnn(scale=0.1)", "resnet18", "tf-cifar10"]
)
@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 16, 20)])
def test_models_adapt_to_the_input_shape(name, shape):
    network = models.build(name, shape, 7)
    task = LearningTask(network, 7, network.cut)
    x = torch.randn(3, *shape, generator=Key(1).generator())
    theta = network.init(Key(0))
    assert task.logits(theta, x).shape == (3, 7)
    assert tuple(task.features(theta, x).shape[1:]) == task.z_shape


@pytest.mark.parametrize(
    ("name", "shape", "word"),
    [
        ("cnn4", (1, 8, 8), "larger images"),
        ("lg-cifar10", (3, 12, 12), "larger images"),
        ("lenet5", (20,), "images"),
        ("resnet50", (9, 128), "images .* Try mlp2"),
        ("fasttext", (1, 28, 28), "token numbers.* Try mlp2"),
        ("har-cnn", (9, 27), "longer signals.* Try mlp2"),
        ("har-cnn", (9, 2, 128), "signals .* Try mlp2"),
        ("har-cnn", (128,), "signals .* Try mlp2"),
        ("bilstm", (1, 28, 28), "records .* Try mlp2"),
        ("lg-cifar100(drop=1.0)", (3, 32, 32), "between 0 and 1"),
        ("fasttext(mean=words)", (20,), "tokens, positions"),
    ],
)
def test_models_say_why_a_shape_does_not_fit(name, shape, word):
    with pytest.raises(comity.UsageError, match=word):
        models.build(name, shape, 10)


def test_weights_depend_on_the_key_alone():
    network = models.build("lenet5", (1, 8, 8), 10)
    a, b, c = network.init(Key(5)), network.init(Key(5)), network.init(Key(6))
    assert all(torch.equal(a[k], b[k]) for k in a)
    assert not torch.equal(a["conv1.weight"], c["conv1.weight"])


def test_initial_values_have_torchs_bounds():
    weight = models.build("mlp2", (64,), 10).init(Key(0))["fc1.weight"]
    assert weight.abs().max() <= 1 / 8
    assert weight.abs().max() > 0.99 / 8


def test_fedbn_cnn_is_what_plain_torch_computes():
    network = models.build("fedbn-cnn(scale=0.1)", (1, 8, 8), 10)
    theta = network.init(Key(0))
    c, d, f, h = 6, 13, 205, 51
    plain = nn.Sequential(
        nn.Conv2d(1, c, 5, padding=2), nn.BatchNorm2d(c), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(c, c, 5, padding=2), nn.BatchNorm2d(c), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(c, d, 5, padding=2), nn.BatchNorm2d(d), nn.ReLU(), nn.Flatten(),
        nn.Linear(4 * d, f), nn.BatchNorm1d(f), nn.ReLU(), nn.Linear(f, h), nn.BatchNorm1d(h), nn.ReLU(), nn.Linear(h, 10),
    )  # fmt: skip
    values = [v for k, v in theta.items()]
    names = [n for n in plain.state_dict() if "num_batches" not in n]
    plain.load_state_dict(dict(zip(names, values, strict=True)), strict=False)
    x = torch.randn(9, 1, 8, 8, generator=Key(1).generator())
    task = LearningTask(network, 10, network.cut)
    copy = {k: v.clone() for k, v in theta.items()}
    logits = task.head(copy, task.features(copy, x, train=True), train=True)
    assert torch.allclose(logits, plain.train()(x), atol=1e-6)
    assert torch.allclose(
        task.logits(copy, x), plain.eval()(x), atol=1e-6
    )  # running statistics moved alike
    assert torch.equal(theta["conv1.bn.~mean"], torch.zeros(c))


def convolutions(into: int, first: int, second: int) -> list[nn.Module]:
    return [
        nn.Conv2d(into, first, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(first, second, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
    ]


def dense(*widths: int) -> list[nn.Module]:
    """FC layers with ReLU between them."""
    layers: list[nn.Module] = []
    for into, out in pairwise(widths):
        layers += [nn.Linear(into, out), nn.ReLU()]
    return [nn.Flatten(), *layers[:-1]]


def same_pool() -> nn.Module:
    """TensorFlow's SAME for even sides: the missing padding is added at the end."""
    return nn.Sequential(nn.ConstantPad2d((0, 1, 0, 1), -torch.inf), nn.MaxPool2d(3, 2))


@pytest.mark.parametrize(
    ("name", "shape", "layers"),
    [
        ("lg-cifar10", (3, 32, 32), [*convolutions(3, 64, 64), *dense(1600, 120, 64, 10)]),
        ("lg-cifar100", (3, 32, 32), [*convolutions(3, 64, 128), *dense(3200, 256, 128, 10)]),
        ("lg-femnist", (1, 28, 28), [*convolutions(1, 4, 12), *dense(192, 120, 100, 10)]),
        (
            "tf-cifar10",
            (3, 24, 24),
            [nn.Conv2d(3, 64, 5, padding=2), nn.ReLU(), same_pool(), nn.Conv2d(64, 64, 5, padding=2), nn.ReLU(), same_pool(),
             *dense(2304, 384, 192, 10)],
        ),
    ],
)  # fmt: skip
def test_small_cnns_are_what_plain_torch_computes(name, shape, layers):
    network = models.build(name, shape, 10)
    theta, plain = network.init(Key(0)), nn.Sequential(*layers)
    plain.load_state_dict(dict(zip(plain.state_dict(), theta.values(), strict=True)))
    x = torch.randn(4, *shape, generator=Key(1).generator())
    task = LearningTask(network, 10, network.cut)
    assert torch.allclose(task.logits(theta, x), plain(x), atol=1e-6)
    assert torch.allclose(task.features(theta, x), plain[:-1](x), atol=1e-6)


def test_batchnorm_is_found_by_type_not_by_name():
    pair = (
        nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)),
        nn.ModuleDict({"bn": nn.Linear(3, 2)})["bn"],
    )
    network = models.build(pair, (4,), 2)
    parts = ("weight", "bias", "~running_mean", "~running_var", "~num_batches_tracked")
    assert network.norms == {f"encoder.1.{name}" for name in parts}


def test_a_pair_of_modules_is_left_alone_and_keeps_its_weights_unless_told_to_draw():
    pair = (nn.Linear(4, 3), nn.Linear(3, 2))
    before = pair[0].weight.clone()
    state = torch.random.get_rng_state()
    kept = models.build(pair, (4,), 2).init(Key(1))
    a, b = (models.build(pair, (4,), 2, redraw=True).init(Key(k)) for k in (1, 2))
    assert torch.equal(kept["encoder.weight"], before)
    assert torch.equal(pair[0].weight, before)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert not torch.equal(a["encoder.weight"], b["encoder.weight"])


def test_an_unknown_cut_is_refused():
    network = models.build("mlp2", (4,), 2)
    with pytest.raises(comity.UsageError, match="fc1, fc2"):
        LearningTask(network, 2, "fc3")


def test_options_may_be_false_but_not_zero():
    network = models.build("fasttext(vocabulary=5,compat_logsoftmax=false)", (4,), 2)
    assert network.stages == ("embedding", "fc1", "fc2")
    with pytest.raises(comity.UsageError, match="positive"):
        models.build("fasttext(width=0)", (4,), 2)


def test_every_model_is_listed_in_lines_of_limited_length():
    rows = models.catalogue()
    assert {"resnet18", "resnet18-thesis", "resnet50", "fasttext", "har-cnn", "bilstm"} < {
        row["name"] for row in rows
    }
    for row in rows:
        assert row["description"].endswith(".")
        assert "\n" not in row["description"]
    assert "compat_logsoftmax=false" in next(
        row["options"] for row in rows if row["name"] == "fasttext"
    )
