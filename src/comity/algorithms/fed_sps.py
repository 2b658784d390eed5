"""Fed-SPS: Selective Partial Sharing by overlapping data augmentation (anonymous submission to ICLR). No server.

Idea: party j perturbs samples against its own model. Those that also raise the loss of party i's model are taken to lie where
both parties' data overlap, and i learns from them too: by their gradient, which j computes, so that no sample crosses.

Eq. 13: min E ℓ(z, h^i) + α · E ℓ(T(z, h^i), h^i) + β · Σ_{j≠i} E_{z∈ODA_ij} ℓ(z, h^i).
Eq. 12: ODA_ij = { T(z, h^j) : z ∈ D^j, ℓ(T(z, h^j), h^i) > ℓ(z, h^i) }.
Algorithm 1: T(z_p, h) = argmax_z ℓ(z, h) − λ d(z, z_p), λ ← max(0, λ − α_λ (ε − mean d)).
Algorithm 2: l.3-7 perturb; l.10 send h^i; l.11 find the overlap; l.12 one step on eq. 13; l.14 fine-tune on one's own data.

Symbols: h^i = a party's model; T = attack; ODA_ij = j's samples that i learns from; ξ, τ = how peers are drawn.
Deviations: T is PGD, as in the public code, on the owner's present model; attack=wasserstein is Algorithm 1 with labels fixed, a
squared cost and λ moved once an attack. The first batch of a local training is line 12's, the others line 14's, all with the α
term; for its peers a party perturbs a batch of its own. j returns gradients: the paper does not say how i comes by j's samples.
Σ_j is a mean over the peers asked, so that β does not grow with them. Peers' gradients are taken in evaluation mode.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from comity.core import *
from comity.core.diagnostics import PartyMatrix
from comity.parts.attack import Attacks, Range
from comity.parts.choice import Asks, remembered
from comity.parts.overlap import Help, combined, gains, gradients, help_for
from comity.parts.peer import Group, PeerToPeer

LAM = "fed-sps.lambda"


@record
class FedSpsState:
    """What a party keeps: its model, its attack's λ, how much each peer helped, and (code_compat) its first weights."""

    h: Params
    lam: float
    scores: dict[int, float]
    first: Params


@record
class Overlapping:
    """What eq. 13 looks at: the weights that T attacks unless they are the present ones, its λ and range, the peers' gradient."""

    first: Params
    lam: Tensor
    range: Range
    pull: Params


