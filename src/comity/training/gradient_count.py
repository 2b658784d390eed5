"""Counts gradient evaluations, the unit in which methods' computations are compared.

A gradient evaluation is a pass of samples through a network, forward and back. A loss with two such
passes, as for two models or for a batch and its attacked copy, counts two. Passes of
representations through a head or a discriminator belong to the pass that computed them. A gradient
without a pass of samples, as of a discriminator on given representations, counts one.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar, Token

import torch
from torch import Tensor
from torch._C import _functorch as functorch

SEVERAL = 3
"""Runs warn where something takes so many times the steps that it is compared with, or more."""


class GradientCount:
    """Counts the gradient evaluations within a `with` block.

    An inner block counts for itself: whoever opens it adds its total to whatever that belongs to.

    Examples:
        >>> with GradientCount() as count:
        ...     add_gradients(2)
        >>> count.total
        2
    """

    def __init__(self, mini_batch: int = 0) -> None:
        outer = _COUNT.get()
        self.total = 0
        self.mini_batch: int = mini_batch or (outer.mini_batch if outer else 0)
        """The size from which on a batch counts as several; 0 if every batch counts as one."""
        self._token: Token[GradientCount | None] | None = None

    @property
    def at_least_one(self) -> int:
        """The total; one if nothing was counted."""
        return max(1, self.total)

    def __enter__(self) -> GradientCount:
        self._token = _COUNT.set(self)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._token
        _COUNT.reset(self._token)


_COUNT: ContextVar[GradientCount | None] = ContextVar("gradient count", default=None)


def add_gradients(evaluations: int) -> None:
    """Add gradient evaluations to the innermost count, if there is one."""
    if count := _COUNT.get():
        count.total += evaluations


def count_pass(theta: Mapping[str, Tensor], x: Tensor) -> None:
    """Count a pass of samples x through a network with weights theta, if some of these have a
    gradient.

    If x has a gradient, too, the pass is not counted: x are representations, or samples whose own
    gradient is taken, which counts by itself.
    """
    count = _COUNT.get()
    if (
        count
        and torch.is_grad_enabled()
        and not _has_gradient(x)
        and any(map(_has_gradient, theta.values()))
    ):
        count.total += -(-len(x) // count.mini_batch) if count.mini_batch else 1


def _has_gradient(x: Tensor) -> bool:
    """Whether a tensor has a gradient, also within `vmap`."""
    while not x.requires_grad and functorch.maybe_get_level(x) >= 1:
        x = functorch.get_unwrapped(x)
    return x.requires_grad
