"""Weighted means of parameters, taken in party order."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from comity.core.record import Params


class Averaging:
    """A weighted mean of parameters that come one by one; whole-number buffers come from the first."""

    def __init__(self) -> None:
        self._total = 0.0
        self._sums: list[Tensor] = []
        self._first: Params = {}
        self._floating: list[str] = []

    def add(self, theta: Params, weight: float) -> None:
        """Count one more; nothing of it is kept."""
        if not self._total:
            self._floating = [k for k, v in theta.items() if v.is_floating_point()]
            self._sums = [torch.zeros_like(theta[k]) for k in self._floating]
            self._first = {k: v if k in self._floating else v.clone() for k, v in theta.items()}
            self._first |= dict(zip(self._floating, self._sums, strict=True))
        if self._sums:
            torch._foreach_add_(self._sums, [theta[k] for k in self._floating], alpha=weight)
        self._total += weight

    def value(self) -> Params:
        """The mean of what was added."""
        means = torch._foreach_div(self._sums, self._total) if self._sums else []
        return self._first | dict(zip(self._floating, means, strict=True))


def average(models: Mapping[int, Params], weights: Mapping[int, float]) -> Params:
    """The weighted mean of parameters, summed in party order; whole-number buffers come from the first party."""
    mean = Averaging()
    for i in sorted(models):
        mean.add(models[i], weights[i])
    return mean.value()
