"""q-FFL: Li, Sanjabi, Beirami, Smith, Fair Resource Allocation in Federated Learning, ICLR 2020
(q-FedAvg).

Idea: parties with a high loss get more weight, so that accuracies become more equal.

Eq. 1: min_w Σ_k p_k / (q + 1) · F_k(w)^{q+1}.
Algorithm 2: Δ_k = L (w − w_k) and h_k = q F_k(w)^{q−1} ‖Δ_k‖² + L F_k(w)^q, with w_k from E epochs
of SGD on F_k starting at w.
Algorithm 2, server: w ← w − Σ_k F_k(w)^q Δ_k / Σ_k h_k.

Symbols: F_k(w) = the received model's mean loss on party k's training samples; L = 1 / η, the
experiment's learning rate.
Deviations: all parties of a cohort have equal weight; in the paper p_k is the probability of being
drawn. The server's line is computed as a step of L Σ F^q / Σ h towards the mean of w_k by F_k^q,
which is the same. 1e-10 is added to F_k, as in the authors' code. F_k is taken in evaluation mode.
BatchNorm's statistics are averaged by F_k^q. The paper tunes q to the data; FedUFO shows q = 2.
At a glance: personal = nothing; exchanged = the weights, both ways, and a loss up; kept = nothing;
steps = E epochs.
Compared: the same as Flower's. See docs/results/methods-beside.md.
"""

from __future__ import annotations

from dataclasses import replace

from comity.algorithms.fedavg import FedAvg
from comity.base.content import TRAINING_LOSS, describe
from comity.components.averaged import AveragingAccounting
from comity.components.server_steps import momentum_step
from comity.core import *
from comity.metrics.evaluation import score_model

TINY = 1e-10


@record
class Trained(Model):
    """A party's reply: w_k, and the loss of the received model."""

    loss: float = describe(TRAINING_LOSS)


@algorithm
class QFfl(FedAvg):
    q: float = option(1.0, "q, how much more a high loss counts; 0: not at all", minimum=0)

    def round(self, w: Params, server: Server, t: int) -> Params:
        replies = server.call(self.local, {k: self.message_for(w, k) for k in server.sample(t)})
        most = TINY + max(reply.loss for reply in replies.values())
        L = 1 / server.info.training.lr
        mean, towards, h = server.averaging(), 0.0, 0.0
        for reply in replies.values():
            # Numerator and denominator are divided by most^q, so that neither underflows.
            F_k = (TINY + reply.loss) / most
            square = sum(
                float((L * (w[name] - w_k)).square().sum())
                for name, w_k in trainable(reply.theta).items()
            )
            mean.add(reply.theta, weight=F_k**self.q)
            towards += L * F_k**self.q
            h += self.q * F_k ** (self.q - 1) * square / most + L * F_k**self.q
        return momentum_step(w, mean.value(), {}, towards / h, 0)[0]

    @on_party
    async def local(
        self, state: Params, m: Model, party: Party, key: Key
    ) -> tuple[Params, Trained]:
        loss = score_model(party.task, m.theta | state, party.data.train).loss
        state, reply = await self.train_and_share(state, m, party, key)
        return state, Trained(reply.theta, loss)

    # -- declarations ------------------------------------------------------------------------------

    traits = replace(
        FedAvg.traits,
        also_leaves=("means",),
        start_weights=None,
        common_start="needs to know how far parties come from the model that they are sent",
        bytes_formula="Σ_t |S_t| · (2·S + 4)",
    )


@accounts_for(QFfl)
class QFflAccounting(AveragingAccounting[QFfl]):
    def warnings(self, info: Info) -> list[str]:
        plain = info.training.optimizer == "sgd" and not info.training.momentum
        warnings = (
            []
            if plain
            else [
                "its step takes 1 / lr for a Lipschitz constant, which is meant for SGD without"
                " momentum."
            ]
        )
        return (
            warnings
            if self.method.q
            else [*warnings, "with q=0 this is fedavg in which all parties count alike."]
        )
