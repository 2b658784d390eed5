"""FedProx: Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020.

Idea: FedAvg whose parties are regularised towards the model that they received.

Eq. 2: min_w h_i(w; w^t) = F_i(w) + (μ/2) ‖w − w^t‖².

At a glance: personal = nothing; exchanged = weights, both ways; kept = nothing; steps = E epochs.
Symbols: w^t = m.theta, the weights received. The term covers shared parameters only: neither
buffers nor private parameters.
Deviations: the local solver is E epochs of SGD (the paper allows any inexact one). μ = 0.01 as in
FedBN's experiments; the paper tunes it over {0.001, 0.01, 0.1, 1}.
Compared: the same as PFLlib's and fluke's, and as Flower's with eq. 2's term; Flower's
documentation prints norms for it, not their squares. See docs/results/methods-beside.md.
"""

from __future__ import annotations

from comity.algorithms.fedavg import FedAvg
from comity.components.averaged import AveragingAccounting
from comity.core import *


@algorithm
class FedProx(FedAvg):
    mu: float = option(0.01, "weight of the proximal term, eq. 2", minimum=0)

    async def train_locally(self, theta: Params, m: Model, party: Party, key: Key) -> Params:
        eq2 = Pull(trainable(m.theta), self.mu) if self.mu else None
        return (await party.fit(plain, theta, key, pull=eq2)).theta


# -- declarations ----------------------------------------------------------------------------------


@accounts_for(FedProx)
class FedProxAccounting(AveragingAccounting[FedProx]):
    def warnings(self, info: Info) -> list[str]:
        return (
            []
            if self.method.mu
            else ["with mu=0 there is no proximal term, so that this is fedavg."]
        )
