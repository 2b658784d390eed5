"""FedAvg: McMahan et al., Communication-Efficient Learning of Deep Networks, AISTATS 2017.

Idea: each round the server sends its model to a cohort, each party trains it for E epochs on its
own data, and the server takes the average, weighted by sample counts.

Algorithm 1: w ← Σ_{i∈S} (n_i / n_S) w_i, with w_i from E epochs of SGD on F_i starting at w.

At a glance: personal = nothing; exchanged = weights, both ways; kept = nothing; steps = E epochs.
Symbols: theta = w; S the cohort; n_i training samples of party i.
Deviations: none. The paper has no BatchNorm; the experiment's setting `bn` says what FedAvg means
with it. all: running statistics are averaged, too (the default; better where labels differ).
params_only: they stay at the party (better where inputs differ). none: FedBN. The table
comity/batchnorm has the figures.
Compared: the same as PFLlib's, Flower's and fluke's. See docs/results/methods-beside.md.
"""

from __future__ import annotations

from typing import Generic

from comity.components.averaged import AveragesWeights
from comity.components.server_steps import averages_models
from comity.core import *


class AveragedModel(AveragesWeights[Params, C, Model], Generic[C]):
    """FedAvg for parties with a state of any type C: the base class of methods that add to FedAvg
    and keep more than private weights at parties.
    """

    def init_server(self, key: Key, info: Info) -> Params:
        task = self.extend_task(info.task)
        return self.shared_part(task.init(key), task)

    def message_for(self, theta: Params, i: int) -> Model:
        return Model(theta)

    @averages_models
    @only_averages
    def round(self, theta: Params, server: Server, t: int) -> Params:
        messages = {i: self.message_for(theta, i) for i in server.sample(t)}
        mean: Model = server.mean(self.local, messages, server.info.sizes).value
        return mean.theta

    async def train_and_share(
        self, private: Params, m: Model, party: Party, key: Key
    ) -> tuple[Params, Model]:
        """Train the received model with the party's private part. Returns the part that stays, and
        the part that is sent.
        """
        theta = await self.train_locally(m.theta | private, m, party, key)
        shared = self.shared_part(theta, party.task)
        return self.private_part(theta, party.task), Model(shared)

    async def train_locally(self, theta: Params, m: Model, party: Party, key: Key) -> Params:
        """E epochs on F_i from `theta`. FedProx and FedRep override this."""
        return (await party.fit(plain, theta, key)).theta


@algorithm
class FedAvg(AveragedModel[Params]):
    def init_party(self, key: Key, party: Party) -> Params:
        task = self.party_for(party, {}).task
        return self.private_part(task.init(key), task)

    @on_party
    async def local(self, state: Params, m: Model, party: Party, key: Key) -> tuple[Params, Model]:
        return await self.train_and_share(state, m, self.party_for(party, state), key)

    def newcomer_state(self, state: Params, theta: Params) -> Params:
        return theta | state

    def deployed_model(self, state: Params, m: Model, party: Party) -> Params:
        return m.theta | state
