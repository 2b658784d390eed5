"""The ledger: every byte that crossed between parties and server, or between two parties."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

SERVER = "server"


class Charge(NamedTuple):
    """A row of the ledger: so many bytes of a kind went from `src` to `dst` for a work in a round."""

    round: int
    work: str
    src: str
    dst: str
    kind: str
    bytes: int


@dataclass
class Ledger:
    """Every byte that crossed, in order; `total` by kind."""

    rows: list[Charge] = field(default_factory=list)
    total: Counter[str] = field(default_factory=Counter)

    def charge(self, round: int, work: str, src: str, dst: str, kind: str, size: int) -> None:
        """Write a row, unless nothing crossed."""
        if size:
            self.rows.append(Charge(round, work, src, dst, kind, size))
            self.total[kind] += size

    def take(self) -> list[Charge]:
        """The rows since the last call, which are then forgotten; the totals stay."""
        rows, self.rows = self.rows, []
        return rows
