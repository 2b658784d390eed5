"""The method in CONTRIBUTING.md works as printed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

import comity
from comity.studies.plan import traffic

TEXT = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def method(tmp_path_factory) -> str:
    (code,) = re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL)
    path = tmp_path_factory.mktemp("mine") / "fedavgm.py"
    path.write_text(code, encoding="utf-8")
    return str(path)


@pytest.fixture(scope="module")
def federation() -> comity.Federation:
    return comity.load("digits").partition("iid", parties=3, seed=0)


def test_it_runs_on_every_engine_alike(method, federation):
    results = [comity.run(method, federation, rounds=3, engine=engine) for engine in ("loop", "process")]
    assert results[0].metrics == results[1].metrics
    assert results[0].summary["accuracy"]["mean"] > 0.3
    start, rounds = traffic(results[0].job)
    assert sum(rounds, start).up == results[0].summary["bytes"]["up"]


def test_without_momentum_it_is_fedavg(method, federation):
    ours = comity.run(method, federation, rounds=2, beta=0.0).model("p0").theta
    parent = comity.run("fedavg", federation, rounds=2).model("p0").theta
    assert all(torch.allclose(ours[k], parent[k], atol=1e-6) for k in parent)


def test_momentum_moves_further(method, federation):
    ours = comity.run(method, federation, rounds=2, beta=0.9).model("p0").theta
    parent = comity.run("fedavg", federation, rounds=2).model("p0").theta
    assert any(not torch.allclose(ours[k], parent[k], atol=1e-4) for k in parent)
