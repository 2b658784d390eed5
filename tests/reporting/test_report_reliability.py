"""Reliability curves on the page: for two classes, and where outcomes may be seen."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from report_page import ReportPage, run_regression_comparison

import comity
from comity.metrics.evaluation import Answers
from comity.reporting import report
from comity.reporting.gather import gather
from comity.reporting.sections import reliability as section
from comity.reporting.sections.reliability import ENOUGH, reliability


def party(rows: int, seed: int) -> tuple[Any, Any]:
    draw = np.random.default_rng(seed)
    x = draw.normal(size=(rows, 3)).astype("float32")
    return x, (x[:, 0] + draw.normal(size=rows) > 0).astype(int)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    federation = comity.Federation.from_arrays(
        {"north": party(160, 0), "south": party(80, 1)}, test="folds(2)"
    )
    out = tmp_path_factory.mktemp("reliability") / "runs"
    comity.compare(
        ["fedavg"],
        federation,
        seeds=[0, 1, 2, 3],
        rounds=2,
        model="linear",
        out=out,
        progress=False,
    )
    return out


def test_curves_of_all_and_of_each_party_with_enough_samples(folder: Path) -> None:
    page = ReportPage(report(folder, quick=True))
    charts = {chart["name"]: chart for chart in page.charts.values()}
    assert [name for name in charts if name.startswith("reliability")] == [
        "reliability",
        "reliability-north",
        "reliability-south",
    ]
    rows = page.rows("reliability")
    for method in ("solo", "fedavg"):
        assert sum(row["samples"] for row in rows if row["method"] == method) == 240, (
            "each sample counts once, although it is tested on in two repeats"
        )
    assert sum(r["samples"] for r in page.rows("reliability-south") if r["method"] == "solo") == 80
    assert all(0 <= row["low"] <= row["observed"] <= row["high"] <= 1 for row in rows)
    (tips,) = [
        layer["encoding"]["tooltip"]
        for layer in charts["reliability"]["spec"]["layer"]
        if "tooltip" in layer["encoding"]
    ]
    assert [tip["field"] for tip in tips] == [
        "method", "predicted", "observed", "low", "high", "samples",
    ]  # fmt: skip
    assert "of the first repeat" in page.words


def test_a_small_party_has_no_curve_of_its_own(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ENOUGH <= 80
    monkeypatch.setattr(section, "ENOUGH", 100)
    (group,) = gather(folder, False)
    blocks = reliability(group)
    assert [block.name for block in blocks[:-1]] == ["reliability", "reliability-north"]  # type: ignore[union-attr]
    assert "Single parties are drawn from 100 samples on." in blocks[-1].text  # type: ignore[union-attr]


def test_nothing_is_drawn_where_outcomes_are_withheld(folder: Path) -> None:
    (group,) = gather(folder, False)
    for method in group.methods:
        for run in method.finished:
            run.__dict__["answers"] = {k: v for k, v in run.answers.items() if k == "north"}
    blocks = reliability(group)
    assert [block.name for block in blocks[:-1]] == ["reliability"]  # type: ignore[union-attr]
    assert "withholds outcomes are not in these charts" in blocks[-1].text  # type: ignore[union-attr]
    for method in group.methods:
        for run in method.finished:
            run.__dict__["answers"] = {}
    assert reliability(group) == []


def test_no_curve_for_numbers_or_more_classes(tmp_path: Path, folder: Path) -> None:
    run_regression_comparison(tmp_path / "amounts")
    page = ReportPage(report(tmp_path / "amounts", quick=True))
    assert not any(chart["name"].startswith("reliability") for chart in page.charts.values())
    (group,) = gather(folder, False)
    for method in group.methods:
        for run in method.finished:
            classes = {k: replace(a, score=None) for k, a in run.answers.items()}
            run.__dict__["answers"] = classes
    assert reliability(group) == []


def test_a_diverged_model_has_no_curve() -> None:
    answers = Answers(torch.arange(90) % 2, torch.zeros(90), torch.full((90,), torch.nan))
    assert section._bins([answers]) == []
