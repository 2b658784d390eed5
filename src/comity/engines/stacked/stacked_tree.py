"""Parties' trees as one: what is equal is taken once, the tensors by which they differ are stacked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from comity.base.record import Params


class Unlike(Exception):
    """These cannot be one: they differ in more than the values of their tensors."""


class StackedTree:
    """Several parties' trees; `rows` are the tensors by which they differ, stacked, row i being
    party i's.
    """

    def __init__(self, trees: Sequence[Any]) -> None:
        self.rows: Params = {}
        self._whole = trees[0]
        if all(tree is self._whole for tree in trees):
            return
        self._leaves, self._spec = pytree.tree_flatten(self._whole)
        flat = [pytree.tree_flatten(tree) for tree in trees]
        if any(spec != self._spec for _, spec in flat):
            raise Unlike("what parties' losses get is not of one shape")
        for n, column in enumerate(zip(*(leaves for leaves, _ in flat), strict=True)):
            if isinstance(column[0], Tensor):
                if any(leaf is not column[0] for leaf in column):
                    self.rows[str(n)] = _stacked(column, self._whole, n)
            elif not all(_equal(leaf, column[0]) for leaf in column):
                raise Unlike(f"{_place(self._whole, n)} differs between parties and is no tensor")

    def of(self, rows: Params) -> Any:
        """One party's tree, around its rows."""
        if not rows:
            return self._whole
        return pytree.tree_unflatten(
            [rows.get(str(n), leaf) for n, leaf in enumerate(self._leaves)], self._spec
        )


def _place(tree: Any, n: int) -> str:
    """Where the n-th leaf of a tree is, as one would write it in a loss."""
    path, _ = pytree.tree_flatten_with_path(tree)[0][n]
    return f"own{pytree.keystr(path)}"


def _stacked(column: Sequence[Any], tree: Any, n: int) -> Tensor:
    first = column[0]
    if any(
        not isinstance(leaf, Tensor) or leaf.shape != first.shape or leaf.dtype != first.dtype
        for leaf in column
    ):
        raise Unlike(f"{_place(tree, n)} has another shape at each party")
    return torch.stack([leaf.detach() for leaf in column])


def _equal(one: Any, other: Any) -> bool:
    if one is other:
        return True
    if isinstance(one, np.ndarray) or isinstance(other, np.ndarray):
        return (
            isinstance(one, type(other)) and one.dtype == other.dtype and np.array_equal(one, other)
        )
    return type(one) is type(other) and bool(one == other)
