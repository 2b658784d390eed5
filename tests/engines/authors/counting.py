"""A user's own file: FedAvg whose loss counts how often it is called.

Idea: it writes to an object around it, which is its author's to do; given as `own` the object is
refused.
"""

from __future__ import annotations

from typing import Any, Literal

from torch import Tensor

from comity.algorithms.fedavg import FedAvg
from comity.core import (
    Averaging,
    Batch,
    Key,
    LearningTask,
    Model,
    Params,
    Party,
    Server,
    algorithm,
    on_party,
    option,
    record,
)


class Calls:
    """How many there were."""

    def __init__(self) -> None:
        self.count = 0


@record
class Counted:
    """A model, the calls of the loss that trained it, and its steps."""

    theta: Params
    calls: int
    steps: int


@algorithm
class Counting(FedAvg):
    where: Literal["closure", "own"] = option("closure", "where the loss finds its counter")

    def round(self, theta: Params, server: Server, t: int) -> Params:
        mean = Averaging()
        for i, reply in server.replies(
            self.local, {i: self.message_for(theta, i) for i in server.sample(t)}
        ):
            server.note("calls", reply.calls, party=i)
            server.note("steps", reply.steps, party=i)
            mean.add(reply.theta, weight=server.info.sizes[i])
        return mean.value()

    @on_party
    async def local(self, mine: Params, m: Model, party: Party, key: Key) -> tuple[Params, Any]:
        calls = Calls()

        def counted(task: LearningTask, theta: Params, batch: Batch, own: None) -> Tensor:
            calls.count += 1
            return task.loss(theta, batch)

        if self.where == "own":
            done = await party.fit(self.loss, m.theta, key, calls)
        else:
            done = await party.fit(counted, m.theta, key)
        return mine, Counted(done.theta, calls.count, done.steps)

    def loss(self, task: LearningTask, theta: Params, batch: Batch, own: Calls) -> Tensor:
        own.count += 1
        return task.loss(theta, batch)
