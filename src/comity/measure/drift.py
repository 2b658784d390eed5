"""How far representations of one class lie apart: between parties, and before and after local
training.

Distances are Euclidean and relative to the spread within a class at a party, so that a
representation's scale drops out. A centroid of n samples is off by spread/√n through chance alone,
so small parties drift apart even if their models are equal: `chance` says how much of that to
expect.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from comity.errors import ComityError


@dataclass(frozen=True)
class Drift:
    """A mean distance between centroids, and what it is measured by."""

    distance: float
    spread: float | None
    """Root mean square distance of samples from the centroid of their class at their party; None if
    each stands alone.
    """

    chance: float = 0.0
    """What `relative` would be if parties differed by nothing but which samples they have."""

    @property
    def relative(self) -> float | None:
        """The distance in units of the spread."""
        return self.distance / self.spread if self.spread else None


@dataclass(frozen=True, eq=False)
class _Cells:
    """Samples by party and class: the cells that hold any, each sample's cell, and each cell's
    class and size.
    """

    of: Tensor
    label: Tensor
    sizes: Tensor

    @staticmethod
    def made(labels: Tensor, parties: Tensor) -> _Cells:
        found, of, sizes = torch.stack([parties, labels]).unique(
            dim=1, return_inverse=True, return_counts=True
        )
        return _Cells(of, found[1].contiguous(), sizes)

    def centroids(self, z: Tensor) -> Tensor:
        sums = torch.zeros(len(self.sizes), z.shape[1], dtype=z.dtype).index_add_(0, self.of, z)
        return sums / self.sizes[:, None]

    def spread(self, z: Tensor, centroids: Tensor) -> float | None:
        free = len(z) - len(self.sizes)  # a cell's own centroid costs it a degree of freedom
        return math.sqrt(float((z - centroids[self.of]).square().sum()) / free) if free else None


def between_parties(z: Tensor, labels: Tensor, parties: Tensor) -> Drift | None:
    """How far parties' centroids of a class lie from that class's common centroid, on average over
    parties and classes.

    `parties` numbers the owner of each sample. A class that only one party has tells nothing and is
    left out; None if all are.
    """
    z = _checked(z, labels)
    cells = _Cells.made(labels, parties)
    shared = torch.bincount(cells.label)[cells.label] > 1
    if not shared.any():
        return None
    whole = _Cells.made(
        labels, torch.zeros_like(labels)
    )  # its cells are the classes, in ascending order
    within = torch.searchsorted(whole.label, cells.label)
    own = cells.centroids(z)
    common = whole.centroids(z)[within]
    noise = (
        1 / cells.sizes.double() - 1 / whole.sizes[within]
    ).sqrt()  # a part's mean around the whole's
    return Drift(
        float((own - common).norm(dim=1)[shared].mean()),
        cells.spread(z, own),
        float(noise[shared].mean()),
    )


def over_training(before: Tensor, after: Tensor, labels: Tensor, parties: Tensor) -> Drift:
    """How far the centroids of parties' classes moved between two representations of the same
    samples, on average.

    The spread is that before.
    """
    before = _checked(before, labels)
    after = _checked(after, labels)
    cells = _Cells.made(labels, parties)
    first = cells.centroids(before)
    return Drift(
        float((cells.centroids(after) - first).norm(dim=1).mean()), cells.spread(before, first)
    )


def _checked(z: Tensor, labels: Tensor) -> Tensor:
    if not len(z) or len(z) != len(labels):
        raise ComityError(
            f"A drift needs a label for each representation, not {len(labels)} for {len(z)}."
        )
    return z.flatten(1).double()
