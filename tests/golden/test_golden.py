"""Golden figures: every change of numbers fails a test; COMITY_REGENERATE=1 writes new figures.

Bytes and steps are exact on every machine. Accuracies may differ by one test sample a party, since
BLAS differs.
"""

from __future__ import annotations

import json
import os
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

import comity
from comity import algorithms
from comity.core import Wrapper

pytestmark = pytest.mark.quick

torch.set_num_threads(1)
FOLDER = Path(__file__).parent
REGENERATE = os.environ.get("COMITY_REGENERATE") == "1"


@cache
def digits() -> comity.Federation:
    """Three ragged parties that hold 240, 90 and 150 of scikit-learn's digits."""
    data = comity.load("digits")
    sizes = {"north": 240, "east": 90, "south": 150}
    begins = dict(zip(sizes, (0, 240, 330), strict=True))
    parties = {
        n: (data.x[begins[n] : begins[n] + size], data.y[begins[n] : begins[n] + size])
        for n, size in sizes.items()
    }
    return comity.Federation.from_arrays(parties, classes=10)


# With their defaults, two rounds leave parties of these near chance: FD's first teachers, Ditto's
# first anchor and the others that Fed-MTL pulls parties to are weak, and q-FFL takes small steps.
# After a thousand steps of Adam FedGen's generator depends on the last bit of a product, which
# differs between processors. Krum cannot leave out any of three parties.
SHOWN_AS = {
    "fd": "fd(gamma=2)",
    "ditto": "ditto(lam=0.1)",
    "fed-mtl": "fed-mtl(lam1=0.003)",
    "fedgen": "fedgen(gen_steps=5)",
    "dp": "dp(noise=0.2)",
    "q-ffl": "q-ffl(q=0.1)",
    "krum": "krum(f=0,m=2)",
    "ldp": "ldp(noise=0.5)",
}


def text(name: str) -> str:
    """A wrapper wraps FedAvg; `ldp`, which hides class means, wraps a method that sends them."""
    method = SHOWN_AS.get(name, name)
    host = "relay" if name == "ldp" else "fedavg"
    return f"{host}+{method}" if issubclass(algorithms.find(name), Wrapper) else method


@cache
def figures(name: str) -> dict[str, Any]:
    result = comity.run(
        text(name), digits(), model="mlp2", rounds=2, epochs=5, lr=0.1, engine="loop"
    )
    by_kind = {kind: size for kind, size in result.summary["bytes"].items() if kind != "total"}
    return {
        "algorithm": text(name),
        "accuracy": {
            party: round(value, 6)
            for party, value in result.summary["accuracy"]["per_party"].items()
        },
        "bytes": by_kind,
        "steps": result.summary["steps"],
    }


def golden(name: str) -> dict[str, Any]:
    path = FOLDER / f"{name}.json"
    if REGENERATE:
        path.write_text(json.dumps(figures(name), indent=2) + "\n", encoding="utf-8")
    if not path.exists():
        pytest.fail(
            f"{name} has no golden figures yet: look at what it does, then run this with"
            " COMITY_REGENERATE=1"
        )
    return json.loads(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", algorithms.names())
def test_bytes_and_steps_are_exactly_golden(name: str) -> None:
    expected, computed = golden(name), figures(name)
    for what in ("algorithm", "bytes", "steps"):
        assert computed[what] == expected[what]


@pytest.mark.parametrize("name", algorithms.names())
def test_accuracies_are_golden_to_one_test_sample(name: str) -> None:
    expected, computed = golden(name)["accuracy"], figures(name)["accuracy"]
    assert computed.keys() == expected.keys()
    for party, value in computed.items():
        sample = 1 / len(digits().parties[party].test)
        assert value == pytest.approx(expected[party], abs=sample + 1e-6), party


def test_no_golden_figures_without_an_algorithm() -> None:
    assert {path.stem for path in FOLDER.glob("*.json")} <= set(algorithms.names())


def test_golden_figures_differ_and_exceed_chance() -> None:
    """Two rounds reach more than chance, and methods differ: otherwise golden figures would detect
    nothing.
    """
    computed = {name: figures(name) for name in algorithms.names()}
    assert all(min(f["accuracy"].values()) > 0.2 for f in computed.values())
    assert len({json.dumps(f["bytes"]) for f in computed.values()}) > 4
    assert len({json.dumps(f["accuracy"]) for f in computed.values()}) > 4
