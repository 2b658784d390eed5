"""`comity compare --all` runs every method that fits the settings, and names the others with the
reason.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from harness import comity, succeed

import comity as python
from comity import algorithms
from comity.runs.config import experiment
from comity.studies.compare import runnable_methods

SETTINGS = ("--parties", "3", "--rounds", "1", "--model", "linear", "--partition", "iid")


def test_every_name_is_run_or_left_out_with_a_reason() -> None:
    config = experiment({"parties": 3, "rounds": 1, "model": "linear", "partition": "iid"})
    fed = python.load("digits").partition("iid", parties=3, seed=0)
    able, left_out = runnable_methods(config, fed)
    assert {"fedavg", "adcol", "fedavg+prbm"} <= {*able}
    assert "fedper" not in able  # a linear model is only a head, which stays at the party
    assert left_out["fedper"].startswith("Nothing of linear would be shared")
    assert len(able) + len(left_out) == len(algorithms.names())


def test_all_runs_every_method_and_the_named_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("comity.studies.compare.names", lambda: ["fedavg", "fedper", "prbm"])
    result = succeed("compare", "--all", "fedprox(mu=1)", *SETTINGS, "--out", tmp_path / "o")
    folders = {path.name for path in (tmp_path / "o").iterdir() if path.is_dir()}
    assert folders == {"solo", "fedavg", "fedavg+prbm", "fedprox(mu=1)"}
    assert "fedper is left out" in result.out + result.err


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((), "or use --all"),
        (("--all", "--federation", "there"), "--all, --equal-steps, --leave-one-out and --jobs"),
    ],
)
def test_compare_without_methods_or_with_conflicting_options_is_refused(
    words: tuple[str, ...], expected: str
) -> None:
    answer = comity("compare", *words)
    assert answer.code == 2
    assert expected in answer.err
