"""A comparison of private methods prints what each guarantees, beside SOLO without noise."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from harness import comity

SMALL = ["--parties", 3, "--rounds", 2, "--batch", 64, "--model", "mlp2(width=8)", "--no-report"]


@pytest.mark.parametrize(
    "command",
    [["fedavg+dp", "--budget", "epsilon=3"], ["fedavg+dp", "fedavg", "--set", "noise=2"]],
    ids=["budget", "noise"],
)
def test_epsilon_is_a_column_of_the_table(command: list[str], here: Path) -> None:
    result = comity("compare", *command, *SMALL, "--out", "runs")
    assert result.code == 0, result.err
    lines = result.out.splitlines()
    head = next(line for line in lines if line.startswith("method"))
    assert "epsilon" in head
    rows = {line.split()[0]: line for line in lines if line.split()[:1] and "%" in line}
    summary = json.loads(Path("runs/fedavg+dp/seed-0/summary.json").read_text(encoding="utf-8"))
    assert f" {summary['privacy']['epsilon']:.3g} " in rows["fedavg+dp"]
    if "fedavg" in command:
        assert " infinite " in rows["fedavg"]
    assert "SOLO is trained without noise" in " ".join(result.out.split())


def test_methods_without_noise_have_no_such_column(here: Path) -> None:
    result = comity("compare", "fedavg", *SMALL, "--out", "runs")
    assert result.code == 0, result.err
    assert "epsilon" not in result.out
