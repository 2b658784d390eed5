"""Finds NaN and infinite values in trees of records and tensors."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor
from torch.utils import _pytree as pytree

from comity.base.record import is_record


def is_finite(tree: Any) -> bool:
    """Whether all numbers in a tree are finite. The content of sealed messages is not checked."""
    if isinstance(tree, Tensor):
        # A finite sum has finite terms, and is fast to compute. A sum of finite terms can overflow,
        # so each element is checked if the sum is not finite.
        return (
            not tree.is_floating_point()
            or math.isfinite(tree.sum().item())
            or bool(tree.isfinite().all())
        )
    if isinstance(tree, float):
        return math.isfinite(tree)
    if isinstance(tree, dict):
        return all(map(is_finite, tree.values()))
    if is_record(tree):
        return all(map(is_finite, vars(tree).values()))
    return all(map(is_finite, tree)) if isinstance(tree, list | tuple) else True


def not_finite(tree: Any) -> str:
    """As `first_not_finite`, but faster where all values are finite."""
    return "" if is_finite(tree) else first_not_finite(tree)


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
