"""The parties of one process, a thousand of them if need be.

A site is made when its party is first asked, and let go when the party keeps nothing. What does not fit into the memory set
aside for states is spilled to a file that has no name, so that it is gone with the process, however that ends.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from comity.core.algorithm import AnyAlgorithm
from comity.core.key import Key
from comity.core.party import Party
from comity.engines.saved import Saved
from comity.engines.site import Site
from comity.errors import Refusal

STATE_BYTES = 128 << 20
STATE_BYTES_VARIABLE = "COMITY_STATE_BYTES"


def state_bytes() -> int:
    """Bytes of states that a process keeps in memory."""
    wish = os.environ.get(STATE_BYTES_VARIABLE, "")
    if wish and not wish.isdecimal():
        raise Refusal(f"{STATE_BYTES_VARIABLE} must be a number of bytes, not {wish!r}.")
    return int(wish) if wish else STATE_BYTES


class SpillFile:
    """States in a file without a name, each in a place of its own; one that has grown gets a new place at the end."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(prefix="comity-")  # noqa: SIM115 - open as long as the process lives
        self._places: dict[int, tuple[int, int, int]] = {}
        self._end = 0

    def put(self, i: int, blob: bytes) -> None:
        """Write a party's state over its last one."""
        begin, room, _ = self._places.get(i, (0, -1, 0))
        if len(blob) > room:
            begin, room = self._end, len(blob)
            self._end += room
        self._places[i] = begin, room, len(blob)
        self._file.seek(begin)
        self._file.write(blob)

    def get(self, i: int) -> bytes:
        """A party's last state."""
        begin, _, size = self._places[i]
        self._file.seek(begin)
        return self._file.read(size)


class SiteStore:
    """Sites by party number."""

    def __init__(self, algorithm: AnyAlgorithm, parties: Iterable[Party], root: Key) -> None:
        self._algorithm = algorithm
        self._root = root
        self._parties: Mapping[int, Party] = {party.id: party for party in parties}
        self._sites: dict[int, Site] = {}
        self._sizes: dict[int, int] = {}
        self._used = 0
        self._room = state_bytes()
        self._spill: SpillFile | None = None

    def __getitem__(self, i: int) -> Site:
        if i not in self._sites:
            self._sites[i] = Site(self._algorithm, self._parties[i], self._root)
        site = self._sites[i]
        if site.spilled:
            assert self._spill
            site.restore(self._spill.get(i))
        return site

    def release(self, ids: Iterable[int]) -> list[int]:
        """After a work of these parties: who of them keeps something. What does not fit is spilled."""
        keeping = []
        for i in ids:
            site = self._sites[i]
            size = site.weight
            self._used += size - self._sizes.pop(i, 0)
            if not size:
                del self._sites[i]
                continue
            keeping.append(i)
            if self._used <= self._room:
                self._sizes[i] = size
                continue
            self._used -= size
            self._spill = self._spill or SpillFile()
            if (blob := site.spill()) is not None:
                self._spill.put(i, blob)
        return keeping

    def save(self, folder: Path, t: int) -> list[Saved]:
        """Write the states that changed since the last time."""
        made = []
        for i, site in self._sites.items():
            spilled = self._spill.get(i) if site.spilled and self._spill else None
            if saved := site.save(folder, t, spilled):
                made.append(saved)
        return made

    def load(self, folder: Path, states: Iterable[Saved]) -> None:
        """Put saved states back."""
        for saved in states:
            self[saved.party].load(folder, saved)
            self.release([saved.party])
