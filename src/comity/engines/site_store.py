"""The sites of the parties of one process, which may be thousands.

A site is created when its party is first called, and dropped when the party keeps no state. States
that exceed the memory limit are spilled to an unnamed file, which the system removes when the
process ends in any way.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from comity.base.call import CallId
from comity.base.key import Key
from comity.core.algorithm import AnyAlgorithm
from comity.core.party import Party
from comity.engines.saved import Saved
from comity.engines.site import Site
from comity.engines.versions import SpillFile, Version
from comity.errors import UsageError

STATE_BYTES = 128 << 20
STATE_BYTES_VARIABLE = "COMITY_STATE_BYTES"


def state_bytes() -> int:
    """The bytes of states that a process keeps in memory, from COMITY_STATE_BYTES."""
    text = os.environ.get(STATE_BYTES_VARIABLE, "")
    if text and not text.isdecimal():
        raise UsageError(f"{STATE_BYTES_VARIABLE} must be a number of bytes, not {text!r}.")
    return int(text) if text else STATE_BYTES


class SiteStore:
    """Sites by party number."""

    def __init__(self, algorithm: AnyAlgorithm, parties: Iterable[Party], root: Key) -> None:
        self._algorithm = algorithm
        self._root = root
        self._parties: Mapping[int, Party] = {party.id: party for party in parties}
        self._sites: dict[int, Site] = {}
        self._sizes: dict[int, int] = {}
        self._used_bytes = 0
        self._limit = state_bytes()
        self._spill: SpillFile | None = None

    def __getitem__(self, i: int) -> Site:
        if i not in self._sites:
            self._sites[i] = Site(self._algorithm, self._parties[i], self._root)
        return self._sites[i]

    def release(self, ids: Iterable[int]) -> list[int]:
        """Called after party functions: drop or spill states, and return the parties that keep
        one.
        """
        keeping = []
        for i in ids:
            site = self._sites[i]
            if not site.keeps:
                self._used_bytes -= self._sizes.pop(i, 0)
                del self._sites[i]
                continue
            keeping.append(i)
            self._weigh(i)
            if self._used_bytes > self._limit:
                self._spill = self._spill or SpillFile()
                site.versions.spill(self._spill)
                self._weigh(i)
        return keeping

    def commit(self, versions: Mapping[int, Version]) -> None:
        """Parties keep these states and discard all others."""
        present = [i for i in versions if i in self._sites]
        for i in present:
            self._sites[i].versions.commit(versions[i])
        self.release(present)

    def save(self, folder: Path, t: int) -> list[Saved]:
        """Write the states that changed since the last time."""
        return [saved for site in self._sites.values() if (saved := site.save(folder, t))]

    def load(self, folder: Path, states: Iterable[Saved], versions: Mapping[int, CallId]) -> None:
        """Restore saved states."""
        for saved in states:
            self[saved.party].load(folder, saved, versions[saved.party])
            self.release([saved.party])

    def _weigh(self, i: int) -> None:
        """Update the memory that a party's states are counted with."""
        size = self._sites[i].versions.weight
        self._used_bytes += size - self._sizes.get(i, 0)
        self._sizes[i] = size
