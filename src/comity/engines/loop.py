"""All parties in this process, one after the other or side by side."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from comity.core.algorithm import Algorithm
from comity.core.key import Key
from comity.core.net import Call, Edge, Net, Saved
from comity.core.party import Info, Party
from comity.core.record import Sealed
from comity.engines.site_store import Residents
from comity.engines.stacked import scheduler

Done = Callable[[int], None]


def inboxes(post: Mapping[Edge, Sealed]) -> dict[int, dict[int, Sealed]]:
    """Parcels by recipient, then by sender."""
    sorted_out: dict[int, dict[int, Sealed]] = defaultdict(dict)
    for (src, dst), parcel in post.items():
        sorted_out[dst][src] = parcel
    return sorted_out


class LoopNet(Net):
    """The plainest engine: a message is the object itself."""

    def __init__(
        self,
        algorithm: Algorithm,
        info: Info,
        root: Key,
        participation: float,
        parties: Iterable[Party],
        done: Done,
        stacked: bool = False,
    ) -> None:
        super().__init__(algorithm, info, root, participation)
        self._sites = Residents(algorithm, parties, root)
        self._done = done
        self._stacked = stacked

    def deliver(self, call: Call, mail: Mapping[int, Any], post: Mapping[Edge, Sealed]) -> dict[int, tuple[Any, int]]:
        answers = {}
        for i, answer in scheduler.work(self._sites, call, mail, inboxes(post), self._stacked):
            answers[i] = self.arrived(i, answer)
            self._sites.settle([i])
            self._done(1)
        return answers

    def save(self, folder: Path, t: int) -> list[Saved]:
        return self._sites.save(folder, t)

    def load(self, folder: Path, states: Iterable[Saved]) -> None:
        self._sites.load(folder, states)

    def state(self, i: int) -> Any:
        return self._sites[i].mine
