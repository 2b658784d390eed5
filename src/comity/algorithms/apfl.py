"""APFL: Deng, Kamani, Mahdavi, Adaptive Personalized Federated Learning, 2020.

Idea: each party deploys a mixture of a model of its own and its copy of the global one, and learns
how much of each it needs.

Mixture: v̄_i = α_i v_i + (1 − α_i) w_i.
Algorithm 1, at every local step: w_i ← w_i − η ∇f_i(w_i);  v_i ← v_i − η ∇_v f_i(v̄_i), and ∇_v
f_i(v̄_i) = α_i ∇f_i(v̄_i); w is averaged as in FedAvg.
Adaptive α: α_i ← α_i − η ⟨v_i − w_i, ∇f_i(v̄_i)⟩, kept within [0, 1].

At a glance: personal = a mixture of a model of its own and its copy of the global one; exchanged =
weights, both ways; kept = both models and their mixing weight; steps = E epochs of two gradients.
Symbols: w_i = the party's copy of the global model, from the received w each round; v_i = its own
model; v̄_i = what it deploys.
Deviations: the three steps are computed as one step of the experiment's optimizer on f_i(w_i) +
f_i(α_i v_i + (1 − α_i) sg(w_i)), whose gradients are those above; the terms of wrappers are part of
f_i, hence of both. α_i starts at 0.5, as in the authors' code, and is updated at every step (their
code: only at the first step of a round, with 0.02 α_i added to its gradient). BatchNorm statistics
of v̄_i are its own, not mixed. A newcomer's v_i starts at the w it receives. PFLlib differs: v_i is
trained by f_i(v_i) and replaced by the mixture after each round, and α_i starts at 1.
Compared: different from PFLlib's, for the reasons above. With adaptive=false the same as fluke's,
after v_i was given the gradient of Algorithm 1, which it lacks there. See
docs/results/methods-beside.md.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from comity.algorithms.fedavg import AveragedModel
from comity.components.pair import add_prefix, strip_prefix
from comity.core import *

W, V, ALPHA = "w.", "v.", "alpha"


@record
class ApflState:
    """A party's state: w_i after its last training, v_i and α_i."""

    w: Params
    v: Params
    alpha: Tensor


def mixture(alpha: Tensor, v: Params, w: Params) -> Params:
    """α v + (1 − α) w."""
    return {k: x if is_buffer(k) else alpha * x + (1 - alpha) * w[k] for k, x in v.items()}


@algorithm
class Apfl(AveragedModel[ApflState]):
    alpha: float = option(
        0.5,
        "α_i before round 1: 0 is the global model's copy, 1 a model of one's own",
        minimum=0,
        maximum=1,
    )
    adaptive: bool = option(True, "false leaves α_i as it is")

    def init_party(self, key: Key, party: Party) -> ApflState:
        return ApflState(party.task.init(key), party.task.init(key), torch.tensor(self.alpha))

    @on_party
    async def local(
        self, state: ApflState, m: Model, party: Party, key: Key
    ) -> tuple[ApflState, Model]:
        w = m.theta | self.private_part(state.w, party.task)
        start = add_prefix(W, w) | add_prefix(V, state.v) | {ALPHA: state.alpha}
        only = None if self.adaptive else frozenset(start.keys() - {ALPHA})
        # Not batched: the mixture and its gradient are as large as the weights, and those of a
        # single party fit in the cache.
        theta = (await party.fit(self.both, start, key, only=only, batched=False)).theta
        w = strip_prefix(theta, W)
        state = ApflState(w, strip_prefix(theta, V), theta[ALPHA].clamp(0, 1))
        return state, Model(self.shared_part(w, party.task))

    def both(self, task: LearningTask, theta: Params, batch: Batch, aux: None) -> Tensor:
        """f(w) + f(αv + (1 − α) sg(w)). Scratch values of wrappers are kept separately for both."""
        with torch.no_grad():
            theta[ALPHA].clamp_(0, 1)  # the last step may have left the interval
        w = strip_prefix(theta, W)
        v_bar = mixture(theta[ALPHA], strip_prefix(theta, V), {k: x.detach() for k, x in w.items()})
        of_w = replace(batch, scratch=strip_prefix(batch.scratch, W))
        of_v = replace(batch, scratch=strip_prefix(batch.scratch, V))
        value = task.loss(w, of_w) + task.loss(v_bar, of_v)
        batch.scratch.update(add_prefix(W, of_w.scratch) | add_prefix(V, of_v.scratch))
        return value

    @on_party
    async def warm_up(
        self, state: ApflState, m: Model, party: Party, key: Key
    ) -> tuple[ApflState, None]:
        received = m.theta | self.private_part(state.w, party.task)
        state, _ = await self.local(replace(state, v=received), m, party, key)
        return state, None

    def newcomer_state(self, state: ApflState, theta: Params) -> ApflState:
        return state

    def deployed_model(self, state: ApflState, m: Model, party: Party) -> Params:
        return mixture(state.alpha, state.v, state.w)

    # -- declarations ------------------------------------------------------------------------------

    traits = replace(
        AveragedModel.traits,
        self_contained=True,
        one_model=False,
        not_private="its loss keeps something from batch to batch",
    )
