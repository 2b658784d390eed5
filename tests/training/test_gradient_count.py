"""Every gradient evaluation of a party and of the server is counted, on all engines alike.

Expected numbers are from the methods' algorithms: how many gradients they take for each mini-batch.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import comity
from comity.core import Params, input_gradient, value_and_gradient
from comity.training.gradient_count import GradientCount, add_gradients
from comity.training.requests import curvature

SIZES = {"north": 47, "east": 23, "south": 34}
BATCH = 10
EPOCHS = 2
ROUNDS = 2
BATCHES = {name: -(-size // BATCH) for name, size in SIZES.items()}  # of an epoch
EPOCH = sum(BATCHES.values())
PLAIN = ROUNDS * EPOCHS * EPOCH
"""The gradient evaluations of FedAvg."""


@cache
def parties() -> comity.Federation:
    digits = comity.load("digits")
    arrays, at = {}, 0
    for name, size in SIZES.items():
        train, test = slice(at, at + size), slice(at + size, at + size + 10)
        arrays[name] = ((digits.x[train], digits.y[train]), (digits.x[test], digits.y[test]))
        at += size + 10
    return comity.Federation.from_arrays(arrays, classes=10, validation=0.0)


def counts(method: str, engine: Any = "loop", **settings: Any) -> tuple[int, int]:
    """The gradient evaluations of all parties, and of the server."""
    if "steps" not in settings:
        settings["epochs"] = EPOCHS
    common: dict[str, Any] = {"rounds": ROUNDS, "batch": BATCH, "model": "mlp2"}
    summary = comity.run(
        method, parties(), engine=engine, lr=0.01, progress=False, **(common | settings)
    )
    return summary.summary["steps"], summary.summary["server_steps"]


@pytest.mark.parametrize("engine", ["loop", "stacked"])
@pytest.mark.parametrize(
    ("method", "steps"),
    [
        ("fedavg", PLAIN),
        ("solo", PLAIN),
        ("moon", PLAIN),  # the other two models are constants
        ("ditto", 2 * PLAIN),
        ("apfl", 2 * PLAIN),  # gradients of two models in each step
        ("fml", 2 * PLAIN),
        ("fedrep(head_epochs=3)", PLAIN + ROUNDS * 3 * EPOCH),
        ("pfedme(inner_steps=4)", 4 * PLAIN),
        ("fedufo", 3 * PLAIN),  # prior, posterior, and D, which takes as many steps
        ("fedufo(disc_steps=epochs)", 2 * PLAIN + ROUNDS * EPOCH),  # D's one epoch
        ("adcol", PLAIN),
        # In each step an attack of three gradients, the batch, and its attacked copy.
        ("fed-sps(beta=0,attack_steps=3)", 5 * PLAIN),
        # In each round each party attacks a batch for its peers, and takes a gradient for each.
        ("fed-sps(attack_steps=3,select=all)", 5 * PLAIN + ROUNDS * 3 * (3 + 2)),
        ("fedmeta(first_order=true,meta_lr=0)", PLAIN),  # a gradient of all samples is an epoch's
        ("fedmeta(meta_lr=0)", PLAIN + 2 * (EPOCHS - 1) * ROUNDS * EPOCH),
        ("fedavg+dp(noise=1)", PLAIN),
    ],
)
def test_gradient_evaluations_of_parties(method: str, steps: int, engine: str) -> None:
    assert counts(method, engine)[0] == steps


def test_a_network_whose_features_have_no_weights() -> None:
    """All weights of a linear model are in its head."""
    assert counts("apfl", model="linear")[0] == 2 * PLAIN
    assert counts("fedmeta(meta_lr=0)", model="linear")[0] == counts("fedmeta(meta_lr=0)")[0]


@pytest.mark.parametrize(("order", "gradients"), [("fo", 2), ("hf", 4)])
def test_meta_learning_takes_several_gradients_a_step(order: str, gradients: int) -> None:
    """Per-FedAvg, Algorithm 1: at w and at w̃; the Hessian's product takes two more."""
    assert counts(f"per-fedavg(order={order})", steps=5)[0] == gradients * 5 * 3 * ROUNDS


def test_gradient_evaluations_of_the_server() -> None:
    assert counts("fedgen(gen_steps=7)") == (PLAIN, 7 * ROUNDS)
    samples = sum(SIZES.values())
    # D's one epoch over all representations, in batches of the parties' size.
    assert counts("adcol(disc_steps=epochs)")[1] == ROUNDS * -(-samples // BATCH)
    assert counts("adcol")[1] == PLAIN / len(SIZES)  # as many steps as a party
    # The meta update is one gradient of a tenth of the samples: 5 + 3 + 4 of them.
    assert counts("fedmeta")[1] == ROUNDS * 2
    assert counts("centralized") == (0, ROUNDS * EPOCHS * -(-samples // BATCH))


def loss(theta: Params) -> Tensor:
    return (theta["w"] ** 3).sum()


def test_gradients_outside_of_networks_count_as_one() -> None:
    theta = {"w": torch.ones(3)}
    with GradientCount() as count:
        value_and_gradient(loss, theta)
    assert count.total == 1
    with GradientCount() as count:
        curvature(loss, theta, theta)
    assert count.total == 2
    with GradientCount() as count:
        input_gradient(lambda x: F.relu(x).sum(), torch.ones(3))
    assert count.total == 1


def test_an_inner_count_is_not_part_of_the_outer() -> None:
    with GradientCount() as outer:
        add_gradients(1)
        with GradientCount() as inner:
            add_gradients(5)
    assert (outer.total, inner.total) == (1, 5)
