"""Noise on vectors before they leave a party, and noisy training of what a server hands out."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import grad, vmap

from comity.core import Batch, Key, Params, Task
from comity.privacy.accounting import gaussian_sigma


def bounded(z: Tensor, how: str) -> Tensor:
    """Rows brought into the range that a mechanism needs; what is compared with noisy rows must be bounded alike.

    `paper`: each row from 0 to 1. `lap_l1`: ‖row‖₁ ≤ ½. `gauss_l2`: ‖row‖₂ ≤ ½: two rows then differ by at most 1.
    """
    z = z.flatten(1)
    if how == "paper":
        low, high = z.amin(1, keepdim=True), z.amax(1, keepdim=True)
        return (z - low) / (high - low).clamp(min=1e-12)
    if how in ("lap_l1", "gauss_l2"):
        size: Tensor = torch.linalg.vector_norm(z, ord=1 if how == "lap_l1" else 2, dim=1, keepdim=True)
        return z * (0.5 / size.clamp(min=0.5))
    return z


def noised(z: Tensor, how: str, epsilon: float, delta: float, key: Key) -> Tensor:
    """Bounded rows with the mechanism's noise: Laplace of scale 1/ε, or Gaussian by the analytic mechanism."""
    if how == "none":
        return z
    z = bounded(z, how)
    generator = key.noise().generator()
    if how == "gauss_l2":
        return z + gaussian_sigma(epsilon, delta) * torch.randn(z.shape, generator=generator).to(z.device)
    uniform = torch.rand(z.shape, generator=generator, dtype=torch.float64) - 0.5
    laplace = -uniform.sign() * torch.log1p(-2 * uniform.abs().clamp(max=0.5 - 1e-12)) / epsilon
    return z + laplace.float().to(z.device)


def release_epsilon(how: str, epsilon: float, width: int) -> float:
    """What one release of a row really costs: `paper`'s rows differ by up to their width in ℓ1, not by 1."""
    return epsilon * width if how == "paper" else epsilon


def private_step(task: Task, key: Key, lr: float, clip: float, noise: float) -> Callable[[Params, Batch], Params]:
    """DP-SGD's step: each sample's gradient is clipped to `clip`, their sum gets Gaussian noise of `noise` · `clip`."""

    def one(weights: Params, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(task.logits(weights, x[None]), y[None])

    each = vmap(grad(one), in_dims=(None, 0, 0))

    def step(weights: Params, batch: Batch) -> Params:
        grads = each(weights, batch.x, batch.y)
        norms = torch.stack([g.flatten(1).square().sum(1) for g in grads.values()]).sum(0).sqrt()
        share = (clip / norms.clamp(min=1e-12)).clamp(max=1)
        generator = key.fold("noise", batch.number).noise().generator()
        moved = {}
        for name, g in grads.items():
            total = torch.tensordot(share, g, dims=1)
            total = total + noise * clip * torch.randn(total.shape, generator=generator).to(total.device)
            moved[name] = weights[name] - lr * total / len(batch.y)
        return weights | moved

    return step
