"""Area under the ROC curve as a rank statistic: the chance that a positive outscores a negative, a tie counting half.

It equals scikit-learn's; the micro average is PFLlib's multi-class AUC. A test set of one class has none: None, and not a
number that would be averaged along.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch.nn.functional as F
from torch import Tensor


def auc(scores: Tensor, positive: Tensor) -> float | None:
    """The AUC of `scores` for the samples marked `positive`; None if all or none are. O(n log n)."""
    marked = positive.flatten().bool()
    p = int(marked.sum())
    n = marked.numel() - p
    if not p or not n:
        return None
    if scores.isnan().any():  # a model that diverged: no order, hence no area
        return math.nan
    _, group, counts = scores.flatten().unique(return_inverse=True, return_counts=True)
    counts = counts.double()
    ranks = counts.cumsum(0) - (counts - 1) / 2  # of equal scores everyone gets the mean of their ranks
    mann_whitney = float(ranks[group][marked].sum()) - p * (p + 1) / 2
    return mann_whitney / (p * n)


def auc_micro(scores: Tensor, labels: Tensor) -> float | None:
    """One AUC over all (sample, class) pairs, on raw scores (samples x classes); None if the labels are all of one class."""
    if len(labels.unique()) < 2:
        return None
    return auc(scores, F.one_hot(labels, scores.shape[1]))


def mean_defined(values: Iterable[float | None]) -> tuple[float | None, int]:
    """The mean over those who have a value, and how many have none."""
    given = list(values)
    there = [v for v in given if v is not None]
    return (math.fsum(there) / len(there) if there else None), len(given) - len(there)
