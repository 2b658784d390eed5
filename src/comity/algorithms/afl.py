"""AFL: Mohri, Sivek, Suresh, Agnostic Federated Learning, ICML 2019.

Idea: one model that does well for every mixture of the parties, hence for the worst one. Parties
with a high loss get more weight.

Objective: min_w max_{λ∈Δ} Σ_i λ_i F_i(w).
Algorithm (Stochastic-AFL): w ← w − γ_w Σ_i λ_i g_i(w);  λ ← Π_Δ(λ + γ_λ F(w)), both at the same w,
with every party.

Symbols: Δ = the simplex, Π_Δ the nearest point in it; F_i = party i's mean loss over its training
samples, g_i its gradient.
At a glance: personal = nothing; exchanged = all weights both ways, and a loss up; kept = nothing
(the server: λ); steps = E epochs, and the loss of every sample.
Deviations: γ_w Σ λ_i g_i is Σ λ_i (w − w_i) with w_i from E epochs of the experiment's optimizer:
the paper's step if that is one full batch of plain SGD. The last w is deployed; the paper's theorem
is on the mean over all rounds, which FLGo deploys. If some parties do not take part in a round, λ
rises only for those that replied, and the average is over these. λ starts uniform, as in FLGo
(FedTorch: by sample counts); γ_λ = 0.1 as in FedTorch (FLGo: 0.01), which also reduces it by a
tenth per round and keeps λ at 0.001 or more: the paper's own values could not be checked. F is
taken in evaluation mode.
"""

from __future__ import annotations

from dataclasses import replace

from comity.base.content import TRAINING_LOSS, WEIGHTS, describe
from comity.components.agnostic import Agnostic, Mixture, mean_loss
from comity.components.averaged import AveragingAccounting
from comity.core import *


@record
class Judged:
    """A party's reply: its trained weights, and the loss of the weights that it received."""

    theta: Params = describe(WEIGHTS)
    loss: float = describe(TRAINING_LOSS)


@algorithm
class Afl(Agnostic[Model]):
    def message_for(self, s: Mixture, i: int) -> Model:
        return Model(s.theta)

    def round(self, s: Mixture, server: Server, t: int) -> Mixture:
        mean, losses = Averaging(), {}
        for i, reply in server.replies(
            self.local, {i: self.message_for(s, i) for i in server.sample(t)}
        ):
            losses[i] = reply.loss
            if s.lam[i]:
                mean.add(reply.theta, s.lam[i])
        # If no party with a positive weight replied, the model stays.
        w = mean.value() if any(s.lam[i] for i in losses) else s.theta
        return Mixture(w, self.raise_weights(s.lam, losses, self.lam_lr, server))

    @on_party
    async def local(self, state: Params, m: Model, party: Party, key: Key) -> tuple[Params, Judged]:
        w = m.theta | state
        loss = mean_loss(party.task, w, party.data.train)
        w_i = (await party.fit(plain, w, key)).theta
        return self.private_part(w_i, party.task), Judged(self.shared_part(w_i, party.task), loss)

    def deployed_model(self, state: Params, m: Model, party: Party) -> Params:
        return m.theta | state

    # -- declarations ------------------------------------------------------------------------------

    traits = replace(Agnostic.traits, bytes_formula="Σ_t |S_t| · (2·S + 4)")


@accounts_for(Afl)
class AflAccounting(AveragingAccounting[Afl]):
    def warnings(self, info: Info) -> list[str]:
        some = 0 < info.cohort < len(info.names)
        return (
            ["afl is made for rounds with all parties; here λ is raised only for those of a round."]
            if some
            else []
        )
