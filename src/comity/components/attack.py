"""Adversarial samples: within an ℓ∞ ball (PGD), or within a Wasserstein ball by the dual
problem.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from comity.core import (
    Info,
    Key,
    LearningTask,
    Params,
    PartyData,
    input_gradient,
    record,
)
from comity.errors import UsageError


def _slope(task: LearningTask, theta: Params, x: Tensor, y: Tensor) -> Tensor:
    """The gradient of each sample's loss by its own input."""

    def total(x: Tensor) -> Tensor:
        # cross entropy in a form that vmap supports
        return -F.log_softmax(task.logits(theta, x), dim=1).gather(1, y[:, None]).sum()

    return input_gradient(total, x)


def distance(a: Tensor, b: Tensor, squared: bool) -> Tensor:
    """‖a − b‖² or ‖a − b‖ for each sample."""
    gap = (a - b).flatten(1).square().sum(1)
    return gap if squared else gap.sqrt()


@record
class Range:
    """The interval that perturbed inputs are clamped to, and the size of 1 in the unit of ε and of
    the steps.
    """

    low: Tensor
    high: Tensor
    unit: Tensor


@dataclass(frozen=True)
class Attack:
    """T(z, h): moves samples, with fixed labels, to where the model errs."""

    kind: str
    epsilon: float
    steps: int
    lr: float
    squared: bool
    lam_lr: float
    lam_steps: int = 1
    jitter: float = 0.0

    def noise(self, x: Tensor, key: Key) -> Tensor | None:
        """Random noise that an attack on x starts from; None if it starts at x."""
        scale = self.jitter if self.kind == "pgd" else 1e-4  # ‖z − x‖ has no gradient at x
        return (
            scale * torch.randn(x.shape, generator=key.generator(), dtype=x.dtype).to(x.device)
            if scale
            else None
        )

    def __call__(
        self,
        task: LearningTask,
        theta: Params,
        x: Tensor,
        y: Tensor,
        noise: Tensor | None,
        lam: Tensor,
        range_: Range,
    ) -> tuple[Tensor, Tensor]:
        """The samples after the attack, and `lam`, the dual's multiplier, which learns the
        radius.
        """
        theta = {k: v.detach() for k, v in theta.items()}
        begin = x if noise is None else x + noise * range_.unit
        if self.kind == "pgd":
            return self._pgd(task, theta, x, y, begin, range_), lam
        z = x
        for _ in range(self.lam_steps):
            z = self._wasserstein(task, theta, x, y, begin, lam, range_)
            budget = self.epsilon ** (2 if self.squared else 1)
            lam = next_lambda(
                lam, self.lam_lr, budget, distance(z / range_.unit, x / range_.unit, self.squared)
            )
        return z, lam

    def _pgd(
        self, task: LearningTask, theta: Params, x: Tensor, y: Tensor, z: Tensor, range_: Range
    ) -> Tensor:
        step, radius = self.lr * range_.unit, self.epsilon * range_.unit
        for _ in range(self.steps):
            z = z + step * _slope(task, theta, z, y).sign()
            z = x + (z - x).clamp(-radius, radius)
            z = z.clamp(range_.low, range_.high)
        return z.detach()

    def _wasserstein(
        self,
        task: LearningTask,
        theta: Params,
        x: Tensor,
        y: Tensor,
        z: Tensor,
        lam: Tensor,
        range_: Range,
    ) -> Tensor:
        """Algorithm 1, l.3: ascent on ℓ(z) − λ d(z, x) in the unit u, where slopes are u times as
        steep and steps u as long.
        """
        pull = 2 * lam * self.lr
        for _ in range(self.steps):
            up = self.lr * _slope(task, theta, z, y) * range_.unit.square()
            if self.squared:
                # implicit in the quadratic cost, so that no λ is too large
                z = (z + up + pull * x) / (1 + pull)
            else:
                # the proximal step of ‖·‖: shrink towards x
                gap = ((z + up - x) / range_.unit).flatten(1)
                shrink = 1 - self.lr * lam / torch.linalg.vector_norm(
                    gap, dim=1, keepdim=True
                ).clamp(min=1e-12)
                z = x + (gap * shrink.clamp(min=0)).view_as(x) * range_.unit
            z = z.clamp(range_.low, range_.high)
        return z.detach()


def next_lambda(lam: Tensor, lr: float, budget: float, distances: Tensor) -> Tensor:
    """Algorithm 1, l.5: λ ← max(0, λ − α_λ (ε − mean d)), descent on the dual; a squared cost has
    the budget ε².
    """
    return (lam - lr * (budget - distances.mean().to(lam.dtype))).clamp(min=0.0)


class Attacks:
    """A method that perturbs samples. Subclasses declare these options."""

    attack: Literal["pgd", "wasserstein"]
    epsilon: float
    units: Literal["input", "pixel"]
    attack_steps: int
    attack_lr: float
    cost: Literal["l2sq", "l2"]
    lambda0: float
    lambda_lr: float
    lambda_steps: int
    clamp: Literal["data", "unit", "none"]

    def check_units(self, info: Info) -> None:
        """Refuse units=pixel where inputs are not images."""
        if self.units == "pixel" and len(info.shape) != 3:
            raise UsageError(
                "units=pixel is for images; these inputs are not, so ε can only be in their own"
                " unit (units=input)."
            )

    def attacker(self, as_code: bool = False) -> Attack:
        """The attack T. With `as_code` it starts from a little noise, as the authors' code does."""
        steps, lr = (5, 0.01) if self.attack == "pgd" else (15, 0.1)
        return Attack(
            self.attack,
            self.epsilon,
            self.attack_steps or steps,
            self.attack_lr or lr,
            self.cost == "l2sq",
            self.lambda_lr,
            self.lambda_steps,
            0.001 if as_code else 0.0,
        )

    def range_of(self, data: PartyData, as_code: bool = False) -> Range:
        """The range of a party's perturbed inputs. With `as_code` it is [0, 1], as in the authors'
        code. A pixel's unit is 1/std.
        """
        x = data.train.x
        mean, std = (
            (x.new_tensor(c).view(-1, 1, 1) for c in data.scaled)
            if self.units == "pixel"
            else x.new_tensor([0.0, 1.0])
        )
        ends = {
            "data": (x.min(), x.max()),
            "unit": ((0 - mean) / std, (1 - mean) / std),
            "none": (-torch.inf, torch.inf),
        }
        low, high = (torch.as_tensor(end).to(x) for end in ends["unit" if as_code else self.clamp])
        return Range(low, high, 1 / std)
