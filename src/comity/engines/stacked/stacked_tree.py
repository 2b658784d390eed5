"""Stacks parties' trees: equal parts are taken once, tensors that differ are stacked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from comity.base.record import Params


class NotStackable(Exception):
    """These trees cannot be stacked: they differ in more than the values of their tensors."""


class StackedTree:
    """Several parties' trees. `rows` are the stacked tensors that differ between them; row i is
    party i's.
    """

    def __init__(self, trees: Sequence[Any]) -> None:
        self.rows: Params = {}
        self._first = trees[0]
        if all(tree is self._first for tree in trees):
            return
        self._leaves, self._spec = pytree.tree_flatten(self._first)
        flat = [pytree.tree_flatten(tree) for tree in trees]
        if any(spec != self._spec for _, spec in flat):
            raise NotStackable("the aux arguments of the parties' losses have different structures")
        for n, column in enumerate(zip(*(leaves for leaves, _ in flat), strict=True)):
            if isinstance(column[0], Tensor):
                if any(leaf is not column[0] for leaf in column):
                    self.rows[str(n)] = _stacked(column, self._first, n)
            elif not all(_equal(leaf, column[0]) for leaf in column):
                raise NotStackable(
                    f"{_place(self._first, n)} differs between parties and is no tensor"
                )

    def of(self, rows: Params) -> Any:
        """One party's tree, from its rows."""
        if not rows:
            return self._first
        return pytree.tree_unflatten(
            [rows.get(str(n), leaf) for n, leaf in enumerate(self._leaves)], self._spec
        )


def _place(tree: Any, n: int) -> str:
    """The position of the n-th leaf of a tree, as one would write it in a loss."""
    path, _ = pytree.tree_flatten_with_path(tree)[0][n]
    return f"aux{pytree.keystr(path)}"


def _stacked(column: Sequence[Any], tree: Any, n: int) -> Tensor:
    first = column[0]
    if any(
        not isinstance(leaf, Tensor) or leaf.shape != first.shape or leaf.dtype != first.dtype
        for leaf in column
    ):
        raise NotStackable(f"{_place(tree, n)} has another shape at each party")
    return torch.stack([leaf.detach() for leaf in column])


def _equal(a: Any, b: Any) -> bool:
    if a is b:
        return True
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return isinstance(a, type(b)) and a.dtype == b.dtype and np.array_equal(a, b)
    return type(a) is type(b) and bool(a == b)
