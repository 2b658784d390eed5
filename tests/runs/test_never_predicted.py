"""A model of more than two classes that never predicts one of them says so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import comity
from comity.metrics.evaluation import Answers
from comity.runs.caveats import one_class, one_class_in_folds
from comity.runs.run_warnings import warning_texts


def answers(truth: list[int], given: list[int]) -> Answers:
    return Answers(torch.tensor(truth).int(), torch.tensor(given).int(), None)


def test_a_frequent_class_without_predictions_is_found() -> None:
    truth = [0] * 20 + [1] * 10 + [2] * 9
    assert answers(truth, [0] * 39).never_predicted() == [1], "class 2 has too few samples to say"
    assert answers(truth, truth).never_predicted() == []
    assert answers(truth, [0] * 38 + [1]).never_predicted() == []


def test_a_model_that_is_mostly_wrong_needs_no_such_caveat() -> None:
    truth = [0] * 10 + [1] * 15 + [2] * 15
    assert answers(truth, [0] * 40).never_predicted() == [], "its accuracy of 25% says enough"


def federation(test: str = "own(0.5)") -> comity.Federation:
    """Two parties; one has three separate classes, the other a class without any signal."""
    draw = np.random.default_rng(0)
    y = np.arange(240) % 3
    clear = np.eye(3)[y] * 8 + draw.normal(size=(240, 3))
    hidden = np.array([0, 0, 0, 0, 0, 1, 1, 1, 1, 2] * 24)
    mixed = np.eye(3)[np.minimum(hidden, 1)] * 8 + draw.normal(size=(240, 3))
    return comity.Federation.from_arrays(
        {"clear": (clear, y), "mixed": (mixed, hidden)}, classes=3, test=test
    )


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_run_says_which_party_never_predicts_which_class(tmp_path: Path) -> None:
    result = comity.run("solo", federation(), rounds=10, model="linear", out=tmp_path / "run")
    assert result.summary["never_predicted"] == {"mixed": [2]}
    (text,) = [text for text in warning_texts(result.summary) if "never predict" in text]
    assert "at least 10 test samples are of, at mixed (2): accuracy hides it" in text


def test_of_cross_validation_it_is_one_sentence() -> None:
    summaries: list[dict[str, Any]] = [
        {"never_predicted": {"north": [1, 2]}, "classes": ["cat", "dog", "fox"]},
        {"never_predicted": {"north": [2]}, "classes": ["cat", "dog", "fox"]},
        {"classes": ["cat", "dog", "fox"]},
    ]
    (text,) = one_class_in_folds(summaries)
    assert "north (dog in 1 of 3 runs), north (fox in 2 of 3 runs)" in text
    assert one_class({**summaries[0], "diverged": ["north"]}) == []
