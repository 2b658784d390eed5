"""Conventions and targets by hand."""

from __future__ import annotations

import pytest

import comity
from comity.core.server import Note
from comity.errors import ComityError
from comity.measure.conventions import PAPERS, conventions, curve, party_curves, run_figures
from comity.measure.targets import (
    TargetReached,
    common_target,
    reach_target,
    rounds_to_target,
)
from comity.wire.ledger import SERVER, Charge

TABLE = {0: (0.0, 0.2), 1: (0.9, 0.5), 2: (0.6, 0.6)}
ROWS = [
    Note(t, p, "test", "accuracy", v)
    for t, line in TABLE.items()
    for p, v in zip("ab", line, strict=True)
]
ROWS += [Note(t, SERVER, "pooled", "accuracy", v) for t, v in ((0, 0.3), (1, 0.8), (2, 0.7))]
ROWS += [Note(2, "a", "validation", "accuracy", 1.0), Note(2, "a", "test", "loss", 9.0)]
ROWS += [Note(3, "c", "test-joined", "accuracy", 1.0)]
SIZES = {"a": 30, "b": 10}


def test_conventions_by_hand():
    figures = conventions(ROWS, SIZES)
    want = {
        "mean_last": 0.6,
        "mean_best": 0.7,
        "mean_last10": (0.1 + 0.7 + 0.6) / 3,
        "weighted_last": 0.6,
        "weighted_best": (0.9 * 30 + 0.5 * 10) / 40,
        "weighted_last10": (0.05 + 0.8 + 0.6) / 3,
        "global_last": 0.7,
        "global_best": 0.8,
        "global_last10": 0.6,
        "P_b": 0.6,
        "P_w": 0.6,
        "P_std": 0.0,
        "worst_tenth": 0.6,
        "jain": 1.0,
    }
    assert figures == pytest.approx(want)
    assert set(PAPERS.values()) <= figures.keys()


def test_only_the_last_ten_rounds_are_averaged():
    rows = [Note(t, "a", "test", "accuracy", float(t >= 5)) for t in range(15)]
    assert conventions(rows, {"a": 1})["mean_last10"] == 1.0
    assert conventions(rows, {"a": 1})["global_last"] is None


def test_curves_of_parties_and_of_all():
    assert party_curves(ROWS) == {"a": {0: 0.0, 1: 0.9, 2: 0.6}, "b": {0: 0.2, 1: 0.5, 2: 0.6}}
    assert curve(ROWS) == pytest.approx({0: 0.1, 1: 0.7, 2: 0.6})
    for wrong in ("median", "weighted"):
        with pytest.raises(ComityError, match="weighted"):
            curve(ROWS, wrong)


LEDGER = [
    Charge(0, "introduce", "a", SERVER, "setup", 5),
    *(Charge(t, "local", SERVER, "a", "down", 100) for t in (1, 2, 3)),
    *(Charge(t, "local", "a", SERVER, "up", 20) for t in (1, 2, 3)),
    *(Charge(t, "evaluate", SERVER, "a", "eval", 1000) for t in (0, 1, 2, 3)),
]
LINE = {0: 0.1, 1: 0.8, 2: 0.3, 3: 0.8, 4: 0.8}


def test_rounds_to_a_target():
    assert rounds_to_target(LINE, 0.8) == 1
    assert rounds_to_target(LINE, 0.81) is None
    assert rounds_to_target(dict(reversed(LINE.items())), 0.8) == 1


def test_bytes_to_a_target_are_all_but_evaluation():
    assert reach_target(LINE, LEDGER, 0.8) == TargetReached(1, 5 + 120)
    assert reach_target(LINE, LEDGER, 0.05) == TargetReached(0, 5)
    assert reach_target(LINE, LEDGER, 0.9) is None


def test_the_target_is_the_lowest_converged_accuracy():
    lines = {"fedavg": LINE, "adcol": {0: 0.9, 1: 0.5, 2: 0.7}}
    assert common_target(lines) == 0.7
    assert common_target(lines, last=2) == pytest.approx(0.6)
    with pytest.raises(ComityError, match="at least one"):
        common_target({"fedavg": {}})


def test_a_run_in_all_conventions_agrees_with_its_summary(tmp_path):
    result = comity.run("fedavg", parties=3, rounds=2, out=tmp_path / "run")
    figures, block = run_figures(tmp_path / "run"), result.summary["accuracy"]
    assert figures["mean_last"] == pytest.approx(block["mean"])
    assert figures["weighted_last"] == pytest.approx(block["weighted"])
    assert figures["weighted_best"] == pytest.approx(block["best_on_test"]["weighted"])
    assert figures["global_last"] == pytest.approx(block["global"])
    assert figures["P_std"] == pytest.approx(block["std"])
    total = result.summary["bytes"]["total"]
    assert reach_target({2: 1.0}, result.ledger, 1.0) == TargetReached(2, total)
    before_training = reach_target(curve(result.metrics), result.ledger, 0.0)
    assert before_training is not None
    assert before_training.bytes < total
