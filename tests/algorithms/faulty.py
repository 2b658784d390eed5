"""FedAvg with parties that send nonsense: huge weights, or the way back, ten times as far."""

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
    async def local(self, mine: Params, m: Model, party: Party, key: Key) -> tuple[Params, Model]:
        mine, reply = await super().local(mine, m, party, key)
        if party.name not in self.who.split():
            return mine, reply
        if self.how == "huge":
            return mine, Model({k: torch.full_like(v, 1e30) for k, v in reply.theta.items()})
        return mine, Model({k: m.theta[k] - 10 * (v - m.theta[k]) for k, v in reply.theta.items()})
