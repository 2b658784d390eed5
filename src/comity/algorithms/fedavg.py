"""FedAvg: McMahan et al., Communication-Efficient Learning of Deep Networks, AISTATS 2017.

Idea: each round the server sends its model to a cohort, each party trains it for E epochs on its
own data, and the server takes the average, weighted by sample counts.

Algorithm 1: w ← Σ_{i∈S} (n_i / n_S) w_i, with w_i from E epochs of SGD on F_i starting at w.

At a glance: personal = nothing; exchanged = weights, both ways; kept = nothing; steps = E epochs.
Symbols: theta = w; S the cohort; n_i training samples of party i.
Deviations: none. What BatchNorm statistics do is the experiment's `bn` setting (all are averaged by
default).
Compared: the same as PFLlib's, Flower's and fluke's. See docs/methods-beside.md.
"""

from __future__ import annotations

from typing import Generic

from comity.components.averaged import AveragesWeights
from comity.components.server_steps import averages_models
from comity.core import *


class AveragedModel(AveragesWeights[Params, C, Model], Generic[C]):
    """FedAvg for parties that keep a state of whatever kind: methods that add to it are made from
    this.
    """

    def init_server(self, key: Key, info: Info) -> Params:
        task = self.extended(info.task)
        return self.shared(task.init(key), task)

    def message_for(self, theta: Params, i: int) -> Model:
        return Model(theta)

    @averages_models
    @only_averages
    def round(self, theta: Params, server: Server, t: int) -> Params:
        messages = {i: self.message_for(theta, i) for i in server.sample(t)}
        mean: Model = server.mean(self.local, messages, server.info.sizes).value
        return mean.theta

    async def averaged(
        self, private: Params, m: Model, party: Party, key: Key
    ) -> tuple[Params, Model]:
        """Train the received model with what of it is private; what stays, and what is sent."""
        theta = await self.trained(m.theta | private, m, party, key)
        return self.private(theta, party.task), Model(self.shared(theta, party.task))

    async def trained(self, theta: Params, m: Model, party: Party, key: Key) -> Params:
        """E epochs on F_i from `theta`; FedProx and FedRep differ here."""
        return (await party.fit(plain, theta, key)).theta


@algorithm
class FedAvg(AveragedModel[Params]):
    def init_party(self, key: Key, party: Party) -> Params:
        task = self.party_for(party, {}).task
        return self.private(task.init(key), task)

    @on_party
    async def local(self, mine: Params, m: Model, party: Party, key: Key) -> tuple[Params, Model]:
        return await self.averaged(mine, m, self.party_for(party, mine), key)

    def settled(self, mine: Params, theta: Params) -> Params:
        return theta | mine

    def deployed_model(self, mine: Params, m: Model, party: Party) -> Params:
        return m.theta | mine