@algorithm
class FedSps(Attacks, Asks, PeerToPeer[FedSpsState]):
    shares = "gradients"
    self_contained = True
    hears_peers = True
    bytes_formula = "Σ_t Σ_{i asks j} (S + S_g + 12), S_g = the gradient; in samples mode |ODA_ij| · (4·dim x + 4) instead of S_g"

    diagnostics = (
        PartyMatrix(
            name="overlap",
            title="whose data overlap",
            meaning="how much parties' data overlap, by adversarial samples that fool both",
            value="overlap",
            prefix="overlap/",
        ),
    )

    alpha: float = option(0.1, "α, weight of the party's own perturbed samples", minimum=0)
    beta: float = option(0.5, "β, weight of the overlap with peers", minimum=0)
    select: Literal["strict", "geq", "all"] = option("strict", "eq. 12 with >, with ≥, or no selection")
    mode: Literal["gradient", "samples"] = option("gradient", "what j returns; samples are near-copies of private inputs")
    reduce: Literal["mean", "sum", "pool"] = option("mean", "Σ_j of eq. 13: mean of peers, sum (paper), one mean of all (code)")
    overlap_batch: int = option(0, "samples a party perturbs for its peers a round; 0: a mini-batch (l.5)", minimum=0)
    peer_steps: Literal["first", "every"] = option("first", "the peers' term acts in the first local step (l.12), or in all")
    tune: Literal["round", "end", "off"] = option("round", "fine-tuning (l.14): every round, once after the last, or never")
    score: Literal["gain", "overlap"] = option("gain", "what a peer gave: the drop of a held-out loss by its step, or overlap")
    code_compat: bool = option(False, "as the code: T on the first weights, own samples too, clean losses")

    def check(self, info: Info) -> None:
        info.needs_classes("fed-sps", "looks where models confuse classes")
        info.same_architecture("fed-sps")

    def cautions(self, info: Info) -> list[str]:
        return ["mode=samples sends near-copies of private inputs to other parties."] if self.mode == "samples" else []

    @property
    def finishes(self) -> bool:
        return self.tune == "end"

    def client(self, key: Key, party: Party) -> FedSpsState:
        first = party.task.init(key)
        return FedSpsState(first, self.lambda0, {}, first if self.code_compat else {})

    def asks(self, info: Info, i: int, others: list[int]) -> list[int]:
        return [j for j in others if info.listens(i, j)]

    def join(self, s: Empty, net: Net, ids: Sequence[int]) -> Empty:
        super().join(s, net, ids)
        if self.tune != "round":
            net.call(self.tuned, dict.fromkeys(ids, Empty()))
        return s

    def finish(self, s: Empty, net: Net) -> Empty:
        net.call(self.tuned, dict.fromkeys(net.info.parties, Empty()))
        return s

    def exchange(self, net: Net, learners: list[int], others: list[int]) -> None:
        parcels: dict[Edge, Sealed] = {}
        if self.beta:
            sent = net.call(self.send, {i: Group(self.asks(net.info, i, others)) for i in learners})  # l.10
            models = {(i, j): parcel for i, to in sent.items() for j, parcel in to.items()}
            if models:
                helped = net.call(self.assist, {j: Empty() for _, j in models}, models)  # l.11
                parcels = {(j, i): parcel for j, to in helped.items() for i, parcel in to.items() if i in sent}
        done = net.call(self.local, dict.fromkeys(learners, Empty()), parcels)  # l.12-14
        for i, overlaps in done.items():
            for j, value in overlaps.items():
                net.note(f"overlap/{net.info.name(j)}", value, party=i)

    async def send(self, mine: FedSpsState, m: Group, party: Party, key: Key) -> tuple[FedSpsState, dict[int, Sealed]]:
        chosen = self.chosen(mine.scores, m.ids, key.fold("peers"))
        return mine, dict.fromkeys(chosen, seal(Model(drop(mine.h, party.task.private)), to=chosen))

    async def assist(self, mine: FedSpsState, m: Empty, party: Party, key: Key) -> tuple[FedSpsState, dict[int, Sealed]]:
        private = keep(mine.h, party.task.private)
        clean, bad, lam = self.perturbed(mine, party, key)
        helps = {i: seal(self.help(sent.theta | private, clean, bad, party.task), to=i) for i, sent in party.inbox.items()}
        return replace(mine, lam=lam), helps

    def perturbed(self, mine: FedSpsState, party: Party, key: Key) -> tuple[Samples, Tensor, float]:
        """A batch of the party's samples, the same after T, and λ."""
        train = party.data.train
        count = min(self.overlap_batch or party.training.batch, len(train))
        clean = train.take(torch.tensor(key.fold("overlap").choose(count, len(train)), device=train.x.device))  # l.5
        T = self.attacker(self.code_compat)
        range_ = self.range_of(train.x, self.code_compat)
        noise = T.noise(clean.x, key.fold("attack"))
        lam = torch.tensor(mine.lam, dtype=torch.float64)
        bad, lam = T(party.task, mine.first or mine.h, clean.x, clean.y, noise, lam, range_)  # l.6
        return clean, bad, lam.item()

    def help(self, h: Params, clean: Samples, bad: Tensor, task: Task) -> Help:
        use_clean = self.code_compat and self.select != "all"
        return help_for(task, h, clean, bad, self.select, use_clean, self.mode == "samples")  # eq. 12

    async def local(self, mine: FedSpsState, m: Empty, party: Party, key: Key) -> tuple[FedSpsState, dict[int, float]]:
        task = party.task
        helps = dict(party.inbox)
        if self.code_compat and self.beta:
            clean, bad, _ = self.perturbed(mine, party, key)
            helps[party.id] = self.help(mine.h, clean, bad, task)
        grads = gradients(task, mine.h, helps)
        pull = combined(grads, {j: h.count for j, h in helps.items()}, self.reduce)
        how = party.training if self.tune == "round" else replace(party.training, steps=1)
        after = await self.trained(mine, pull, how, party, key)
        grads.pop(party.id, None)
        scores = remembered(mine.scores, self.given(mine, grads, helps, party, key)) if self.peers else {}
        return replace(after, scores=scores), {j: h.overlap for j, h in helps.items() if j != party.id}

    async def trained(self, mine: FedSpsState, pull: Params, how: Training, party: Party, key: Key) -> FedSpsState:
        lam = torch.tensor(mine.lam, dtype=torch.float64)
        own = Overlapping(mine.first, lam, self.range_of(party.data.train.x, self.code_compat), pull)
        draw = self.noise if self.alpha else None
        # Not together: T differentiates within each step, which torch does more slowly for stacked parties.
        done = await party.fit(self.eq13, mine.h, key, own, training=how, draw=draw, together=False)
        return replace(mine, h=done.theta, lam=done.scratch.get(LAM, lam).item())

    def noise(self, batch: Batch, key: Key, own: Overlapping) -> Tensor | None:
        return self.attacker(self.code_compat).noise(batch.x, key.fold("attack"))

    def eq13(self, task: Task, h: Params, batch: Batch, own: Overlapping) -> Tensor:
        value = task.loss(h, batch)
        if self.alpha:
            T = self.attacker(self.code_compat)
            lam = batch.scratch.get(LAM, own.lam)
            bad, lam = T(task, own.first or h, batch.x, batch.y, batch.drawn, lam, own.range)
            batch.scratch[LAM] = lam
            value = value + self.alpha * task.loss(h, replace(batch, x=bad))
        if own.pull and (batch.number == 0 or self.peer_steps == "every"):
            value = value + self.beta * torch.stack([(h[k] * g).sum() for k, g in own.pull.items()]).sum()  # its gradient is g
        return value

    async def tuned(self, mine: FedSpsState, m: Empty, party: Party, key: Key) -> tuple[FedSpsState, None]:
        return await self.trained(mine, {}, party.training, party, key), None

    def given(
        self, mine: FedSpsState, grads: dict[int, Params], helps: dict[int, Help], party: Party, key: Key
    ) -> dict[int, float]:
        if self.score == "overlap":
            return {j: helps[j].overlap for j in grads}
        held = party.data.validation if len(party.data.validation) else party.data.train
        some = held.take(torch.tensor(key.fold("held").choose(min(party.training.batch, len(held)), len(held))))
        return gains(party.task, mine.h, grads, some, party.training.lr * self.beta)

    def model(self, mine: FedSpsState, m: Empty, party: Party) -> Params:
        return mine.h

    def join_traffic(self, info: Info) -> Traffic:
        return self.asking(info, list(info.late), list(info.parties))

    def traffic(self, info: Info, cohort: list[int]) -> Traffic:
        return self.asking(info, cohort, cohort)

    def asking(self, info: Info, learners: list[int], others: list[int]) -> Traffic:
        private = info.task.private
        buffers = frozenset(filter(is_buffer, info.task.shapes))
        asked = [len(self.asks(info, i, others)) for i in learners] if self.beta else []
        edges = sum(min(self.peers or n, n) for n in asked)
        back = info.task.bytes(without=private | buffers)
        if self.mode == "samples":  # at most, if all samples of a batch overlap and no party has a larger one
            back = (self.overlap_batch or info.training.batch) * (4 * math.prod(info.shape) + 4)
        return Traffic(4 * edges, 4 * sum(asked), edges * (info.task.bytes(without=private) + 12 + back))
