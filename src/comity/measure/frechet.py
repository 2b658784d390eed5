"""Fréchet distance between sets of representations, each taken as a Gaussian (Heusel et al.,
NeurIPS 2017).

‖μ₁ − μ₂‖² + tr(Σ₁ + Σ₂ − 2 (Σ₁Σ₂)^½), with the trace of the root from the eigenvalues of Σ₁^½ Σ₂
Σ₁^½, which is symmetric. ADCOL (Table 3) reports each party against the union of all, mean and std
over parties, on Inception features; any features do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

RIDGE = 1e-6  # added to the covariance of fewer samples than dimensions, which is singular


@dataclass(frozen=True)
class Gaussian:
    """A mean and a covariance."""

    mean: Tensor
    cov: Tensor

    @staticmethod
    def of(x: Tensor, dimensions: int | None = None) -> Gaussian:
        """The moments of samples (rows); `dimensions` is what they had before they were rotated
        into fewer.
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
    """The Fréchet distance of two Gaussians; `root` is a's, if it is known already."""
    root = a.root() if root is None else root
    shared = torch.linalg.eigvalsh(root @ b.cov @ root).clamp(min=0).sqrt().sum()
    value = (a.mean - b.mean).square().sum() + a.cov.trace() + b.cov.trace() - 2 * shared
    return max(0.0, float(value))


def _turned(sets: Sequence[Tensor]) -> tuple[Sequence[Tensor], int]:
    """The sets in double precision, in as few dimensions as they span together, and how many they
    had.

    A rotation changes no distance, and where nobody has any sample all covariances are the ridge
    alone and cancel; so features wider than there are samples (convolutions) cost no more than the
    samples.
    """
    x = torch.cat([s.flatten(1) for s in sets]).double()
    width = x.shape[1]
    if width > len(x):
        x = torch.linalg.qr(x.T, mode="r").R.T
    return x.split([len(s) for s in sets]), width


def frechet(a: Tensor, b: Tensor) -> float:
    """The distance between two sets of representations (a row a sample)."""
    (first, second), width = _turned([a, b])
    return distance(Gaussian.of(first, width), Gaussian.of(second, width))


@dataclass(frozen=True)
class Spread:
    """Each party's distance from the union of all."""

    mean: float
    std: float
    """Over parties, the population's."""
    each: tuple[float, ...]


def to_union(sets: Sequence[Tensor]) -> Spread:
    """ADCOL's Table 3: the distance of every party's representations from those of all parties
    together.
    """
    turned, width = _turned(sets)
    union = Gaussian.of(torch.cat(list(turned)), width)
    root = union.root()
    each = torch.tensor(
        [distance(union, Gaussian.of(s, width), root) for s in turned], dtype=torch.float64
    )
    return Spread(float(each.mean()), float(each.std(correction=0)), tuple(each.tolist()))


def pairwise(sets: Sequence[Tensor]) -> Tensor:
    """The distances between all pairs of parties, as a symmetric matrix."""
    turned, width = _turned(sets)
    gaussians = [Gaussian.of(s, width) for s in turned]
    found = torch.zeros(len(sets), len(sets), dtype=torch.float64)
    for i, a in enumerate(gaussians[:-1]):
        root = a.root()
        for j, b in enumerate(gaussians[i + 1 :], i + 1):
            found[i, j] = found[j, i] = distance(a, b, root)
    return found
