"""What a party keeps, by version: a state is named by the call that it came of, and can be gone
back to until it is settled.
"""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from comity.base.call import CallId
from comity.base.record import once_called, payload, record
from comity.errors import ComityError
from comity.training.settings import Moments
from comity.wire.codec import decode, encode


@record
class PartyState:
    """All that a party keeps: the algorithm's state, and its optimizers' moments if the experiment
    keeps them.
    """

    mine: Any
    moments: dict[str, Moments]


once_called(PartyState, "comity.engines.site:PartyState")

Version = CallId | None
"""The call that a state came of; None for the one that every run begins with, which can always be
made again.
"""


class SpillFile:
    """Encoded states in a file without a name; the place of one that is gone is taken by the next
    of its size.
    """

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(prefix="comity-")  # noqa: SIM115 - open as long as the process lives
        self._free: dict[int, list[int]] = defaultdict(list)
        self._end = 0

    def put(self, blob: bytes) -> tuple[int, int]:
        """Write a state; its place."""
        size = len(blob)
        if self._free[size]:
            begin = self._free[size].pop()
        else:
            begin = self._end
            self._end += size
        self._file.seek(begin)
        self._file.write(blob)
        return begin, size

    def get(self, place: tuple[int, int]) -> bytes:
        """The state at a place."""
        begin, size = place
        self._file.seek(begin)
        return self._file.read(size)

    def free(self, place: tuple[int, int]) -> None:
        """Let go of a place."""
        self._free[place[1]].append(place[0])


class Versions:
    """A party's states: at most the settled one, the one that the last call was for, and what came
    of that call.
    """

    def __init__(
        self, first: Callable[[], PartyState], moved: Callable[[PartyState], PartyState]
    ) -> None:
        self.now: Version = None
        """The newest."""
        self._first = first
        self._moved = moved
        self._held: dict[Version, PartyState] = {None: first()}
        self._weights: dict[Version, int] = {
            None: 0
        }  # bytes that must be kept; the first state need not be
        self._spilled: dict[Version, tuple[int, int]] = {}
        self._file: SpillFile | None = None
        self._order: list[Version] = [None]

    @property
    def state(self) -> PartyState:
        """The newest state."""
        if self.now not in self._held:
            self._held[self.now] = (
                self._first() if self.now is None else self._moved(decode(self.blob()))
            )
        return self._held[self.now]

    @property
    def weight(self) -> int:
        """Bytes in memory that must be kept."""
        return sum(self._weights[version] for version in self._held)

    def knows(self, version: Version) -> bool:
        """Whether it can be gone back to."""
        return version in self._order

    def go_to(self, version: Version) -> None:
        """Forget all that is newer."""
        if not self.knows(version):
            raise ComityError(
                f"A party is out of step with the server: it is to go on {_named(version)}, but is"
                " past that."
            )
        while self._order[-1] != version:
            self._forget(self._order.pop())
        self.now = version

    def add(self, version: CallId, state: PartyState) -> None:
        """What came of a call for the newest state, which stays, as does the oldest, which a void
        round goes back to.
        """
        for between in self._order[1:-1]:
            self._order.remove(between)
            self._forget(between)
        self._order.append(version)
        self._held[version] = state
        self._weights[version] = payload(state)
        self.now = version

    def settle(self, version: Version) -> None:
        """Go there, and forget all others: nobody will ask for them again."""
        self.go_to(version)
        for older in self._order[:-1]:
            self._forget(older)
        self._order = [version]

    def replace(self, state: PartyState) -> None:
        """The newest state in other memory."""
        self._held[self.now] = state

    def blob(self) -> bytes:
        """The newest state encoded."""
        place = self._spilled.get(self.now)
        return (
            encode(self._held[self.now])
            if place is None or self._file is None
            else self._file.get(place)
        )

    def spill(self, file: SpillFile) -> None:
        """Give all states out of memory."""
        self._file = file
        for version, state in self._held.items():
            if version and version not in self._spilled:
                self._spilled[version] = file.put(encode(state))
        self._held.clear()

    def _forget(self, version: Version) -> None:
        self._held.pop(version, None)
        self._weights.pop(version)
        if version in self._spilled and self._file:
            self._file.free(self._spilled.pop(version))


def _named(version: Version) -> str:
    return f"after {version.function} in round {version.round}" if version else "from the beginning"
