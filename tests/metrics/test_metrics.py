"""Metrics equal scikit-learn's where they are defined, and do not depend on how parties are
evaluated.
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


def scores_and_labels(seed: int, classes: int, n: int = 40) -> tuple[Tensor, Tensor]:
    """Scores with ties, and labels. Every class occurs, except the last of several classes."""
    draw = np.random.default_rng(seed)
    y = np.append(draw.integers(0, max(2, classes - 1), n - 2), [0, 1])
    return torch.from_numpy(draw.integers(-4, 5, (n, classes)) / 2).float(), torch.from_numpy(y)


@pytest.mark.parametrize("classes", [2, 5])
@pytest.mark.parametrize("seed", range(10))
def test_metrics_equal_scikit_learns(seed: int, classes: int) -> None:
    scores, y = scores_and_labels(seed, classes)
    for metric in metrics_for(classes):
        if metric.name in SKLEARN:
            expected = SKLEARN[metric.name](y.numpy(), scores.numpy())
            assert metric.of(scores, y) == pytest.approx(expected, abs=1e-12), metric.name


@pytest.mark.parametrize("name", sorted(METRICS))
@pytest.mark.filterwarnings("ignore")
def test_a_weight_of_two_equals_a_repeated_sample(name: str) -> None:
    scores, y = scores_and_labels(3, 3 if name == "auc_micro" else 2)
    times = torch.arange(len(y)) % 3
    metric = METRICS[name]
    weighted = metric.figures(scores, y, torch.stack([times, torch.ones_like(times)]).double())
    repeated = torch.arange(len(y)).repeat_interleave(times)
    assert weighted.tolist() == pytest.approx(
        [metric.of(scores[repeated], y[repeated]), metric.of(scores, y)], abs=1e-12
    )


OF_CLASSES = [name for name in ELIGIBLE if METRICS[name].fits(2)]


def test_metrics_that_are_undefined_are_none() -> None:
    scores = torch.rand(4, 2)
    ones, zeros, empty = torch.ones(4).long(), torch.zeros(4).long(), torch.zeros(0).long()
    lacking = {
        "ones": {name for name in OF_CLASSES if METRICS[name].of(scores, ones) is None},
        "zeros": {name for name in OF_CLASSES if METRICS[name].of(scores, zeros) is None},
        "empty": {name for name in OF_CLASSES if METRICS[name].of(scores[:0], empty) is None},
    }
    assert lacking == {
        "ones": {"auc", "specificity"},
        "zeros": {"auc", "sensitivity"},
        "empty": set(OF_CLASSES),
    }
    assert (
        METRICS["balanced_accuracy"].of(torch.tensor([[0.0, 1.0]] * 4), ones) == 1.0
    )  # of the classes that are there


def test_a_metric_that_does_not_fit_is_refused() -> None:
    for name in OF_CLASSES:
        check_fits(name, 2)
    for name in ("auc", "sensitivity", "specificity"):
        with pytest.raises(
            UsageError, match=f"metric {name} is for two classes, but these data have 3"
        ):
            check_fits(name, 3)


class Parrot:
    """A task whose logits are its input."""

    def __init__(self, classes: int = 2) -> None:
        self.classes = classes

    def logits(self, theta: object, x: Tensor) -> Tensor:
        return x


def party(seed: int, classes: int, validation: int = 12) -> PartyData:
    scores, y = scores_and_labels(seed, classes)
    test, validation_samples = (
        Samples(scores[validation:], y[validation:]),
        Samples(scores[:validation], y[:validation]),
    )
    return PartyData(test.take([]), validation_samples, test)


@pytest.mark.parametrize("classes", [2, 4])
def test_batched_evaluation_equals_sequential(classes: int) -> None:
    """One pass over all parties' samples gives the same figures, also for parties without
    validation samples.
    """
    parties = [party(0, classes), party(1, classes, validation=0), party(2, classes)]
    for metric in metrics_for(classes):
        together = evaluate_batched(Parrot(), {}, parties, metric.name)  # type: ignore[arg-type]
        alone = [evaluate(Parrot(), {}, data, False, metric.name) for data in parties]  # type: ignore[arg-type]
        for batched, sequential in zip(together, alone, strict=True):
            assert (batched.test.correct, batched.test.figures) == (
                sequential.test.correct,
                sequential.test.figures,
            )
            assert (batched.validation.count, batched.validation.figures) == (
                sequential.validation.count,
                sequential.validation.figures,
            )
            assert batched.test.loss == pytest.approx(sequential.test.loss)
        assert set(together[0].test.figures) == ({metric.name} - {"accuracy"})


def test_the_final_evaluation_has_all_metrics_that_fit() -> None:
    for classes in (2, 4):
        evaluation = evaluate(Parrot(classes), {}, party(0, classes), True)  # type: ignore[arg-type]
        assert set(evaluation.test.figures) == {metric.name for metric in metrics_for(classes)} - {
            "accuracy"
        }
        assert evaluation.validation.figures == {}
        assert evaluation.answers is not None
        assert int(evaluation.answers.right.sum()) == evaluation.test.correct
        scores = evaluation.answers.scores(classes)
        for name in set(evaluation.test.figures) & set(
            ELIGIBLE
        ):  # every metric that can be chosen follows from the answers
            assert (
                METRICS[name].of(scores, evaluation.answers.truth.long())
                == evaluation.test.figures[name]
            )


def test_scores_order_samples_whose_probabilities_are_equal() -> None:
    """For two samples the model is almost certain; AUC still depends on their order."""
    logits = torch.tensor([[0.0, 40.0], [0.0, 41.0]])
    assert len(logits.softmax(1)[:, 1].unique()) == 1
    none = Samples(logits, torch.tensor([0, 1])).take([])
    evaluation = evaluate(
        Parrot(),  # type: ignore[arg-type]
        {},
        PartyData(none, none, Samples(logits, torch.tensor([0, 1]))),
        True,
    )
    assert evaluation.answers is not None
    assert (
        METRICS["auc"].of(evaluation.answers.scores(2), evaluation.answers.truth.long())
        == evaluation.test.figures["auc"]
        == 1.0
    )


def test_a_diverged_model_has_no_auc() -> None:
    assert math.isnan(METRICS["auc"].of(torch.full((2, 2), math.nan), torch.tensor([0, 1])) or 0.0)
