"""Averaged models must have the same names, shapes and dtypes: torch alone would broadcast, or drop
tensors.
"""

from __future__ import annotations

import pytest
import torch

import comity
from comity.algorithms.fedavg import FedAvg
from comity.core import Averaging, Key, Model, Params, Party, average, check_like
from comity.errors import ComityError

pytestmark = pytest.mark.quick

FIRST: Params = {"w": torch.ones(10), "n": torch.tensor(3)}


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (
            {"w": torch.ones(1), "n": torch.tensor(3)},
            r"w is float32\[1\] in it, and float32\[10\] in them",
        ),
        ({"w": torch.tensor(1.0), "n": torch.tensor(3)}, r"w is float32\[\] in it"),
        ({"w": torch.ones(1, 10), "n": torch.tensor(3)}, r"w is float32\[1, 10\] in it"),
        ({"w": torch.ones(10).double(), "n": torch.tensor(3)}, r"w is float64\[10\] in it"),
        ({"w": torch.ones(10), "n": torch.tensor([3])}, r"n is int64\[1\] in it"),
        ({"w": torch.ones(10), "n": torch.tensor(3.0)}, r"n is float32\[\] in it"),
        ({"w": torch.ones(10)}, "n is missing"),
        ({"w": torch.ones(10), "n": torch.tensor(3), "x": torch.ones(1)}, "x is only in it"),
        ({}, "n is missing"),
    ],
)
def test_model_with_other_tensors_is_refused(other, why):
    with pytest.raises(ComityError, match=why):
        average({0: FIRST, 1: other}, {0: 1.0, 1: 1.0})
    with pytest.raises(ComityError, match=f"p3's reply does not fit the others: {why}"):
        check_like(other, FIRST, "p3's reply")


def test_reply_with_a_shorter_tensor_ends_the_run(monkeypatch):
    """A party sends one value where ten are expected; a broadcast mean would look like a model."""
    averaged = FedAvg.train_and_share

    async def short(
        self: FedAvg, state: Params, m: Model, party: Party, key: Key
    ) -> tuple[Params, Model]:
        state, reply = await averaged(self, state, m, party, key)
        bias = reply.theta["fc.bias"]
        return state, Model(reply.theta | {"fc.bias": bias[: 1 if party.id == 2 else None]})

    monkeypatch.setattr(FedAvg, "train_and_share", short)
    data = (torch.randn(20, 4), torch.arange(20) % 10)
    federation = comity.Federation.from_arrays(
        {f"p{i}": (data, data) for i in range(3)}, validation=0.0, classes=10
    )
    with pytest.raises(
        ComityError, match=r"fc.bias is float32\[1\] in it, and float32\[10\] in them"
    ):
        comity.run("fedavg", federation, model="linear", rounds=1, engine="loop")


def test_the_order_of_names_does_not_matter():
    mean = Averaging()
    mean.add(FIRST, 1.0)
    mean.add({"n": torch.tensor(5), "w": torch.full((10,), 3.0)}, 1.0)
    assert torch.equal(mean.value()["w"], torch.full((10,), 2.0))
    assert mean.value()["n"] == 3
