"""A comparison is repeated, or gets more methods and seeds, in its folder; any other is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from harness import SMALL, one_sentence, succeed
from harness import comity as command

COMPARE = ("compare", "fedavg", *SMALL, "--no-report")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of a finished comparison under seed 0."""
    succeed(*COMPARE, "--out", tmp_path / "runs")
    return tmp_path / "runs"


@pytest.mark.parametrize("seeds", ["0", "1", "1,0"])
@pytest.mark.parametrize(
    ("option", "value", "difference"),
    [
        ("--partition", "iid|keep(samples=30)", "partition=iid (not iid|keep(samples=30))"),
        ("--parties", "2", "parties=3 (not 2)"),
        ("--rounds", "3", "rounds=2 (not 3)"),
        ("--model", "mlp2", "model=linear (not mlp2)"),
        ("--lr", "0.5", "lr="),
    ],
)
def test_other_settings_are_refused_by_name(
    option: str, value: str, difference: str, seeds: str, folder: Path
) -> None:
    before = (folder / "comparison.json").read_bytes()
    refused = command(*COMPARE, "--out", folder, "--seeds", seeds, option, value)
    sentence = one_sentence(refused, 2)
    assert f"holds a comparison with {difference}" in sentence
    assert "choose another --out" in sentence
    assert (folder / "comparison.json").read_bytes() == before
    assert not (folder / "solo" / "seed-1").exists()


def test_other_seeds_are_refused_and_more_seeds_are_not(folder: Path) -> None:
    refused = command(*COMPARE, "--out", folder, "--seeds", "1,2")
    assert "holds a comparison with seeds=0 (not 1, 2)" in one_sentence(refused, 2)
    succeed(*COMPARE, "--out", folder, "--seeds", "0,1")


def test_the_same_command_and_more_methods_are_accepted(folder: Path) -> None:
    before = (folder / "comparison.json").read_bytes()
    succeed(*COMPARE, "--out", folder)
    assert (folder / "comparison.json").read_bytes() == before
    succeed("compare", "fedavg", "fedprox", *SMALL, "--no-report", "--out", folder)
    assert (folder / "fedprox" / "seed-0" / "summary.json").is_file()


def test_an_option_of_one_method_is_checked_before_any_run(folder: Path) -> None:
    """SOLO does not have the option, so that only the method's own runs differ."""
    methods = ("compare", "fedprox", *SMALL, "--no-report", "--out", folder)
    succeed(*methods, "--set", "mu=0.1")
    refused = command(*methods, "--seeds", "1,0", "--set", "mu=0.2")
    assert "holds a run with other settings, set.mu=0.1 (not 0.2)" in one_sentence(refused, 2)
    assert not (folder / "solo" / "seed-1").exists()
