"""Maps of representations in the plane: PCA, then t-SNE.

scikit-learn's t-SNE is native code. It terminates the interpreter on values without spread, and on
values so large that their squares overflow. Therefore the rows are checked and scaled first.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from comity.errors import ComityError

LEAST_DISTINCT = 8
"""The fewest distinct representations of a map: with fewer, distances between neighbours are
meaningless.
"""
COMPONENTS = 30
ROUNDING = 1e-6
"""Differences below this fraction of the largest value are rounding errors of 32-bit numbers."""


def map_to_plane(features: NDArray[Any]) -> NDArray[np.float64]:
    """Return the rows' coordinates in the plane (rows, 2), rounded to two decimals.

    Raises:
        ComityError: if some values are not finite, or nearly all rows are equal
    """
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE

    rows = _scale(np.asarray(features, np.float64))
    distinct = len(np.unique(rows.round(6), axis=0))
    if distinct < LEAST_DISTINCT:
        raise ComityError(
            f"only {distinct} of {len(rows)} samples have different representations, and a map"
            f" needs {LEAST_DISTINCT} (has the model diverged, or are there few test samples?)."
        )
    z = PCA(min(COMPONENTS, *rows.shape), random_state=0).fit_transform(rows)
    start = np.zeros((len(z), 2))
    # The start of init="pca", which itself fails on a single column.
    start[:, : z.shape[1]] = z[:, :2] * 1e-4 / z[:, 0].std()
    tsne = TSNE(
        perplexity=min(30, len(z) / 4),
        init=start.astype(np.float32),
        learning_rate="auto",
        max_iter=500,
        random_state=0,
        n_jobs=1,
    )
    return np.asarray(tsne.fit_transform(z), np.float64).round(2)


def _scale(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the rows centred and scaled to between -1 and 1, so that no square overflows."""
    if not np.isfinite(rows).all():
        raise ComityError("some of its representations are not finite: the model has diverged.")
    largest = float(np.abs(rows).max(initial=0.0)) or 1.0
    centred = rows / largest
    centred -= centred.mean(0) if len(rows) else 0.0
    spread = float(np.abs(centred).max(initial=0.0))
    return centred / spread if spread > ROUNDING else np.zeros_like(rows)
