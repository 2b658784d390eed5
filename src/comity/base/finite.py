"""Numbers that are none: where a tree of records and tensors holds a NaN or an infinity."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor
from torch.utils import _pytree as pytree

from comity.base.record import is_record


def is_finite(tree: Any) -> bool:
    """Whether all numbers in a tree are; sealed parcels are closed, and not looked into."""
    if isinstance(tree, Tensor):
        # A finite sum has finite parts, and is fast; a sum may also overflow, so what is not finite
        # is looked at closely.
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
    """The same as `first_not_finite`, which walks slowly; whether all is finite is known faster."""
    return "" if is_finite(tree) else first_not_finite(tree)


def first_not_finite(tree: Any) -> str:
    """The name of the first value that is not finite, as in `theta.fc.weight`; nothing if all are."""
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
