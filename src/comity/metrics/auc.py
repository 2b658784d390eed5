"""Area under the ROC curve as a rank statistic: the probability that a positive sample has a higher
score than a negative one, where a tie counts half.

The AUC equals that of scikit-learn, and the micro average is PFLlib's multi-class AUC. A test set
with samples of one class only has no AUC: it is None.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def auc(scores: Tensor, positive: Tensor) -> float | None:
    """Return the AUC of `scores` in O(n log n); None if all or none of the samples are positive."""
    is_positive = positive.flatten().bool()
    if is_positive.all() or not is_positive.any():
        return None
    return float(
        areas(
            scores.flatten(),
            is_positive,
            torch.ones(1, is_positive.numel(), dtype=torch.double, device=scores.device),
        )
    )


def areas(scores: Tensor, positive: Tensor, weights: Tensor) -> Tensor:
    """Return an AUC for each row of `weights`, which say how many times each sample counts.

    All are NaN if a score is NaN.
    """
    if scores.isnan().any():  # the model has diverged
        return torch.full((len(weights),), math.nan, dtype=weights.dtype)
    _, place = scores.unique(return_inverse=True)  # equal scores have the same place
    empty = weights.new_zeros(len(weights), int(place.max()) + 1)
    above = empty.index_add(1, place, weights * positive)
    below = empty.index_add(1, place, weights * ~positive)
    outscored = below.cumsum(1) - below / 2  # negatives that a positive at each place outscores
    return (above * outscored).sum(1) / (above.sum(1) * below.sum(1))
