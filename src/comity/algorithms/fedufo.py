"""FedUFO: Zhang et al., Federated Learning for Non-IID Data via Unified Feature Learning and
Optimization Alignment, ICCV 2021.

Idea: one global model for skewed labels. A second stage adds two consensus losses to FedUAD's
adversarial features (UAD): a party's predictions should agree with those of the group's priors
(CGR) and with the global model's (CGL).

Eqs. 6-8: L_cgr = KL(ŷ_i ‖ softmax(v_i)), v_i = Σ_j p_j ⊗ ỹ_{i|j}, p_j[c] = n_jc / Σ_j' n_j'c, over
the group, including the party itself.
Eq. 10: L_cgl = KL(ŷ_i ‖ ỹ_{i|0}).
Stages: one: CE + L_uni (eq. 11); two, starting from w and D of stage one: CE + L_uni + L_cgr + λ ·
L_cgl (eq. 12).
Dynamic sampling: with CGL, hence in stage two, ⌊K_c/2⌋ of a round's parties are those where w is
worst, parties never evaluated first.

At a glance: personal = nothing; exchanged = weights and a discriminator, both ways; others' weights
and class counts down; kept = nothing; steps = E epochs with a pass of every other party's model,
and the discriminator's.
Symbols: ŷ_i = the posterior's softmax; ỹ_{i|j} = prior j's; ỹ_{i|0} = w's; n_jc = party j's samples
of class c. The rest: feduad.
Deviations: feduad's. The stages are of equal length by default; without UAD there is no stage one.
Teachers are constant in a round and are evaluated once, in evaluation mode. w is ranked by its
accuracy on the party's training data when the party last took part.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Literal

import torch.nn.functional as F
from torch import Tensor

from comity.algorithms.feduad import (
    Both,
    FedUad,
    FedUadAccounting,
    FedUadServer,
    FedUadState,
    Prior,
)
from comity.base.content import TRAINING_ACCURACY, describe_reply
from comity.components.choice import with_the_worst
from comity.components.classwise import features_of
from comity.components.consensus import consensus
from comity.components.divergence import kl
from comity.core import *

# rows of log-probabilities for each sample
GROUP, GLOBAL = (
    "teacher.group",
    "teacher.global",
)


@algorithm
class FedUfo(FedUad):
    uad: bool = option(True, "unified adversarial features, eqs. 4 and 5")
    cgr: bool = option(True, "consensus with the group of priors, eq. 8")
    cgl: bool = option(True, "consensus with the global model, eq. 10")
    lam: float = option(3.0, "λ, weight of the consensus with the global model", minimum=0)
    cgr_weight: float = option(
        1.0, "weight of the consensus with the group; 1 as printed", minimum=0
    )
    stage_one: float = option(0.5, "share of the rounds that use UAD only", minimum=0, maximum=1)
    dynamic: Literal["last", "fresh", "off"] = option(
        "last", "with CGL half the group are the worst, by an old or a fresh look"
    )
    target: Literal["softmax", "l1", "logits"] = option(
        "softmax", "CGR: softmax(v) as printed, v/Σv, or softmax of mean logits"
    )
    direction: Literal["reverse", "forward"] = option(
        "reverse", "KL(ŷ ‖ teacher) as printed, or KL(teacher ‖ ŷ)"
    )

    def samples(self, how: str) -> bool:
        """Whether sampling is dynamic with `how`."""
        return self.cgl and self.dynamic == how

    def in_stage_one(self, info: Info, t: int) -> bool:
        return self.uad and (
            0 < t <= round(self.stage_one * info.rounds, 6) or not (self.cgr or self.cgl)
        )

    def round(self, s: FedUadServer, server: Server, t: int) -> FedUadServer:
        group = server.sample(t)
        accuracy = s.accuracy
        holders = frozenset[int]()
        stage_one = self.in_stage_one(server.info, t)
        if self.samples("fresh") and not stage_one:
            looks = server.call(self.look, {k: self.message_for(s, k) for k in server.info.parties})
            holders = frozenset(looks)  # these have w now; a party without a reply is not preferred
            accuracy = {k: looks[k] if k in holders else math.inf for k in server.info.parties}
        if self.cgl and self.dynamic != "off" and not stage_one:
            group = with_the_worst(
                len(group), len(server.info.names), accuracy, server.key("dynamic")
            )
        messages = {k: Both({} if k in holders else s.w, {}) for k in group}
        return self.average_posteriors(s, server, self.align if stage_one else self.local, messages)

    @on_party
    @describe_reply(TRAINING_ACCURACY)
    async def look(
        self, state: FedUadState, m: Both, party: Party, key: Key
    ) -> tuple[FedUadState, float]:
        return replace(state, w=m.theta), self.accuracy(m.theta | state.private, party)

    def accuracy(self, w: Params, party: Party) -> float:
        train = party.data.train
        predictions = in_chunks(lambda x: party.task.logits(w, x), train.x).argmax(1)
        return (predictions == train.y).float().mean().item()

    @on_party
    async def align(
        self, state: FedUadState, m: Both, party: Party, key: Key
    ) -> tuple[FedUadState, Both]:
        """A party's work in stage one."""
        new_state, reply = await super().align(state, m, party, key)
        return new_state, self.add_accuracy(reply, state, m, party)

    @on_party
    async def local(
        self, state: FedUadState, m: Both, party: Party, key: Key
    ) -> tuple[FedUadState, Both]:
        """A party's work in stage two."""
        task = party.task
        group: dict[int, Prior] = dict(party.inbox) if self.uad else {}
        if self.cgr and state.prior:
            group = {party.id: state.prior, **party.inbox}
        features = {
            j: features_of(task, state.private | prior.theta, party.data.train)
            for j, prior in group.items()
        }
        teachers = self.teachers(state, m, party, group, features)
        features = {j: z for j, z in features.items() if j != party.id} if self.uad else {}
        new_state, reply = await self.posterior(state, m, party, key, features, teachers)
        return new_state, self.add_accuracy(reply, state, m, party)

    def add_accuracy(self, reply: Both, state: FedUadState, m: Both, party: Party) -> Both:
        if not self.samples("last"):
            return reply
        w = (m.theta or state.w) | state.private
        return replace(reply, accuracy=self.accuracy(w, party))

    def teachers(
        self,
        state: FedUadState,
        m: Both,
        party: Party,
        group: dict[int, Prior],
        features: dict[int, Tensor],
    ) -> dict[str, Tensor]:
        """The predictions of the group and of the global model for each of the party's samples."""
        task = party.task
        answers: dict[str, Tensor] = {}
        if self.cgr:

            def logits_of(theta: Params, z: Tensor) -> Tensor:
                return in_chunks(lambda part: task.head(theta, part.view(-1, *task.z_shape)), z)

            logits = {
                j: logits_of(state.private | prior.theta, features[j]) for j, prior in group.items()
            }
            # eqs. 6 and 7
            answers[GROUP] = consensus(
                logits, {j: prior.counts for j, prior in group.items()}, self.target
            )
        if self.cgl:
            w = state.private | (m.theta or state.w)
            answers[GLOBAL] = F.log_softmax(
                in_chunks(lambda x: task.logits(w, x), party.data.train.x), dim=1
            )
        return answers

    def objective(self, task: LearningTask, theta: Params, z: Tensor, batch: Batch) -> Tensor:
        weights = {GROUP: self.cgr_weight, GLOBAL: self.lam}
        teachers = [
            (weight, batch.rows[name]) for name, weight in weights.items() if name in batch.rows
        ]
        if not teachers:
            return super().objective(task, theta, z, batch)
        logits = task.head(theta, z, train=True)
        value = task.criterion(logits, z, batch)
        y_hat = F.log_softmax(logits, dim=1)
        shares = task.classes if self.reduction == "mean" else 1
        for weight, teacher in teachers:
            apart = kl(y_hat, teacher) if self.direction == "reverse" else kl(teacher, y_hat)
            value = value + weight / shares * apart  # eqs. 8, 10
        return value

    # -- declarations ------------------------------------------------------------------------------

    traits = replace(
        FedUad.traits,
        bytes_formula=(
            "feduad's, and 4·K_c up if dynamic=last, 4·K up and (K − K_c)·S down if fresh;"
            " FedAvg's without UAD and CGR"
        ),
    )


@accounts_for(FedUfo)
class FedUfoAccounting(FedUadAccounting[FedUfo]):
    def traffic(self, info: Info, cohort: list[int]) -> Traffic:
        usual = super().traffic(info, cohort)
        k = len(cohort)
        w = info.task.bytes(without=info.task.private)
        if self.method.samples("fresh") and not self.method.in_stage_one(info, info.round):
            everyone = len(info.names)
            return usual + Traffic(up=4 * everyone, down=(everyone - k) * w)
        return usual + Traffic(up=4 * k if self.method.samples("last") else 0)
