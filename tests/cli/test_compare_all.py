"""`comity compare --all`: every method that can be run as asked; the others are said, with the
reason.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from harness import comity, works

import comity as python
from comity import algorithms
from comity.runs.config import experiment
from comity.studies.compare import runnable_methods

SETTINGS = ("--parties", "3", "--rounds", "1", "--model", "linear", "--partition", "iid")


def test_every_name_is_run_or_left_out_with_a_reason() -> None:
    asked = experiment({"parties": 3, "rounds": 1, "model": "linear", "partition": "iid"})
    fed = python.load("digits").partition("iid", parties=3, seed=0)
    able, left_out = runnable_methods(asked, fed)
    assert {"fedavg", "adcol", "fedavg+prbm"} <= {*able}
    assert "fedper" not in able  # all of a linear model is its head, which stays at the party
    assert [
        said
        for said in left_out
        if said.startswith("fedper is left out: Nothing of linear would be shared")
    ]
    assert len(able) + len(left_out) == len(algorithms.names())


def test_all_of_three_and_one_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("comity.studies.compare.names", lambda: ["fedavg", "fedper", "prbm"])
    shown = works("compare", "--all", "fedprox(mu=1)", *SETTINGS, "--out", tmp_path / "o")
    made = {path.name for path in (tmp_path / "o").iterdir() if path.is_dir()}
    assert made == {"solo", "fedavg", "fedavg+prbm", "fedprox(mu=1)"}
    assert "fedper is left out" in shown.out + shown.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "or use --all"),
        (("--all", "--federation", "there"), "--all, --leave-one-out and --jobs are not available"),
    ],
)
def test_refused(words: tuple[str, ...], said: str) -> None:
    answer = comity("compare", *words)
    assert answer.code == 2
    assert said in answer.err
