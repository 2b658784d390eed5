"""Comparisons with equal steps: each method has the rounds in which a party takes as many gradient
evaluations as in plain local training.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from harness import comity as command
from harness import one_sentence, succeed

import comity
from comity.runs.folder import RunFolder
from comity.studies.equal_steps import EqualSteps, describe_equal_steps

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


@cache
def parties() -> comity.Federation:
    """Three parties of different sizes."""
    digits = comity.load("digits")
    arrays, at = {}, 0
    for name, size in {"north": 90, "east": 40, "south": 60}.items():
        arrays[name] = (digits.x[at : at + size], digits.y[at : at + size])
        at += size
    return comity.Federation.from_arrays(arrays, classes=10)


def compare(methods: list[str], **settings: Any) -> comity.Comparison:
    arguments: dict[str, Any] = {"rounds": 12, "model": "mlp2", "progress": False} | settings
    return comity.compare(methods, parties(), equal_steps=True, **arguments)


def rounds_of(comparison: comity.Comparison) -> dict[str, int]:
    """The number of rounds in the settings of each method's runs."""
    rounds = {}
    for method, runs in comparison.results.items():
        settings = {RunFolder(run.folder).read_experiment().rounds for run in runs.values()}
        (rounds[method],) = settings
    return rounds


def test_rounds_are_divided_by_the_steps_of_a_round() -> None:
    comparison = compare(["fedavg", "ditto", "fedrep(head_epochs=5)", "pfedme(inner_steps=3)"])
    assert rounds_of(comparison) == {
        "solo": 12,
        "fedavg": 12,
        "ditto": 6,
        "fedrep(head_epochs=5)": 2,
        "pfedme(inner_steps=3)": 4,
    }
    assert len({row.steps for row in comparison.rows}) == 1
    assert comparison.findings.equal_steps
    texts = [warning.text for warning in comparison.findings.warnings]
    assert any("ditto 6, fedrep(head_epochs=5) 2" in text for text in texts)
    assert not any("--equal-steps" in text for text in texts)


@pytest.mark.parametrize("engine", ["stacked", "process"])
def test_all_engines_have_the_same_rounds(engine: Any) -> None:
    comparison = compare(["ditto"], engine=engine)
    assert rounds_of(comparison)["ditto"] == 6


def test_cohorts_and_steps() -> None:
    """With fixed steps and sampled cohorts, a party takes as many steps in each method."""
    comparison = compare(["ditto"], participation=0.67, steps=4, seeds=(0, 1))
    assert rounds_of(comparison) == {"solo": 12, "ditto": 6}
    assert len({row.steps for row in comparison.rows}) == 1


def test_what_happens_once_is_part_of_the_budget() -> None:
    """FedBABU fine-tunes once after the last round, by as much as five rounds here."""
    comparison = compare(["fedbabu(finetune_epochs=5)"], rounds=20)
    assert rounds_of(comparison)["fedbabu(finetune_epochs=5)"] == 15


def test_fedmeta_is_as_expensive_as_plain_training() -> None:
    """Its gradient of all samples counts as an epoch, so it gets no further rounds."""
    assert rounds_of(compare(["fedmeta(meta_lr=0)"], rounds=3))["fedmeta(meta_lr=0)"] == 3


def test_a_server_that_pools_the_data_keeps_its_rounds() -> None:
    comparison = compare(["centralized"], rounds=2)
    assert rounds_of(comparison)["centralized"] == 2


def test_what_cannot_be_equal_is_said() -> None:
    comparison = compare(["fedrep(head_epochs=9)"], rounds=2)
    assert rounds_of(comparison)["fedrep(head_epochs=9)"] == 1
    (text,) = [w.text for w in comparison.findings.warnings if "is not equal" in w.text]
    assert "that is one round: use more --rounds" in text


def test_sentences_about_equal_steps() -> None:
    equal = {"fedavg": EqualSteps(10, 50.0, 50.0), "ditto": EqualSteps(5, 50.0, 50.0)}
    assert describe_equal_steps(equal, 10) == [
        "Equal steps: a party may take about 50 steps (gradient evaluations). Rounds: ditto 5"
        " instead of 10."
    ]
    odd = {"fedrep": EqualSteps(2, 60.0, 50.0)}
    assert describe_equal_steps(odd, 10)[1] == (
        "fedrep is not equal: a party takes about 60 steps instead of 50, and rounds cannot be"
        " divided: use more --rounds."
    )


SMALL = ("--parties", "2", "--rounds", "4", "--model", "mlp2")


def test_on_the_command_line(tmp_path: Path) -> None:
    """The same command continues the comparison, in parallel or not."""
    out = str(tmp_path / "runs")
    text = succeed("compare", "ditto", *SMALL, "--equal-steps", "--out", out).out
    assert "equal steps" in text
    assert "rounds" in text
    content = json.loads((tmp_path / "runs" / "comparison.json").read_text())
    assert content["equal_steps"] is True
    assert [row["rounds"] for row in content["rows"]] == [4, 2]
    solo, ditto = content["rows"]
    assert solo["steps"] == ditto["steps"]
    succeed("compare", "ditto", "fedavg", *SMALL, "--equal-steps", "--jobs", "2", "--out", out)
    assert "steps" in succeed("report", out, "--table", "markdown").out
    succeed("report", out)
    assert "cannot be compared" not in (tmp_path / "runs" / "report.html").read_text()


def test_other_rounds_in_the_folder_are_refused(tmp_path: Path) -> None:
    out = str(tmp_path / "runs")
    succeed("compare", "ditto", *SMALL, "--no-report", "--out", out)
    refused = command("compare", "ditto", *SMALL, "--equal-steps", "--out", out)
    assert "holds a run of 4 rounds, not 2" in one_sentence(refused, 2)


def test_leave_one_out_with_equal_steps(tmp_path: Path) -> None:
    out = tmp_path / "runs"
    options = ("--equal-steps", "--leave-one-out", "--leave-out", "p1", "--out", str(out))
    succeed("compare", "ditto", "--parties", "3", *SMALL[2:], *options)
    left_out = out / "leave-one-out" / "ditto" / "p1" / "seed-0"
    assert RunFolder(left_out).read_experiment().rounds == 2


def test_not_between_sites(tmp_path: Path) -> None:
    refused = command("compare", "fedavg", "--federation", str(tmp_path), "--equal-steps")
    assert "--equal-steps" in one_sentence(refused, 2)


@pytest.mark.long
def test_noise_is_found_for_the_scaled_rounds() -> None:
    """A privacy budget is for the rounds that a method has."""
    pytest.importorskip("dp_accounting")
    comparison = compare(["ditto+dp"], rounds=4, steps=2, budget="epsilon=8,delta=1e-3")
    assert rounds_of(comparison) == {"solo": 4, "ditto+dp": 2}
    row = comparison.rows[1]
    assert isinstance(row.epsilon, float)
    assert 7 < row.epsilon <= 8
