"""Methods without a server: nobody in the middle holds anything, and all content travels sealed between parties."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

from comity.core import Algorithm, Empty, Info, Key, Net, record


@record
class Group:
    """Whom a party may turn to in this round."""

    ids: list[int]


class PeerToPeer(Algorithm):
    """A round, and the welcome of newcomers, are one exchange: some parties learn, some are there to be turned to."""

    @abstractmethod
    def exchange(self, net: Net, learners: list[int], others: list[int]) -> None:
        """What parties do with each other."""

    def server(self, key: Key, info: Info) -> Any:
        return Empty()

    def start(self, s: Any, net: Net) -> Any:
        return s

    def view(self, s: Any, i: int) -> Any:
        return s

    def round(self, s: Any, net: Net, t: int) -> Any:
        group = net.sample(t)
        self.exchange(net, group, group)
        return s

    def join(self, s: Any, net: Net, ids: Sequence[int]) -> Any:
        self.exchange(net, list(ids), list(net.info.parties))
        return s
