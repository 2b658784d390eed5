"""Paths in a TOML file that a user has written are relative to that file, from any directory."""

from __future__ import annotations

import tomllib
from pathlib import Path

import numpy as np
import pytest
from harness import OWN, succeed, summary

MODEL = """
from torch import nn


def build(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(shape[0], 6), nn.ReLU()), nn.Linear(6, classes)
"""
EXPERIMENT = """
algorithm = "./mine.py+dbe"
data = "imported"
model = "net.py"
rounds = 2
engine = "loop"
"""
TABLE = """
title = "Mine"
source = "me"
[settings]
data = "imported"
model = "./net.py"
rounds = 1
[[columns]]
name = "mean"
title = "Mean"
measure = "mean"
[[rows]]
name = "mine"
title = "Mine"
algorithm = "./mine.py(scale=2)"
settings = {lr = 0.1}
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A method, a network, a dataset and settings in one folder, and another working directory."""
    folder, elsewhere = tmp_path / "project", tmp_path / "elsewhere"
    (folder / "raw").mkdir(parents=True)
    elsewhere.mkdir()
    mine = OWN.format('scale: float = option(1.0, "an option")')
    for name, text in {
        "mine.py": mine, "net.py": MODEL, "e.toml": EXPERIMENT, "t.toml": TABLE
    }.items():  # fmt: skip
        (folder / name).write_text(text, encoding="utf-8")
    draws = np.random.default_rng(0)
    for party in ("north", "south"):
        y = np.arange(40) % 2
        np.savez(folder / "raw" / f"{party}.npz", x=draws.normal(size=(40, 5)) + y[:, None], y=y)
    succeed("data", "import", folder / "raw", "--out", folder / "imported")
    monkeypatch.chdir(elsewhere)
    return folder


def test_an_experiment_finds_files_beside_it(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    succeed("run", "../project/e.toml", "--out", "run", "--rounds", "1")
    saved = tomllib.loads(Path("run/config.toml").read_text(encoding="utf-8"))
    assert saved["algorithm"] == f"{project / 'mine.py'}+dbe"
    assert saved["model"] == str(project / "net.py")
    assert saved["data"] == str(project / "imported")
    # A run's own settings are those of the run, wherever its folder and the user are.
    monkeypatch.chdir(tmp_path)
    succeed("run", "elsewhere/run/config.toml", "--out", "again", "--trust")
    assert (
        summary(tmp_path / "again")["accuracy"] == summary(tmp_path / "elsewhere/run")["accuracy"]
    )
    succeed("resume", "elsewhere/run", "--rounds", "2", "--trust")


def test_typed_paths_are_relative_to_the_working_directory(project: Path) -> None:
    Path("net.py").write_text(MODEL.replace("6", "7"), encoding="utf-8")
    succeed("run", "../project/e.toml", "--out", "run", "--model", "./net.py")
    saved = tomllib.loads(Path("run/config.toml").read_text(encoding="utf-8"))
    assert saved["model"] == str(Path("net.py").resolve())


def test_a_table_finds_files_beside_it(project: Path) -> None:
    succeed("reproduce", "../project/t.toml", "--scale", "full", "--out", "table")
    (config,) = Path("table").rglob("config.toml")
    saved = tomllib.loads(config.read_text(encoding="utf-8"))
    assert saved["algorithm"] == f"{project / 'mine.py'}(scale=2)"
    assert saved["data"] == str(project / "imported")
    assert saved["model"] == str(project / "net.py")


def test_splits_weights_and_options_of_networks_are_found(project: Path) -> None:
    from comity.runs.config import relative_to

    settings = {
        "partition": "split.json",
        "weights": "w.pt",
        "model": "hf(path=encoder)",
        "metric": "loss.py",
        "absent": "absences.csv",
        "party": {"north": {"model": "net.py", "lr": 0.1}},
        "rounds": 3,
    }
    assert relative_to(project, settings) == {
        "partition": str(project / "split.json"),
        "weights": str(project / "w.pt"),
        "model": f"hf(path={project / 'encoder'})",
        "metric": str(project / "loss.py"),
        "absent": str(project / "absences.csv"),
        "party": {"north": {"model": str(project / "net.py"), "lr": 0.1}},
        "rounds": 3,
    }
