"""The ledger: every byte that crossed between parties and server, or between two parties.

With thousands of parties, single rows would be most of a run's output. There the ledger sums the
bytes of all parties by round, call, direction and kind, and names them `parties`. Totals are exact
in both cases.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

SERVER = "server"
EVERYBODY = "parties"
"""The name that stands for all parties in summed rows."""
MAX_PARTY_ROWS = 5_000
"""The largest number of parties that have rows of their own."""
ADDED_UP = (
    f"There are more than {MAX_PARTY_ROWS:,} parties: ledger.csv has the sum of their bytes, by"
    " round, call and direction. Totals are exact."
)


class Charge(NamedTuple):
    """A row of the ledger: the bytes of a kind that went from `src` to `dst` for a call in a
    round.
    """

    round: int
    call: str
    src: str
    dst: str
    kind: str
    bytes: int


@dataclass
class Ledger:
    """The bytes that crossed, in order; `total` by kind."""

    rows: list[Charge] = field(default_factory=list)
    total: Counter[str] = field(default_factory=Counter)
    summed: bool = False
    """Whether rows are summed over all parties."""
    _sums: Counter[tuple[int, str, str, str, str]] = field(default_factory=Counter)

    @staticmethod
    def for_parties(count: int) -> Ledger:
        """A ledger for that number of parties."""
        return Ledger(summed=count > MAX_PARTY_ROWS)

    def charge(self, round: int, function: str, src: str, dst: str, kind: str, size: int) -> None:
        """Add a row, unless its size is 0."""
        if not size:
            return
        self.total[kind] += size
        if self.summed:
            src, dst = (end if end == SERVER else EVERYBODY for end in (src, dst))
            self._sums[round, function, src, dst, kind] += size
        else:
            self.rows.append(Charge(round, function, src, dst, kind, size))

    def take(self) -> list[Charge]:
        """Return and remove the rows since the last call. The totals stay."""
        rows = [*self.rows, *(Charge(*row, size) for row, size in self._sums.items())]
        self.rows = []
        self._sums.clear()
        return rows
