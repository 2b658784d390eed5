"""The landscapes of `benchmarks/advise_landscape.py` have the figures of `comity.run`."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

import comity
from comity.data import Federation
from comity.runs.config import experiment

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "advise_landscape.py"
SETTINGS: dict[str, Any] = {
    "model": "mlp2(width=8)",
    "rounds": 4,
    "steps": 2,
    "batch": 10,
    "lr": 0.1,
    "engine": "loop",
}


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    return runpy.run_path(str(SCRIPT))


@pytest.fixture(scope="module")
def parties() -> Federation:
    whole = comity.load("digits").partition("iid|keep(samples=40)", parties=3, seed=0)
    arrays = {name: (party.train.x, party.train.y) for name, party in whole.parties.items()}
    return Federation.from_arrays(arrays, test="folds(4)", seed=0, classes=whole.classes)


@pytest.mark.parametrize("method", ["fedavg", "fedbabu"])
def test_a_landscape_has_the_accuracies_of_a_run(
    method: str, script: dict[str, Any], parties: Federation, tmp_path: Path
) -> None:
    base = experiment({"algorithm": "fedavg", "data": "arrays", "partition": "given", **SETTINGS})
    measured = script["Measured"](base, method, parties, parties).content(folds=2)
    fold = parties.under_folds("folds(4)", 1)
    settings = SETTINGS | {"rounds": measured["rounds"]}
    result = comity.run(method, fold, out=tmp_path / "run", seed=1, **settings)
    of_party = result.summary["accuracy"]["per_party"]
    right = measured["folds"][1][-1]["right"]
    assert {name: bits.count("1") / len(bits) for name, bits in right.items()} == pytest.approx(
        of_party
    )


def test_the_baseline_by_validation_is_one_training(script: dict[str, Any]) -> None:
    runs = [{"validation": {"a": [1, 2]}}, {"validation": {"a": [2, 2]}}]
    landscape = script["Landscape"]({"arms": {"fedavg": {"truth": runs}}})
    assert landscape.validation("fedavg") == 0.5


def test_the_same_number_draws_the_same_federation(script: dict[str, Any]) -> None:
    draw = script["draw"]
    assert draw("heldout", 7) == draw("heldout", 7)
    assert draw("heldout", 7) != draw("dev", 7)
