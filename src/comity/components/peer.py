"""Peer-to-peer methods: the server keeps no state, and all content is sealed between parties."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Generic

from comity.core import Algorithm, C, Empty, Info, Key, Server, Traits, record


@record
class Group:
    """The peers that a party may ask in this round."""

    ids: list[int]


class PeerToPeer(Algorithm[Empty, C, Empty], Generic[C]):
    """A method whose rounds, and whose joining of newcomers, are one exchange between learners and
    parties that help them.
    """

    @abstractmethod
    def exchange(self, server: Server, learners: list[int], others: list[int]) -> None:
        """Exchange sealed messages: `learners` train, `others` may be asked for help."""

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
