"""Kullback-Leibler divergences. Their names and arguments show the direction."""

from __future__ import annotations

import math

import torch.nn.functional as F
from torch import Tensor


def kl(log_p: Tensor, log_q: Tensor) -> Tensor:
    """KL(p ‖ q) = Σ_c p_c (log p_c − log q_c), batch mean. Both arguments are log-probabilities."""
    return (log_p.exp() * (log_p - log_q)).sum(1).mean()


def uniform_cross_entropy(logits: Tensor) -> Tensor:
    """−(1/N) Σ_j log softmax(logits)_j, batch mean. The minimum, log N, is at equal logits."""
    return -F.log_softmax(logits, dim=1).mean()


def kl_from_uniform(logits: Tensor) -> Tensor:
    """KL(u ‖ softmax(logits)) = −log N − (1/N) Σ_j log p_j, batch mean."""
    return uniform_cross_entropy(logits) - math.log(logits.shape[1])
