"""FML: Shen et al., Federated Mutual Learning, 2020.

Idea: a party has two models, one of its own and a copy of the global one. They learn from its
samples and from each other's predictions; only the copy is averaged.

Personal: L_p = α · CE(p(x), y) + (1 − α) · KL(m(x) ‖ p(x)).
Copy: L_m = β · CE(m(x), y) + (1 − β) · KL(p(x) ‖ m(x)), where the other model's predictions are
constants; w ← Σ_i (n_i / n_S) m_i.

Symbols: p = the party's own model; m = its copy of the global model w, which the paper calls the
meme model.
At a glance: personal = everything, or nothing with deploy=global; exchanged = the copy's weights,
both ways; kept = the personal model; steps = E epochs of two gradients.
Deviations: L_p + L_m is minimised at once, step by step. The printed text was not available. α = β
= 0.5 and constant predictions of the other model, as in deep mutual learning, are choices of this
file. PFLlib also divides KL by the number of classes, clips gradients, and lets each loss have a
gradient for both models. Personal models could have any architecture; here they have the common
one, and start equal to the copy. The terms of wrappers apply to CE in L_m. A newcomer's personal
model starts at the w it receives.
Compared: the same as PFLlib's after the differences above, except clipping, were removed.
Unchanged, PFLlib's and HtFLlib's differ. See docs/results/methods-beside.md.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from torch import Tensor

from comity.algorithms.fedavg import AveragedModel
from comity.components.divergence import kl
from comity.components.pair import add_prefix, strip_prefix
from comity.core import *

OWN, COPY = "p.", "m."


@record
class FmlState:
    """A party's state: the private parameters of its copy, and its own model."""

    private: Params
    personal: Params


@algorithm
class Fml(AveragedModel[FmlState]):
    alpha: float = option(
        0.5, "α, share of the labels in what the personal model learns from", minimum=0, maximum=1
    )
    beta: float = option(0.5, "β, the same of the copy of the global model", minimum=0, maximum=1)
    deploy: Literal["personal", "global"] = option(
        "personal", "which model counts: the party's own, or the average of the copies"
    )

    def check(self, info: Info) -> None:
        super().check(info)
        info.needs_classes("fml", "compares what models answer of classes")

    def init_party(self, key: Key, party: Party) -> FmlState:
        return FmlState(self.private_part(party.task.init(key), party.task), party.task.init(key))

    @on_party
    async def local(
        self, state: FmlState, m: Model, party: Party, key: Key
    ) -> tuple[FmlState, Model]:
        begin = add_prefix(OWN, state.personal) | add_prefix(COPY, m.theta | state.private)
        theta = (await party.fit(self.mutual, begin, key)).theta
        copy = strip_prefix(theta, COPY)
        private = self.private_part(copy, party.task)
        shared = self.shared_part(copy, party.task)
        return FmlState(private, strip_prefix(theta, OWN)), Model(shared)

    def mutual(self, task: LearningTask, theta: Params, batch: Batch, aux: None) -> Tensor:
        """L_p + L_m."""
        of_p, alone = strip_prefix(theta, OWN), task.personal
        of_m = strip_prefix(theta, COPY)
        z_p = alone.features(of_p, batch.x, train=True)
        z_m = task.features(of_m, batch.x, train=True)
        p, m = alone.head(of_p, z_p, train=True), task.head(of_m, z_m, train=True)
        log_p, log_m = p.log_softmax(1), m.log_softmax(1)
        L_p = self.alpha * alone.criterion(p, z_p, batch) + (1 - self.alpha) * kl(
            log_m.detach(), log_p
        )
        return (
            L_p
            + self.beta * task.criterion(m, z_m, batch)
            + (1 - self.beta) * kl(log_p.detach(), log_m)
        )

    @on_party
    async def warm_up(
        self, state: FmlState, m: Model, party: Party, key: Key
    ) -> tuple[FmlState, None]:
        return await super().warm_up(
            replace(state, personal=m.theta | state.private), m, party, key
        )

    def newcomer_state(self, state: FmlState, theta: Params) -> FmlState:
        return replace(state, private=theta | state.private)

    def deployed_model(self, state: FmlState, m: Model, party: Party) -> Params:
        return state.personal if self.deploy == "personal" else m.theta | state.private

    def adjust_traits(self, declared: Traits) -> Traits:
        personal = self.deploy == "personal"
        return replace(declared, self_contained=personal, one_model=not personal)
