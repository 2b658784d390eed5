"""APPLE: Luo, Wu, Adapt to Adaptation: Learning Personalization for Cross-Silo Federated Learning,
IJCAI 2022.

Idea: every party has a core model that all others can download. A party deploys a mixture of all
core models, and learns both its own core model and the weights of the mixture.

Mixture: w^p_i = Σ_j p_ij w^c_j.
Objective: F_i(w^p_i) + λ(r) (μ/2) ‖p_i − p_0‖², with p_0 = (n_1/n, ..., n_N/n), from which p_i
starts.
Steps: w^c_i ← w^c_i − η₁ p_ii ∇F_i(w^p_i);  p_ij ← p_ij − η₂ (⟨∇F_i(w^p_i), w^c_j⟩ + λ(r) μ (p_ij −
n_j/n)).
Schedule: λ(r) = (cos(π r/L) + 1)/2, or 0.001^{r/L}, for r < L, then 0: p_i stays near p_0 at first,
when all models are useful, and is free later.
Limited downloads: M core models per round: first those never downloaded, then random ones with
chances proportional to b^|p_ij|, b = max(1.5, r M/N). Of the other parties, the last downloaded
models are used.

Symbols: w^c = core models; p_i = what the paper calls directed relationships; w^p_i = the party's
own model; η₁ = the experiment's learning rate; r counts rounds from 0.
At a glance: personal = everything; exchanged = the core model up and all others' down; kept = the
core model, p_i and the mixture, at the server all core models; steps = E epochs.
Deviations: checked against the authors' code, not the printed text. Both steps are one step of the
experiment's optimizer, with p_i scaled so that its learning rate is η₂. η₂ = 0.001, μ = 0.1 and L =
a tenth of the rounds are that code's; it decays exponentially by default, has no ½ before ‖p_i −
p_0‖², and begins with different core models (--init own). As p_ii is about 1/N at first, core
models learn N times slower than FedAvg's. PFLlib multiplies η₁ by N for that, takes means where
⟨·,·⟩ is a sum, and sends the mixture instead of the core model. In the paper all parties take part
in each round; here the last core models of absent parties are used. BatchNorm's statistics are
those of the party's own core model. A newcomer trains the mixture, with weights p_0, of the core
models that it receives.
Compared: the same as PFLlib's core models after PFLlib was changed to send them. Unchanged,
PFLlib's curves are lower, but within chance. See docs/results/methods-beside.md.
"""

from __future__ import annotations

import math
from collections.abc import Container
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from comity.base.content import WEIGHTS, Content, describe
from comity.core import *

P = "apple.p"
LEAST = 1.5  # the lower bound of b


@record
class AppleServer:
    """The server's state: all core models, p_0 and, with limited downloads, whose models each party
    asked for.
    """

    cores: dict[int, Params]
    p0: Tensor
    asked: dict[int, list[int]]


@record
class AppleState:
    """A party's state: its core model, p_i (its own weight first), its own model and, with limited
    downloads, the core models that it received and the initial one.
    """

    core: Params
    p: Tensor
    mixed: Params
    had: dict[int, Params]
    first: Params


@record
class Cores:
    """The server's message: others' core models, p_0, λ(r) μ, and b."""

    models: dict[int, Params]
    p0: Tensor
    pull: float
    base: float


@record
class Core:
    """A party's reply: its core model, and the parties whose models it asks for next."""

    theta: Params = describe(WEIGHTS)
    asks: list[int] = describe(
        Content(
            "the numbers of parties whose models it asks for next, by how much they helped it",
            "weights",
        )
    )


@record
class Mixing:
    """The input of the loss: others' core models, stacked, p_0, λ(r) μ, and the scale c of p during
    training.
    """

    others: Params
    p0: Tensor
    pull: float
    scale: float


def mixture(core: Params, p: Tensor, others: Params) -> Params:
    """Σ_j p_j w_j. The party's own core model is the first."""
    return core | {k: p[0] * core[k] + torch.tensordot(p[1:], w, 1) for k, w in others.items()}


