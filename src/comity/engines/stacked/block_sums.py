"""Adds up the replies of parties that were trained together: pairs of rows of stacked weights are
added all at once.

The bits are those of `ReplyTree`, which adds the same pairs one by one.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from comity.base.record import Params
from comity.core.aggregate import ReplyTree, SumNode, TreeSum, Values

ROW_TYPES = (torch.float32, torch.float64)


class _Block:
    """Replies whose tensors are rows of the same stacked tensors, by field and name."""

    def __init__(self, kind: type, stacked: dict[str, Params]) -> None:
        self._kind = kind
        self._stacked = stacked
        self._replies: list[tuple[int, int, float]] = []
        """Position, row and weight of each."""

    def row_of(self, reply: Any) -> int:
        """The row that the reply is; -1 if it is none of this block."""
        if type(reply) is not self._kind:
            return -1
        row = -1
        for field, model in self._stacked.items():
            theta = getattr(reply, field)
            if theta.keys() != model.keys():
                return -1
            for name, stacked in model.items():
                place = _row(theta[name], stacked)
                if place < 0 or row not in (-1, place):
                    return -1
                row = place
        return row

    def add(self, position: int, row: int, weight: float) -> None:
        self._replies.append((position, row, weight))

    def add_to(self, tree: TreeSum) -> None:
        """Add the replies to a tree, of which they may fill any positions."""
        self._replies.sort()
        indices = [position for position, _, _ in self._replies]
        rows = [row for _, row, _ in self._replies]
        whole = [stacked for model in self._stacked.values() for stacked in model.values()]
        if rows != list(range(len(whole[0]))):
            whole = [stacked[rows] for stacked in whole]
        weights = torch.tensor([weight for _, _, weight in self._replies], dtype=torch.float64)
        values = Values(
            [_scaled(v, weights) for v in whole if v.is_floating_point()],
            [v for v in whole if not v.is_floating_point()],
        )
        level = 0
        while indices:
            lefts, alone = _pairs(indices)
            for n in alone:
                node = Values(*([v[n].clone() for v in tensors] for tensors in values))
                tree.add_node(level, indices[n], 1 << level, node, owned=True)
            values = Values(
                [_rows(v, lefts, 0) + _rows(v, lefts, 1) for v in values.floats] if lefts else [],
                [_rows(v, lefts, 0) for v in values.others] if lefts else [],
            )
            indices = [indices[n] // 2 for n in lefts]
            level += 1


class BlockSums(ReplyTree[Any]):
    """A tree to which blocks of replies are added as a whole."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self._block: _Block | None = None

    def add(self, position: int, reply: Any, weight: float) -> Any:
        row = self._block.row_of(reply) if self._block else -1
        if row < 0:
            self._checked(reply)
            self._end_block()
            self._block = _block_of(reply)
            row = self._block.row_of(reply) if self._block else -1
        if row < 0 or self._block is None:
            self._block = None
            return super().add(position, reply, weight)
        self._block.add(position, row, weight)
        return self.like

    def nodes(self) -> list[SumNode]:
        self._end_block()
        return super().nodes()

    def _end_block(self) -> None:
        block, self._block = self._block, None
        if block is not None:
            block.add_to(self._tree)


def _block_of(reply: Any) -> _Block | None:
    """A new block of the stacked tensors that this reply is a row of. None if there are none."""
    stacked: dict[str, Params] = {}
    for field, theta in vars(reply).items():
        stacked[field] = {}
        for name, value in theta.items():
            base = value._base
            if base is None or base.dim() != value.dim() + 1 or not base.is_contiguous():
                return None
            if value.is_floating_point() and value.dtype not in ROW_TYPES:
                return None
            stacked[field][name] = base
    return _Block(type(reply), stacked)


def _row(value: Tensor, stacked: Tensor) -> int:
    """Which row of a stacked tensor this is; -1 if it is none."""
    if value._base is not stacked or value.shape != stacked.shape[1:]:
        return -1
    if not value.is_contiguous() or not value.numel():
        return -1
    return (value.storage_offset() - stacked.storage_offset()) // value.numel()


def _scaled(stacked: Tensor, weights: Tensor) -> Tensor:
    """Each row times its weight."""
    of_rows = weights.to(stacked.device, stacked.dtype)
    return stacked * of_rows.view(-1, *[1] * (stacked.dim() - 1))


def _pairs(indices: list[int]) -> tuple[list[int], list[int]]:
    """Where in ascending indices the left ones of siblings are, and where those without a
    sibling are.
    """
    lefts, alone = [], []
    n = 0
    while n < len(indices):
        if n + 1 < len(indices) and not indices[n] % 2 and indices[n + 1] == indices[n] + 1:
            lefts.append(n)
            n += 2
        else:
            alone.append(n)
            n += 1
    return lefts, alone


def _rows(stacked: Tensor, lefts: list[int], right: int) -> Tensor:
    """The rows at `lefts`, or those right of them."""
    first, last = lefts[0], lefts[-1]
    if last - first == 2 * (len(lefts) - 1):  # a copy is not needed
        return stacked[first + right : last + right + 1 : 2]
    return stacked[[n + right for n in lefts]]
