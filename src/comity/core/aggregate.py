"""Weighted means of parameters, taken in party order."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from comity.core.key import Key
from comity.core.noise import gaussian
from comity.core.record import Params
from comity.errors import ComityError


def check_like(theta: Params, like: Params, whose: str = "A model") -> None:
    """Refuse parameters of other names, shapes or kinds than those they are added to: torch would broadcast or skip them."""
    if theta.keys() != like.keys():
        name = min(theta.keys() ^ like.keys())
        raise ComityError(f"{whose} does not fit the others: {name} is {'only in it' if name in theta else 'missing'}.")
    for name, value in theta.items():
        other = like[name]
        if value.shape != other.shape or value.dtype != other.dtype:
            raise ComityError(f"{whose} does not fit the others: {name} is {_form(value)} in it, and {_form(other)} in them.")


def _form(value: Tensor) -> str:
    return f"{str(value.dtype).removeprefix('torch.')}{[*value.shape]}"


class Averaging:
    """A weighted mean of parameters that come one by one and are alike; whole-number buffers come from the first."""

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
        else:
            check_like(theta, self._first, "A model that is to be averaged")
        if self._sums:
            torch._foreach_add_(self._sums, [theta[k] for k in self._floating], alpha=weight)
        self._total += weight

    def value(self) -> Params:
        """The mean of what was added."""
        means = torch._foreach_div(self._sums, self._total) if self._sums else []
        return self._first | dict(zip(self._floating, means, strict=True))


class NoisyAveraging(Averaging):
    """A mean in which all count alike, with noise on it: `spread` tells how much on the mean of so many."""

    def __init__(self, key: Key, spread: Callable[[int], float]) -> None:
        super().__init__()
        self._key = key
        self._spread = spread
        self._count = 0

    def add(self, theta: Params, weight: float) -> None:
        self._count += 1
        super().add(theta, 1.0)

    def value(self) -> Params:
        mean = super().value()
        spread = self._spread(self._count)
        return {k: v + gaussian(self._key.fold(k), v.shape, spread).to(v) for k, v in mean.items()}


def average(models: Mapping[int, Params], weights: Mapping[int, float]) -> Params:
    """The weighted mean of parameters, summed in party order; whole-number buffers come from the first party."""
    mean = Averaging()
    for i in sorted(models):
        mean.add(models[i], weights[i])
    return mean.value()
