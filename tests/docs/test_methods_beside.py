"""docs/methods-beside.md is made of the curves that are kept and of nothing else, and says why
where two libraries are apart.
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
    """A seed's right answers in each of twenty rounds, after those of round 0."""
    return [[0, *[round(end)] * 20] for end in ends]


def found(beside, there, here, whole=None):
    return beside.Found("fedavg", "pfllib", "serveravg.FedAvg", there, here, whole)


def test_the_page_is_that_of_its_data(beside):
    assert beside.PAGE.read_text(encoding="utf-8") == beside.page(beside.read()), (
        "benchmarks/beside.py --page writes it again"
    )


def test_whatever_is_apart_has_a_reason(beside):
    reasons = {m.key: m.why for m in beside.MATCHES}
    kept = beside.read()
    apart = [f.key for f in kept["found"] if beside.judged(f, kept["tests"]).verdict == "apart"]
    assert [key for key in apart if not reasons[key]] == []


def test_what_was_found_is_of_the_list(beside):
    keys = [m.key for m in beside.MATCHES]
    assert len(set(keys)) == len(keys)
    assert {f.key for f in beside.read()["found"]} <= set(keys)


def test_the_card_of_whatever_was_compared_says_with_whom(beside):
    silent = []
    for each in beside.read()["found"]:
        name = each.ours.partition("(")[0].rpartition("+")[2]
        said = algorithms.card(name).text.partition("\nCompared: ")[2]
        if beside.NAMES[each.library] not in said:
            silent.append((name, each.library))
    assert silent == []


def test_two_libraries_may_differ_by_as_much_as_seeds_do(beside):
    close = beside.judged(found(beside, curves(400, 410, 420), curves(405, 415, 425)), tests=500)
    assert close.verdict == "within"
    assert close.there == pytest.approx((82.0, 2.0))


def test_two_libraries_that_differ_by_more_are_apart(beside):
    assert (
        beside.judged(
            found(beside, curves(400, 401, 402), curves(430, 431, 432)), tests=500
        ).verdict
        == "apart"
    )


def test_a_gap_in_a_single_round_is_enough(beside):
    there, here = curves(400, 401, 402), curves(400, 401, 402)
    for curve in here:
        curve[7] -= 40
    line = beside.judged(found(beside, there, here), tests=500)
    assert (line.verdict, line.gap) == ("apart", pytest.approx(8.0))


def test_the_same_are_those_with_the_same_answers_on_whole_batches(beside):
    near = curves(400, 401, 402)
    assert [
        beside.judged(found(beside, near, near, whole), tests=500).verdict
        for whole in (0, 5, 6, None)
    ] == [
        "the same",
        "the same",
        "within",
        "within",
    ]


def test_answers_are_compared_party_by_party(beside):
    assert beside.apart([[9, 9], [5, 5], [5, 5]], [[0, 0], [5, 5], [6, 4]]) == 2
