"""docs/results/methods-beside.md is generated from saved curves, and gives a reason where two libraries
differ.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import pytest

from comity import algorithms

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def beside(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("beside")


def curves(*ends: float) -> list[list[int]]:
    """For each seed the number of right answers in round 0 and in twenty rounds."""
    return [[0, *[round(end)] * 20] for end in ends]


def comparison(beside, theirs, ours, whole=None):
    return beside.Found("fedavg", "pfllib", "serveravg.FedAvg", theirs, ours, whole)


def test_page_matches_its_data(beside):
    assert beside.PAGE.read_text(encoding="utf-8") == beside.page(beside.read()), (
        "run: benchmarks/beside.py --page"
    )


def test_every_difference_has_a_reason(beside):
    reasons = {m.key: m.why for m in beside.MATCHES}
    data = beside.read()
    apart = [f.key for f in data["found"] if beside.judged(f, data["tests"]).verdict == "apart"]
    assert [key for key in apart if not reasons[key]] == []


def test_compared_methods_are_those_of_the_list(beside):
    keys = [m.key for m in beside.MATCHES]
    assert len(set(keys)) == len(keys)
    assert {f.key for f in beside.read()["found"]} <= set(keys)


def test_cards_name_the_compared_libraries(beside):
    silent = []
    for item in beside.read()["found"]:
        name = item.ours.partition("(")[0].rpartition("+")[2]
        text = algorithms.card(name).text.partition("\nCompared: ")[2]
        if beside.NAMES[item.library] not in text:
            silent.append((name, item.library))
    assert silent == []


def test_difference_within_seeds_is_within(beside):
    close = beside.judged(
        comparison(beside, curves(400, 410, 420), curves(405, 415, 425)), tests=500
    )
    assert close.verdict == "within"
    assert close.there == pytest.approx((82.0, 2.0))


def test_larger_difference_is_apart(beside):
    assert (
        beside.judged(
            comparison(beside, curves(400, 401, 402), curves(430, 431, 432)), tests=500
        ).verdict
        == "apart"
    )


def test_gap_in_a_single_round_is_apart(beside):
    theirs, ours = curves(400, 401, 402), curves(400, 401, 402)
    for curve in ours:
        curve[7] -= 40
    line = beside.judged(comparison(beside, theirs, ours), tests=500)
    assert (line.verdict, line.gap) == ("apart", pytest.approx(8.0))


def test_equal_answers_on_full_batches_are_the_same(beside):
    near = curves(400, 401, 402)
    assert [
        beside.judged(comparison(beside, near, near, whole), tests=500).verdict
        for whole in (0, 5, 6, None)
    ] == [
        "the same",
        "the same",
        "within",
        "within",
    ]


def test_answers_are_compared_party_by_party(beside):
    assert beside.apart([[9, 9], [5, 5], [5, 5]], [[0, 0], [5, 5], [6, 4]]) == 2
