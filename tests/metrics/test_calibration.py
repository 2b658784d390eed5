"""Calibration: thresholds, temperature and Platt's constants, and the measures of calibration, by
hand and against scikit-learn.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.optimize import minimize_scalar
from sklearn.calibration import _SigmoidCalibration
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import brier_score_loss
from torch import Tensor

from comity.core import PartyData, Samples
from comity.errors import UsageError
from comity.metrics.calibration import (
    MOST_SCALE,
    UNCALIBRATED,
    Calibration,
    balanced_threshold,
    calibrate,
    calibration_split,
    check_calibrate,
    parse_calibrate,
    smoothed_targets,
    specific_threshold,
)
from comity.metrics.metrics import METRICS
from comity.metrics.reliability import fit_intercept
from comity.models import build
from comity.training.task import LearningTask

pytestmark = pytest.mark.quick


def drawn(seed: int, n: int = 300, factor: float = 1.0) -> tuple[Tensor, Tensor]:
    """Logits of two classes, and labels that the logits predict, too confidently by `factor`."""
    draw = np.random.default_rng(seed)
    score = draw.normal(-1, 2, n)
    y = draw.random(n) < 1 / (1 + np.exp(-score))
    return torch.tensor(np.stack([np.zeros(n), factor * score], 1)), torch.tensor(y).long()


def measured(name: str, logits: Tensor, y: Tensor) -> float:
    value = METRICS[name].of(logits, y)
    assert value is not None
    return value


@pytest.mark.parametrize("seed", range(5))
def test_measures_equal_scikit_learns(seed: int) -> None:
    logits, y = drawn(seed, factor=2.0)
    score = logits[:, 1].numpy()
    chance = 1 / (1 + np.exp(-score))
    assert measured("brier", logits, y) == pytest.approx(brier_score_loss(y, chance))
    line = LogisticRegression(C=np.inf, tol=1e-10, max_iter=1000).fit(score[:, None], y)
    assert measured("calibration_slope", logits, y) == pytest.approx(line.coef_[0, 0], rel=1e-5)
    moved = score + measured("calibration_intercept", logits, y)
    assert (1 / (1 + np.exp(-moved))).mean() == pytest.approx(y.double().mean())


def test_an_overconfident_model_has_a_slope_below_one() -> None:
    for factor in (0.5, 1.0, 3.0):
        logits, y = drawn(0, n=20_000, factor=factor)
        assert measured("calibration_slope", logits, y) == pytest.approx(1 / factor, rel=0.06)
        assert measured("calibration_intercept", logits, y) == pytest.approx(0, abs=1.1)


def test_separated_classes_have_no_slope_and_a_diverged_model_a_nan() -> None:
    slope = METRICS["calibration_slope"]
    y = torch.tensor([0, 0, 1, 1])
    assert slope.of(torch.tensor([[0, -2.0], [0, -1], [0, 1], [0, 3]]), y) is None
    assert slope.of(torch.zeros(4, 2), y) is None  # of equal scores, too
    assert slope.of(torch.zeros(4, 2), torch.zeros(4).long()) is None
    broken = torch.full((4, 2), math.nan)
    for name in ("brier", "calibration_slope", "calibration_intercept"):
        assert math.isnan(measured(name, broken, y))


def test_a_threshold_by_hand() -> None:
    # All scores are below 0, so that class 1 was never predicted.
    score = torch.tensor([-5.0, -4, -3, -2, -1]).double()
    y = torch.tensor([0, 0, 1, 0, 1])
    # -3.5 recognises 2 of 3 and 2 of 2; -1.5 recognises 3 of 3 and 1 of 2: 5/6 is more than 3/4.
    assert balanced_threshold(score, y) == -3.5
    # Two of three recognised are too few for 90%, so all must be below.
    assert specific_threshold(score, y, 0.9) == -1.5
    assert specific_threshold(score, y, 0.6) == -3.5


def test_of_equally_good_thresholds_the_nearest_to_zero_is_taken() -> None:
    score = torch.tensor([-4.0, -3, -2, -1]).double()
    assert balanced_threshold(score, torch.tensor([0, 1, 0, 1])) == -1.5
    assert balanced_threshold(-score, torch.tensor([1, 0, 1, 0])) == 1.5
    assert balanced_threshold(torch.zeros(4), torch.tensor([0, 1, 0, 1])) == 0


@pytest.mark.parametrize("seed", range(5))
def test_platt_equals_scikit_learns(seed: int) -> None:
    logits, y = drawn(seed, factor=4.0)
    fit = parse_calibrate("platt")
    assert fit is not None
    scale, shift = fit(logits, y)
    theirs = _SigmoidCalibration().fit(logits[:, 1].numpy(), y.numpy())
    assert (scale, shift) == pytest.approx((-theirs.a_, -theirs.b_), abs=1e-3)
    before, after = (
        measured("brier", Calibration("platt", *line).apply(logits), y)
        for line in ((1.0, 0.0), (scale, shift))
    )
    assert after < before - 0.01


@pytest.mark.parametrize("classes", [2, 5])
def test_the_temperature_minimises_the_cross_entropy(classes: int) -> None:
    draw = np.random.default_rng(0)
    logits = torch.tensor(draw.normal(0, 1, (400, classes)))
    y = torch.distributions.Categorical(logits=logits).sample().long()
    fit = parse_calibrate("temperature")
    assert fit is not None
    target = smoothed_targets(y, classes)
    best = minimize_scalar(
        lambda scale: float(F.cross_entropy(4 * logits * scale, target)), bracket=(0.1, 1)
    )
    scale, shift = fit(4 * logits, y)
    assert shift == 0
    assert scale == pytest.approx(best.x, rel=1e-5)
    assert scale == pytest.approx(0.25, rel=0.3)


def test_platts_targets() -> None:
    target = smoothed_targets(torch.tensor([0, 0, 0, 1]), 2)
    assert target[:, 1].tolist() == pytest.approx([1 / 5, 1 / 5, 1 / 5, 2 / 3])
    assert smoothed_targets(torch.tensor([2, 0]), 3).sum(1).tolist() == pytest.approx([1, 1])


@pytest.mark.parametrize("how", ["threshold", "threshold(specificity=0.9)", "temperature", "platt"])
@pytest.mark.parametrize(
    "score",
    [[-2.0, -1, 1, 2], [2.0, 1, -1, -2], [0.0, 0, 0, 0], [-1e30, 1, 2, 1e30], [5.0, 5, 5, 6]],
)
def test_extreme_scores_keep_their_order(how: str, score: list[float]) -> None:
    """Separated, reversed, equal and huge scores: the map is finite and increasing."""
    logits = torch.tensor([[0.0, s] for s in score]).double()
    fit = parse_calibrate(how)
    assert fit is not None
    scale, shift = fit(logits, torch.tensor([0, 0, 1, 1]))
    assert math.isfinite(shift)
    assert 0 < scale <= MOST_SCALE


def test_an_intercept_far_away_is_found() -> None:
    score = torch.tensor([-400.0, -400, -400]).double()
    added = fit_intercept(score, torch.tensor([0.0, 1, 0]).double(), torch.ones(3).double())
    assert added == pytest.approx(400 + math.log(0.5))


# Which samples, and which settings.


def data_of(train: list[int], validation: list[int]) -> PartyData:
    def samples(counts: list[int]) -> Samples:
        y = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
        x = torch.linspace(-1, 1, len(y) * 3).reshape(len(y), 3) + y[:, None]
        return Samples(x, y)

    return PartyData(samples(train), samples(validation), samples([4, 4]))


@pytest.mark.parametrize(
    ("train", "validation", "only_validation", "expected"),
    [
        ([9, 9], [5, 5], False, "validation"),
        ([9, 9], [4, 50], False, "train"),
        ([9, 1], [0, 0], False, "train"),
        ([9, 0], [9, 1], False, None),
        ([9, 9], [4, 50], True, None),
        ([9, 9], [5, 5], True, "validation"),
    ],
)
def test_samples_that_a_calibration_is_fitted_on(
    train: list[int], validation: list[int], only_validation: bool, expected: str | None
) -> None:
    data = data_of(train, validation)
    assert calibration_split(data, 2, only_validation=only_validation) == expected
    network = build("linear", (3,), 2)
    task = LearningTask(network, 2, network.cut)
    theta = {name: torch.ones(shape) for name, (shape, _) in task.shapes.items()}
    theta = {
        name: value * torch.arange(value.numel()).reshape(value.shape)
        for name, value in theta.items()
    }
    fitted = calibrate("platt", task, theta, data, only_validation=only_validation)
    assert fitted.samples == (expected or "")
    assert (fitted == UNCALIBRATED) == (expected is None)


@pytest.mark.parametrize(
    ("how", "classes", "words"),
    [
        ("thresold", 2, "threshold"),
        ("threshold(specificity=1.5)", 2, "between 0 and 1, not 1.5"),
        ("threshold(specificity=none)", 2, "specificity of threshold must be a number"),
        ("platt(3)", 2, "at most 0 values"),
        ("threshold", 3, "use temperature"),
        ("platt", 3, "use temperature"),
        ("none(3)", 2, "none"),
        ("temperature", 0, "a number"),
    ],
)
def test_settings_that_do_not_fit_are_refused(how: str, classes: int, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        check_calibrate(how, classes)


def test_settings_that_fit() -> None:
    check_calibrate("temperature", 10)
    check_calibrate("none", 0)
    check_calibrate("threshold(specificity=0.9)", 2)
