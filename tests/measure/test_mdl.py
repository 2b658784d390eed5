"""Probes and description lengths: against torch's own training, by hand, and in cases with a known
answer.
"""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from comity.base.key import Key
from comity.errors import UsageError
from comity.measure.mdl import CHEAP, FULL, Curve, Settings, curve, sizes, split_samples
from comity.measure.probe import Probes, standardise

SMALL = Settings(points=4, seeds=2, steps=80, lr=2e-3, hidden=(32, 32))
N, C = 400, 4


def labels(n: int = N) -> torch.Tensor:
    return torch.arange(n) % C


def entropy_of_held_out(y: torch.Tensor, key: Key) -> float:
    _, held_out = split_samples(len(y), SMALL.validation, key)
    shares = torch.bincount(y[held_out]).double() / len(held_out)
    return float(torch.special.entr(shares).sum())


@pytest.mark.parametrize("hidden", [(), (8,), (8, 6)])
def test_probes_learn_what_torch_would(hidden):
    generator = Key.root(0).generator()
    x, y = torch.randn(50, 5, generator=generator), torch.randint(3, (50,), generator=generator)
    keys = [Key.root(k) for k in (1, 2)]
    rows = torch.stack([key.fold("rows").permutation(50)[:22] for key in keys])
    probes, networks = Probes(keys, (5, *hidden, 3), 1e-2), []
    for k, key in enumerate(keys):
        layers = [
            nn.utils.skip_init(nn.Linear, i, o)
            for i, o in zip((5, *hidden), (*hidden, 3), strict=True)
        ]
        for layer, weight, bias in zip(layers, probes.weights, probes.biases, strict=True):
            layer.weight.data, layer.bias.data = weight[k].T.clone(), bias[k, 0].clone()
            assert (
                0.8 < layer.weight.abs().max() * layer.in_features**0.5 <= 1
            )  # nn.Linear's own start
        network = nn.Sequential(*[part for layer in layers for part in (layer, nn.ReLU())][:-1])
        optimizer = torch.optim.Adam(network.parameters(), lr=1e-2)
        batches = [
            b for e in range(3) for b in rows[k][key.fold("order", e).permutation(22)].split(8)
        ][:7]
        for at in batches:
            optimizer.zero_grad()
            F.cross_entropy(network(x[at]), y[at]).backward()
            optimizer.step()
        networks.append(network.requires_grad_(False))
    probes.learn(x, y, rows, steps=7, batch=8)
    for k, network in enumerate(networks):
        assert torch.allclose(probes.scores(x)[k], network(x), atol=1e-5)
        assert torch.allclose(probes.losses(x, y)[k], F.cross_entropy(network(x), y), atol=1e-5)


def test_standardised_values_and_constant_columns():
    standardised = standardise(
        torch.tensor([[1.0, 5.0], [3.0, 5.0]]), torch.tensor([[1.0, 5.0], [3.0, 5.0]])
    )
    assert standardised.tolist() == [[-1.0, 0.0], [1.0, 0.0]]


def test_the_settings_of_the_library_and_the_cheap_ones():
    assert (FULL.points, FULL.seeds, FULL.steps, FULL.batch, FULL.lr, FULL.hidden) == (
        10,
        5,
        4000,
        256,
        1e-4,
        (512, 512),
    )
    assert (CHEAP.points, CHEAP.seeds, CHEAP.steps, CHEAP.hidden) == (6, 3, 500, (512, 512))


def test_sizes_grow_by_equal_factors_from_ten_to_all():
    train_sizes = sizes(1800, 10)
    assert (train_sizes[0], train_sizes[-1], len(train_sizes)) == (10, 1800, 10)
    assert all(s == math.ceil(10 * 180 ** (k / 9) - 1e-9) for k, s in enumerate(train_sizes))
    assert sizes(12, 10) == (10, 11, 12)  # equal ones once


def test_a_tenth_is_held_out():
    train, held_out = split_samples(101, 0.1, Key.root(0))
    assert len(held_out) == 11  # ceil
    assert sorted(torch.cat([train, held_out]).tolist()) == list(range(101))


