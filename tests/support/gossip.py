"""A user method whose parties send messages to each other: each sends its model to the next in a
ring.

Idea: a party averages the model that it received with its own and trains; the server forwards
sealed messages that it cannot open.
"""

from __future__ import annotations

from comity.core import (
    Accounting,
    Algorithm,
    Empty,
    Info,
    Key,
    Params,
    Party,
    Sealed,
    Server,
    Traffic,
    accounts_for,
    algorithm,
    average,
    on_party,
    option,
    plain,
    record,
    seal,
)


@record
class Parcel:
    """A model for the next party."""

    theta: Params


@record
class After:
    """The id of the next party in the ring."""

    id: int


@record
class Posted:
    """A sealed message, as the server sees it."""

    sealed: Sealed[Parcel]


@algorithm
class Gossip(Algorithm[Empty, Params, Empty]):
    share: float = option(0.5, "weight of the neighbour's model", minimum=0)

    def check(self, info: Info) -> None:
        info.same_architecture("gossip")

    def init_server(self, key: Key, info: Info) -> Empty:
        return Empty()

    def init_party(self, key: Key, party: Party) -> Params:
        return party.task.init(key)

    def message_for(self, s: Empty, i: int) -> Empty:
        return Empty()

    def round(self, s: Empty, server: Server, t: int) -> Empty:
        ring = server.sample(t)
        successor = dict(zip(ring, [*ring[1:], ring[0]], strict=True))
        replies = server.call(self.offer, {i: After(successor[i]) for i in ring})
        server.call(
            self.local,
            dict.fromkeys(ring, Empty()),
            sealed_messages={(i, successor[i]): replies[i].sealed for i in ring},
        )
        return s

    @on_party
    async def offer(self, state: Params, m: After, party: Party, key: Key) -> tuple[Params, Posted]:
        return state, Posted(seal(Parcel(state), to=m.id))

    @on_party
    async def local(self, state: Params, m: Empty, party: Party, key: Key) -> tuple[Params, Empty]:
        (message,) = party.inbox.values()
        mean = average({0: state, 1: message.theta}, {0: 1 - self.share, 1: self.share})
        return (await party.fit(plain, mean, key)).theta, Empty()

    def deployed_model(self, state: Params, m: Empty, party: Party) -> Params:
        return state


@accounts_for(Gossip)
class GossipAccounting(Accounting[Gossip]):
    def join_traffic(self, info: Info) -> Traffic:
        return Traffic()

    def traffic(self, info: Info, cohort: list[int]) -> Traffic:
        return Traffic(down=4 * len(cohort), peer=len(cohort) * info.task.bytes())
