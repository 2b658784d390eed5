"""Methods without a server: nobody in the middle holds anything, and all content travels sealed
between parties.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Generic

from comity.core import Algorithm, C, Empty, Info, Key, Server, Traits, record


@record
class Group:
    """Whom a party may turn to in this round."""

    ids: list[int]


class PeerToPeer(Algorithm[Empty, C, Empty], Generic[C]):
    """A round, and the welcome of newcomers, are one exchange: some parties learn, some are there
    to be turned to.
    """

    @abstractmethod
    def exchange(self, server: Server, learners: list[int], others: list[int]) -> None:
        """What parties do with each other."""

    def init_server(self, key: Key, info: Info) -> Empty:
        return Empty()

    def message_for(self, s: Empty, i: int) -> Empty:
        return s

    def round(self, s: Empty, server: Server, t: int) -> Empty:
        group = server.sample(t)
        self.exchange(server, group, group)
        return s

    def join(self, s: Empty, server: Server, ids: Sequence[int]) -> Empty:
        self.exchange(server, list(ids), list(server.info.parties))
        return s

    traits = Traits(start_weights="")
