"""The parties of one process, a thousand of them if need be.

A site is made when its party is first asked, and let go when the party keeps nothing. What does not
fit into the memory set aside for states is spilled to a file that has no name, so that it is gone
with the process, however that ends.
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
    """Bytes of states that a process keeps in memory."""
    wish = os.environ.get(STATE_BYTES_VARIABLE, "")
    if wish and not wish.isdecimal():
        raise UsageError(f"{STATE_BYTES_VARIABLE} must be a number of bytes, not {wish!r}.")
    return int(wish) if wish else STATE_BYTES


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
        return self._sites[i]

    def release(self, ids: Iterable[int]) -> list[int]:
        """After a work of these parties: who of them keeps something. What does not fit into memory
        is spilled.
        """
        keeping = []
        for i in ids:
            site = self._sites[i]
            if not site.keeps:
                self._used -= self._sizes.pop(i, 0)
                del self._sites[i]
                continue
            keeping.append(i)
            self._weigh(i)
            if self._used > self._room:
                self._spill = self._spill or SpillFile()
                site.versions.spill(self._spill)
                self._weigh(i)
        return keeping

    def settle(self, versions: Mapping[int, Version]) -> None:
        """Parties keep the states that are named and forget all others."""
        there = [i for i in versions if i in self._sites]
        for i in there:
            self._sites[i].versions.settle(versions[i])
        self.release(there)

    def save(self, folder: Path, t: int) -> list[Saved]:
        """Write the states that changed since the last time."""
        return [saved for site in self._sites.values() if (saved := site.save(folder, t))]

    def load(self, folder: Path, states: Iterable[Saved], versions: Mapping[int, CallId]) -> None:
        """Put saved states back."""
        for saved in states:
            self[saved.party].load(folder, saved, versions[saved.party])
            self.release([saved.party])

    def _weigh(self, i: int) -> None:
        """Count what a party's states take in memory now."""
        size = self._sites[i].versions.weight
        self._used += size - self._sizes.get(i, 0)
        self._sizes[i] = size
