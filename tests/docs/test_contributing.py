"""The methods in CONTRIBUTING.md run as printed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

import comity
from comity.studies.plan import traffic

TEXT = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a file for each method of the page."""
    path = tmp_path_factory.mktemp("mine")
    momentum, declared, weighted = re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL)
    (path / "fedavgm.py").write_text(momentum, encoding="utf-8")
    (path / "halved.py").write_text(declared, encoding="utf-8")
    (path / "weighted.py").write_text(weighted, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def method(folder: Path) -> str:
    return str(folder / "fedavgm.py")


@pytest.fixture(scope="module")
def federation() -> comity.Federation:
    return comity.load("digits").partition("iid", parties=3, seed=0)


@pytest.mark.parametrize("name", ["fedavgm.py", "halved.py", "weighted.py"])
def test_methods_run_on_every_engine(
    name: str, folder: Path, federation: comity.Federation
) -> None:
    loop, process, stacked = (
        comity.run(str(folder / name), federation, rounds=3, engine=engine)
        for engine in ("loop", "process", "stacked")
    )
    assert loop.metrics == process.metrics
    assert stacked.summary["accuracy"]["mean"] == pytest.approx(
        loop.summary["accuracy"]["mean"], abs=0.01
    )
    for key, value in loop.model("p0").theta.items():
        torch.testing.assert_close(stacked.model("p0").theta[key], value, rtol=1e-3, atol=1e-5)


def test_accuracy_and_bytes(method: str, federation: comity.Federation) -> None:
    results = [comity.run(method, federation, rounds=3, engine="loop")]
    assert results[0].summary["accuracy"]["mean"] > 0.3
    start, rounds = traffic(results[0].job)
    assert sum(rounds, start).up == results[0].summary["bytes"]["up"]


def test_without_momentum_equals_fedavg(method: str, federation: comity.Federation) -> None:
    ours = comity.run(method, federation, rounds=2, beta=0.0).model("p0").theta
    parent = comity.run("fedavg", federation, rounds=2).model("p0").theta
    assert all(torch.allclose(ours[k], parent[k], atol=1e-6) for k in parent)


def test_momentum_moves_further(method: str, federation: comity.Federation) -> None:
    ours = comity.run(method, federation, rounds=2, beta=0.9).model("p0").theta
    parent = comity.run("fedavg", federation, rounds=2).model("p0").theta
    assert any(not torch.allclose(ours[k], parent[k], atol=1e-4) for k in parent)
