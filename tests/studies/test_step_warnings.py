"""Warnings where parties or the server take many gradient evaluations, where the methods of a
comparison differ in them, and where BatchNorm's handling may decide the ranking.
"""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import succeed

import comity
from comity.runs.step_warnings import step_warnings
from comity.studies.compare_warnings import DIFFERENT, UNEQUAL, compare_steps, input_difference
from comity.training.gradient_count import SEVERAL

SMALL: dict[str, Any] = {"rounds": 2, "model": "mlp2", "progress": False}
SHIFT = "iid|keep(samples=40)|shift(kinds=none,invert)"
BATCHNORM = "fedbn-cnn(scale=0.06)"


def summary(party: float, server: float = 0.0, rounds: int = 10) -> dict[str, Any]:
    """A summary of two parties whose plain training has ten steps a round."""
    return {
        "algorithm": "fedgen(gen_steps=9)",
        "rounds": rounds,
        "parties": 2,
        "steps": 2 * rounds * party,
        "server_steps": rounds * server,
        "plain_steps": 2 * rounds * 10,
        "party_rounds": 2 * rounds,
    }


def test_a_party_that_takes_several_times_the_steps() -> None:
    assert not step_warnings(summary(party=10 * SEVERAL - 1))
    assert step_warnings(summary(party=10 * SEVERAL)) == [
        "A party takes 30 steps (gradient evaluations) a round, 3 times the 10 of one local"
        " training: 'comity compare --equal-steps' gives all methods the same number."
    ]


def test_a_server_that_takes_several_times_the_steps() -> None:
    assert not step_warnings(summary(party=10, server=10 * SEVERAL - 1))
    assert step_warnings(summary(party=10, server=100)) == [
        "The server takes 100 steps (gradient evaluations) a round, 10 times the 10 of a party:"
        " 'comity show fedgen(gen_steps=9)' lists the options that limit them."
    ]
    assert not step_warnings(summary(party=0, server=100))  # it trains in place of the parties


def test_cohorts_are_compared_by_their_own_rounds() -> None:
    """A party that is in half of the rounds takes twice its mean over rounds in each."""
    half = summary(party=20, server=50) | {"party_rounds": 10, "plain_steps": 100}
    half["steps"] = 200
    assert not [text for text in step_warnings(half) if text.startswith("A party")]
    assert "2.5 times the 20 of a party" not in " ".join(step_warnings(half))
    assert not step_warnings(half)


def test_summaries_without_the_plain_steps_have_no_warning() -> None:
    old = summary(party=100)
    del old["plain_steps"], old["party_rounds"]
    assert not step_warnings(old)


def test_methods_that_differ_in_steps() -> None:
    runs = {"a": [summary(10)], "b": [summary(10 * UNEQUAL)]}
    assert not compare_steps(runs, equal_steps=False)
    runs["b"] = [summary(16)]
    assert compare_steps(runs, equal_steps=False) == [
        "The methods differ in steps (gradient evaluations): a party takes 100 in a, 160 in b"
        " (1.6 times): --equal-steps gives all methods the same number."
    ]
    runs["b"] = [summary(40), summary(40)]
    assert len(compare_steps(runs, equal_steps=False)) == 1  # once for both seeds
    assert not any("--equal-steps" in text for text in compare_steps(runs, equal_steps=True))


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_comparison_has_the_warnings_everywhere(tmp_path: Path) -> None:
    out = tmp_path / "runs"
    comparison = comity.compare(
        ["fedavg", "fedrep"], seeds=(0, 1), parties=2, out=out, **SMALL, partition="iid"
    )
    texts = [warning.text for warning in comparison.findings.warnings]
    (text,) = [text for text in texts if text.startswith("The methods differ in steps")]
    assert "in fedrep (11 times)" in text
    assert not any(row.caveats for row in comparison.rows)
    rows = {row.algorithm: row for row in comparison.rows}
    assert rows["fedrep"].steps == 11 * (rows["fedavg"].steps or 0)
    content = json.loads((out / "comparison.json").read_text())
    assert [entry["text"] for entry in content["warnings"]] == texts
    page = comparison.report().read_text()
    assert "The methods differ in steps" in page
    assert page.count("in fedrep (11 times)") == 1
    assert "steps" in comparison.to_pandas().columns


def test_a_run_has_the_warning_at_its_end() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = comity.run("fedrep", parties=2, partition="iid", **SMALL)
    texts = [str(warning.message) for warning in caught]
    assert any("11 times the" in text for text in texts)
    assert any("11 times the" in warning.text for warning in result.warnings)
    assert result.summary["steps"] == 11 * result.summary["plain_steps"]


def test_a_tuning_says_how_many_steps_each_value_takes(tmp_path: Path) -> None:
    options = ("--parties", "2", "--rounds", "1", "--model", "mlp2", "--no-report")
    grid = ("--grid", "head_epochs=1,5", "--out", str(tmp_path / "runs"))
    result = succeed("tune", "fedrep", *options, *grid)
    assert "steps" in result.out
    assert "The trials differ in steps" in " ".join(result.out.split())
    trials = json.loads((tmp_path / "runs" / "tune.json").read_text())["trials"]
    steps = {trial["name"]: trial["steps"] for trial in trials}
    assert steps["head_epochs=5"][0] == 3 * steps["head_epochs=1"][0]


def batchnorm_texts(partition: str, methods: list[str], **settings: Any) -> list[str]:
    arguments = SMALL | {"model": BATCHNORM, "rounds": 1, "parties": 4} | settings
    comparison = comity.compare(methods, partition=partition, **arguments)
    texts = [warning.text for warning in comparison.findings.warnings]
    return [text for text in texts if "BatchNorm" in text]


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_averaged_statistics_where_inputs_differ() -> None:
    (text,) = batchnorm_texts(SHIFT, ["fedavg", "fedbn", "fedprox"], bn="all")
    assert "fedavg, fedprox average the running statistics" in text
    assert "--bn params_only" in text
    assert not batchnorm_texts(SHIFT, ["fedavg"], bn="params_only")
    (text,) = batchnorm_texts("dirichlet(alpha=0.1,min=20)", ["fedavg", "fedbn"], bn="all")
    assert "labels differ, and fedbn keeps the running statistics" in text
    assert "--bn all" in text
    (text,) = batchnorm_texts(
        "dirichlet(alpha=0.1,min=20)", ["fedavg", "solo", "lg-fedavg"], bn="params_only"
    )
    assert "labels differ, and fedavg keeps the running statistics" in text
    assert not batchnorm_texts(SHIFT, ["fedbn"], bn="all")
    assert not batchnorm_texts("iid|keep(samples=40)", ["fedavg"], bn="all")
    assert not batchnorm_texts(SHIFT, ["fedavg"], model="linear")


def test_difference_of_inputs() -> None:
    generator = torch.Generator().manual_seed(0)
    same = [torch.randn(50, 8, generator=generator) for _ in range(5)]
    assert input_difference(same) < DIFFERENT
    assert input_difference([same[0], same[1] + 1]) > DIFFERENT
    assert input_difference([same[0], 3 * same[1]]) > DIFFERENT
    assert input_difference([torch.ones(5, 2), torch.ones(5, 2)]) == 0.0
    assert input_difference([]) == 0.0
