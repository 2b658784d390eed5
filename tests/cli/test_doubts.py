"""What a person reads when parties were silent or diverged: on the screen, in the tables, on the
page.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from harness import comity, works

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


def test_a_run_says_who_was_not_heard(plan: Path, tmp_path: Path) -> None:
    said = works(
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
    assert "Warning: Calls that were missed: p0 1 (1 lost), p1 2 (2 offline)." in said
    assert (
        "Warning: Replies that were left out, as their values are not finite: p2 3; a smaller lr"
        " may help." in said
    )
    assert "Warning: Not heard at the end: p1 (its accuracy is that of round 2)." in said
    again = works("resume", tmp_path / "run").out
    assert "Calls that were missed" in again, "a finished run says it again"


def test_a_comparison_marks_whom_to_doubt(
    plan: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("comity.reporting.sections.space.SAMPLES", 24)
    said = works(
        "compare", "fedavg", *SMALL, "--absent", plan, "--report", "--out", tmp_path / "both"
    ).out
    assert "fedavg *" in said
    assert "*: see the warnings." in said
    assert (
        "Warning: fedavg, seed 0: Calls that were missed: p0 1 (1 lost), p1 2 (2 offline)." in said
    )
    rows = json.loads((tmp_path / "both" / "comparison.json").read_text())["rows"]
    assert any("Not heard at the end: p1" in text for text in rows[1]["caveats"])
    page = (tmp_path / "both" / "report.html").read_text(encoding="utf-8")
    assert "Calls that were missed: p0 1 (1 lost), p1 2 (2 offline)." in page
    assert "Who was not heard" in page
    assert "lost: it was called, but no reply came" in page


def test_a_comparison_in_which_all_were_heard_has_no_mark(tmp_path: Path) -> None:
    said = works("compare", "fedavg", *SMALL, "--no-report", "--out", tmp_path / "both").out
    assert "*" not in said.replace("±", "")
    assert not list((tmp_path / "both").rglob("absences.csv"))


def test_tuning_says_which_points_diverged(tmp_path: Path) -> None:
    said = works("tune", "fedavg", *SMALL, "--grid", "lr=0.05,1e25", "--out", tmp_path / "grid").out
    assert (
        "Warning: lr=1e+25, seed 0: Replies that were left out, as their values are not finite: p0"
        " 3, p1 3, p2 3" in said
    )
    assert (
        "Warning: lr=1e+25, seed 0: Rounds 1, 2, 3 did not count: no party answered local in"
        " round 1." in said
    )
    assert "lr=0.05, seed" not in said


def test_tuning_needs_a_round_in_which_all_were_heard(tmp_path: Path) -> None:
    plan = tmp_path / "plan.csv"
    plan.write_text("party,round\np0,*\n", encoding="utf-8")
    ended = comity(
        "tune", "fedavg", *SMALL, "--grid", "lr=0.05", "--absent", plan, "--out", tmp_path / "grid"
    )
    assert ended.code == 1
    assert "was everybody heard: there is nothing to choose by" in ended.err


def test_a_run_that_stops_names_the_party(tmp_path: Path) -> None:
    ended = comity(
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
    assert ended.code == 1
    assert "p2 has values that are not finite in round 1" in ended.err


def test_a_ruined_model_is_not_exported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing ruined is kept any more; but a folder may hold one."""
    import torch

    from comity.errors import ComityError
    from comity.runs.result import Result
    from comity.runs.run import reopen
    from comity.studies.export import export
    from comity.wire.codec import decode, encode

    works("run", "fedavg", *SMALL, "--out", tmp_path / "run")
    job = reopen(tmp_path / "run")
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    result = Result(tmp_path / "run", job, summary)
    whole = result.model("p0")
    ruined = {k: torch.full_like(v, float("nan")) for k, v in decode(encode(whole.theta)).items()}
    monkeypatch.setattr(Result, "model", lambda self, party: replace(whole, theta=ruined))
    with pytest.raises(
        ComityError, match=r"The model of p0 is not exported: theta\..* is not finite"
    ):
        export(result, "p0", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_model_that_has_run_away_is_doubted(tmp_path: Path) -> None:
    """A linear model does not overflow so soon: its weights are huge, and so is everybody's loss."""
    flat = [*SMALL[:5], "linear", *SMALL[6:]]
    said = works("run", "fedavg", *flat, "--party", "p2.lr=1e20", "--out", tmp_path / "run").out
    assert (
        "Warning: The loss of p0, p1, p2 is not finite, or beyond a million; try a smaller lr."
        in said
    )


def test_rounds_in_few_words() -> None:
    assert format_spans({3}) == "3"
    assert format_spans({1, 2, 3, 7, 9, 10}) == "1-3, 7, 9-10"
