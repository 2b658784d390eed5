"""Ditto: Li et al., Fair and Robust Federated Learning Through Personalization, ICML 2021.

Idea: in addition to the global model of FedAvg, which each party trains and uploads as usual, it
trains a personal model that is regularised towards the global one.

Eq. (Ditto): min_{v_i} F_i(v_i) + (λ/2) ‖v_i − w‖², with w from FedAvg.
Algorithm 1: v_i ← v_i − η (∇F_i(v_i) + λ (v_i − w^t)), anchored to the received w^t.

At a glance: personal = the whole model, held near the global one; exchanged = weights, both ways;
kept = the personal model; steps = 2E epochs.
Symbols: w = the global model; v_i = the personal model, which is deployed.
Deviations: v_i is trained for the experiment's epochs, on the same batches as w_i. λ = 1 (the paper
tunes {0.1, 1, 2}). The terms of wrappers for shared parameters apply to w_i only.
Compared: the same as PFLlib's and fluke's. See docs/results/methods-beside.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from comity.algorithms.fedavg import AveragedModel
from comity.components.averaged import AveragingAccounting
from comity.core import *


@record
class DittoState:
    """A party's state: the private parameters of its copy of w, and v_i."""

    private: Params
    v: Params


@algorithm
class Ditto(AveragedModel[DittoState]):
    lam: float = option(1.0, "λ, pull of the personal model to the global one", minimum=0)

    def init_party(self, key: Key, party: Party) -> DittoState:
        theta = party.task.init(key)
        return DittoState(self.private_part(theta, party.task), theta)

    @on_party
    async def local(
        self, state: DittoState, m: Model, party: Party, key: Key
    ) -> tuple[DittoState, Model]:
        private, reply = await self.train_and_share(state.private, m, party, key)
        near = Pull(trainable(m.theta), self.lam) if self.lam else None
        fitted = await party.fit(plain, state.v, key, task=party.task.personal, pull=near)
        return DittoState(private, fitted.theta), reply

    def newcomer_state(self, state: DittoState, theta: Params) -> DittoState:
        return state

    def deployed_model(self, state: DittoState, m: Model, party: Party) -> Params:
        return state.v

    # -- declarations ------------------------------------------------------------------------------

    traits = replace(AveragedModel.traits, self_contained=True, one_model=False)


@accounts_for(Ditto)
class DittoAccounting(AveragingAccounting[Ditto]):
    def declared_trainings(self, stage: Stage, how: Training) -> Mapping[str, Sequence[Training]]:
        return {function: [how, how] for function in super().declared_trainings(stage, how)}
