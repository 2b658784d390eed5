"""Warnings about parties that missed calls or diverged: on the screen, in the tables and in the
report.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from harness import comity, succeed

from comity.reporting.sections.absences import format_spans

SMALL = (
    "--parties",
    "3",
    "--rounds",
    "3",
    "--model",
    "mlp2(width=8)",
    "--partition",
    "iid|keep(samples=60)",
    "--engine",
    "loop",
)


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    path = tmp_path / "plan.csv"
    path.write_text("party,round,call,how\np0,2,local,lost\np1,3,,offline\n", encoding="utf-8")
    return path


def test_run_warns_of_missed_calls_and_discarded_replies(plan: Path, tmp_path: Path) -> None:
    output = succeed(
        "run",
        "fedavg",
        *SMALL,
        "--absent",
        plan,
        "--party",
        "p2.lr=1e25",
        "--out",
        tmp_path / "run",
    ).out
    assert "Warning: Calls that were missed: p0 1 (1 lost), p1 2 (2 offline)." in output
    assert (
        "Warning: Replies that were left out, as their values are not finite: p2 3; a smaller lr"
        " may help." in output
    )
    assert "Warning: Not heard at the end: p1 (its accuracy is that of round 2)." in output
    again = succeed("resume", tmp_path / "run").out
    assert "Calls that were missed" in again, "a finished run says it again"


def test_comparison_marks_methods_with_warnings(
    plan: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("comity.reporting.sections.space.SAMPLES", 24)
    output = succeed(
        "compare", "fedavg", *SMALL, "--absent", plan, "--report", "--out", tmp_path / "both"
    ).out
    assert "fedavg *" in output
    assert "*: see the warnings." in output
    assert (
        "Warning: fedavg, seed 0: Calls that were missed: p0 1 (1 lost), p1 2 (2 offline)."
        in output
    )
    rows = json.loads((tmp_path / "both" / "comparison.json").read_text())["rows"]
    assert any("Not heard at the end: p1" in text for text in rows[1]["caveats"])
    page = (tmp_path / "both" / "report.html").read_text(encoding="utf-8")
    assert "Calls that were missed: p0 1 (1 lost), p1 2 (2 offline)." in page
    assert "Who was not heard" in page
    assert "lost: it was called, but no reply came" in page


def test_comparison_without_absences_has_no_mark(tmp_path: Path) -> None:
    output = succeed("compare", "fedavg", *SMALL, "--no-report", "--out", tmp_path / "both").out
    assert "*" not in output.replace("±", "")
    assert not list((tmp_path / "both").rglob("absences.csv"))


def test_tune_warns_of_diverged_points(tmp_path: Path) -> None:
    output = succeed(
        "tune", "fedavg", *SMALL, "--grid", "lr=0.05,1e25", "--out", tmp_path / "grid"
    ).out
    assert (
        "Warning: lr=1e+25, seed 0: Replies that were left out, as their values are not finite: p0"
        " 3, p1 3, p2 3" in output
    )
    assert (
        "Warning: lr=1e+25, seed 0: Rounds 1, 2, 3 did not count: no party answered local in"
        " round 1." in output
    )
    assert "lr=0.05, seed" not in output


def test_tune_fails_without_a_round_of_all_parties(tmp_path: Path) -> None:
    plan = tmp_path / "plan.csv"
    plan.write_text("party,round\np0,*\n", encoding="utf-8")
    result = comity(
        "tune", "fedavg", *SMALL, "--grid", "lr=0.05", "--absent", plan, "--out", tmp_path / "grid"
    )
    assert result.code == 1
    assert "was everybody heard: there is nothing to choose by" in result.err


def test_a_run_that_stops_names_the_party(tmp_path: Path) -> None:
    result = comity(
        "run",
        "fedavg",
        *SMALL,
        "--party",
        "p2.lr=1e25",
        "--on-nonfinite",
        "stop",
        "--out",
        tmp_path / "run",
    )
    assert result.code == 1
    assert "p2 has values that are not finite in round 1" in result.err


def test_model_with_nan_weights_is_not_exported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs no longer save such a model, but a folder may contain one."""
    import torch

    from comity.errors import ComityError
    from comity.runs.result import Result
    from comity.runs.run import reopen
    from comity.studies.export import export
    from comity.wire.codec import decode, encode

    succeed("run", "fedavg", *SMALL, "--out", tmp_path / "run")
    job = reopen(tmp_path / "run")
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    result = Result(tmp_path / "run", job, summary)
    sound_model = result.model("p0")
    nan_weights = {
        k: torch.full_like(v, float("nan")) for k, v in decode(encode(sound_model.theta)).items()
    }
    monkeypatch.setattr(
        Result, "model", lambda self, party: replace(sound_model, theta=nan_weights)
    )
    with pytest.raises(
        ComityError, match=r"The model of p0 is not exported: theta\..* is not finite"
    ):
        export(result, "p0", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_run_warns_of_a_huge_loss(tmp_path: Path) -> None:
    """A linear model does not overflow as fast: its weights and the loss of all parties are huge."""
    flat = [*SMALL[:5], "linear", *SMALL[6:]]
    output = succeed("run", "fedavg", *flat, "--party", "p2.lr=1e20", "--out", tmp_path / "run").out
    assert (
        "Warning: The loss of p0, p1, p2 is not finite, or beyond a million; try a smaller lr."
        in output
    )


def test_format_spans() -> None:
    assert format_spans({3}) == "3"
    assert format_spans({1, 2, 3, 7, 9, 10}) == "1-3, 7, 9-10"
