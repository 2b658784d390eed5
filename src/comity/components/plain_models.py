"""Plain models of a party's own table: regularised logistic or ridge regression, and gradient
boosting, as scikit-learn trains them.

They are what a party would use without a federation. Everything is chosen on its training samples:
the penalty, and how good a model is, by cross-validation over them.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from comity.base.samples import Ints, Samples
from comity.metrics.out_of_fold import in_order

PENALTIES = tuple(float(10.0**k) for k in range(4, -5, -1))
"""The penalties that are tried, the strongest first: of ridge regression, and 1/C of logistic
regression. Inputs are standardised before.
"""
BOOSTED_TREES = 100
MOST_IN_LEAF = 20
"""scikit-learn's smallest number of samples in a leaf. A small party gets a tenth of its samples,
as its trees would otherwise have no split.
"""
LEAST_IN_LEAF = 2
UNSEEN = math.log(1e-6)
"""The largest log-probability of a class that the party has not seen in training."""


@dataclass(frozen=True)
class Predictor:
    """A fitted model: from inputs to logits (samples x classes), or to values (samples x 1) of a
    label in numbers.
    """

    fitted: Any
    """The model of scikit-learn; None if the party has one class in training."""
    classes: int
    only: int = 0
    """That class."""

    def __call__(self, x: Tensor) -> Tensor:
        """Return the logits or values of samples."""
        if self.fitted is None:
            logits = torch.full((self.classes,), UNSEEN, dtype=torch.double)
            logits[self.only] = 0.0
            return logits.expand(len(x), self.classes)
        return _predict(self.fitted, self.classes, x)


@dataclass(frozen=True)
class PlainModel:
    """A plain model, trained on all training samples of a party."""

    logits: Predictor
    out_of_fold: Tensor
    """The logits of the training samples, each by a model that was trained on the other folds."""
    penalty: float | None = None
    """The penalty that was chosen; None for a model without one."""


def fit_linear(train: Samples, classes: int, folds: Ints) -> PlainModel:
    """Fit logistic regression, or ridge regression where the label is a number.

    The penalty is that with the lowest log loss, or squared error, in cross-validation.
    """
    trials = [
        (penalty, _out_of_fold(train, folds, partial(_linear, classes=classes, penalty=penalty)))
        for penalty in PENALTIES
    ]
    penalty, predictions = min(trials, key=lambda trial: _loss(trial[1], train.y, classes))
    return PlainModel(_linear(train, classes, penalty), predictions, penalty)


def fit_boosting(train: Samples, classes: int, folds: Ints) -> PlainModel:
    """Fit gradient-boosted trees."""
    return PlainModel(
        _boosting(train, classes),
        _out_of_fold(train, folds, lambda part: _boosting(part, classes)),
    )


FITS = {"plain-linear": fit_linear, "plain-boosting": fit_boosting}


def refit(name: str, samples: Samples, classes: int, penalty: float | None) -> Predictor:
    """Fit the plain model `name` to samples, with a penalty that was chosen before."""
    with _one_thread():
        return (
            _boosting(samples, classes) if penalty is None else _linear(samples, classes, penalty)
        )


def fit(name: str, train: Samples, classes: int, folds: Ints) -> PlainModel:
    """Fit the plain model `name`, on one thread, so that equal data give equal bits."""
    with _one_thread():
        return FITS[name](train, classes, folds)


def _out_of_fold(train: Samples, folds: Ints, fit_part: Callable[[Samples], Predictor]) -> Tensor:
    """Return the predictions of all samples, each by a model of the other folds.

    A party with a single sample is predicted by the model of that sample.
    """
    if folds.max() == 0:
        return fit_part(train)(train.x)
    parts = []
    positions = []
    for fold in range(int(folds.max()) + 1):
        held_out = np.flatnonzero(folds == fold)
        predictor = fit_part(train.take(np.flatnonzero(folds != fold)))
        parts.append(predictor(train.x[held_out]))
        positions.append(held_out)
    return in_order(parts, positions)


def _loss(predictions: Tensor, y: Tensor, classes: int) -> float:
    if not classes:
        return float((predictions[:, 0] - y).square().mean())
    return float(F.cross_entropy(predictions, y))


def _linear(train: Samples, classes: int, penalty: float) -> Predictor:
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression, Ridge
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    if classes and len(train.y.unique()) == 1:
        return Predictor(None, classes, int(train.y[0]))
    model = LogisticRegression(C=1 / penalty, max_iter=1000) if classes else Ridge(alpha=penalty)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        fitted = make_pipeline(StandardScaler(), model).fit(*_arrays(train))
    return Predictor(fitted, classes)


def _boosting(train: Samples, classes: int) -> Predictor:
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

    if classes and len(train.y.unique()) == 1:
        return Predictor(None, classes, int(train.y[0]))
    kind = HistGradientBoostingClassifier if classes else HistGradientBoostingRegressor
    model = kind(
        max_iter=BOOSTED_TREES,
        min_samples_leaf=min(MOST_IN_LEAF, max(LEAST_IN_LEAF, len(train) // 10)),
        early_stopping=False,
        random_state=0,
    )
    return Predictor(model.fit(*_arrays(train)), classes)


def _arrays(samples: Samples) -> tuple[NDArray[np.float64], NDArray[Any]]:
    return samples.x.flatten(1).double().numpy(), samples.y.numpy()


def _predict(fitted: Any, classes: int, x: Tensor) -> Tensor:
    """Return the logits, or the values, that a fitted model of scikit-learn predicts."""
    inputs = x.flatten(1).double().numpy()
    if not classes:
        return torch.from_numpy(fitted.predict(inputs)).double()[:, None]
    scores = torch.from_numpy(fitted.decision_function(inputs)).double()
    if scores.dim() == 1:  # two classes: the log-odds of the second
        scores = torch.stack([torch.zeros_like(scores), scores], 1)
    classes_in_fit: Sequence[int] = fitted.classes_.tolist()
    if len(classes_in_fit) == classes:
        return scores
    log_probabilities = scores.log_softmax(1)
    lowest = log_probabilities.min(1, keepdim=True).values.clamp(max=UNSEEN)
    logits = lowest.expand(len(x), classes).clone()
    logits[:, list(classes_in_fit)] = log_probabilities
    return logits


@contextmanager
def _one_thread() -> Iterator[None]:
    """Let scikit-learn use one thread: sums over several have other bits."""
    from threadpoolctl import threadpool_limits

    threads = torch.get_num_threads()
    try:
        with threadpool_limits(1):
            yield
    finally:
        torch.set_num_threads(threads)
