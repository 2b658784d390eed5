"""Commands say what they did: discarded rounds, repeated methods, settings without effect, tiny
scales.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from harness import SMALL, comity, succeed, summary

import comity as library

SILENT = ("--min-replies", "3", "--absent", "random(offline=0.9)")


def test_run_in_which_no_round_counted_fails(tmp_path: Path) -> None:
    result = comity("run", "fedavg", *SMALL, *SILENT, "--out", tmp_path / "run")
    assert [row["round"] for row in summary(tmp_path / "run")["discarded"]] == [1, 2]
    assert result.code == 1
    assert "No round of fedavg counted" in result.err


def test_method_without_counted_rounds_is_not_ranked(tmp_path: Path) -> None:
    out = tmp_path / "compared"
    result = comity("compare", "fedavg", *SMALL, *SILENT, "--no-report", "--out", out)
    assert result.code == 1
    assert "no round of solo, fedavg counted" in result.err
    assert "no round" in result.out
    assert "Does collaborating help?" not in result.out
    comparison = library.open(out)
    assert isinstance(comparison, library.Comparison)
    assert all(row.mean is None and row.gain is None for row in comparison.rows)


def test_repeated_method_is_compared_once(tmp_path: Path) -> None:
    result = succeed("compare", "fedavg", "fedavg", *SMALL, "--no-report", "--out", tmp_path / "c")
    assert "fedavg is given several times, and is compared once." in result.out


def test_workers_without_effect_are_mentioned(tmp_path: Path) -> None:
    result = succeed("run", "fedavg", *SMALL, "--workers", "2", "--out", tmp_path / "run")
    assert "workers=2 has no effect with engine=loop" in result.out


def test_smoke_figures_are_marked(tmp_path: Path) -> None:
    result = succeed(
        "reproduce", "dbe/table5", "--scale", "smoke", "--rows", "fedavg", "--no-report",
        "--out", tmp_path / "smoke", "--seeds", "0",
    )  # fmt: skip
    assert "say nothing about the paper" in " ".join(result.out.split())


def test_tune_and_compare_report_the_last_round(tmp_path: Path) -> None:
    settings = (*SMALL, "--rounds", "3", "--lr", "0.4", "--no-report")
    succeed("compare", "fedavg", *settings, "--out", tmp_path / "compared")
    result = succeed("tune", "fedavg", *settings, "--grid", "epochs=1", "--out", tmp_path / "tuned")
    comparison = library.open(tmp_path / "compared")
    assert isinstance(comparison, library.Comparison)
    figure = next(row.mean for row in comparison.rows if row.algorithm == "fedavg")
    assert figure is not None
    assert "test at end" in result.out
    assert f"{figure:.1%}" in result.out


def test_answers_have_each_methods_own_verdict(tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    out = tmp_path / "compared"
    succeed("compare", "fedavg", "fedprox", *SMALL, "--no-report", "--out", out)
    comparison = library.open(out)
    assert isinstance(comparison, library.Comparison)
    table = comparison.to_pandas("answers")
    assert list(table.columns[:4]) == ["party", "party_verdict", "method", "verdict"]
    for row in table.itertuples():
        expected = "gains" if row.low > 0 else "alone" if row.high < 0 else "level"
        assert row.verdict == expected
