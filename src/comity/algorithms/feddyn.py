"""FedDyn: Acar et al., Federated Learning Based on Dynamic Regularization, ICLR 2021.

Idea: a linear and a quadratic term in each party's loss change from round to round, until the
parties' own optima agree with the optimum of the mean loss.

Algorithm 1, party: θ_k ← argmin_θ L_k(θ) − ⟨g_k, θ⟩ + α/2 ‖θ − θ^t‖².
Algorithm 1, party: g_k ← g_k − α (θ_k − θ^t).
Algorithm 1, server: h ← h − (α/m) Σ_{k∈P} (θ_k − θ^t).
Algorithm 1, server: θ^{t+1} ← (1/|P|) Σ_{k∈P} θ_k − h/α.

At a glance: personal = nothing; exchanged = weights, both ways; kept = g_k (the server: h); steps =
E epochs.
Symbols: g_k = the gradient of L_k where the last training ended, if it ended at an optimum; h = the
mean of all g_k; m = the number of all parties; P = those that replied in the round. g_k and h cover
the shared parameters only (not buffers, not what is private).
Deviations: the argmin is approximated by the experiment's local training. α = 0, for which h/α is
not defined, switches both terms off: the server takes the mean of the parties' models. α = 0.01 is
the value in the authors' code.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from comity.components.averaged import AveragesWeights
from comity.core import *


@record
class Dynamic:
    """What the server keeps: the weights and h."""

    theta: Params
    h: Params


@record
class FedDynState:
    """What a party keeps: its private parameters and g_k."""

    private: Params
    g: Params


def zeros(theta: Params) -> Params:
    return {k: torch.zeros_like(v) for k, v in trainable(theta).items()}


@algorithm
class FedDyn(AveragesWeights[Dynamic, FedDynState, Model]):
    alpha: float = option(0.01, "α, weight of the quadratic term", minimum=0)

    def init_server(self, key: Key, info: Info) -> Dynamic:
        theta = self.shared_part(info.task.init(key), info.task)
        return Dynamic(theta, zeros(theta))

    def init_party(self, key: Key, party: Party) -> FedDynState:
        theta = party.task.init(key)
        private = self.private_part(theta, party.task)
        return FedDynState(private, zeros(self.shared_part(theta, party.task)))

    def message_for(self, s: Dynamic, i: int) -> Model:
        return Model(s.theta)

    @only_averages
    def round(self, s: Dynamic, server: Server, t: int) -> Dynamic:
        messages = {i: self.message_for(s, i) for i in server.sample(t)}
        mean, repliers = server.mean(self.local, messages)
        theta = mean.theta  # buffers are averaged only
        if not self.alpha:
            return Dynamic(theta, s.h)
        share = len(repliers) / len(server.info.names)
        h = {k: s.h[k] - self.alpha * share * (theta[k] - s.theta[k]) for k in s.h}
        return Dynamic(theta | {k: theta[k] - h[k] / self.alpha for k in h}, h)

    @on_party
    async def local(
        self, state: FedDynState, m: Model, party: Party, key: Key
    ) -> tuple[FedDynState, Model]:
        fitted = await party.fit(
            plain,
            m.theta | state.private,
            key,
            add={k: -g for k, g in state.g.items()},
            pull=Pull(keep(m.theta, frozenset(state.g)), self.alpha),
        )
        theta = self.shared_part(fitted.theta, party.task)
        g = {k: state.g[k] - self.alpha * (theta[k] - m.theta[k]) for k in state.g}
        return FedDynState(self.private_part(fitted.theta, party.task), g), Model(theta)

    def newcomer_state(self, state: FedDynState, theta: Params) -> FedDynState:
        return replace(state, private=theta | state.private)

    def deployed_model(self, state: FedDynState, m: Model, party: Party) -> Params:
        return m.theta | state.private

    # -- declarations ------------------------------------------------------------------------------

    traits = replace(
        AveragesWeights.traits,
        start_weights=None,
        common_start="measures h from the weights that the server sent, where every party starts",
    )
