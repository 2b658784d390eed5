"""FedReptile: Nichol, Achiam, Schulman, On First-Order Meta-Learning Algorithms, 2018, across
parties as in FedUFO's tables.

Idea: FedAvg is one step of Reptile whose tasks are the parties. With a smaller step the model stays
near the models of all parties.

Batched Reptile: w ← w + ε · (1/|S|) Σ_{i∈S} (w_i − w), with w_i from E epochs of SGD on F_i
starting at w.

Symbols: w = the server's theta; ε = step; S = the cohort, in which all parties have equal weight.
Deviations: ε = 0.5 is a guess: FedUFO's step (its tables say FedRtile) could not be checked.
With decay=true ε decreases to 0, as in Reptile. The model is evaluated without fine-tuning at
parties, as in FedUFO's tables. BatchNorm's statistics are averaged. With ε = 1 it is FedAvg with
equal weights.
At a glance: personal = nothing; exchanged = the weights, both ways; kept = nothing; steps = E
epochs.
"""

from __future__ import annotations

from comity.algorithms.fedavg import FedAvg
from comity.components.averaged import AveragingAccounting
from comity.components.server_steps import momentum_step
from comity.core import *


@algorithm
class FedReptile(FedAvg):
    step: float = option(0.5, "ε, the server's step towards the parties' mean", above=0)
    decay: bool = option(False, "let ε fall to 0, linearly over the rounds")

    @only_averages
    def round(self, w: Params, server: Server, t: int) -> Params:
        mean = server.mean(self.local, {i: self.message_for(w, i) for i in server.sample(t)}).value
        epsilon = self.step * (1 - (t - 1) / server.info.rounds) if self.decay else self.step
        return momentum_step(w, mean.theta, {}, epsilon, 0)[0]


# -- declarations ----------------------------------------------------------------------------------


@accounts_for(FedReptile)
class FedReptileAccounting(AveragingAccounting[FedReptile]):
    def warnings(self, info: Info) -> list[str]:
        return (
            ["with step=1 this is fedavg in which all parties count alike."]
            if self.method.step == 1 and not self.method.decay
            else []
        )
