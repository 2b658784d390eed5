"""Methods that average weights: some weights of a model stay at the party, the others cross the
wire.
"""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path
from typing import Any, TypeVar

from comity.core import (
    Accounting,
    Algorithm,
    C,
    Fitted,
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
from comity.errors import ComityError


class AveragesWeights(Algorithm[S, C, M]):
    """A method whose parties train a model that they receive, keep its private part, and send the
    rest.
    """

    def check(self, info: Info) -> None:
        info.same_architecture("averaging")
        task = self.extend_task(info.task)
        if self.private_names(task) >= task.shapes.keys():
            raise UsageError(
                f"Nothing of {info.task.network.name} would be shared: all weights that are trained"
                " stay at the party."
            )

    def private_names(self, task: LearningTask) -> frozenset[str]:
        """The names of the weights that stay at the party. FedBN and FedPer override this only."""
        return task.private

    def shared_part(self, theta: Params, task: LearningTask) -> Params:
        """The weights that cross the wire."""
        self._check_weights(theta)
        return drop(theta, self.private_names(task))

    def private_part(self, theta: Params, task: LearningTask) -> Params:
        """The weights that stay at the party."""
        return keep(theta, self.private_names(task))

    def _check_weights(self, theta: object) -> None:
        """Refuse the result of a training in place of its weights, and name the author's function
        that probably returned it.
        """
        if not isinstance(theta, Fitted):
            return
        code = getattr(getattr(type(self), "train_locally", None), "__code__", None)
        where = "A party function"
        if code is not None:
            where = f"{code.co_name} ({Path(code.co_filename).name}:{code.co_firstlineno})"
        raise ComityError(f"{where} must return weights: write (await party.fit(...)).theta.")

    @on_party
    @abstractmethod
    async def local(self, state: C, m: M, party: Party, key: Key) -> tuple[C, Any]:
        """A party's work in a round. The reply has the weights in its field `theta`."""

    @on_party
    async def warm_up(self, state: C, m: M, party: Party, key: Key) -> tuple[C, None]:
        state, reply = await self.local(state, m, party, key)
        return self.newcomer_state(state, reply.theta), None

    @abstractmethod
    def newcomer_state(self, state: C, theta: Params) -> C:
        """The state of a newcomer whose warm-up ended at `theta`."""

    def extend_task(self, task: LearningTask) -> LearningTask:
        """The task with what the method adds to the network, a second head for instance.

        Default: the task itself.
        """
        return task

    def party_for(self, party: Party, state: C) -> Party:
        task = self.extend_task(party.task)
        return party if task is party.task else with_task(party, task)

    # -- declarations ------------------------------------------------------------------------------

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
        extended = self.method.extend_task(task)
        return {} if extended is task else {"Model.theta": extended}

    def shared_bytes(self, info: Info) -> int:
        """Bytes of the shared weights."""
        return self.weights_bytes(self.method.extend_task(info.task))

    def weights_bytes(self, network: LearningTask) -> int:
        return network.bytes(without=self.method.private_names(network))
