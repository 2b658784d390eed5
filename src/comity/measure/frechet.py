"""Fréchet distance between sets of representations, each approximated by a Gaussian (Heusel et al.,
NeurIPS 2017).

‖μ₁ − μ₂‖² + tr(Σ₁ + Σ₂ − 2 (Σ₁Σ₂)^½). The trace of the root is computed from the eigenvalues of the
symmetric matrix Σ₁^½ Σ₂ Σ₁^½. ADCOL (Table 3) reports the distance of each party from the union of
all parties, mean and std over parties, on Inception features; this works on any features.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

RIDGE = 1e-6  # added to the diagonal of a singular covariance (fewer samples than dimensions)


@dataclass(frozen=True)
class Gaussian:
    """A mean and a covariance."""

    mean: Tensor
    cov: Tensor

    @staticmethod
    def of(x: Tensor, dimensions: int | None = None) -> Gaussian:
        """Return the moments of samples (rows).

        `dimensions` is the width of the samples before they were rotated into fewer dimensions.
        """
        n = len(x)
        mean = x.mean(0)
        centred = x - mean
        cov = centred.T @ centred / max(1, n - 1)
        if n < (dimensions or x.shape[1]):
            cov.diagonal().add_(RIDGE)
        return Gaussian(mean, cov)

    def root(self) -> Tensor:
        """Σ^½."""
        values, vectors = torch.linalg.eigh(self.cov)
        root: Tensor = (vectors * values.clamp(min=0).sqrt()) @ vectors.T
        return root


def distance(a: Gaussian, b: Gaussian, root: Tensor | None = None) -> float:
    """Return the Fréchet distance of two Gaussians; `root` is `a.root()`, if already computed."""
    root = a.root() if root is None else root
    shared = torch.linalg.eigvalsh(root @ b.cov @ root).clamp(min=0).sqrt().sum()
    value = (a.mean - b.mean).square().sum() + a.cov.trace() + b.cov.trace() - 2 * shared
    return max(0.0, float(value))


def _rotate_to_span(sets: Sequence[Tensor]) -> tuple[Sequence[Tensor], int]:
    """Return the sets in double precision, rotated into their common span, and their old width.

    A rotation does not change distances. Outside the span all covariances equal the ridge and
    cancel. So the cost of wide features (convolutions) is bounded by the number of samples.
    """
    x = torch.cat([s.flatten(1) for s in sets]).double()
    width = x.shape[1]
    if width > len(x):
        x = torch.linalg.qr(x.T, mode="r").R.T
    return x.split([len(s) for s in sets]), width


def frechet(a: Tensor, b: Tensor) -> float:
    """Return the distance between two sets of representations (one row per sample)."""
    (first, second), width = _rotate_to_span([a, b])
    return distance(Gaussian.of(first, width), Gaussian.of(second, width))


@dataclass(frozen=True)
class Spread:
    """The distances of the parties from the union of all."""

    mean: float
    std: float
    """Population standard deviation over parties."""
    per_party: tuple[float, ...]


def distances_to_union(sets: Sequence[Tensor]) -> Spread:
    """Return each party's distance from the union of all parties' samples (ADCOL, Table 3)."""
    rotated, width = _rotate_to_span(sets)
    union = Gaussian.of(torch.cat(list(rotated)), width)
    root = union.root()
    distances = torch.tensor(
        [distance(union, Gaussian.of(s, width), root) for s in rotated], dtype=torch.float64
    )
    std = float(distances.std(correction=0))
    return Spread(float(distances.mean()), std, tuple(distances.tolist()))


def pairwise(sets: Sequence[Tensor]) -> Tensor:
    """Return the distances between all pairs of parties, as a symmetric matrix."""
    rotated, width = _rotate_to_span(sets)
    gaussians = [Gaussian.of(s, width) for s in rotated]
    distances = torch.zeros(len(sets), len(sets), dtype=torch.float64)
    for i, a in enumerate(gaussians[:-1]):
        root = a.root()
        for j, b in enumerate(gaussians[i + 1 :], i + 1):
            distances[i, j] = distances[j, i] = distance(a, b, root)
    return distances
