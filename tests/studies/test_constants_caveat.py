"""A comparison names the weights of losses by which a method may have hurt every party."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from harness import succeed

from comity.studies.estimate import Estimate
from comity.studies.method_summary import caveats_of_constants

HURT, LEVEL = Estimate(-0.4, -0.5, -0.3), Estimate(-0.1, -0.2, 0.1)
ALL_HURT = {"a": HURT, "b": HURT, "c": HURT}
DAMPED = '''"""Damped: FedAvg with a tenth of each step.

Idea: w + alpha (w' - w).
"""

from __future__ import annotations

from comity.algorithms.fedavg import FedAvg
from comity.core import *


@algorithm
class Damped(FedAvg):
    alpha: float = option(0.9, "the share of a step, as a weight of its loss", minimum=0)

    async def train_locally(self, theta: Params, m: Model, party: Party, key: Key) -> Params:
        trained = (await party.fit(plain, theta, key)).theta
        return {name: w + self.alpha * (trained[name] - w) for name, w in theta.items()}
'''


def test_a_method_that_hurts_every_party_names_its_weights() -> None:
    (text,) = caveats_of_constants("fedavg+dbe", ALL_HURT, "fedavg+dbe")
    assert "all 3 parties are clearly hurt" in text
    assert "dbe's kappa" in text
    assert "'dbe(kappa=...)'" in text


@pytest.mark.parametrize(
    ("method", "gains", "composition"),
    [
        ("fedavg+dbe", {"a": HURT, "b": HURT, "c": LEVEL}, "fedavg+dbe"),
        ("fedavg+dbe", {"a": HURT, "b": HURT}, "fedavg+dbe"),
        ("fedavg", ALL_HURT, "fedavg"),  # its losses have no weights
        ("plain-linear", ALL_HURT, "plain-linear"),
        ("mine", ALL_HURT, "./mine.py"),
        ("mine(alpha=0.1,lr=0.02)", ALL_HURT, "./mine.py(alpha=0.1)"),
        ("dbe", ALL_HURT, "./dbe.py"),  # a user's file of the same name
        ("elsewhere", ALL_HURT, "elsewhere"),  # an installed method of another machine
        ("relay", {}, "relay"),
    ],
)
def test_others_get_no_such_caveat(
    method: str, gains: dict[str, Estimate], composition: str
) -> None:
    assert caveats_of_constants(method, gains, composition) == []


def test_own_method_that_hurts_every_party_is_compared(tmp_path: Path) -> None:
    """The comparison is written, with its page, table and exit code 0."""
    (tmp_path / "damped.py").write_text(DAMPED, encoding="utf-8")
    method = f"{tmp_path / 'damped.py'}(alpha=0.01,lr=0.02)"
    out = tmp_path / "out"
    few = ("--data", "digits", "--parties", "4", "--rounds", "2")
    succeed("compare", method, *few, "--report", "--out", out)
    row = json.loads((out / "comparison.json").read_text(encoding="utf-8"))["rows"][1]
    assert row["algorithm"] == "damped(alpha=0.01,lr=0.02)"
    assert row["hurt"] == 4
    assert (out / "report.html").is_file()
    assert "damped" in succeed("report", out, "--table", "latex").out
