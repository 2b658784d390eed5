"""A party's states by version: a state is named by the call that it came from, and can be restored
until another one is committed.
"""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from comity.base.call import CallId
from comity.base.record import payload, record, register_earlier_name
from comity.errors import ComityError
from comity.training.settings import Moments
from comity.wire.codec import decode, encode


@record
class PartyState:
    """A party's whole state: the method's part (`mine`), and optimizer moments if the experiment
    keeps them.
    """

    mine: Any
    moments: dict[str, Moments]


register_earlier_name(PartyState, "comity.engines.site:PartyState")

Version = CallId | None
"""The call that a state came from; None for the initial state, which can always be computed
again.
"""


class SpillFile:
    """Encoded states in an unnamed file. The space of a removed state is reused for the next one of
    its size.
    """

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(prefix="comity-")  # noqa: SIM115 - open as long as the process lives
        self._free: dict[int, list[int]] = defaultdict(list)
        self._end = 0

    def write(self, blob: bytes) -> tuple[int, int]:
        """Write a state and return its position."""
        size = len(blob)
        if self._free[size]:
            begin = self._free[size].pop()
        else:
            begin = self._end
            self._end += size
        self._file.seek(begin)
        self._file.write(blob)
        return begin, size

    def read(self, place: tuple[int, int]) -> bytes:
        """The state at a position."""
        begin, size = place
        self._file.seek(begin)
        return self._file.read(size)

    def free(self, place: tuple[int, int]) -> None:
        """Free the space at a position."""
        self._free[place[1]].append(place[0])


class Versions:
    """A party's states: at most the committed one, the one that the last call started from, and the
    result of that call.
    """

    def __init__(
        self,
        initial_state: Callable[[], PartyState],
        to_device: Callable[[PartyState], PartyState],
    ) -> None:
        self.now: Version = None
        """The version of the newest state."""
        self._initial_state = initial_state
        self._to_device = to_device
        self._in_memory: dict[Version, PartyState] = {None: initial_state()}
        self._sizes: dict[Version, int] = {None: 0}
        """The bytes of each state. The initial one counts as 0, since it need not be kept."""
        self._spilled: dict[Version, tuple[int, int]] = {}
        self._file: SpillFile | None = None
        self._order: list[Version] = [None]

    @property
    def state(self) -> PartyState:
        """The newest state."""
        if self.now not in self._in_memory:
            self._in_memory[self.now] = (
                self._initial_state() if self.now is None else self._to_device(decode(self.blob()))
            )
        return self._in_memory[self.now]

    @property
    def weight(self) -> int:
        """The bytes in memory that must be kept."""
        return sum(self._sizes[version] for version in self._in_memory)

    def knows(self, version: Version) -> bool:
        """Whether this version can be restored."""
        return version in self._order

    def go_to(self, version: Version) -> None:
        """Discard all newer states."""
        if not self.knows(version):
            raise ComityError(
                f"A party is out of step with the server: it should continue {_position(version)},"
                " but no longer has that state."
            )
        while self._order[-1] != version:
            self._forget(self._order.pop())
        self.now = version

    def add(self, version: CallId, state: PartyState) -> None:
        """Add the result of a call on the newest state. That state stays, as does the oldest, for a
        round that is discarded.
        """
        for between in self._order[1:-1]:
            self._order.remove(between)
            self._forget(between)
        self._order.append(version)
        self._in_memory[version] = state
        self._sizes[version] = payload(state)
        self.now = version

    def commit(self, version: Version) -> None:
        """Go to this version and discard all others."""
        self.go_to(version)
        for older in self._order[:-1]:
            self._forget(older)
        self._order = [version]

    def replace(self, state: PartyState) -> None:
        """Replace the newest state by a copy in other memory."""
        self._in_memory[self.now] = state

    def blob(self) -> bytes:
        """The newest state, encoded."""
        place = self._spilled.get(self.now)
        if place is None or self._file is None:
            return encode(self._in_memory[self.now])
        return self._file.read(place)

    def spill(self, file: SpillFile) -> None:
        """Move all states from memory to a file."""
        self._file = file
        for version, state in self._in_memory.items():
            if version and version not in self._spilled:
                self._spilled[version] = file.write(encode(state))
        self._in_memory.clear()

    def _forget(self, version: Version) -> None:
        self._in_memory.pop(version, None)
        self._sizes.pop(version)
        if version in self._spilled and self._file:
            self._file.free(self._spilled.pop(version))


def _position(version: Version) -> str:
    return f"after {version.function} in round {version.round}" if version else "from the beginning"
