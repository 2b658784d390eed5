"""Finds NaN and infinite values in trees of records and tensors."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor
from torch.utils import _pytree as pytree

from comity.base.record import is_record


def has_finite_values(tensor: Tensor) -> bool:
    """Whether all numbers of a tensor are finite."""
    # A finite sum has finite terms, and is fast to compute. A sum of finite terms can overflow,
    # so each element is checked if the sum is not finite.
    return (
        not tensor.is_floating_point()
        or math.isfinite(tensor.sum().item())
        or bool(tensor.isfinite().all())
    )


def is_finite(tree: Any, of_tensor: Callable[[Tensor], bool] = has_finite_values) -> bool:
    """Whether all numbers in a tree are finite. The content of sealed messages is not checked.

    `of_tensor` answers for a tensor.
    """
    if isinstance(tree, Tensor):
        return of_tensor(tree)
    if isinstance(tree, float):
        return math.isfinite(tree)
    if isinstance(tree, dict):
        items: Iterable[Any] = tree.values()
    elif is_record(tree):
        items = vars(tree).values()
    else:
        items = tree if isinstance(tree, list | tuple) else ()
    return all(is_finite(item, of_tensor) for item in items)


def not_finite(tree: Any) -> str:
    """As `first_not_finite`, but faster where all values are finite."""
    return "" if is_finite(tree) else first_not_finite(tree)


class FiniteRows:
    """Checks the trees of parties that were trained together. Many of their tensors are rows of a
    stacked tensor, which is checked once for all of them.
    """

    def __init__(self) -> None:
        self._stacked: dict[int, tuple[Tensor, int, bool]] = {}
        """By id: a stacked tensor, its version when it was checked, and whether it was finite."""

    def not_finite(self, tree: Any) -> str:
        """The name of the first value that is not finite; empty if there is none."""
        return "" if is_finite(tree, self._has_finite_values) else first_not_finite(tree)

    def _has_finite_values(self, row: Tensor) -> bool:
        stacked = row._base
        if stacked is None or stacked.shape[1:] != row.shape:
            return has_finite_values(row)
        if id(stacked) not in self._stacked:
            finite = has_finite_values(stacked)
            self._stacked[id(stacked)] = stacked, stacked._version, finite
        _, version, finite = self._stacked[id(stacked)]
        return (finite and stacked._version == version) or has_finite_values(row)


def first_not_finite(tree: Any) -> str:
    """The name of the first value that is not finite, as in `theta.fc.weight`; empty if there is
    none.
    """
    for path, leaf in pytree.tree_flatten_with_path(tree)[0]:
        if not is_finite(leaf):
            return (
                ".".join(
                    str(getattr(part, "name", getattr(part, "key", getattr(part, "idx", part))))
                    for part in path
                )
                or "it"
            )
    return ""
