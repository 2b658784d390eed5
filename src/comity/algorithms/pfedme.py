"""pFedMe: Dinh, Tran, Nguyen, Personalized Federated Learning with Moreau Envelopes, NeurIPS 2020.

Idea: the global model is only the point that personal models are regularised towards. Each party's
loss is replaced by its Moreau envelope, whose gradient needs only the personal model.

Eq. 2: min_w (1/N) Σ_i F_i(w), with F_i(w) = min_θ f_i(θ) + (λ/2) ‖θ − w‖².
Algorithm 1, for every mini-batch: θ_i ← K steps of θ − η_p (∇f_i(θ) + λ (θ − w_i)), which solve eq.
2's inner problem nearly; then w_i ← w_i − η λ (w_i − θ_i), as λ (w − θ(w)) is F_i's gradient.
Server: w ← (1 − β) w + β · mean_{i∈S} w_i.

Symbols: w = the global model; w_i = the party's copy of it, from w each round; θ_i = its own model,
which is deployed; η = the experiment's learning rate.
At a glance: personal = everything; exchanged = the copy of the global model, both ways; kept = the
personal model; steps = E epochs of K gradients.
Deviations: checked against the authors' code, not the printed text. The mean is uniform, as in the
paper from memory (the code weights by sample counts). θ_i starts a round at the received w and
continues from batch to batch, as in the code. There every party trains in every round and a cohort
replies; here only the cohort trains. The paper counts R mini-batches a round; here they are those
of E epochs. λ = 15, η_p = 0.09, K = 5 and β = 1 are those of the authors' command for a network on
MNIST, with η = 0.005. PFLlib has λ = 1, η_p = 0.01 and β = 0 by default, with which w never
changes. BatchNorm's statistics in w_i are those of θ_i.
Compared: the same as PFLlib's after it was changed to evaluate θ_i, and as fluke's after two
changes to match Algorithm 1: θ is regularised towards w_i (in fluke towards itself), and w_i is
sent. See docs/results/methods-beside.md.
"""

from __future__ import annotations

from dataclasses import replace

from comity.components.averaged import AveragesWeights, AveragingAccounting
from comity.components.server_steps import momentum_step
from comity.core import *


@record
class Envelope:
    """The parameters of the local loop: θ_i and w_i."""

    theta: Params
    w: Params


@algorithm
class PFedMe(AveragesWeights[Params, Params, Model]):
    lam: float = option(
        15.0, "λ, pull of the personal model to the copy of the global one", minimum=0
    )
    inner_lr: float = option(0.09, "η_p, step size of the personal model", above=0)
    inner_steps: int = option(5, "K, steps of the personal model on each mini-batch", minimum=1)
    beta: float = option(
        1.0, "β, how far the server goes to the mean; above 1 beyond it", minimum=0
    )

    def check(self, info: Info) -> None:
        super().check(info)
        how = info.training
        if how.optimizer != "sgd" or how.momentum or how.decay:
            raise UsageError(
                "pfedme's steps are its own: use --optimizer sgd without momentum and weight decay."
            )

    def init_server(self, key: Key, info: Info) -> Params:
        return self.shared_part(info.task.init(key), info.task)

    def init_party(self, key: Key, party: Party) -> Params:
        return party.task.init(key)

    def message_for(self, w: Params, i: int) -> Model:
        return Model(w)

    @only_averages
    def round(self, w: Params, server: Server, t: int) -> Params:
        mean = server.mean(self.local, {i: self.message_for(w, i) for i in server.sample(t)}).value
        return momentum_step(w, mean.theta, {}, lr=self.beta, momentum=0.0)[0]

    @on_party
    async def local(
        self, theta_i: Params, m: Model, party: Party, key: Key
    ) -> tuple[Params, Model]:
        w = m.theta | self.private_part(theta_i, party.task)

        pull, follow = self.inner_lr * self.lam, party.training.lr * self.lam

        def step(now: Envelope, batch: Batch) -> Envelope:
            theta, w_i = now.theta, now.w
            for _ in range(self.inner_steps):
                _, g = value_and_gradient(lambda free: party.task.loss(free, batch), theta)
                theta = theta | {
                    k: theta[k].lerp(w_i[k], pull).sub_(g[k], alpha=self.inner_lr) for k in g
                }
            return Envelope(
                theta, theta | {k: w.lerp(theta[k], follow) for k, w in trainable(w_i).items()}
            )

        result = await party.fold(step, Envelope(w, w), key)
        return result.theta, Model(self.shared_part(result.w, party.task))

    def newcomer_state(self, theta_i: Params, theta: Params) -> Params:
        return theta_i

    def deployed_model(self, theta_i: Params, m: Model, party: Party) -> Params:
        return theta_i

    # -- declarations ------------------------------------------------------------------------------

    traits = replace(
        AveragesWeights.traits,
        self_contained=True,
        one_model=False,
        not_private="it makes steps of its own, whose gradients nobody clips",
    )


@accounts_for(PFedMe)
class PFedMeAccounting(AveragingAccounting[PFedMe]):
    def warnings(self, info: Info) -> list[str]:
        fast = info.training.lr * self.method.lam
        far = (
            [
                f"lr · lam = {fast:g} takes the global model's copy beyond the personal one: the"
                " paper has 0.075."
            ]
            if fast > 1
            else []
        )
        near = self.method.inner_lr * self.method.lam
        return far + (
            [f"inner_lr · lam = {near:g} is 2 or more, so that personal models run away."]
            if near >= 2
            else []
        )
