"""Summaries and gains, by hand."""

from __future__ import annotations

import math

import pytest

from comity.core.server import Note
from comity.measure.gain import gains, paired_interval
from comity.metrics.metrics import METRICS
from comity.runs.summary import accuracy, final_block


def rows(split: str, table: dict[int, dict[str, float]]) -> list[Note]:
    return [Note(t, p, split, "accuracy", v) for t, line in table.items() for p, v in line.items()]


def test_accuracy_block_by_hand():
    test = {0: {"a": 0.1, "b": 0.2}, 1: {"a": 0.9, "b": 0.4}, 2: {"a": 0.6, "b": 0.5}}
    validation = {0: {"a": 0.0, "b": 0.0}, 1: {"a": 0.5, "b": 0.5}, 2: {"a": 0.8, "b": 0.9}}
    summary = accuracy(
        rows("test", test) + rows("validation", validation),
        max(test),
        {"a": 30, "b": 10},
        {"a": 3, "b": 1},
    )
    assert summary["mean"] == pytest.approx(0.55)
    assert summary["weighted"] == pytest.approx((0.6 * 30 + 0.5 * 10) / 40)
    assert summary["std"] == pytest.approx(0.05)
    assert (summary["best_party"], summary["worst_party"], summary["global"]) == ("a", "b", None)
    assert summary["best_round"]["round"] == 2
    assert summary["best_on_test"] == {
        "round": 1,
        "mean": pytest.approx(0.65),
        "weighted": pytest.approx(0.775),
    }


def test_without_validation_no_round_is_chosen_by_it():
    summary = accuracy(rows("test", {0: {"a": 0.1}}), 0, {"a": 3}, {"a": 0})
    assert summary["best_round"] is None


def test_of_equal_rounds_the_first_is_best():
    summary = accuracy(rows("test", {0: {"a": 0.5}, 1: {"a": 0.5}}), 1, {"a": 2}, {"a": 0})
    assert summary["best_on_test"]["round"] == 0


def test_paired_interval_of_agresti_and_min_by_hand():
    low, high = paired_interval(better=10, worse=2, count=100)
    b, c, n = 10.5, 2.5, 102.0
    half = 1.959964 * math.sqrt((b + c) - (b - c) ** 2 / n) / n
    assert (low, high) == (pytest.approx((b - c) / n - half), pytest.approx((b - c) / n + half))


def test_no_difference_is_never_a_gain():
    low, high = paired_interval(0, 0, 20)
    assert low < 0 < high


def test_the_interval_covers_about_95_percent():
    import numpy as np

    draw = np.random.default_rng(0)
    p = (0.15, 0.05, 0.8)  # better, worse, tied: a true gain of 0.1
    hits = 0
    for _ in range(2000):
        better, worse, _ = draw.multinomial(60, p)
        low, high = paired_interval(int(better), int(worse), 60)
        hits += low <= 0.1 <= high
    assert 0.93 < hits / 2000 < 0.985


def test_gains_pair_the_same_samples(tmp_path):
    for name, right in {"ours": [1, 1, 1, 0], "solo": [0, 1, 0, 1]}.items():
        folder = tmp_path / name
        folder.mkdir()
        lines = ["party,sample,correct", *(f"p,{k},{ok}" for k, ok in enumerate(right))]
        (folder / "outcomes.csv").write_text("\n".join(lines) + "\n")
    (gain,) = gains(tmp_path / "ours", tmp_path / "solo")
    assert (gain.party, gain.gain, gain.low, gain.high) == ("p", 0.25, *paired_interval(2, 1, 4))
    assert gain.low <= 0 <= gain.high


def test_the_mean_is_none_if_a_party_diverged_but_not_if_one_was_offline():
    def rows(*last):
        return [
            Note(1, party, "test", "auc", value)
            for party, value in zip("abc", (0.9, 0.7, 0.8), strict=True)
        ] + [Note(2, party, "test", "auc", value) for party, value in last]

    tests = {"a": 10, "b": 30, "c": 10, "nobody": 10}
    block = (
        final_block(rows(("a", 0.5), ("b", 0.6)), METRICS["auc"], tests) or {}
    )  # c was not evaluated: its last figure counts
    assert block["per_party"] == {"a": 0.5, "b": 0.6, "c": 0.8}
    assert (block["mean"], block["weighted"]) == pytest.approx((1.9 / 3, 31 / 50))
    assert (block["best_party"], block["worst_party"], block["missing"]) == ("c", "a", ["nobody"])
    block = final_block(rows(("a", 0.5), ("b", math.nan), ("c", 0.8)), METRICS["auc"], tests) or {}
    assert (block["mean"], block["weighted"], block["std"]) == (
        None,
        None,
        None,
    )  # not 0.65, nor that of an earlier round
    assert (block["per_party"], block["missing"]) == ({"a": 0.5, "c": 0.8}, ["b", "nobody"])
    assert final_block([], METRICS["auc"], tests) is None
