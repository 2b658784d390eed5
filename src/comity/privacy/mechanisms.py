"""Noise mechanisms on the rows (representations) that a party sends."""

from __future__ import annotations

import torch
from torch import Tensor

from comity.base.noise import gaussian, laplace
from comity.core import Key
from comity.privacy.accounting import gaussian_sigma


def bound_rows(z: Tensor, how: str) -> Tensor:
    """Clip or scale rows to the range that a mechanism needs.

    Arguments:
        z: the rows
        how: `paper` scales each row to [0, 1]; `lap_l1` clips to ‖row‖₁ ≤ ½ and `gauss_l2` to
            ‖row‖₂ ≤ ½, so that two rows differ by at most 1 in that norm; `none` changes nothing

    Rows that are compared with noisy rows must be bounded in the same way.
    """
    z = z.flatten(1)
    if how == "paper":
        low, high = z.amin(1, keepdim=True), z.amax(1, keepdim=True)
        return (z - low) / (high - low).clamp(min=1e-12)
    if how in ("lap_l1", "gauss_l2"):
        order = 1 if how == "lap_l1" else 2
        norms: Tensor = torch.linalg.vector_norm(z, ord=order, dim=1, keepdim=True)
        return z * (0.5 / norms.clamp(min=0.5))
    return z


def add_noise(z: Tensor, how: str, epsilon: float, delta: float, key: Key) -> Tensor:
    """Bound rows and add noise: Laplace of scale 1/ε, or the analytic Gaussian mechanism."""
    if how == "none":
        return z
    z = bound_rows(z, how)
    if how == "gauss_l2":
        return z + gaussian(key, z.shape, gaussian_sigma(epsilon, delta)).to(z.device)
    return z + laplace(key, z.shape, 1 / epsilon).to(z.device)
