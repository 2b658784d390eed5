"""A user method: FedAvg with several trainings per call, which logs each call of its party
function.

Idea: the log is a list of this module, so it contains every call in this process.
"""

from __future__ import annotations

from typing import Any

from comity.algorithms.fedavg import FedAvg
from comity.core import (
    Averaging,
    Key,
    Model,
    Params,
    Party,
    Server,
    algorithm,
    on_party,
    option,
    plain,
    record,
)

LOG: list[tuple[int, int]] = []
"""Party and key of each call."""


@record
class Told:
    """A model, and how often this call was in the log at its end."""

    theta: Params
    times: int


@algorithm
class Logged(FedAvg):
    trainings: int = option(1, "number of trainings in a call", minimum=0)

    def round(self, theta: Params, server: Server, t: int) -> Params:
        mean = Averaging()
        for i, reply in server.replies(
            self.local, {i: self.message_for(theta, i) for i in server.sample(t)}
        ):
            server.note("times", reply.times, party=i)
            mean.add(reply.theta, weight=server.info.sizes[i])
        return mean.value()

    @on_party
    async def local(self, state: Params, m: Model, party: Party, key: Key) -> tuple[Params, Any]:
        call = party.id, key.bits
        LOG.append(call)
        theta = m.theta
        for k in range(self.trainings):
            theta = (await party.fit(plain, theta, key.fold(k))).theta
        return state, Told(theta, LOG.count(call))
