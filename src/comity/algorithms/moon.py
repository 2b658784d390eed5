"""MOON: Li, He, Song, Model-Contrastive Federated Learning, CVPR 2021.

Idea: FedAvg whose parties pull their representations to the global model's and push them from their own previous model's.

Eq. 3: ℓ_con = −log( e^{cos(z, z_glob)/τ} / (e^{cos(z, z_glob)/τ} + e^{cos(z, z_prev)/τ}) ).
Eq. 4: min CE(w_i; x, y) + μ · ℓ_con.

Symbols: z, z_glob, z_prev = representations of x by the model in training, the received one and the party's last one; the
latter two are frozen, in evaluation mode.
Deviations: the representation is taken at the network's cut; the paper adds a projection head of its own there. A party's
first previous model is the one it receives. μ = 1 (the paper tunes {0.1, 1, 5, 10}), τ = 0.5.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from comity.algorithms.fedavg import FedAvg
from comity.core import *


@record
class Own:
    """What a party keeps: its private parameters, and the model it trained last."""

    private: Params
    previous: Params


def contrast(z: Tensor, z_glob: Tensor, z_prev: Tensor, tau: float) -> Tensor:
    """Eq. 3, batch mean."""
    near, far = (F.cosine_similarity(z.flatten(1), other.flatten(1)) / tau for other in (z_glob, z_prev))
    return F.softplus(far - near).mean()  # −log(e^a / (e^a + e^b)) = log(1 + e^{b − a})


@algorithm
class Moon(FedAvg):
    mu: float = option(1.0, "μ, weight of the contrastive term (eq. 4)", minimum=0)
    tau: float = option(0.5, "τ, temperature (eq. 3)", above=0)

    def client(self, key: Key, party: Party) -> Own:
        return Own(super().client(key, party), {})

    def local(self, mine: Own, m: Model, party: Party, key: Key) -> tuple[Own, Model]:
        received = m.theta | mine.private
        eq4 = self.contrastive(party.task, received, mine.previous or received)
        done = fit(eq4, received, party.data.train, key, party.training).theta
        kept = self.kept(party.task)
        return Own(keep(done, kept), done), Model(drop(done, kept))

    def contrastive(self, task: Task, w: Params, previous: Params) -> Loss:
        def eq4(theta: Params, batch: Batch) -> Tensor:
            z = task.features(theta, batch.x, train=True)
            with torch.no_grad():
                z_glob, z_prev = (task.features(frozen, batch.x) for frozen in (w, previous))
            return task.objective(theta, z, batch) + self.mu * contrast(z, z_glob, z_prev, self.tau)

        return eq4

    def settled(self, mine: Own, theta: Params) -> Own:
        return replace(mine, private=theta | mine.private)

    def model(self, mine: Own, m: Any, party: Party) -> Params:
        return dict(m.theta | mine.private)
