"""A measure of how well points form clusters."""

from __future__ import annotations

import torch
from torch import Tensor

from comity.core import Key

STARTS = 5
LLOYDS_STEPS = 10
LEAST = 1e-6


def left_in_clusters(z: Tensor, k: int, key: Key) -> float:
    """W_k / W_1: the scatter within k clusters over the scatter around the mean. Lower is better.

    The clusters are the best that k-means finds from several starts.
    """
    whole = (z - z.mean(0)).square().sum()
    if len(z) <= k or whole == 0:
        return 1.0  # too few points, or all points are equal
    within = min(_scatter_within(z, k, key.fold("start", n)) for n in range(STARTS))
    return max(LEAST, within / whole.item())


def _scatter_within(z: Tensor, k: int, key: Key) -> float:
    """W_k by k-means from one start."""
    centres = z[_far_apart(z, k, key)]
    for _ in range(LLOYDS_STEPS):
        nearest = torch.cdist(z, centres).argmin(1)
        counts = torch.bincount(nearest, minlength=k)
        sums = torch.zeros_like(centres).index_add_(0, nearest, z)
        centres = torch.where(counts[:, None] > 0, sums / counts.clamp(min=1)[:, None], centres)
    return torch.cdist(z, centres).min(1).values.square().sum().item()


def _far_apart(z: Tensor, k: int, key: Key) -> list[int]:
    """Initial centres of k-means: a random point, then repeatedly the point farthest from all
    centres so far.
    """
    picks = key.choose(1, len(z))
    apart = (z - z[picks[0]]).square().sum(1)
    while len(picks) < k:
        picks.append(int(apart.argmax()))
        apart = apart.minimum((z - z[picks[-1]]).square().sum(1))
    return picks
