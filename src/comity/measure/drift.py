"""Drift: the distance between class centroids of representations, between parties, and before and
after local training.

Distances are Euclidean, relative to the spread within a class at a party, so that the scale of a
representation does not matter. A centroid of n samples has an error of spread/√n, so small parties
drift apart even if their models are equal: `chance` is the drift that this sampling error alone
gives.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from comity.errors import ComityError


@dataclass(frozen=True)
class Drift:
    """A mean distance between centroids, and the spread that it is relative to."""

    distance: float
    spread: float | None
    """Root mean square distance of samples from the centroid of their class at their party; None if
    no class has two samples at a party.
    """

    chance: float = 0.0
    """The expected `relative` if parties differed only in which samples they have."""

    @property
    def relative(self) -> float | None:
        """The distance in units of the spread."""
        return self.distance / self.spread if self.spread else None


@dataclass(frozen=True, eq=False)
class _Cells:
    """Samples by party and class: each sample's cell, and the class and size of each cell.

    A cell is a pair of a party and a class with samples.
    """

    index: Tensor
    label: Tensor
    sizes: Tensor

    @staticmethod
    def of(labels: Tensor, parties: Tensor) -> _Cells:
        pairs, index, sizes = torch.stack([parties, labels]).unique(
            dim=1, return_inverse=True, return_counts=True
        )
        return _Cells(index, pairs[1].contiguous(), sizes)

    def centroids(self, z: Tensor) -> Tensor:
        sums = torch.zeros(len(self.sizes), z.shape[1], dtype=z.dtype).index_add_(0, self.index, z)
        return sums / self.sizes[:, None]

    def spread(self, z: Tensor, centroids: Tensor) -> float | None:
        free = len(z) - len(self.sizes)  # each centroid takes a degree of freedom
        if not free:
            return None
        return math.sqrt(float((z - centroids[self.index]).square().sum()) / free)


def between_parties(z: Tensor, labels: Tensor, parties: Tensor) -> Drift | None:
    """Return the mean distance of parties' class centroids from the common centroid of the class.

    `parties` has the number of each sample's party. Classes that only one party has are left out;
    the result is None if no class remains.
    """
    z = _check_rows(z, labels)
    cells = _Cells.of(labels, parties)
    shared = torch.bincount(cells.label)[cells.label] > 1
    if not shared.any():
        return None
    # The cells of a single party are the classes, in ascending order.
    whole = _Cells.of(labels, torch.zeros_like(labels))
    within = torch.searchsorted(whole.label, cells.label)
    centroids = cells.centroids(z)
    common = whole.centroids(z)[within]
    # The standard error of a cell's mean around the mean of the class that it is a part of.
    noise = (1 / cells.sizes.double() - 1 / whole.sizes[within]).sqrt()
    return Drift(
        float((centroids - common).norm(dim=1)[shared].mean()),
        cells.spread(z, centroids),
        float(noise[shared].mean()),
    )


def over_training(before: Tensor, after: Tensor, labels: Tensor, parties: Tensor) -> Drift:
    """Return how far the class centroids of parties moved between two representations of the same
    samples, on average.

    The spread is that of the representations before training.
    """
    before = _check_rows(before, labels)
    after = _check_rows(after, labels)
    cells = _Cells.of(labels, parties)
    first = cells.centroids(before)
    return Drift(
        float((cells.centroids(after) - first).norm(dim=1).mean()), cells.spread(before, first)
    )


def _check_rows(z: Tensor, labels: Tensor) -> Tensor:
    if not len(z) or len(z) != len(labels):
        raise ComityError(
            f"A drift needs a label for each representation, not {len(labels)} for {len(z)}."
        )
    return z.flatten(1).double()
