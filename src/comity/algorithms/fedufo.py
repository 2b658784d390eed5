"""FedUFO: Zhang et al., Federated Learning for Non-IID Data via Unified Feature Learning and Optimization Alignment, ICCV 2021.

Idea: one global model for skewed labels. To FedUAD's adversarial features (UAD) come two consensus losses in a second stage:
a party's answers should agree with those of the group's priors (CGR) and with the global model's (CGL).

Eqs. 6-8: L_cgr = KL(ŷ_i ‖ softmax(v_i)), v_i = Σ_j p_j ⊗ ỹ_{i|j}, p_j[c] = n_jc / Σ_j' n_j'c, over the group, oneself included.
Eq. 10: L_cgl = KL(ŷ_i ‖ ỹ_{i|0}).
Stages: one: CE + L_uni (eq. 11); two, from one's w and D: CE + L_uni + L_cgr + λ · L_cgl (eq. 12).
Dynamic sampling: with CGL, hence in stage two, ⌊K_c/2⌋ of a round's parties are those where w does worst, those never seen first.

Symbols: ŷ_i = the posterior's softmax; ỹ_{i|j} = prior j's; ỹ_{i|0} = w's; n_jc = party j's samples of class c. The rest: feduad.
Deviations: feduad's. The stages are of equal length unless told; without UAD there is no stage one. Teachers are constant in a
round and answer once, in evaluation mode. How well w does is its accuracy on the party's training data when it last took part.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Literal

import torch.nn.functional as F
from torch import Tensor

from comity.algorithms.feduad import Both, FedUad, Objective, Own, Read, State
from comity.core import *
from comity.parts.choice import with_the_worst
from comity.parts.classwise import features_of
from comity.parts.consensus import agreed
from comity.parts.divergence import kl


@algorithm
class FedUfo(FedUad):
    bytes_formula = "feduad's, and 4·K_c up if dynamic=last, 4·K up and (K − K_c)·S down if fresh; FedAvg's without UAD and CGR"

    uad: bool = option(True, "unified adversarial features, eqs. 4 and 5")
    cgr: bool = option(True, "consensus with the group of priors, eq. 8")
    cgl: bool = option(True, "consensus with the global model, eq. 10")
    lam: float = option(3.0, "λ, weight of the consensus with the global model", minimum=0)
    stage_one: float = option(0.5, "share of the rounds that use UAD only", minimum=0, maximum=1)
    dynamic: Literal["last", "fresh", "off"] = option("last", "with CGL half the group are the worst, by an old or a fresh look")
    target: Literal["softmax", "l1", "logits"] = option("softmax", "CGR: softmax(v) as printed, v/Σv, or softmax of mean logits")
    direction: Literal["reverse", "forward"] = option("reverse", "KL(ŷ ‖ teacher) as printed, or KL(teacher ‖ ŷ)")

    def samples(self, how: str) -> bool:
        """Whether sampling is dynamic in this way."""
        return self.cgl and self.dynamic == how

    def in_stage_one(self, info: Info, t: int) -> bool:
        return self.uad and (0 < t <= round(self.stage_one * info.rounds, 6) or not (self.cgr or self.cgl))

    def round(self, s: State, net: Net, t: int) -> State:
        group, seen, held = net.sample(t), s.accuracy, frozenset[int]()
        one = self.in_stage_one(net.info, t)
        if self.samples("fresh") and not one:
            looks = net.call(self.look, {k: self.view(s, k) for k in net.info.parties})
            held = frozenset(looks)  # they have w by now; who did not answer is not favoured
            seen = {k: looks[k].accuracy if k in held else math.inf for k in net.info.parties}
        if self.cgl and self.dynamic != "off" and not one:
            group = with_the_worst(len(group), len(net.info.names), seen, net.key("dynamic"))
        letters = {k: Both({} if k in held else s.w, {}) for k in group}
        return self.averaged(s, net, self.align if one else self.local, letters)

    def look(self, mine: Own, m: Both, party: Party, key: Key) -> tuple[Own, Both]:
        return replace(mine, w=m.theta), Both({}, {}, self.accuracy(m.theta | mine.private, party))

    def accuracy(self, w: Params, party: Party) -> float:
        train = party.data.train
        return (in_chunks(lambda x: party.task.logits(w, x), train.x).argmax(1) == train.y).float().mean().item()

    def align(self, mine: Own, m: Both, party: Party, key: Key) -> tuple[Own, Both]:
        """Stage one."""
        return self.looked(super().align(mine, m, party, key), mine, m, party)

    def local(self, mine: Own, m: Both, party: Party, key: Key) -> tuple[Own, Both]:
        """Stage two."""
        task, group = party.task, self.group(mine, party) if self.cgr else {}
        read = {j: features_of(task, prior.theta | mine.private, party.data.train) for j, prior in group.items()}
        objective = self.consensus(mine, m, party, read) if self.cgr or self.cgl else task.objective
        return self.looked(self.posterior(mine, m, party, key, objective, read), mine, m, party)

    def group(self, mine: Own, party: Party) -> dict[int, Any]:
        """The priors of all who take part."""
        return {party.id: mine.prior, **party.inbox}

    def looked(self, done: tuple[Own, Both], mine: Own, m: Both, party: Party) -> tuple[Own, Both]:
        if not self.samples("last"):
            return done
        w = (m.theta or mine.w) | mine.private
        return done[0], replace(done[1], accuracy=self.accuracy(w, party))

    def consensus(self, mine: Own, m: Both, party: Party, read: Read = None) -> Objective:
        task, x = party.task, party.data.train.x

        def answers(theta: Params, z: Tensor | None = None) -> Tensor:
            if z is None:
                return in_chunks(lambda part: task.logits(mine.private | theta, part), x)
            return in_chunks(lambda part: task.head(mine.private | theta, part.view(-1, *task.z_shape)), z)

        teachers: list[tuple[float, Tensor]] = []
        if self.cgr:
            group, known = self.group(mine, party), read or {}
            logits = {j: answers(p.theta, known.get(j)) for j, p in group.items()}
            counts = {j: p.counts for j, p in group.items()}
            teachers.append((1.0, agreed(logits, counts, self.target)))  # eqs. 6 and 7
        if self.cgl:
            teachers.append((self.lam, F.log_softmax(answers(m.theta or mine.w), dim=1)))

        def objective(theta: Params, z: Tensor, batch: Batch) -> Tensor:
            logits = task.head(theta, z, train=True)
            value, mine_ = task.criterion(logits, z, batch), F.log_softmax(logits, dim=1)
            for weight, answer in teachers:
                theirs = answer[batch.indices]
                value = value + weight * (kl(mine_, theirs) if self.direction == "reverse" else kl(theirs, mine_))  # eqs. 8, 10
            return value

        return objective

    def traffic(self, info: Info, cohort: list[int]) -> Traffic:
        usual, k, w = super().traffic(info, cohort), len(cohort), info.task.bytes(without=info.task.private)
        if self.samples("fresh") and not self.in_stage_one(info, info.round):
            everyone = len(info.names)
            return usual + Traffic(up=4 * everyone, down=(everyone - k) * w)
        return usual + Traffic(up=4 * k if self.samples("last") else 0)
