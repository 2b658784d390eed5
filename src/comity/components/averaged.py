"""What methods that average weights have in common: some names stay at the party, the others cross
the wire.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, TypeVar

from comity.core import (
    Accounting,
    Algorithm,
    C,
    Info,
    Key,
    LearningTask,
    M,
    Params,
    Party,
    S,
    Traits,
    UsageError,
    WireShapes,
    accounts_for,
    drop,
    keep,
    on_party,
    with_task,
)


class AveragesWeights(Algorithm[S, C, M]):
    """A method whose parties train a model that they receive, keep what is private of it, and send
    the rest.
    """

    def check(self, info: Info) -> None:
        info.same_architecture("averaging")
        if self.kept(info.task) >= info.task.shapes.keys():
            raise UsageError(
                f"Nothing of {info.task.network.name} would be shared: all its weights stay at the"
                " party."
            )

    def extended(self, task: LearningTask) -> LearningTask:
        """The task with what the method adds to a network, another head for instance; nothing,
        unless told.
        """
        return task

    def party_for(self, party: Party, mine: C) -> Party:
        task = self.extended(party.task)
        return party if task is party.task else with_task(party, task)

    def kept(self, task: LearningTask) -> frozenset[str]:
        """The names that stay at the party; FedBN and FedPer differ here and nowhere else."""
        return task.private

    def shared(self, theta: Params, task: LearningTask) -> Params:
        """What of a model crosses the wire."""
        return drop(theta, self.kept(task))

    def private(self, theta: Params, task: LearningTask) -> Params:
        """What of a model stays at the party."""
        return keep(theta, self.kept(task))

    @on_party
    @abstractmethod
    async def local(self, mine: C, m: M, party: Party, key: Key) -> tuple[C, Any]:
        """A party's part in a round; its reply holds the weights as `theta`."""

    @on_party
    async def warm_up(self, mine: C, m: M, party: Party, key: Key) -> tuple[C, None]:
        mine, reply = await self.local(mine, m, party, key)
        return self.settled(mine, reply.theta), None

    @abstractmethod
    def settled(self, mine: C, theta: Params) -> C:
        """The state of a newcomer that keeps what it trained from the received model."""

    traits = Traits(
        one_model=True,
        start_weights="theta",
        bytes_formula="2 · Σ_t |S_t| · S,  S = bytes of the shared weights",
    )


A = TypeVar("A", bound=AveragesWeights[Any, Any, Any])


@accounts_for(AveragesWeights)
class AveragingAccounting(Accounting[A]):
    """The accounting of a method whose parties receive and send weights."""

    def wire_shapes(self, task: LearningTask, parties: int) -> WireShapes:
        extended = self.method.extended(task)
        return {} if extended is task else {"Model.theta": extended}

    def shared_bytes(self, info: Info) -> int:
        """Bytes of the shared weights."""
        return self.weights_bytes(self.method.extended(info.task))

    def weights_bytes(self, network: LearningTask) -> int:
        return network.bytes(without=self.method.kept(network))
