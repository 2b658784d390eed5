"""APFL: Deng, Kamani, Mahdavi, Adaptive Personalized Federated Learning, 2020.

Idea: each party deploys a mixture of a model of its own and its copy of the global one, and learns how much of each it needs.

Mixture: v̄_i = α_i v_i + (1 − α_i) w_i.
Algorithm 1, at every local step: w_i ← w_i − η ∇f_i(w_i);  v_i ← v_i − η ∇_v f_i(v̄_i), and ∇_v f_i(v̄_i) = α_i ∇f_i(v̄_i);
w is averaged as in FedAvg.
Adaptive α: α_i ← α_i − η ⟨v_i − w_i, ∇f_i(v̄_i)⟩, kept within [0, 1].

Symbols: w_i = the party's copy of the global model, from the received w each round; v_i = its own model; v̄_i = what it deploys.
Deviations: the three steps are one step of the experiment's optimizer on f_i(w_i) + f_i(α_i v_i + (1 − α_i) sg(w_i)), whose
gradients are those above; wrappers' terms belong to f_i, hence to both. α_i starts at 0.5, as in the authors' code, and moves at
every step (their code: at a round's first, its gradient plus 0.02 α_i). BatchNorm statistics of v̄_i are its own, not mixed. A
newcomer's v_i starts at the w it receives. PFLlib differs: v_i is trained by f_i(v_i) and replaced by the mixture after each
round, and α_i starts at 1.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from comity.algorithms.fedavg import FedAvg
from comity.core import *

W, V, ALPHA = "w.", "v.", "alpha"


@record
class Own:
    """What a party keeps: w_i as it was trained last, v_i and α_i."""

    w: Params
    v: Params
    alpha: Tensor


def part(theta: Params, which: str) -> Params:
    """w or v, of what is trained together."""
    return {k.removeprefix(which): x for k, x in theta.items() if k.startswith(which)}


def mixture(alpha: Tensor, v: Params, w: Params) -> Params:
    """α v + (1 − α) w."""
    return {k: x if is_buffer(k) else alpha * x + (1 - alpha) * w[k] for k, x in v.items()}


@algorithm
class Apfl(FedAvg):
    self_contained = True
    stacks = False  # both models' losses keep notes from batch to batch
    alpha: float = option(0.5, "α_i before round 1: 0 is the global model's copy, 1 a model of one's own", minimum=0, maximum=1)
    adaptive: bool = option(True, "false leaves α_i as it is")

    @property
    def one_model(self) -> bool:
        return False

    def client(self, key: Key, party: Party) -> Own:
        return Own(party.task.init(key), party.task.init(key), torch.tensor(self.alpha))

    def local(self, mine: Own, m: Any, party: Party, key: Key) -> tuple[Own, Model]:
        kept = self.kept(party.task)
        w = m.theta | keep(mine.w, kept)
        start = {W + k: x for k, x in w.items()} | {V + k: x for k, x in mine.v.items()} | {ALPHA: mine.alpha}
        only = None if self.adaptive else frozenset(start.keys() - {ALPHA})
        theta = fit(self.both(party.task), start, party.data.train, key, party.training, only=only).theta
        w = part(theta, W)
        return Own(w, part(theta, V), theta[ALPHA].clamp(0, 1)), Model(drop(w, kept))

    def both(self, task: Task) -> Loss:
        """f(w) + f(αv + (1 − α) sg(w)); what a wrapper remembers from batch to batch it remembers of each."""
        scratch: dict[str, Tensor] = {}

        def loss(theta: Params, batch: Batch) -> Tensor:
            with torch.no_grad():
                theta[ALPHA].clamp_(0, 1)  # where the last step may have left it
            w = part(theta, W)
            v_bar = mixture(theta[ALPHA], part(theta, V), {k: x.detach() for k, x in w.items()})
            return task.loss(w, batch) + task.loss(v_bar, replace(batch, scratch=scratch))

        return loss

    def welcome(self, mine: Own, m: Any, party: Party, key: Key) -> tuple[Own, None]:
        received = m.theta | keep(mine.w, self.kept(party.task))
        return self.local(replace(mine, v=received), m, party, key)[0], None

    def model(self, mine: Own, m: Any, party: Party) -> Params:
        return mixture(mine.alpha, mine.v, mine.w)
