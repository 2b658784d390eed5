"""The area under the ROC curve, which a party works out from its own test samples."""

from __future__ import annotations

from torch import Tensor


def area(logits: Tensor, y: Tensor) -> float | None:
    """For two classes that of the second one's score; for more, micro-averaged over all pairs of sample and class."""
    from comity.measure.auc import auc, auc_micro  # lazily: measures know the core, not the other way round

    return auc(logits[:, 1] - logits[:, 0], y == 1) if logits.shape[1] == 2 else auc_micro(logits, y)
