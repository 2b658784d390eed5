"""Fed-MTL: Smith et al., Federated Multi-Task Learning, NeurIPS 2017 (MOCHA).

Idea: every party has its own model. The relations between the models are learned together with
them, and related models are regularised towards each other.

Eq. 1: min over W and Ω of Σ_t f_t(w_t) + (λ₁/2) tr(W Ω Wᵀ) + (λ₂/2) ‖W‖².
Server, the Ω step: Σ = m (WᵀW)^½ / tr (WᵀW)^½, then Ω = ((1 − ε) Σ + ε I)⁻¹; I before round 1.
Parties, the W step: f_t(w_t) + (c/2) ‖w_t − a_t‖² for E epochs, with a_t = w_t − (λ₁ (WΩ)_t + λ₂
w_t)/c and c = λ₁ ‖Ω‖ + λ₂.

Symbols: W = the parties' weights in columns, as they were sent last; m of them; ‖Ω‖ = its largest
eigenvalue; a_t = the point that the regulariser pulls w_t to.
At a glance: personal = everything; exchanged = the weights up, a_t down; kept = the model, at the
server all parties' weights and Ω; steps = E epochs.
Deviations: MOCHA solves the W step in its dual, which neural networks lack. Here it is solved by
the experiment's optimizer. Since all parties move at once, tr(W Ω Wᵀ) is replaced by its quadratic
bound at W, which has the same minimum; MOCHA's σ′ is there for the same reason. The paper's trace
of Σ is 1, so that its λ is λ₁/m. With ε = 0, Ω is unbounded when models are alike, as networks with
common initial weights are; the authors' code bounds eigenvalues by 10⁻⁷. λ₁ = 0.03 and ε = 0.1 are
choices of this file: the paper chooses λ by cross-validation, the authors' code from 10⁻⁵ to 10,
with λ₂ = 0. The authors' code was read; the printed text was not available. relation=surrogate is
what PFLlib runs under this name (the authors' code of LG-FedAvg and FedRep was not read): Ω = I −
11ᵀ/m, fixed, and λ₁ = λ₂ = 2 · 10^−(⌊log₁₀ d⌋ + 2) for d weights, which is almost zero. PFLlib has
11ᵀ instead of I, and a single number instead of Ω. BatchNorm's statistics stay with the party. A
newcomer starts at the mean of W and is regularised towards it.
Compared: relation=surrogate gives the same as PFLlib's, whose regulariser has no gradient, so that
it equals SOLO. See docs/results/methods-beside.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from comity.core import *


@record
class Relations:
    """The server's state: all parties' weights, stacked, and Ω."""

    W: Params
    omega: Tensor


@record
class Held:
    """The server's message: a_t and c."""

    to: Params
    weight: float


def precision(W: Params, epsilon: float) -> Tensor:
    """Ω computed from the stacked weights."""
    rows = [w.flatten(1) for w in W.values()]
    products = [w @ w.T for w in rows]
    values, vectors = torch.linalg.eigh(sum(products[1:], products[0]).double())
    roots = values.clamp(min=0).sqrt()
    sigma = (
        (1 - epsilon) * len(roots) * roots / roots.sum() + epsilon
        if roots.any()
        else torch.ones_like(roots)
    )
    omega: Tensor = vectors / sigma @ vectors.T
    return omega.to(rows[0])


@algorithm
class FedMtl(Algorithm[Relations, Params, Held]):
    relation: Literal["learned", "surrogate"] = option(
        "learned", "Ω: from W, or fixed, with next to no weight, as others run it"
    )
    lam1: float = option(0.03, "λ₁, weight of the relations; not of the surrogate's", minimum=0)
    lam2: float = option(0.0, "λ₂, weight of ‖W‖²; not of the surrogate's", minimum=0)
    epsilon: float = option(0.1, "ε, how far Σ is drawn to I", above=0, maximum=1)

    def check(self, info: Info) -> None:
        info.same_architecture("fed-mtl")
        if not self.trainable_part(info.task.init(Key(0)), info.task):
            raise UsageError(
                f"Nothing of {info.task.network.name} would be shared: all its weights stay at the"
                " party."
            )

    def trainable_part(self, theta: Params, task: LearningTask) -> Params:
        return trainable(drop(theta, task.private))

    def init_server(self, key: Key, info: Info) -> Relations:
        m = len(info.names)
        first = self.trainable_part(info.task.init(key), info.task)
        omega = torch.eye(m) - 1 / m if self.relation == "surrogate" else torch.eye(m)
        W = {k: torch.stack([v] * m) for k, v in first.items()}
        return Relations(W, omega.to(next(iter(first.values()))))

    def init_party(self, key: Key, party: Party) -> Params:
        return party.task.init(key)

    def lambdas(self, W: Params) -> tuple[float, float]:
        if self.relation == "learned":
            return self.lam1, self.lam2
        d = sum(w[0].numel() for w in W.values())
        return (2 * 10.0 ** -(math.floor(math.log10(d)) + 2),) * 2

    def anchors(self, s: Relations, ids: Sequence[int]) -> dict[int, Held]:
        """a_t and c for these parties. A newcomer's a_t is the mean of all weights."""
        m = len(s.omega)
        lam1, lam2 = self.lambdas(s.W)
        c = lam1 * torch.linalg.eigvalsh(s.omega)[-1].item() + lam2
        identity = torch.eye(m).to(s.omega)
        back = (lam1 * s.omega + lam2 * identity) / (c or 1.0)
        newcomer = torch.full_like(identity[0], 1 / m)
        shares = torch.stack([identity[t] - back[t] if t < m else newcomer for t in ids])
        a = {k: torch.tensordot(shares, w, 1) for k, w in s.W.items()}
        return {t: Held({k: a_k[n] for k, a_k in a.items()}, c) for n, t in enumerate(ids)}

    def message_for(self, s: Relations, i: int) -> Held:
        return self.anchors(s, [i])[i]

    def round(self, s: Relations, server: Server, t: int) -> Relations:
        W = {k: w.clone() for k, w in s.W.items()}
        for i, reply in server.replies(self.local, self.anchors(s, server.sample(t))):
            for k, w in reply.theta.items():
                W[k][i] = w
        return Relations(W, precision(W, self.epsilon) if self.relation == "learned" else s.omega)

    @on_party
    async def local(self, w_t: Params, m: Held, party: Party, key: Key) -> tuple[Params, Model]:
        fitted = await party.fit(plain, w_t, key, pull=Pull(m.to, m.weight) if m.weight else None)
        return fitted.theta, Model(self.trainable_part(fitted.theta, party.task))

    @on_party
    async def warm_up(self, w_t: Params, m: Held, party: Party, key: Key) -> tuple[Params, None]:
        w_t, _ = await self.local(w_t | m.to, m, party, key)
        return w_t, None

    def deployed_model(self, w_t: Params, m: Held, party: Party) -> Params:
        return w_t

    # -- declarations ------------------------------------------------------------------------------

    traits = Traits(
        self_contained=True,
        start_weights="",
        bytes_formula="Σ_t |S_t| · (2·S + 4),  S = bytes of the shared weights without buffers",
    )


@accounts_for(FedMtl)
class FedMtlAccounting(Accounting[FedMtl]):
    def traffic(self, info: Info, cohort: list[int]) -> Traffic:
        buffers = frozenset(filter(is_buffer, info.task.shapes))
        size = len(cohort) * info.task.bytes(without=info.task.private | buffers)
        return Traffic(up=size, down=size + 4 * len(cohort))
