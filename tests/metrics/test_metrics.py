"""The metrics that models are judged by: scikit-learn's, where samples have them, and the same
however parties are evaluated.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import balanced_accuracy_score, f1_score, recall_score, roc_auc_score
from torch import Tensor

from comity.core import PartyData, Samples
from comity.errors import UsageError
from comity.metrics.evaluation import evaluate, evaluate_batched
from comity.metrics.metrics import ELIGIBLE, METRICS, check_fits, metrics_for

pytestmark = pytest.mark.quick

SKLEARN: dict[str, Callable[[Any, Any], float]] = {
    "balanced_accuracy": lambda y, scores: balanced_accuracy_score(y, scores.argmax(1)),
    "macro_f1": lambda y, scores: f1_score(y, scores.argmax(1), average="macro"),
    "sensitivity": lambda y, scores: recall_score(y, scores.argmax(1)),
    "specificity": lambda y, scores: recall_score(y, scores.argmax(1), pos_label=0),
    "auc": lambda y, scores: roc_auc_score(y, scores[:, 1] - scores[:, 0]),
    "accuracy": lambda y, scores: (scores.argmax(1) == y).mean(),
}


def drawn(seed: int, classes: int, n: int = 40) -> tuple[Tensor, Tensor]:
    """Scores with ties, and labels of which there is at least one of each class but, for several,
    the last.
    """
    draw = np.random.default_rng(seed)
    y = np.append(draw.integers(0, max(2, classes - 1), n - 2), [0, 1])
    return torch.from_numpy(draw.integers(-4, 5, (n, classes)) / 2).float(), torch.from_numpy(y)


@pytest.mark.parametrize("classes", [2, 5])
@pytest.mark.parametrize("seed", range(10))
def test_they_are_scikit_learns(seed: int, classes: int) -> None:
    scores, y = drawn(seed, classes)
    for metric in metrics_for(classes):
        if metric.name in SKLEARN:
            expected = SKLEARN[metric.name](y.numpy(), scores.numpy())
            assert metric.of(scores, y) == pytest.approx(expected, abs=1e-12), metric.name


@pytest.mark.parametrize("name", sorted(METRICS))
@pytest.mark.filterwarnings("ignore")
def test_a_weight_of_two_is_a_sample_that_is_there_twice(name: str) -> None:
    scores, y = drawn(3, 3 if name == "auc_micro" else 2)
    times = torch.arange(len(y)) % 3
    metric = METRICS[name]
    weighted = metric.figures(scores, y, torch.stack([times, torch.ones_like(times)]).double())
    repeated = torch.arange(len(y)).repeat_interleave(times)
    assert weighted.tolist() == pytest.approx(
        [metric.of(scores[repeated], y[repeated]), metric.of(scores, y)], abs=1e-12
    )


OF_CLASSES = [name for name in ELIGIBLE if METRICS[name].fits(2)]


def test_where_there_is_none() -> None:
    scores = torch.rand(4, 2)
    ones, zeros, nobody = torch.ones(4).long(), torch.zeros(4).long(), torch.zeros(0).long()
    lacking = {
        "ones": {name for name in OF_CLASSES if METRICS[name].of(scores, ones) is None},
        "zeros": {name for name in OF_CLASSES if METRICS[name].of(scores, zeros) is None},
        "nobody": {name for name in OF_CLASSES if METRICS[name].of(scores[:0], nobody) is None},
    }
    assert lacking == {
        "ones": {"auc", "specificity"},
        "zeros": {"auc", "sensitivity"},
        "nobody": set(OF_CLASSES),
    }
    assert (
        METRICS["balanced_accuracy"].of(torch.tensor([[0.0, 1.0]] * 4), ones) == 1.0
    )  # of the classes that are there


def test_one_that_does_not_fit_is_refused_in_a_sentence() -> None:
    for name in OF_CLASSES:
        check_fits(name, 2)
    for name in ("auc", "sensitivity", "specificity"):
        with pytest.raises(
            UsageError, match=f"metric {name} is for two classes, but these data have 3"
        ):
            check_fits(name, 3)


class Parrot:
    """A task whose answer is what it is asked."""

    def __init__(self, classes: int = 2) -> None:
        self.classes = classes

    def logits(self, theta: object, x: Tensor) -> Tensor:
        return x


def party(seed: int, classes: int, validation: int = 12) -> PartyData:
    scores, y = drawn(seed, classes)
    test, held = (
        Samples(scores[validation:], y[validation:]),
        Samples(scores[:validation], y[:validation]),
    )
    return PartyData(test.take([]), held, test)


@pytest.mark.parametrize("classes", [2, 4])
def test_together_is_as_one_by_one(classes: int) -> None:
    """One pass over everybody's samples gives the very figures; parties without validation samples,
    too.
    """
    parties = [party(0, classes), party(1, classes, validation=0), party(2, classes)]
    for metric in metrics_for(classes):
        together = evaluate_batched(Parrot(), {}, parties, metric.name)  # type: ignore[arg-type]
        alone = [evaluate(Parrot(), {}, data, False, metric.name) for data in parties]  # type: ignore[arg-type]
        for one, other in zip(together, alone, strict=True):
            assert (one.test.correct, one.test.figures) == (other.test.correct, other.test.figures)
            assert (one.validation.count, one.validation.figures) == (
                other.validation.count,
                other.validation.figures,
            )
            assert one.test.loss == pytest.approx(other.test.loss)
        assert set(together[0].test.figures) == ({metric.name} - {"accuracy"})


def test_at_the_end_there_are_all_that_fit() -> None:
    for classes in (2, 4):
        found = evaluate(Parrot(classes), {}, party(0, classes), True)  # type: ignore[arg-type]
        assert set(found.test.figures) == {metric.name for metric in metrics_for(classes)} - {
            "accuracy"
        }
        assert found.validation.figures == {}
        assert found.answers is not None
        assert int(found.answers.right.sum()) == found.test.correct
        scores = found.answers.scores(classes)
        for name in set(found.test.figures) & set(
            ELIGIBLE
        ):  # the answers tell all that can be chosen
            assert METRICS[name].of(scores, found.answers.truth.long()) == found.test.figures[name]


def test_answers_keep_apart_what_probabilities_would_not() -> None:
    """Two samples of which the model is all but certain: their order counts all the same."""
    logits = torch.tensor([[0.0, 40.0], [0.0, 41.0]])
    assert len(logits.softmax(1)[:, 1].unique()) == 1
    none = Samples(logits, torch.tensor([0, 1])).take([])
    found = evaluate(
        Parrot(),  # type: ignore[arg-type]
        {},
        PartyData(none, none, Samples(logits, torch.tensor([0, 1]))),
        True,
    )
    assert found.answers is not None
    assert (
        METRICS["auc"].of(found.answers.scores(2), found.answers.truth.long())
        == found.test.figures["auc"]
        == 1.0
    )


def test_what_diverged_has_no_area() -> None:
    assert math.isnan(METRICS["auc"].of(torch.full((2, 2), math.nan), torch.tensor([0, 1])) or 0.0)
