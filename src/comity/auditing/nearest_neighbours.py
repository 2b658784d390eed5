"""Nearest neighbours in batches: a table of all distances may not fit into memory."""

from __future__ import annotations

import torch
from torch import Tensor

AT_ONCE = 512


def nearest(x: Tensor, rows: Tensor, count: int = 1) -> tuple[Tensor, Tensor]:
    """For each x, the distances to the `count` closest rows and their indices: both (len(x),
    count).
    """
    parts = [torch.cdist(part, rows).topk(count, dim=1, largest=False) for part in x.split(AT_ONCE)]
    return torch.cat([part.values for part in parts]), torch.cat([part.indices for part in parts])