def test_sums_of_a_curve_by_hand():
    example = Curve(
        (10, 30),
        torch.tensor([[2.0, 4.0], [1.0, 1.0]]).double(),
        torch.tensor([[1.5, 0.5]]).double(),
        4,
    )
    assert example.nats == pytest.approx(10 * 3 + 20 * 1)
    assert example.bits == pytest.approx(50 / math.log(2))
    assert example.std == pytest.approx(10)  # 40 and 60 nats
    assert example.prequential == pytest.approx(10 * math.log(4) + 20 * 1)
    assert example.surplus(2.0) == pytest.approx(10 * 1 + 0)
    assert (example.complexity(3.0), example.complexity(1.0), example.complexity(0.5)) == (
        10,
        30,
        None,
    )


def test_a_constant_representation_costs_the_entropy_of_the_labels():
    y, key = labels(), Key.root(3)
    mdl = curve(torch.full((N, 6), 2.5), y, key, SMALL)
    entropy = entropy_of_held_out(y, key)
    assert (mdl.losses >= entropy - 1e-6).all()  # Gibbs: one answer for all can do no better
    assert mdl.nats >= mdl.sizes[-1] * entropy - 1e-3
    assert float(mdl.means[-1]) == pytest.approx(math.log(C), abs=0.05)


def test_labels_themselves_cost_little_and_better_representations_less():
    y, key = labels(), Key.root(3)
    clean = F.one_hot(y).float()
    noisy = clean + torch.randn(N, C, generator=Key.root(4).generator())
    exact, blurred, blind = (curve(x, y, key, SMALL) for x in (clean, noisy, torch.ones(N, 1)))
    assert 0 <= exact.nats < 0.1 * blind.nats
    assert exact.nats < blurred.nats < blind.nats
    assert exact.prequential < blurred.prequential < blind.prequential
    assert exact.prequential >= exact.sizes[0] * math.log(C)  # the first chunk is always paid for
    assert exact.complexity(0.1) is not None
    assert blind.complexity(0.1) is None


def test_the_online_code_uses_samples_outside_the_probes_training():
    x = torch.randn(
        N, 50, generator=Key.root(8).generator()
    )  # carries no information, but can be memorised
    mdl = curve(x, labels(), Key.root(9), SMALL)
    assert (mdl.coding > math.log(C) - 0.05).all()
    assert mdl.prequential > mdl.sizes[-1] * math.log(C)


def test_scaling_and_shifting_change_nothing():
    y = labels()
    x = F.one_hot(y).float() + torch.randn(N, C, generator=Key.root(4).generator())
    plain = curve(x, y, Key.root(5), SMALL).losses
    assert torch.allclose(
        curve(4 * x, y, Key.root(5), SMALL).losses, plain, atol=1e-6
    )  # a power of two rounds nothing
    assert torch.allclose(curve(3 * x - 7, y, Key.root(5), SMALL).losses, plain, atol=1e-2)


def test_a_seed_gives_the_same_losses_alone_and_with_others():
    y = labels(60)
    x = torch.randn(60, 3, generator=Key.root(6).generator())
    single, double = (
        curve(x, y, Key.root(7), Settings(3, seeds, 20, hidden=(8,))) for seeds in (1, 2)
    )
    assert torch.allclose(single.losses[:, 0], double.losses[:, 0], atol=1e-6)
    assert not torch.allclose(double.losses[:, 0], double.losses[:, 1], atol=1e-4)


def test_keys_decide_and_classes_may_be_missing():
    y = labels(60)
    x = torch.randn(60, 3, generator=Key.root(6).generator())
    how = Settings(2, 1, 5, hidden=(8,))
    assert (
        curve(x, y, Key.root(1), how).nats
        == curve(x, y, Key.root(1), how).nats
        != curve(x, y, Key.root(2), how).nats
    )
    assert curve(x, y, Key.root(1), how, classes=9).classes == 9


def test_too_few_samples_are_refused():
    with pytest.raises(UsageError, match="at least 20"):
        curve(torch.ones(19, 2), torch.zeros(19).long(), Key.root(0), SMALL)
