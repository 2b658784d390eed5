"""The ledger: every byte that crossed between parties and server, or between two parties.

Of thousands of parties single rows would be most of what a run writes. There the bytes of all
parties are added up, by round, work, direction and kind; in the rows they are called `parties`.
Totals are the same to the byte.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

SERVER = "server"
EVERYBODY = "parties"
"""What all parties are called where their rows are added up."""
MOST_APART = 5_000
"""How many parties have rows of their own."""
ADDED_UP = (
    f"There are more than {MOST_APART:,} parties: in ledger.csv the bytes of all of them are added"
    " up, by round, work and direction. Totals are exact."
)


class Charge(NamedTuple):
    """A row of the ledger: so many bytes of a kind went from `src` to `dst` for a work in a round."""

    round: int
    call: str
    src: str
    dst: str
    kind: str
    bytes: int


@dataclass
class Ledger:
    """Every byte that crossed, in order; `total` by kind."""

    rows: list[Charge] = field(default_factory=list)
    total: Counter[str] = field(default_factory=Counter)
    together: bool = False
    """Whether the bytes of all parties are added up."""
    _sums: Counter[tuple[int, str, str, str, str]] = field(default_factory=Counter)

    @staticmethod
    def for_parties(count: int) -> Ledger:
        """A ledger for so many parties."""
        return Ledger(together=count > MOST_APART)

    def charge(self, round: int, function: str, src: str, dst: str, kind: str, size: int) -> None:
        """Write a row, unless nothing crossed."""
        if not size:
            return
        self.total[kind] += size
        if self.together:
            src, dst = (end if end == SERVER else EVERYBODY for end in (src, dst))
            self._sums[round, function, src, dst, kind] += size
        else:
            self.rows.append(Charge(round, function, src, dst, kind, size))

    def take(self) -> list[Charge]:
        """The rows since the last call, which are then forgotten; the totals stay."""
        rows = [*self.rows, *(Charge(*row, size) for row, size in self._sums.items())]
        self.rows = []
        self._sums.clear()
        return rows
