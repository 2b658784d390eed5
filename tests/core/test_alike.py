"""Models that are averaged have the same names, shapes and kinds: torch alone would broadcast, or leave out."""

from __future__ import annotations

import pytest
import torch

from comity.core import Averaging, Params, average, check_like
from comity.errors import ComityError

FIRST: Params = {"w": torch.ones(10), "n": torch.tensor(3)}


@pytest.mark.parametrize(
    ("other", "why"),
    [
        ({"w": torch.ones(1), "n": torch.tensor(3)}, r"w is float32\[1\] in it, and float32\[10\] in them"),
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
def test_a_model_unlike_the_first_is_refused(other, why):
    with pytest.raises(ComityError, match=why):
        average({0: FIRST, 1: other}, {0: 1.0, 1: 1.0})
    with pytest.raises(ComityError, match=f"p3's reply does not fit the others: {why}"):
        check_like(other, FIRST, "p3's reply")


def test_the_order_of_names_does_not_matter():
    mean = Averaging()
    mean.add(FIRST, 1.0)
    mean.add({"n": torch.tensor(5), "w": torch.full((10,), 3.0)}, 1.0)
    assert torch.equal(mean.value()["w"], torch.full((10,), 2.0))
    assert mean.value()["n"] == 3
