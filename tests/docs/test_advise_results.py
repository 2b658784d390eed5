"""The results of `comity advise`: the page follows from the file beside it, and the guide too."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "benchmarks"
MOST_BYTES = 300_000


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(BENCHMARKS)
        return runpy.run_path(str(BENCHMARKS / "advise.py"))


@pytest.fixture(scope="module")
def results(script: dict[str, Any]) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(script["RESULTS"].read_text(encoding="utf-8"))
    return content


def test_the_page_follows_from_the_results(script: dict[str, Any], results: dict[str, Any]) -> None:
    page = script["PAGE"].read_text(encoding="utf-8")
    assert page == script["page"](results), "run: python benchmarks/advise.py"


def test_the_guide_repeats_the_summary(script: dict[str, Any], results: dict[str, Any]) -> None:
    guide = (ROOT / "docs" / "how-to" / "advise.md").read_text(encoding="utf-8")
    assert script["summary"](results["federations"]) in " ".join(guide.split())


def test_the_results_are_a_small_file(script: dict[str, Any]) -> None:
    assert script["RESULTS"].stat().st_size < MOST_BYTES


def test_the_page_names_the_constants_of_the_rule(script: dict[str, Any]) -> None:
    noise = script["TrainingNoise"]()
    assert f"{noise.seeds:g} times the disagreement" in script["PAGE"].read_text(encoding="utf-8")


def federation(kind: str, advised: str, **accuracies: float) -> dict[str, Any]:
    return {
        "name": "f",
        "kind": kind,
        "advised": advised,
        "finalist": "a",
        "gain": [0.0, -0.05, 0.05],
        "claims": [[advised, "solo"]] if kind == "use" else [],
        "parties": [],
        "methods": {m: [v, v, v, 0.0] for m, v in accuracies.items()},
    }


def test_wrong_claims_are_counted(script: dict[str, Any]) -> None:
    table = "\n".join(
        script["verdict_table"](
            [
                federation("use", "a", solo=0.5, a=0.6),
                federation("use", "a", solo=0.5, a=0.46),
                federation("alone", "solo", solo=0.5, a=0.4),
                federation("alone", "solo", solo=0.5, a=0.53),
            ]
        )
    )
    assert "worse than training alone on fresh samples | 1 of 2" in table
    assert "worse by more than a point on fresh samples | 1 of 2" in table
    assert "where a method is better by 2 points | 1 of 2" in table
    assert "is not in its interval | 2 of 4" in table


def test_the_bound_of_no_wrong_claim_is_that_of_the_rule_of_three(script: dict[str, Any]) -> None:
    assert script["share"](0, 18) == "0 of 18 (0%; at most 15%)"
    assert script["share"](0, 0) == "0 of 0"


def test_regret_is_the_distance_to_the_best(script: dict[str, Any]) -> None:
    assert script["regret"](federation("use", "a", solo=0.5, a=0.45, b=0.6), "a") == pytest.approx(
        15
    )
