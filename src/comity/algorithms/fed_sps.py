"""Fed-SPS: Selective Partial Sharing by overlapping data augmentation (anonymous submission to
ICLR). The server only carries sealed messages.

Idea: party j perturbs samples against its own model. Those that also raise the loss of party i's
model are taken to lie where both parties' data overlap, and i learns from them too: by their
gradient, which j computes, so that no sample crosses.

Eq. 13: min E ℓ(z, h^i) + α · E ℓ(T(z, h^i), h^i) + β · Σ_{j≠i} E_{z∈ODA_ij} ℓ(z, h^i).
Eq. 12: ODA_ij = { T(z, h^j) : z ∈ D^j, ℓ(T(z, h^j), h^i) > ℓ(z, h^i) }.
Algorithm 1: T(z_p, h) = argmax_z ℓ(z, h) − λ d(z, z_p), λ ← max(0, λ − α_λ (ε − mean d)).
Algorithm 2: l.3-7 perturb; l.10 send h^i; l.11 find the overlap; l.12 one step on eq. 13; l.14
fine-tune on the party's own data.

At a glance: personal = the whole model; exchanged = weights to peers and gradients back, or samples
with mode=samples; kept = the party's model; steps = E epochs, an attack on its own samples, and a
gradient for each peer that asks.
Symbols: h^i = a party's model; T = attack; ODA_ij = j's samples that i learns from; ξ, τ = how
peers are drawn.
Deviations: T is PGD, as in the public code, on the owner's present model; attack=wasserstein is
Algorithm 1 with labels fixed, a squared cost and λ updated once per attack. ε is in the unit of the
network's inputs (units=pixel: of pixels). The first batch of a local training is for line 12, the
others for line 14, all with the α term (collab_steps: more batches for line 12). For its peers a
party perturbs a separate batch. j returns gradients, because the paper does not say how i gets j's
samples. All parties start with equal weights. Σ_j is a mean over the peers asked, so that β does
not grow with them. Peers' gradients are taken in evaluation mode.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from comity.base.content import Content, describe_reply
from comity.components.attack import Attacks, Range
from comity.components.choice import Asks, moving_average
from comity.components.overlap import (
    Help,
    Overlaps,
    OverlapsAccounting,
    eval_loss,
    gains,
    gradients,
    help_for,
    linear_in,
    pull,
)
from comity.components.peer import Group, PeerToPeer
from comity.components.schedule import Step, StepSchedule
from comity.core import *
from comity.core.diagnostics import PartyMatrix

LAM = "fed-sps.lambda"


@record
class FedSpsState:
    """A party's state: its model, its attack's λ, the scores of its peers and, with code_compat,
    its initial weights.
    """

    h: Params
    lam: float
    scores: dict[int, float]
    first: Params


@record
class Overlapping:
    """The input of eq. 13: the weights that T attacks (empty: the present ones), T's λ and range,
    and the peers' help.
    """

    first: Params
    lam: Tensor
    range: Range
    helps: dict[int, Help]


@algorithm
class FedSps(Attacks, Overlaps, Asks, StepSchedule, PeerToPeer[FedSpsState]):
    alpha: float = option(0.1, "α, weight of the party's own perturbed samples", minimum=0)
    alpha_mode: Literal["train", "eval"] = option(
        "train", "how they pass BatchNorm and dropout: as in training, or evaluation"
    )
    beta: float = option(0.5, "β, weight of the overlap with peers", minimum=0)
    score: Literal["gain", "overlap"] = option(
        "gain", "what a peer gave: the drop of a held-out loss by its step, or overlap"
    )
    code_compat: bool = option(
        False, "as the code: T on the first weights, own samples too, clean losses"
    )

    # T, Algorithm 1
    attack: Literal["pgd", "wasserstein"] = option(
        "pgd", "T: steps of the sign in an ℓ∞ ball, or Algorithm 1 (Wasserstein)"
    )
    epsilon: float = option(0.03, "ε, radius of the attack", minimum=0)
    units: Literal["input", "pixel"] = option(
        "input", "ε, steps and [0, 1]: of inputs as the network sees them, or of pixels"
    )
    attack_steps: int = option(0, "steps of T; 0: 5 for pgd, 15 for wasserstein", minimum=0)
    attack_lr: float = option(0.0, "step of T; 0: 0.01 for pgd, 0.1 for wasserstein", minimum=0)
    cost: Literal["l2sq", "l2"] = option(
        "l2sq", "d of Algorithm 1: ‖·‖² with budget ε², or ‖·‖ with ε"
    )
    lambda0: float = option(1.0, "λ_0 of Algorithm 1", minimum=0)
    lambda_lr: float = option(0.1, "α_λ of Algorithm 1", minimum=0)
    lambda_steps: int = option(
        1, "updates of λ in each attack; it is kept from one to the next", minimum=1
    )
    clamp: Literal["data", "unit", "none"] = option(
        "data", "perturbed inputs stay in the range of the data, in [0, 1], or not"
    )

    # The overlap, eq. 12
    select: Literal["strict", "geq", "all"] = option(
        "strict", "eq. 12 with >, with ≥, or no selection"
    )
    mode: Literal["gradient", "samples"] = option(
        "gradient", "what j returns; samples are near-copies of private inputs"
    )
    reduce: Literal["mean", "sum", "pool"] = option(
        "mean", "Σ_j of eq. 13: mean of peers, sum (paper), one mean of all (code)"
    )
    overlap_batch: int = option(
        0, "samples a party perturbs for its peers each time; 0: a mini-batch (l.5)", minimum=0
    )

    # Peers
    peers: int = option(0, "peers a party asks a round; 0: everybody in the round", minimum=0)
    explore: float = option(0.2, "ξ, share of the peers that is drawn evenly", minimum=0, maximum=1)
    temperature: float = option(1.0, "τ, how sharply peers are told apart", above=0)

    # Steps, Algorithm 2
    collab_steps: int = option(
        1,
        "collaborative steps a round (l.9-13), the last of them the first of l.14's epochs",
        minimum=1,
    )
    tune: Literal["round", "end", "off"] = option(
        "round", "fine-tuning (l.14): every round, once after the last, or never"
    )

    def check(self, info: Info) -> None:
        info.needs_classes("fed-sps", "looks where models confuse classes")
        info.same_architecture("fed-sps")
        self.check_units(info)

    def init_party(self, key: Key, party: Party) -> FedSpsState:
        first = party.task.init(key)
        return FedSpsState(first, self.lambda0, {}, first if self.code_compat else {})

    def asks(self, info: Info, i: int, others: list[int]) -> list[int]:
        return [j for j in others if info.listens(i, j)]

    def join(self, s: Empty, server: Server, ids: Sequence[int]) -> Empty:
        super().join(s, server, ids)
        if self.tune != "round":
            server.call(self.tuned, dict.fromkeys(ids, Empty()))
        return s

    def finish(self, s: Empty, server: Server) -> Empty:
        server.call(self.tuned, dict.fromkeys(server.info.parties, Empty()))
        return s

    def exchange(self, server: Server, learners: list[int], others: list[int]) -> None:
        shares: dict[Edge, list[float]] = {}
        for message in self.messages(self.holds):
            sealed_messages = self.answers(server, learners, others) if self.beta else {}
            messages = dict.fromkeys(learners, message)
            replies = server.call(self.local, messages, sealed_messages)  # l.12-14
            for i, overlaps in replies.items():
                for j, value in overlaps.items():
                    shares.setdefault((i, j), []).append(value)
        for (i, j), values in shares.items():
            server.note(f"overlap/{server.info.name(j)}", statistics.fmean(values), party=i)

    def answers(self, server: Server, learners: list[int], others: list[int]) -> dict[Edge, Sealed]:
        groups = {i: Group(self.asks(server.info, i, others)) for i in learners}
        requests = server.call(self.send, groups)  # l.10
        models = {(i, j): model for i, to in requests.items() for j, model in to.items()}
        if not models:
            return {}
        helpers = {j: Empty() for _, j in models}
        replies = server.call(self.assist, helpers, models)  # l.11
        helps = {(j, i): sealed for j, to in replies.items() for i, sealed in to.items()}
        return {(j, i): sealed for (j, i), sealed in helps.items() if i in requests}

    @on_party
    async def send(
        self, state: FedSpsState, m: Group, party: Party, key: Key
    ) -> tuple[FedSpsState, dict[int, Sealed[Model]]]:
        peers = self.choose_peers(state.scores, m.ids, key.fold("peers"))
        return state, dict.fromkeys(peers, seal(Model(drop(state.h, party.task.private)), to=peers))

    @on_party
    async def assist(
        self, state: FedSpsState, m: Empty, party: Party, key: Key
    ) -> tuple[FedSpsState, dict[int, Sealed[Help]]]:
        private = keep(state.h, party.task.private)
        clean, bad, lam = self.perturb_batch(state, party, key)
        helps = {
            i: seal(self.help(model.theta | private, clean, bad, party.task), to=i)
            for i, model in party.inbox.items()
        }
        return replace(state, lam=lam), helps

    def perturb_batch(
        self, state: FedSpsState, party: Party, key: Key
    ) -> tuple[Samples, Tensor, float]:
        """A batch of the party's samples, the same batch after T, and λ."""
        train = party.data.train
        count = min(self.overlap_batch or party.training.batch, len(train))
        # l.5
        clean = train.take(
            torch.tensor(key.fold("overlap").choose(count, len(train)), device=train.x.device)
        )
        T = self.attacker(self.code_compat)
        range_ = self.range_of(party.data, self.code_compat)
        noise = T.noise(clean.x, key.fold("attack"))
        lam = torch.tensor(state.lam, dtype=torch.float64)
        # l.6
        bad, lam = T(party.task, state.first or state.h, clean.x, clean.y, noise, lam, range_)
        return clean, bad, lam.item()

    def help(self, h: Params, clean: Samples, bad: Tensor, task: LearningTask) -> Help:
        use_clean = self.code_compat and self.select != "all"
        return help_for(task, h, clean, bad, self.select, use_clean, self.holds)  # eq. 12

    @on_party
    @describe_reply(
        Content(
            "of each peer which share of its batch overlaps with this party, as that peer found",
            "gradients",
        )
    )
    async def local(
        self, state: FedSpsState, m: Step, party: Party, key: Key
    ) -> tuple[FedSpsState, dict[int, float]]:
        helps = dict(party.inbox)
        if self.code_compat and self.beta:
            clean, bad, _ = self.perturb_batch(state, party, key)
            helps[party.id] = self.help(state.h, clean, bad, party.task)
        how = self.stretch(m, self.holds, party.training, len(party.data.train))
        after = await self.train_locally(state, helps, how, party, key)
        helps.pop(party.id, None)
        scores = (
            moving_average(state.scores, self.score_helps(state, party, key, helps))
            if self.peers
            else {}
        )
        return replace(after, scores=scores), {j: h.overlap for j, h in helps.items()}

    async def train_locally(
        self, state: FedSpsState, helps: dict[int, Help], how: Training, party: Party, key: Key
    ) -> FedSpsState:
        lam = torch.tensor(state.lam, dtype=torch.float64)
        aux = Overlapping(state.first, lam, self.range_of(party.data, self.code_compat), helps)
        draw = self.noise if self.alpha else None
        # Not batched: T takes gradients within each step, which is slower for stacked parties.
        fitted = await party.fit(
            self.eq13, state.h, key, aux, training=how, draw=draw, batched=False
        )
        return replace(state, h=fitted.theta, lam=fitted.scratch.get(LAM, lam).item())

    def noise(self, batch: Batch, key: Key, aux: Overlapping) -> Tensor | None:
        return self.attacker(self.code_compat).noise(batch.x, key.fold("attack"))

    def eq13(self, task: LearningTask, h: Params, batch: Batch, aux: Overlapping) -> Tensor:
        helps = aux.helps if batch.number < (self.collab_steps if self.holds else 1) else {}
        # before the loss updates BatchNorm's running statistics
        g = pull(task, h, helps, self.reduce)
        value = task.loss(h, batch)
        if self.alpha:
            T = self.attacker(self.code_compat)
            lam = batch.scratch.get(LAM, aux.lam)
            bad, lam = T(task, aux.first or h, batch.x, batch.y, batch.draws, lam, aux.range)
            batch.scratch[LAM] = lam
            loss = task.loss if self.alpha_mode == "train" else partial(eval_loss, task)
            value = value + self.alpha * loss(h, replace(batch, x=bad))
        return value + self.beta * linear_in(h, g) if g else value

    @on_party
    async def tuned(
        self, state: FedSpsState, m: Empty, party: Party, key: Key
    ) -> tuple[FedSpsState, None]:
        return await self.train_locally(state, {}, party.training, party, key), None

    def score_helps(
        self, state: FedSpsState, party: Party, key: Key, helps: dict[int, Help]
    ) -> dict[int, float]:
        if self.score == "overlap":
            return {j: h.overlap for j, h in helps.items()}
        samples = party.data.validation if len(party.data.validation) else party.data.train
        some = samples.take(
            torch.tensor(
                key.fold("held").choose(min(party.training.batch, len(samples)), len(samples))
            )
        )
        return gains(
            party.task,
            state.h,
            gradients(party.task, state.h, helps),
            some,
            party.training.lr * self.beta,
        )

    def deployed_model(self, state: FedSpsState, m: Empty, party: Party) -> Params:
        return state.h

    def asking(self, info: Info, learners: list[int], others: list[int]) -> Traffic:
        private = info.task.private
        buffers = frozenset(filter(is_buffer, info.task.shapes))
        counts = [len(self.asks(info, i, others)) for i in learners] if self.beta else []
        edges = sum(min(self.peers or n, n) for n in counts)
        back = info.task.bytes(without=private | buffers)
        if self.holds:  # an upper bound: all samples of a batch overlap
            back = (self.overlap_batch or info.training.batch) * (4 * math.prod(info.shape) + 4)
        times = len(self.messages(self.holds))
        peer = edges * (info.task.bytes(without=private) + 12 + back)
        return Traffic(times * 4 * edges, times * 4 * sum(counts), times * peer)

    # -- declarations ------------------------------------------------------------------------------

    traits = replace(
        PeerToPeer.traits,
        shares="gradients",
        raw_inputs=True,
        also_leaves=("weights",),
        self_contained=True,
        hears_peers=True,
        bytes_formula=(
            "Σ_t Σ_{i asks j} collab_steps·(S + S_g + 12), S_g = the gradient; samples: S + 12 +"
            " |ODA_ij|·(4·dim x + 4)"
        ),
        diagnostics=(
            PartyMatrix(
                name="overlap",
                title="whose data overlap",
                meaning="how much parties' data overlap, by adversarial samples that fool both",
                value="overlap",
                prefix="overlap/",
            ),
        ),
    )

    def adjust_traits(self, declared: Traits) -> Traits:
        samples = ("samples",) if self.holds else ()
        return replace(
            declared,
            also_leaves=(*declared.also_leaves, *samples),
            finishes=self.tune == "end",
        )


@accounts_for(FedSps)
class FedSpsAccounting(OverlapsAccounting[FedSps]):
    def warnings(self, info: Info) -> list[str]:
        lines = (
            ["mode=samples sends near-copies of private inputs to other parties."]
            if self.method.holds
            else []
        )
        return lines + self.method.forgets(self.method.holds, info.training)

    def join_traffic(self, info: Info) -> Traffic:
        return self.method.asking(info, list(info.late), list(info.parties))

    def traffic(self, info: Info, cohort: list[int]) -> Traffic:
        return self.method.asking(info, cohort, cohort)
