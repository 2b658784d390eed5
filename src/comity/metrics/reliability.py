"""How far predicted probabilities agree with outcomes, for two classes: the Brier score, the
calibration slope and intercept, and the points of a reliability curve.

All start from the score of a sample, the second logit minus the first: the probability of class 1
is its sigmoid.

Sums are taken as sums, not as products of matrices: the last bits of the latter depend on where
their tensors are in memory, and all engines must agree on every bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

Z95 = 1.959963984540054
"""The normal quantile of a two-sided 95% interval."""
MOST_BINS = 10
"""The most bins of a reliability curve."""
BIN_SAMPLES = 15
"""The fewest samples of a bin, about: with fewer, its interval says next to nothing."""
TINY = 1e-12
"""A step of Newton's method after which the next would change nothing."""
NEWTON_STEPS = 100
"""More than a fit that exists needs: about ten."""


def brier(score: Tensor, y: Tensor, weights: Tensor) -> Tensor:
    """Return the mean squared difference between the probability of class 1 and the outcome, for
    each row of weights.
    """
    error = (score.to(weights.dtype).sigmoid() - y.to(weights.dtype)).square()
    return (weights * error).sum(1) / weights.sum(1)


def calibration_slopes(score: Tensor, y: Tensor, weights: Tensor) -> Tensor:
    """Return the slope of a logistic regression of the outcome on the score, for each row of
    weights: 1 if probabilities are as extreme as they should be, less if they are too extreme.

    It is infinite where a threshold separates the classes, and NaN where a score is NaN.
    """
    return torch.stack([_slope(score.double(), y.double(), row) for row in weights])


def calibration_intercepts(score: Tensor, y: Tensor, weights: Tensor) -> Tensor:
    """Return how much is to be added to all scores so that the mean probability of class 1 is its
    share, for each row of weights: less than 0 if class 1 is predicted with too high probabilities.
    """
    return torch.stack([_intercept(score.double(), y.double(), row) for row in weights])


def _slope(score: Tensor, y: Tensor, weight: Tensor) -> Tensor:
    if not score.isfinite().all():
        return score.new_tensor(math.nan)
    present = weight > 0
    ones, zeros = score[present & (y == 1)], score[present & (y == 0)]
    if not len(ones) or not len(zeros):
        return score.new_tensor(math.nan)
    if ones.min() >= zeros.max() or ones.max() <= zeros.min():
        return score.new_tensor(math.inf)
    return score.new_tensor(fit_line(score, y, weight)[0])


def _intercept(score: Tensor, y: Tensor, weight: Tensor) -> Tensor:
    share = (weight * y).sum() / weight.sum()
    if not score.isfinite().all() or not 0 < share < 1:
        return score.new_tensor(math.nan)
    return score.new_tensor(fit_intercept(score, y, weight))


def fit_line(score: Tensor, target: Tensor, weight: Tensor) -> tuple[float, float]:
    """Return the slope and the intercept of a logistic regression of targets between 0 and 1 on
    scores: the maximum of the likelihood, by Newton's method with step halving.

    The caller makes sure that a finite maximum exists: no threshold on the scores separates targets
    of 0 from targets of 1, and the scores differ.
    """
    middle, spread = float(score.mean()), float(score.std())
    x = (score - middle) / spread

    def total(values: Tensor) -> float:
        return float((weight * values).sum())

    def loss(a: float, b: float) -> float:
        return total(F.softplus(a * x + b) - target * (a * x + b))

    a, b = 0.0, 0.0
    for _ in range(NEWTON_STEPS):
        chance = (a * x + b).sigmoid()
        gradient = total((chance - target) * x), total(chance - target)
        width = chance * (1 - chance)
        xx, x1, one = total(width * x * x), total(width * x), total(width)
        determinant = xx * one - x1 * x1
        if determinant <= 0:
            break
        step_a = (one * gradient[0] - x1 * gradient[1]) / determinant
        step_b = (xx * gradient[1] - x1 * gradient[0]) / determinant
        most = loss(a, b) * (1 + TINY)  # near the optimum, losses differ by rounding only
        while loss(a - step_a, b - step_b) > most and max(abs(step_a), abs(step_b)) > TINY:
            step_a, step_b = step_a / 2, step_b / 2
        a, b = a - step_a, b - step_b
        if max(abs(step_a), abs(step_b)) <= TINY:
            break
    return a / spread, b - a * middle / spread


def fit_intercept(score: Tensor, target: Tensor, weight: Tensor) -> float:
    """Return what is to be added to the scores so that the mean of their sigmoids is the mean of
    the targets, which is neither 0 nor 1.
    """
    total = float((weight * target).sum())
    # A mean of 1e-9 is reached about 21 below the score of its sample; 50 are more than enough.
    return root(
        lambda added: float((weight * (score + added).sigmoid()).sum()) - total,
        float(-score.max()) - 50,
        float(-score.min()) + 50,
    )


def root(increasing: Callable[[float], float], low: float, high: float) -> float:
    """Return where an increasing function crosses zero between two numbers, by bisection; the
    nearer end if it does not.

    Examples:
        >>> round(root(lambda x: x**3 - 8, 0.0, 10.0), 6)
        2.0
    """
    while True:
        middle = (low + high) / 2
        if not low < middle < high:  # no number is between them
            return middle
        if increasing(middle) < 0:
            low = middle
        else:
            high = middle


@dataclass(frozen=True)
class ReliabilityBin:
    """Samples with similar probabilities of class 1, and how many of them are of class 1."""

    predicted: float
    """The mean probability."""
    observed: float
    """The share of class 1."""
    low: float
    high: float
    """The ends of the 95% Wilson interval of that share."""
    samples: int


def reliability_bins(score: Tensor, y: Tensor) -> list[ReliabilityBin]:
    """Return the points of a reliability curve: bins of about equally many samples, by increasing
    probability of class 1.

    There are `MOST_BINS` bins, or fewer with at least `BIN_SAMPLES` samples each. Samples with
    equal probabilities are in one bin. Without two such bins there is no curve, and with a
    probability that is not finite neither.
    """
    chance = score.double().sigmoid()
    number = min(MOST_BINS, len(chance) // BIN_SAMPLES)
    if number < 2 or not score.isfinite().all():
        return []
    inner = torch.arange(1, number, dtype=torch.double) / number
    bin_of = torch.searchsorted(chance.quantile(inner).unique(), chance, right=True)
    bins = []
    for k in bin_of.unique():
        here = bin_of == k
        samples, ones = int(here.sum()), int((y[here] == 1).sum())
        low, high = wilson_interval(ones, samples)
        bins.append(ReliabilityBin(float(chance[here].mean()), ones / samples, low, high, samples))
    return bins


def wilson_interval(successes: int, trials: int) -> tuple[float, float]:
    """Return Wilson's 95% interval of a proportion.

    Examples:
        >>> low, high = wilson_interval(5, 10)
        >>> round(low, 4), round(high, 4)
        (0.2366, 0.7634)
    """
    share = successes / trials
    scale = 1 + Z95**2 / trials
    middle = (share + Z95**2 / (2 * trials)) / scale
    half = Z95 * math.sqrt(share * (1 - share) / trials + Z95**2 / (4 * trials**2)) / scale
    return max(0.0, middle - half), min(1.0, middle + half)
