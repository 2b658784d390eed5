"""Which rows are closest to which, a few at a time: a table of all distances may be larger than
memory.
"""

from __future__ import annotations

import torch
from torch import Tensor

AT_ONCE = 512


def nearest(x: Tensor, rows: Tensor, count: int = 1) -> tuple[Tensor, Tensor]:
    """Of each x the distances to the `count` closest rows, and which these are: both (len(x),
    count).
    """
    found = [torch.cdist(part, rows).topk(count, dim=1, largest=False) for part in x.split(AT_ONCE)]
    return torch.cat([one.values for one in found]), torch.cat([one.indices for one in found])
