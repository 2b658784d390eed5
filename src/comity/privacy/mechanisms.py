"""Noise on vectors before they leave a party."""

from __future__ import annotations

import torch
from torch import Tensor

from comity.base.noise import gaussian, laplace
from comity.core import Key
from comity.privacy.accounting import gaussian_sigma


def bounded(z: Tensor, how: str) -> Tensor:
    """Rows brought into the range that a mechanism needs; what is compared with noisy rows must be
    bounded alike.

    `paper`: each row from 0 to 1. `lap_l1`: ‖row‖₁ ≤ ½. `gauss_l2`: ‖row‖₂ ≤ ½: two rows then
    differ by at most 1.
    """
    z = z.flatten(1)
    if how == "paper":
        low, high = z.amin(1, keepdim=True), z.amax(1, keepdim=True)
        return (z - low) / (high - low).clamp(min=1e-12)
    if how in ("lap_l1", "gauss_l2"):
        size: Tensor = torch.linalg.vector_norm(
            z, ord=1 if how == "lap_l1" else 2, dim=1, keepdim=True
        )
        return z * (0.5 / size.clamp(min=0.5))
    return z


def noised(z: Tensor, how: str, epsilon: float, delta: float, key: Key) -> Tensor:
    """Bounded rows with the mechanism's noise: Laplace of scale 1/ε, or Gaussian by the analytic
    mechanism.
    """
    if how == "none":
        return z
    z = bounded(z, how)
    if how == "gauss_l2":
        return z + gaussian(key, z.shape, gaussian_sigma(epsilon, delta)).to(z.device)
    return z + laplace(key, z.shape, 1 / epsilon).to(z.device)
