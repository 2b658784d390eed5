"""FLRA: Reisizadeh, Farnia, Pedarsani, Jadbabaie, Robust Federated Learning: Affine Distribution
Shifts, NeurIPS 2020.

Idea: one model that is robust to affine shifts of its inputs. Each party learns the affine change
of its inputs that is worst for the model, while the model is trained on the changed inputs.

Objective: min_w Σ_i (n_i / n) max_{Λ_i, δ_i} F_i(w; Λ_i x + δ_i) − λ (‖Λ_i − I‖² + ‖δ_i‖²).
Algorithm 1 (FedRobust), at every local step, all at the same point: w_i ← w_i − η₁ ∇_w;  Λ_i ← Λ_i
+ η₂ ∇_Λ; δ_i ← δ_i + η₂ ∇_δ. Then w ← the average of w_i; Λ_i and δ_i stay at the party, from round
to round.

Symbols: Λ_i, δ_i = the change of party i's inputs; λ = the price of a change; η₁ = the experiment's
learning rate, η₂ = ascent_lr.
At a glance: personal = nothing; exchanged = all weights, both ways; kept = Λ_i and δ_i; steps = E
epochs.
Deviations: w is deployed on inputs as they are. Λ_i is diagonal; with shift=full it is a full
matrix, whose size is the square of the input's. η₂ = 1/(2λ) by default: then a step leads to the
point where the price balances the present gradient, every λ is stable, and λ → ∞ gives FedAvg. The
ascent uses the experiment's momentum, and its weight decay pulls towards no change. Adam is
refused, because the size of its steps does not depend on λ. The average is weighted by sample
counts. λ = 1, in the unit of the network's inputs, is a choice of this file: only the abstract of
the paper could be read. The one public version found (the affine attack in later work on robust
federated learning) starts Λ at 0; by the objective's ‖Λ − I‖² it starts at I here.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from comity.algorithms.fedavg import AveragedModel
from comity.core import *

CHANGE, OFFSET = "flra.change", "flra.delta"


@record
class FlraState:
    """A party's state: its private parameters, and its affine shift Λ_i − I and δ_i."""

    private: Params
    shift: Params


@record
class Reversed:
    """The constants of the loss: the ratio η₂/η₁ of the ascent's step to the descent's, and λ."""

    rate: float
    lam: float


def climbing(value: Tensor, rate: float) -> Tensor:
    """The same value with a gradient multiplied by −`rate`, so that gradient descent on a loss of
    it is ascent.
    """
    return value.detach() + rate * (value.detach() - value)


@algorithm
class AffineRobust(AveragedModel[FlraState]):
    lam: float = option(1.0, "λ, the price of a change", above=0, maximum=1e30)
    ascent_lr: float = option(0.0, "η₂, step size of the ascent; 0: 1/(2λ)", minimum=0)
    shift: Literal["diagonal", "full"] = option(
        "diagonal", "Λ: a factor for each value of an input, or a whole matrix"
    )

    @property
    def eta2(self) -> float:
        return self.ascent_lr or 1 / (2 * self.lam)

    def check(self, info: Info) -> None:
        super().check(info)
        if info.training.optimizer != "sgd":
            raise UsageError(
                "affine-robust climbs by the experiment's optimizer, whose steps must know λ: use"
                " --optimizer sgd."
            )
        if self.eta2 * self.lam > 1:
            raise UsageError(
                f"With ascent_lr={self.ascent_lr:g} and lam={self.lam:g} the ascent cannot settle:"
                " at most 1/lam."
            )

    def init_party(self, key: Key, party: Party) -> FlraState:
        like = party.data.train.x[0]
        change = (
            torch.zeros_like(like)
            if self.shift == "diagonal"
            else like.new_zeros(like.numel(), like.numel())
        )
        return FlraState(
            self.private_part(party.task.init(key), party.task),
            {CHANGE: change, OFFSET: torch.zeros_like(like)},
        )

    @on_party
    async def local(
        self, state: FlraState, m: Model, party: Party, key: Key
    ) -> tuple[FlraState, Model]:
        rate = self.eta2 / party.training.lr if party.training.lr else 0.0
        aux = Reversed(rate, self.lam)
        begin = m.theta | state.private | state.shift
        theta = (await party.fit(self.minimax, begin, key, aux)).theta
        shift = keep(theta, frozenset(state.shift))
        theta = drop(theta, frozenset(state.shift))
        private = self.private_part(theta, party.task)
        shared = self.shared_part(theta, party.task)
        return FlraState(private, shift), Model(shared)

    def minimax(self, task: LearningTask, theta: Params, batch: Batch, aux: Reversed) -> Tensor:
        """F_i(w; Λx + δ) plus the price of the shift. Gradients of F_i by Λ and δ are reversed, so
        that w descends on F_i minus the price, and Λ and δ ascend.
        """
        change, delta = theta[CHANGE], theta[OFFSET]
        price = aux.lam * (change.square().sum() + delta.square().sum())
        D, d = climbing(change, aux.rate), climbing(delta, aux.rate)
        more = (
            D * batch.x if self.shift == "diagonal" else (batch.x.flatten(1) @ D.T).view_as(batch.x)
        )
        return task.loss(theta, replace(batch, x=batch.x + more + d)) + aux.rate * price

    def newcomer_state(self, state: FlraState, theta: Params) -> FlraState:
        return replace(state, private=theta | state.private)

    def deployed_model(self, state: FlraState, m: Model, party: Party) -> Params:
        return m.theta | state.private

    # -- declarations ------------------------------------------------------------------------------

    traits = replace(
        AveragedModel.traits,
        raw_inputs=True,
        not_private="what its parties do to their inputs is learned from all of a batch",
    )
