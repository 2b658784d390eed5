"""A comparison names the weights of losses by which a method may have hurt every party."""

from __future__ import annotations

import pytest

from comity.studies.estimate import Estimate
from comity.studies.method_summary import caveats_of_constants

HURT, LEVEL = Estimate(-0.4, -0.5, -0.3), Estimate(-0.1, -0.2, 0.1)


def test_a_method_that_hurts_every_party_names_its_weights() -> None:
    (text,) = caveats_of_constants("fedavg+dbe", {"a": HURT, "b": HURT, "c": HURT})
    assert "all 3 parties are clearly hurt" in text
    assert "dbe's kappa" in text
    assert "'dbe(kappa=...)'" in text


@pytest.mark.parametrize(
    ("method", "gains"),
    [
        ("fedavg+dbe", {"a": HURT, "b": HURT, "c": LEVEL}),
        ("fedavg+dbe", {"a": HURT, "b": HURT}),
        ("fedavg", {"a": HURT, "b": HURT, "c": HURT}),  # its losses have no weights
        ("plain-linear", {"a": HURT, "b": HURT, "c": HURT}),
        ("./mine.py", {"a": HURT, "b": HURT, "c": HURT}),
        ("relay", {}),
    ],
)
def test_others_get_no_such_caveat(method: str, gains: dict[str, Estimate]) -> None:
    assert caveats_of_constants(method, gains) == []
