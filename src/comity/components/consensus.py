"""The consensus of a group of models on predictions."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor


def class_shares(counts: Mapping[int, Tensor]) -> dict[int, Tensor]:
    """p_j[c] = n_jc / Σ_j' n_j'c: the weight of party j on class c. Weights are equal on a class
    that no party has.
    """
    total = torch.stack(list(counts.values())).sum(0)
    return {
        j: torch.where(total > 0, n / total.clamp(min=1), 1 / len(counts))
        for j, n in counts.items()
    }


def consensus(logits: Mapping[int, Tensor], counts: Mapping[int, Tensor], how: str) -> Tensor:
    """Log-probabilities of a group's consensus: softmax of v = Σ_j p_j ⊗ softmax(logits_j)
    (`softmax`), v over its sum (`l1`), or softmax of Σ_j p_j ⊗ logits_j (`logits`).
    """
    shares = class_shares(counts)
    if how == "logits":
        mean = torch.stack([shares[j] * answer for j, answer in logits.items()]).sum(0)
        return F.log_softmax(mean, dim=1)
    v = torch.stack([shares[j] * answer.softmax(1) for j, answer in logits.items()]).sum(0)
    if how == "softmax":
        return F.log_softmax(v, dim=1)
    return (v / v.sum(1, keepdim=True)).clamp(min=1e-12).log()
