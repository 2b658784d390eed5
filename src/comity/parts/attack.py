"""Samples that fool a model: within an ℓ∞ ball (PGD), or within a Wasserstein ball by its dual."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from comity.core import Key, Params, Task, mixin, option


def _slope(task: Task, theta: Params, x: Tensor, y: Tensor) -> Tensor:
    """Each sample's gradient of its own loss."""
    x = x.detach().requires_grad_()
    (slope,) = torch.autograd.grad(F.cross_entropy(task.logits(theta, x), y, reduction="sum"), x)
    return slope


def distance(a: Tensor, b: Tensor, squared: bool) -> Tensor:
    """‖a − b‖² or ‖a − b‖ of each sample."""
    gap = (a - b).flatten(1).square().sum(1)
    return gap if squared else gap.sqrt()


@dataclass
class Attack:
    """T(z, h): pushes samples to where a model errs, labels fixed. `lam` is the dual's multiplier, which learns the radius."""

    kind: str
    epsilon: float
    steps: int
    lr: float
    squared: bool
    lam: float
    lam_lr: float
    lam_steps: int = 1
    low: float = -torch.inf
    high: float = torch.inf
    jitter: float = 0.0

    def __call__(self, task: Task, theta: Params, x: Tensor, y: Tensor, key: Key) -> Tensor:
        theta = {k: v.detach() for k, v in theta.items()}
        if self.kind == "pgd":
            return self._pgd(task, theta, x, y, key)
        z = x
        for _ in range(self.lam_steps):
            z = self._wasserstein(task, theta, x, y, key)
            budget = self.epsilon ** (2 if self.squared else 1)
            self.lam = next_lambda(self.lam, self.lam_lr, budget, distance(z, x, self.squared))
        return z

    def _pgd(self, task: Task, theta: Params, x: Tensor, y: Tensor, key: Key) -> Tensor:
        z = x + self._noise(x, key, self.jitter) if self.jitter else x
        for _ in range(self.steps):
            z = z + self.lr * _slope(task, theta, z, y).sign()
            z = x + (z - x).clamp(-self.epsilon, self.epsilon)
            z = z.clamp(self.low, self.high)
        return z.detach()

    def _wasserstein(self, task: Task, theta: Params, x: Tensor, y: Tensor, key: Key) -> Tensor:
        """Algorithm 1, l.3: ascent on ℓ(z) − λ d(z, x)."""
        z = x + self._noise(x, key, 1e-4)  # the plain distance has no gradient at x itself
        pull = 2 * self.lam * self.lr
        for _ in range(self.steps):
            up = self.lr * _slope(task, theta, z, y)
            if self.squared:
                z = (z + up + pull * x) / (1 + pull)  # implicit in the quadratic cost, so that no λ is too large
            else:
                gap = (z + up - x).flatten(1)  # the proximal step of ‖·‖: shrink towards x
                shrink = 1 - self.lr * self.lam / torch.linalg.vector_norm(gap, dim=1, keepdim=True).clamp(min=1e-12)
                z = x + (gap * shrink.clamp(min=0)).view_as(x)
            z = z.clamp(self.low, self.high)
        return z.detach()

    @staticmethod
    def _noise(x: Tensor, key: Key, scale: float) -> Tensor:
        return scale * torch.randn(x.shape, generator=key.generator(), dtype=x.dtype).to(x.device)


def next_lambda(lam: float, lr: float, budget: float, distances: Tensor) -> float:
    """Algorithm 1, l.5: λ ← max(0, λ − α_λ (ε − mean d)), descent on the dual; a squared cost has the budget ε²."""
    return max(0.0, lam - lr * (budget - distances.mean().item()))


@mixin
class Attacks:
    """The options of a method that perturbs samples."""

    stacks: ClassVar[bool] = False  # an attack begins at random

    attack: Literal["pgd", "wasserstein"] = option("pgd", "T: steps of the sign in an ℓ∞ ball, or Algorithm 1 (Wasserstein)")
    epsilon: float = option(0.03, "ε, radius of the attack", minimum=0)
    attack_steps: int = option(0, "steps of T; 0: 5 for pgd, 15 for wasserstein", minimum=0)
    attack_lr: float = option(0.0, "step of T; 0: 0.01 for pgd, 0.1 for wasserstein", minimum=0)
    cost: Literal["l2sq", "l2"] = option("l2sq", "d of Algorithm 1: ‖·‖² with budget ε², or ‖·‖ with ε")
    lambda0: float = option(1.0, "λ_0 of Algorithm 1", minimum=0)
    lambda_lr: float = option(0.1, "α_λ of Algorithm 1", minimum=0)
    lambda_steps: int = option(1, "updates of λ in each attack; it is kept from one to the next", minimum=1)
    clamp: Literal["data", "unit", "none"] = option("data", "perturbed inputs stay in the range of the data, in [0, 1], or not")

    def attacker(self, lam: float, data: Tensor, as_code: bool = False) -> Attack:
        """T with this λ, for inputs like these; the public code starts from a little noise and clamps to [0, 1]."""
        steps, lr = (5, 0.01) if self.attack == "pgd" else (15, 0.1)
        ends = {"data": (data.min().item(), data.max().item()), "unit": (0.0, 1.0), "none": (-torch.inf, torch.inf)}
        low, high = ends["unit" if as_code else self.clamp]
        steps, lr, squared = self.attack_steps or steps, self.attack_lr or lr, self.cost == "l2sq"
        jitter = 0.001 if as_code else 0.0
        return Attack(self.attack, self.epsilon, steps, lr, squared, lam, self.lambda_lr, self.lambda_steps, low, high, jitter)
