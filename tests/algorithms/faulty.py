"""FedAvg with faulty parties: they send huge weights, or ten times their update in the opposite
direction.
"""

from __future__ import annotations

from typing import Literal

import torch

from comity.algorithms.fedavg import FedAvg
from comity.core import Key, Model, Params, Party, algorithm, on_party, option


@algorithm
class Faulty(FedAvg):
    who: str = option("p0", "the parties, with blanks between them")
    how: Literal["huge", "reversed"] = option("huge", "what they send")

    @on_party
    async def local(self, state: Params, m: Model, party: Party, key: Key) -> tuple[Params, Model]:
        state, reply = await super().local(state, m, party, key)
        if party.name not in self.who.split():
            return state, reply
        if self.how == "huge":
            return state, Model({k: torch.full_like(v, 1e30) for k, v in reply.theta.items()})
        return state, Model({k: m.theta[k] - 10 * (v - m.theta[k]) for k, v in reply.theta.items()})
