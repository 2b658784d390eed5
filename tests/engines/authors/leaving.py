"""A user method: FedAvg that stops its loop over replies after the first reply.

Idea: other replies are still to come; the error is raised at the next call or at the end of the
round.
"""

from __future__ import annotations

import time
from typing import Literal

from comity.algorithms.fedavg import FedAvg
from comity.core import Key, Model, Params, Party, Server, algorithm, on_party, option


@algorithm
class Leaving(FedAvg):
    then: Literal["call", "end"] = option("end", "what it does next")

    def round(self, theta: Params, server: Server, t: int) -> Params:
        first: Params = {}
        for _, reply in server.replies(
            self.local, {i: self.message_for(theta, i) for i in server.sample(t)}
        ):
            first = reply.theta
            break
        if self.then == "call":
            server.call(self.local, {i: self.message_for(first, i) for i in server.sample(t)})
        return first

    @on_party
    async def local(self, state: Params, m: Model, party: Party, key: Key) -> tuple[Params, Model]:
        if party.id in (1, 2):  # in another process than party 0, if there are two
            time.sleep(0.05)
        return state, m
