"""A dataset for as many parties as COMITY_MANY says, four samples each: what workers elsewhere can
load by its name.
"""

from __future__ import annotations

import os

import numpy as np
import torch

from comity.data import Dataset

FEATURES = 16


def load() -> Dataset:
    """Two classes, one a little to the right of the other."""
    count = 4 * int(os.environ.get("COMITY_MANY", "1000"))
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, count)
    x = rng.normal(size=(count, FEATURES)) + 0.5 * y[:, None]
    return Dataset("many", torch.from_numpy(x), torch.from_numpy(y), classes=2)
