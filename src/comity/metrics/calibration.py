"""Calibration of a party's model after training: a map of its logits, fitted at the party on its
own samples.

The map is affine and increasing: all logits are multiplied by one positive number (`scale`), and a
number is added to the logit of class 1 of two (`shift`). So no AUC changes. A temperature is a
scale, a threshold is a shift, and Platt's method has both.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from comity.base.record import Params
from comity.base.samples import PartyData, Split
from comity.errors import UsageError, unknown
from comity.metrics.metrics import ACCURACY, TWO, count_by_class, has_too_few
from comity.metrics.reliability import fit_intercept, fit_line, root
from comity.spec import call, parse
from comity.training.task import LearningTask, in_chunks

NONE = "none"
LEAST_SCALE, MOST_SCALE = 0.01, 100.0
"""The limits of a fitted scale: a positive scale keeps the order of the predictions."""


@dataclass(frozen=True)
class Calibration:
    """A map of logits, and the samples that it was fitted on."""

    how: str = NONE
    """The setting `calibrate`."""
    scale: float = 1.0
    """The factor of all logits."""
    shift: float = 0.0
    """What is then added to the logit of class 1, where there are two classes."""
    samples: str = ""
    """The split that it was fitted on, `validation` or `train`; empty if nothing was fitted."""

    def apply(self, logits: Tensor) -> Tensor:
        """Return the calibrated logits (samples x classes).

        Examples:
            >>> Calibration("platt", scale=2.0, shift=1.0).apply(torch.tensor([[0.0, 1.0]]))
            tensor([[0., 3.]])
        """
        scaled = logits if self.scale == 1 else logits * self.scale
        if not self.shift:
            return scaled
        return torch.stack([scaled[:, 0], scaled[:, 1] + self.shift], 1)


UNCALIBRATED = Calibration()
Fit = Callable[[Tensor, Tensor], tuple[float, float]]
"""From logits (samples x classes, as doubles) and labels to a scale and a shift."""


def _threshold(specificity: float | None = None) -> Fit:
    if specificity is not None and not 0 < specificity < 1:
        raise UsageError(f"specificity of threshold must be between 0 and 1, not {specificity:g}.")

    def fit(logits: Tensor, y: Tensor) -> tuple[float, float]:
        score = logits[:, 1] - logits[:, 0]
        if specificity is None:
            return 1.0, -balanced_threshold(score, y)
        return 1.0, -specific_threshold(score, y, specificity)

    return fit


def _temperature() -> Fit:
    def fit(logits: Tensor, y: Tensor) -> tuple[float, float]:
        target = smoothed_targets(y, logits.shape[1])

        def slope_of_loss(log_scale: float) -> float:
            chance = (logits * math.exp(log_scale)).softmax(1)
            return float(((chance - target) * logits).sum())

        # The loss is convex in the scale, so that its slope increases.
        return math.exp(root(slope_of_loss, math.log(LEAST_SCALE), math.log(MOST_SCALE))), 0.0

    return fit


def _platt() -> Fit:
    def fit(logits: Tensor, y: Tensor) -> tuple[float, float]:
        score = logits[:, 1] - logits[:, 0]
        target = smoothed_targets(y, TWO)[:, 1]
        weight = torch.ones_like(score)
        scale, shift = fit_line(score, target, weight) if score.std() > 0 else (0.0, 0.0)
        if LEAST_SCALE <= scale <= MOST_SCALE:
            return scale, shift
        scale = min(max(scale, LEAST_SCALE), MOST_SCALE)
        return scale, fit_intercept(score * scale, target, weight)

    return fit


WAYS: dict[str, Callable[..., Fit | None]] = {
    NONE: lambda: None,
    "threshold": _threshold,
    "temperature": _temperature,
    "platt": _platt,
}


def check_calibrate(how: str, classes: int) -> None:
    """Raise UsageError if the setting `calibrate` does not fit that number of classes (0: the label
    is a number).
    """
    parse_calibrate(how)
    name = parse(how).name
    if name == NONE:
        return
    if not classes:
        raise UsageError(
            "calibrate is for models that predict classes, and the label of these data is a number:"
            " leave it out."
        )
    if classes > TWO and name != "temperature":
        raise UsageError(
            f"calibrate={name} is for two classes, but these data have {classes}: use temperature."
        )


def parse_calibrate(how: str) -> Fit | None:
    """Return the way to fit that the setting `calibrate` names; None if it is `none`.

    Raises UsageError if there is no such way, or if its options are wrong.
    """
    spec = parse(how)
    if spec.name not in WAYS:
        raise unknown("calibration called", spec.name, WAYS)
    return call(spec, WAYS[spec.name])


def calibration_split(data: PartyData, classes: int, *, only_validation: bool) -> Split | None:
    """Return which samples of a party a calibration is fitted on; None if it has none for it.

    They are its validation samples, or its training samples if the former are too few: fewer than
    five of one of two classes, or fewer than ten.

    Args:
        data: the party's samples
        classes: the number of classes
        only_validation: whether training samples must not be used, because the method hides them
            by noise: figures of a calibrated model leave without noise
    """
    if not has_too_few(count_by_class(data.validation.y, classes), ACCURACY):
        return "validation"
    if only_validation or (classes == TWO and not all(count_by_class(data.train.y, classes))):
        return None
    return "train"


def calibrate(
    how: str, task: LearningTask, theta: Params, data: PartyData, *, only_validation: bool = False
) -> Calibration:
    """Return the calibration of a party's model, fitted on its own samples.

    A model is left as it is if the party has no samples to fit on (`calibration_split`), or if the
    model has diverged.
    """
    fit = None if how == NONE else parse_calibrate(how)
    split = fit and calibration_split(data, task.classes, only_validation=only_validation)
    if fit is None or split is None:
        return UNCALIBRATED
    samples = data.validation if split == "validation" else data.train
    logits = in_chunks(lambda x: task.logits(theta, x), samples.x).double().cpu()
    if not logits.isfinite().all():
        return UNCALIBRATED
    scale, shift = fit(logits, samples.y.cpu())
    return Calibration(how, scale, shift, split)


def smoothed_targets(y: Tensor, classes: int) -> Tensor:
    """Return the probabilities (samples x classes) to fit to: (n + 1) / (n + 2) of a sample's own
    class, which n samples are of, and equal parts of the rest for the others.

    For two classes these are Platt's targets. With targets of 1, samples that are all predicted
    correctly would ask for an infinite scale.
    """
    own = F.one_hot(y, classes).double()
    count = own.sum(0)[y]
    rest = 1 / (count + 2) / (classes - 1)
    return own * ((count + 1) / (count + 2))[:, None] + (1 - own) * rest[:, None]


def balanced_threshold(score: Tensor, y: Tensor) -> float:
    """Return the threshold on the score with the highest balanced accuracy, between two different
    scores; of several, the one nearest to 0, where it was. It is 0 if all scores are equal.
    """
    distinct = score.unique()
    if len(distinct) == 1:
        return 0.0
    candidates = (distinct[1:] + distinct[:-1]) / 2
    zeros, ones = score[y == 0].sort().values, score[y == 1].sort().values
    specificity = torch.searchsorted(zeros, candidates, right=True) / len(zeros)
    sensitivity = 1 - torch.searchsorted(ones, candidates, right=True) / len(ones)
    balanced = specificity + sensitivity
    best = candidates[balanced >= balanced.max() - 1e-6]
    return float(best[best.abs().argmin()])


def specific_threshold(score: Tensor, y: Tensor, specificity: float) -> float:
    """Return the lowest threshold on the score above which there is at most the share
    1 - specificity of class 0.
    """
    zeros = score[y == 0].sort().values
    below = max(1, math.ceil(specificity * len(zeros) - 1e-9))
    highest = zeros[below - 1]
    above = score[score > highest]
    return float((highest + above.min()) / 2) if len(above) else float(highest) + 1.0
