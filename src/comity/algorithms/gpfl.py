"""GPFL: Zhang et al., Simultaneously Learning Global and Personalized Feature Information for
Personalized FL, ICCV 2023.

Idea: FedPer whose parties learn two kinds of features from one representation. A conditional valve
maps it to a personal one, from which the party's own head predicts, and to a global one, which
trainable embeddings of the classes guide. The valve and the embeddings are shared.

Eq. 1: f^G = ReLU((γ + 1) ⊙ f + β), f^P = ReLU((γ_i + 1) ⊙ f + β_i). Eq. 2: {γ, β} = CoV(g; V),
{γ_i, β_i} = CoV(p_i; V).
Eq. 3: L_alg = −log( e^{cos(f^G, C_y)} / Σ_u e^{cos(f^G, C_u)} ). Eq. 4: L_mlg = ‖f^G − Ĉ_y‖. Eq. 5:
L_P = CE(ψ(f^P; W_i^h), y).
Loss: L_P + L_alg + λ · L_mlg, and weight decay μ on C and V. Server: averages of the body, V and C,
by sample counts.

Symbols: f = what the stages up to the cut make of x; W_i^h = the party's head; C = the classes'
embeddings, Ĉ = as received and frozen; g = the mean of Ĉ over all classes, p_i = over the party's
samples; CoV = LayerNorm(ReLU(linear layer)), for γ and for β.
Deviations: eq. 4 is one norm over a whole batch in the code, with which λ was tuned (mlg=paper: the
mean of each sample's). In the authors' figure g and p_i come from Ĉ, as here. Both codes take them
from the C that the party itself trained before it received Ĉ, so that g differs between parties,
and use 0 for both in round 1. λ = 0.01 and μ = 0.1 are the authors' for a CNN or MLP (ResNet-18 and
fastText: λ = 0.0001, μ = 0; HAR's CNN: μ = 1). PFLlib's defaults are λ = 1 and μ = 0; for results
that cannot be reproduced with them, the author refers to the values above (PFLlib, issue 147). The
authors' code leaves out the last test samples if they do not fill a batch. The authors' poster was
read for the equations, their code for CoV's layers and μ; the paper's text was not available.
At a glance: personal = the head; exchanged = the body's, the valve's and the embeddings' weights,
both ways; kept = the head; steps = E epochs.
Compared: within chance of PFLlib's with conditions from Ĉ; on whole batches the same until rounding
errors grow. See docs/results/methods-beside.md.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from comity.algorithms.fedper import FedPer
from comity.components.around import Around
from comity.core import *
from comity.models.stack import uniform
from comity.training.kernels import linear

EMBEDDING, VALVE = "gpfl.embedding", "gpfl.valve."
GAMMA, BETA = VALVE + "gamma.", VALVE + "beta."
GENERIC, PERSONAL = "gpfl.generic", "gpfl.personal"  # g and p_i


def guide_names(names: frozenset[str]) -> frozenset[str]:
    """The names of the parameters of C and V."""
    return frozenset(k for k in names if k == EMBEDDING or k.startswith(VALVE))


@dataclass(frozen=True, kw_only=True)
class Valved(Around):
    """A task with a conditional valve before its head, and embeddings of its classes."""

    def init(self, key: Key) -> Params:
        d, generator = self.width, key.fold("gpfl").generator()
        added = {EMBEDDING: torch.randn(self.classes, d, generator=generator)}
        for which in (GAMMA, BETA):
            added |= {
                which + "weight": uniform((d, d), d, generator),
                which + "bias": uniform((d,), d, generator),
            }
            added |= {which + "norm.weight": torch.ones(d), which + "norm.bias": torch.zeros(d)}
        return self.inner.init(key) | added

    def valve(self, theta: Params, f: Tensor, *names: str) -> list[Tensor]:
        """Eqs. 1 and 2, for one condition or several."""
        conditions = torch.stack([theta[name] for name in names])

        def cov(which: str) -> Tensor:
            out = F.relu(linear(conditions, theta[which + "weight"], theta[which + "bias"]))
            return F.layer_norm(
                out, out.shape[1:], theta[which + "norm.weight"], theta[which + "norm.bias"]
            )

        return [
            F.relu((gamma + 1) * f.flatten(1) + beta)
            for gamma, beta in zip(cov(GAMMA), cov(BETA), strict=True)
        ]

    def head(self, theta: Params, z: Tensor, train: bool = False) -> Tensor:
        (f_P,) = self.valve(theta, z, PERSONAL)
        return self.inner.head(theta, f_P.view_as(z), train)


@record
class Frozen:
    """Ĉ, a constant copy of C."""

    C: Tensor


@algorithm
class Gpfl(FedPer):
    lam: float = option(0.01, "λ, weight of the guidance by magnitude (eq. 4)", minimum=0)
    mu: float = option(0.1, "μ, weight decay of the embeddings and of the valve", minimum=0)
    mlg: Literal["code", "paper"] = option(
        "code", "eq. 4 as one norm over a batch, or as the mean of each sample's"
    )

    def check(self, info: Info) -> None:
        super().check(info)
        info.needs_classes("gpfl", "has an embedding of each class")

    def extend_task(self, task: LearningTask) -> LearningTask:
        return Valved.of(task)

    def add_conditions(self, theta: Params, party: Party) -> Params:
        """Add g and p_i to the parameters."""
        C = theta[EMBEDDING]
        counts = torch.bincount(party.data.train.y, minlength=len(C)).to(C.dtype)
        return theta | {GENERIC: C.mean(0), PERSONAL: counts @ C / counts.sum()}

    async def train_locally(self, theta: Params, m: Model, party: Party, key: Key) -> Params:
        begin = self.add_conditions(theta, party)
        decayed = guide_names(frozenset(theta))
        decay = Pull({k: torch.zeros_like(theta[k]) for k in decayed}, self.mu) if self.mu else None
        fitted = await party.fit(
            self.loss, begin, key, Frozen(theta[EMBEDDING]), only=frozenset(theta), pull=decay
        )
        return keep(fitted.theta, frozenset(theta))

    def loss(self, task: LearningTask, theta: Params, batch: Batch, frozen: Frozen) -> Tensor:
        assert isinstance(task, Valved)
        f = task.features(theta, batch.x, train=True)
        f_P, f_G = task.valve(theta, f, PERSONAL, GENERIC)
        cosine = F.normalize(f_G, dim=1) @ F.normalize(theta[EMBEDDING], dim=1).T
        apart = f_G - frozen.C[batch.y]
        # eq. 4
        mlg: Tensor = torch.linalg.vector_norm(apart, dim=None if self.mlg == "code" else 1).mean()
        eq5 = task.inner.criterion(task.inner.head(theta, f_P.view_as(f), train=True), f, batch)
        return eq5 + mean_cross_entropy(cosine, batch.y) + self.lam * mlg

    def deployed_model(self, state: Params, m: Model, party: Party) -> Params:
        return self.add_conditions(m.theta | state, party)

    # -- declarations ------------------------------------------------------------------------------

    traits = replace(
        FedPer.traits,
        not_private="it looks at how many records there are of each class",
        bytes_formula=(
            "2 · Σ_t |S_t| · (S_body + 4·d'·(C + 2·d' + 6)): the body, the embeddings and the valve"
        ),
    )
