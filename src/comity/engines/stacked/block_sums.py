"""Adds up the replies of parties that were trained together: rows of stacked weights, as one
product with the parties' weights.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from comity.core.aggregate import ReplyTree, Values

PRODUCT_TYPES = (torch.float32, torch.float64)


class _Block:
    """Replies whose tensors are rows of the same stacked tensors."""

    def __init__(self, stacked: Values) -> None:
        self._stacked = stacked
        self._rows: list[int] = []
        self._weights: list[float] = []
        self.positions: list[int] = []

    def is_of(self, stacked: Values) -> bool:
        """Whether these are the stacked tensors of this block."""
        return all(
            a is b
            for mine, theirs in zip(self._stacked, stacked, strict=True)
            for a, b in zip(mine, theirs, strict=True)
        )

    def add(self, position: int, row: int, weight: float) -> None:
        self.positions.append(position)
        self._rows.append(row)
        self._weights.append(weight)

    def sum(self) -> Values:
        """The weighted sum of the rows. Integer buffers are those of the first position."""
        floats = [self._sum(stacked) for stacked in self._stacked.floats]
        first = self._rows[self.positions.index(min(self.positions))]
        return Values(floats, [stacked[first].clone() for stacked in self._stacked.others])

    def _sum(self, stacked: Tensor) -> Tensor:
        if self._rows != list(range(len(stacked))):
            stacked = stacked[self._rows]  # the others may hold values that are not finite
        weights = torch.tensor(self._weights, dtype=stacked.dtype, device=stacked.device)
        return torch.mv(stacked.reshape(len(weights), -1).t(), weights).view(stacked.shape[1:])


class BlockSums(ReplyTree[Any]):
    """A tree in which the sum of a block stands at the position of its first party."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self._block: _Block | None = None

    def add(self, position: int, reply: Any, weight: float) -> Any:
        form = self._checked(reply)
        stacked_and_row = _stacked_and_row(form.values(reply))
        if stacked_and_row is None:
            return super().add(position, reply, weight)
        stacked, row = stacked_and_row
        if self._block is None or not self._block.is_of(stacked):
            self._end_block()
            self._block = _Block(stacked)
        self._block.add(position, row, weight)
        return form.like

    def nodes(self) -> list[Any]:
        self._end_block()
        return super().nodes()

    def _end_block(self) -> None:
        block, self._block = self._block, None
        if block is None:
            return
        first = min(block.positions)
        self._tree.add(first, block.sum(), size=len(block.positions))
        for position in block.positions:
            if position != first:
                self._tree.skip(position)


def _stacked_and_row(values: Values) -> tuple[Values, int] | None:
    """The stacked tensors that contain all of these as one row, and its number. None if there are
    none.
    """
    bases: list[list[Tensor]] = []
    row = -1
    for tensors in values:
        of_these = []
        for tensor in tensors:
            stacked = tensor._base
            if stacked is None or not stacked.is_contiguous():
                return None
            if stacked.shape[1:] != tensor.shape or not tensor.is_contiguous():
                return None
            offset = tensor.storage_offset() - stacked.storage_offset()
            place = offset // max(1, tensor.numel())
            if row not in (-1, place):
                return None
            row = place
            of_these.append(stacked)
        bases.append(of_these)
    if row < 0 or any(tensor.dtype not in PRODUCT_TYPES for tensor in values.floats):
        return None
    return Values(*bases), row
