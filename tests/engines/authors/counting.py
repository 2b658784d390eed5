"""A user method: FedAvg whose loss counts its calls.

Idea: the counter is an object in the closure of the loss; passed as `aux` it is refused.
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
    """A counter of calls."""

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
    where: Literal["closure", "aux"] = option("closure", "where the loss finds its counter")

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
    async def local(self, state: Params, m: Model, party: Party, key: Key) -> tuple[Params, Any]:
        calls = Calls()

        def counting_loss(task: LearningTask, theta: Params, batch: Batch, aux: None) -> Tensor:
            calls.count += 1
            return task.loss(theta, batch)

        if self.where == "aux":
            fitted = await party.fit(self.loss, m.theta, key, calls)
        else:
            fitted = await party.fit(counting_loss, m.theta, key)
        return state, Counted(fitted.theta, calls.count, fitted.steps)

    def loss(self, task: LearningTask, theta: Params, batch: Batch, aux: Calls) -> Tensor:
        aux.count += 1
        return task.loss(theta, batch)
