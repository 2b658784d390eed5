"""Area under the ROC curve as a rank statistic: the chance that a positive outscores a negative, a
tie counting half.

It equals scikit-learn's; the micro average is PFLlib's multi-class AUC. A test set of one class has
none: None, and not a number that would be averaged along.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor


def auc(scores: Tensor, positive: Tensor) -> float | None:
    """The AUC of `scores` for the samples marked `positive`; None if all or none are. O(n log n)."""
    is_party_function = positive.flatten().bool()
    if is_party_function.all() or not is_party_function.any():
        return None
    return float(
        areas(
            scores.flatten(),
            is_party_function,
            torch.ones(1, is_party_function.numel(), dtype=torch.double, device=scores.device),
        )
    )


def auc_micro(scores: Tensor, labels: Tensor) -> float | None:
    """One AUC over all (sample, class) pairs, on raw scores (samples x classes); None if the labels
    are all of one class.
    """
    if len(labels.unique()) < 2:
        return None
    return auc(scores, F.one_hot(labels, scores.shape[1]))


def areas(scores: Tensor, positive: Tensor, weights: Tensor) -> Tensor:
    """An AUC for each row of `weights`, which count each sample so many times; no order of scores
    (a NaN), no area.
    """
    if scores.isnan().any():  # a model that diverged
        return torch.full((len(weights),), math.nan, dtype=weights.dtype)
    _, place = scores.unique(return_inverse=True)  # equal scores have one place
    empty = weights.new_zeros(len(weights), int(place.max()) + 1)
    above = empty.index_add(1, place, weights * positive)
    below = empty.index_add(1, place, weights * ~positive)
    outscored = below.cumsum(1) - below / 2  # how many negatives a positive at each place outscores
    return (above * outscored).sum(1) / (above.sum(1) * below.sum(1))


def mean_defined(values: Iterable[float | None]) -> tuple[float | None, int]:
    """The mean over those who have a value, and how many have none."""
    given = list(values)
    there = [v for v in given if v is not None]
    return (math.fsum(there) / len(there) if there else None), len(given) - len(there)
