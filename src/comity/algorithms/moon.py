"""MOON: Li, He, Song, Model-Contrastive Federated Learning, CVPR 2021.

Idea: FedAvg with a contrastive loss that pulls a party's representations to the global model's and
pushes them away from its own previous model's.

Eq. 3: ℓ_con = −log( e^{cos(z, z_glob)/τ} / (e^{cos(z, z_glob)/τ} + e^{cos(z, z_prev)/τ}) ).
Eq. 4: min CE(w_i; x, y) + μ · ℓ_con.

At a glance: personal = nothing; exchanged = weights, both ways; kept = the model of the round
before; steps = E epochs with two more passes without gradients.
Symbols: z, z_glob, z_prev = representations of x by the model in training, the received one and the
party's last one; the latter two are frozen, in evaluation mode.
Deviations: the representation is taken at the network's cut; the paper adds a projection head of
its own there. A party's first previous model is the one it receives. μ = 1 (the paper tunes {0.1,
1, 5, 10}), τ = 0.5.
Compared: the same as PFLlib's and fluke's. See docs/results/methods-beside.md.
"""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from comity.algorithms.fedavg import AveragedModel
from comity.core import *


@record
class MoonState:
    """A party's state: its private parameters, and the model that it trained last."""

    private: Params
    previous: Params


@record
class Compared:
    """The two frozen models of eq. 3: the received one, and the party's last one."""

    glob: Params
    prev: Params


def contrast(z: Tensor, z_glob: Tensor, z_prev: Tensor, tau: float) -> Tensor:
    """Eq. 3, batch mean."""
    near, far = (
        F.cosine_similarity(z.flatten(1), other.flatten(1)) / tau for other in (z_glob, z_prev)
    )
    return F.softplus(far - near).mean()  # −log(e^a / (e^a + e^b)) = log(1 + e^{b − a})


@algorithm
class Moon(AveragedModel[MoonState]):
    mu: float = option(1.0, "μ, weight of the contrastive term (eq. 4)", minimum=0)
    tau: float = option(0.5, "τ, temperature (eq. 3)", above=0)

    def init_party(self, key: Key, party: Party) -> MoonState:
        return MoonState(self.private_part(party.task.init(key), party.task), {})

    @on_party
    async def local(
        self, state: MoonState, m: Model, party: Party, key: Key
    ) -> tuple[MoonState, Model]:
        w = m.theta | state.private
        w_i = (await party.fit(self.eq4, w, key, Compared(w, state.previous or w))).theta
        private = self.private_part(w_i, party.task)
        return MoonState(private, w_i), Model(self.shared_part(w_i, party.task))

    def eq4(self, task: LearningTask, w_i: Params, batch: Batch, frozen: Compared) -> Tensor:
        z = task.features(w_i, batch.x, train=True)
        with torch.no_grad():
            z_glob = task.features(frozen.glob, batch.x)
            z_prev = task.features(frozen.prev, batch.x)
        return task.objective(w_i, z, batch) + self.mu * contrast(z, z_glob, z_prev, self.tau)

    def newcomer_state(self, state: MoonState, theta: Params) -> MoonState:
        return replace(state, private=theta | state.private)

    def deployed_model(self, state: MoonState, m: Model, party: Party) -> Params:
        return m.theta | state.private

    # -- declarations ------------------------------------------------------------------------------

    traits = replace(AveragedModel.traits, encoder_term="the contrastive loss")