@algorithm
class Apple(Algorithm[AppleServer, AppleState, Cores]):
    mu: float = option(0.1, "μ, weight of the pull to p_0", minimum=0)
    mix_lr: float = option(0.001, "η₂, step size of p_i; 0 leaves p_i at p_0", minimum=0)
    until: float = option(
        0.1, "L as a share of the rounds: when the pull to p_0 is gone", minimum=0, maximum=1
    )
    decay: Literal["cosine", "exponential"] = option("cosine", "how the pull to p_0 goes")
    downloads: int = option(0, "M, core models that a party gets in a round; 0: all", minimum=0)

    def check(self, info: Info) -> None:
        info.same_architecture("apple")
        if info.training.optimizer != "sgd":
            raise UsageError(
                "apple has two learning rates, which only SGD keeps apart: use --optimizer sgd."
            )

    def fewer(self, parties: int) -> bool:
        return 0 < self.downloads < parties - 1

    def weight(self, r: int, rounds: int) -> float:
        """λ(r)."""
        L = self.until * rounds
        if r >= L:
            return 0.0
        return (math.cos(math.pi * r / L) + 1) / 2 if self.decay == "cosine" else 0.001 ** (r / L)

    def init_server(self, key: Key, info: Info) -> AppleServer:
        sizes = torch.tensor(info.sizes, dtype=torch.float32)
        core = drop(info.task.init(key), info.task.private)
        return AppleServer(dict.fromkeys(info.parties, core), sizes / sizes.sum(), {})

    def init_party(self, key: Key, party: Party) -> AppleState:
        first = party.task.init(key) if self.fewer(party.federation_size) else {}
        return AppleState(party.task.init(key), torch.zeros(0), party.task.init(key), {}, first)

    def message_for(self, s: AppleServer, i: int) -> Cores:
        return self.message(s, i, pull=0.0, base=LEAST)

    def message(self, s: AppleServer, i: int, pull: float, base: float) -> Cores:
        n = len(s.cores)
        ids = s.asked.get(i) or [(i + k) % n for k in range(1, 1 + self.downloads)]
        sources = ids if self.fewer(n) else range(n)
        models = {j: s.cores[j] for j in sources if j != i}
        return Cores(models, s.p0, pull, base)

    def round(self, s: AppleServer, server: Server, t: int) -> AppleServer:
        r = t - 1
        pull = self.mu * self.weight(r, server.info.rounds) if self.mu else 0.0
        base = max(LEAST, r * self.downloads / len(server.info.names))
        messages = {i: self.message(s, i, pull, base) for i in server.sample(t)}
        replies = server.call(self.local, messages)
        cores = s.cores | {i: reply.theta for i, reply in replies.items()}
        asks = s.asked | {i: reply.asks for i, reply in replies.items() if reply.asks}
        return AppleServer(cores, s.p0, asks)

    @on_party
    async def local(
        self, state: AppleState, m: Cores, party: Party, key: Key
    ) -> tuple[AppleState, Core]:
        others = [j for j in range(len(m.p0)) if j != party.id]
        p0 = m.p0[[party.id, *others]].to(next(iter(state.core.values())))
        had = state.had | m.models if state.first else {}
        models = [m.models.get(j) or had.get(j) or state.first for j in others]
        names = trainable(drop(state.core, party.task.private)) if models else {}
        # p = c q is trained through q: a step of η₁ on q is one of η₁ c² = η₂ on p.
        c = math.sqrt(self.mix_lr / party.training.lr) or 1.0
        stacked = {k: torch.stack([w[k] for w in models]) for k in names}
        aux = Mixing(stacked, p0, m.pull, c)
        begin = state.core | {P: (state.p if len(state.p) else p0) / c}
        only = None if self.mix_lr else frozenset(state.core)
        # Not batched: each party has all core models, and those of a single party fit in the cache.
        theta = (await party.fit(self.objective, begin, key, aux, only=only, batched=False)).theta
        core, p = drop(theta, frozenset({P})), c * theta[P]
        asks: list[int] = []
        if state.first:
            p_of_others = dict(zip(others, p[1:].tolist(), strict=True))
            asks = self.asks(p_of_others, had, m.base, key.fold("asks"))
        mixed = mixture(core, p, aux.others)
        shared = drop(core, party.task.private)
        return AppleState(core, p, mixed, had, state.first), Core(shared, asks)

    def objective(self, task: LearningTask, theta: Params, batch: Batch, aux: Mixing) -> Tensor:
        p = aux.scale * theta[P]
        value = task.loss(mixture(drop(theta, frozenset({P})), p, aux.others), batch)
        return value + aux.pull / 2 * (p - aux.p0).square().sum() if aux.pull else value

    def asks(self, p: dict[int, float], had: Container[int], base: float, key: Key) -> list[int]:
        """The parties whose core models to ask for: first those never received, then random ones
        with chances proportional to b^|p|.
        """
        new = [j for j in p if j not in had]
        ids = [new[k] for k in key.fold("new").permutation(len(new)).tolist()][: self.downloads]
        remaining = [j for j in p if j not in ids]
        if missing := self.downloads - len(ids):
            chances = torch.tensor([base ** abs(p[j]) for j in remaining])
            ids += [
                remaining[k]
                for k in chances.multinomial(missing, generator=key.generator()).tolist()
            ]
        return sorted(ids)

    @on_party
    async def warm_up(
        self, state: AppleState, m: Cores, party: Party, key: Key
    ) -> tuple[AppleState, None]:
        begin = state.core | average(m.models, {j: m.p0[j].item() for j in m.models})
        theta = (await party.fit(plain, begin, key)).theta
        return replace(state, core=theta, mixed=theta), None

    def deployed_model(self, state: AppleState, m: Cores, party: Party) -> Params:
        return state.mixed

    # -- declarations ------------------------------------------------------------------------------

    traits = Traits(
        self_contained=True,
        start_weights="",
        bytes_formula=(
            "Σ_t |S_t| · (S + m · S + 4·N + 8), and 4·m up if downloads are limited; m = M, or N −"
            " 1 if that is less"
        ),
    )


@accounts_for(Apple)
class AppleAccounting(Accounting[Apple]):
    def wire_shapes(self, task: LearningTask, parties: int) -> WireShapes:
        return {"Cores.p0": (parties,)}

    def join_traffic(self, info: Info) -> Traffic:
        n = len(info.names)
        downloads = self.method.downloads if self.method.fewer(n) else n
        return Traffic(
            down=len(info.late)
            * (downloads * info.task.bytes(without=info.task.private) + 4 * n + 8)
        )

    def traffic(self, info: Info, cohort: list[int]) -> Traffic:
        n, size = len(info.names), info.task.bytes(without=info.task.private)
        fewer = self.method.fewer(n)
        downloads = self.method.downloads if fewer else n - 1
        per_party = Traffic(
            up=size + (4 * downloads if fewer else 0), down=downloads * size + 4 * n + 8
        )
        return sum([per_party] * len(cohort), Traffic())
