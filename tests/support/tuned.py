"""A user method that does something after the last round: each party fine-tunes the global model.

Idea: FedAvg, then an epoch of training at each party, which keeps the result.
"""

from __future__ import annotations

from dataclasses import replace

from comity.algorithms.fedavg import FedAvg
from comity.components.averaged import AveragingAccounting
from comity.core import (
    Empty,
    Info,
    Key,
    Model,
    Params,
    Party,
    Server,
    Traffic,
    accounts_for,
    algorithm,
    on_party,
    option,
    plain,
)


@algorithm
class Tuned(FedAvg):
    tune_epochs: int = option(1, "epochs of fine-tuning", minimum=1)

    def finish(self, s: Params, server: Server) -> Params:
        server.call(self.tune, {i: self.message_for(s, i) for i in server.info.parties})
        return s

    @on_party
    async def tune(self, state: Params, m: Model, party: Party, key: Key) -> tuple[Params, Empty]:
        training = replace(party.training, epochs=self.tune_epochs, steps=None)
        return (await party.fit(plain, m.theta | state, key, training=training)).theta, Empty()

    traits = replace(FedAvg.traits, one_model=False, finishes=True)


@accounts_for(Tuned)
class TunedAccounting(AveragingAccounting[Tuned]):
    def finish_traffic(self, info: Info) -> Traffic:
        return Traffic(down=len(info.names) * self.shared_bytes(info))
