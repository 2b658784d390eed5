"""FedALA: Zhang et al., FedALA: Adaptive Local Aggregation for Personalized Federated Learning,
AAAI 2023.

Idea: FedAvg whose parties mix the global model with their own. For each single weight in the p
highest layers, a party learns the mixing weight that lowers its own loss. It takes all lower layers
from the global model.

Eq. 4: Θ̂_i = Θ_i^{t−1} + (Θ^{t−1} − Θ_i^{t−1}) ⊙ [1; W_i]. Eq. 5: W_i ← clip(W_i − η ∇_W L(Θ̂_i,
D_i^s), 0, 1).
Algorithm 1: W_i starts at 1; l.8-11: in round 2 a party learns W_i until it converges, l.12-14:
afterwards for one epoch; l.15-18: Θ_i^t ← SGD from Θ̂_i, and Θ^t ← Σ_i (k_i / Σ_j k_j) Θ_i^t. l.19
returns Θ̂_i.

Symbols: Θ = the global model; Θ_i = what the party trained last; W_i = a weight for each weight of
the p highest layers; D_i^s = s % of its samples, drawn anew in every round; k_i = how many samples
it has.
Deviations: p counts stages that have weights (the code counts tensors: its p = 2 is the last
layer's weight and bias, the paper's p = 1; FedALA, issue 6). Round 2 means a party's own second
round. The code checks whether weights differ, so that a party drawn late first mixes in its initial
weights. W_i has converged when the mean losses of its last 10 epochs spread by less than 0.1 (code:
the losses of their last batches), or after start_epochs. D_i^s is a random subset (code:
consecutive samples from a random position). A party deploys eq. 4 with the newest Θ and its last
W_i; the code learns W_i once more before it evaluates, also at parties outside the cohort.
BatchNorm's statistics are the global ones. Algorithm 1 and eqs. 4 and 5 were read in the authors'
talk and poster, the rest in their code; s = 80, p = 1 and η = 1 are theirs.
At a glance: personal = the p highest layers, mixed with the global ones; exchanged = all weights,
both ways; kept = the p highest layers and W_i; steps = E epochs, and one over s % of the samples
for W_i (more in a party's second round).
Compared: the same as PFLlib's and fluke's after these were changed to measure as described here,
and fluke's to give W_i as many epochs to converge. Unchanged, they differ. See
docs/results/methods-beside.md.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from comity.algorithms.fedavg import AveragedModel
from comity.core import *

W_OF, LOSS = "ala.", "ala.loss"
# W has converged when the losses of the last STEADY epochs have a standard deviation below WITHIN.
STEADY, WITHIN = 10, 0.1


@record
class AlaState:
    """A party's state: its private parameters, its p highest layers after its last training, and
    W_i. The latter two are empty at first.
    """

    private: Params
    previous: Params
    W: Params


@record
class Both:
    """The two models of eq. 4: the party's p highest layers (`mine`), and the received model
    (`sent`).
    """

    mine: Params
    sent: Params


def merge(both: Both, W: Params) -> Params:
    """Eq. 4. Without weights W it is the received model."""
    return both.sent | {k: torch.lerp(both.mine[k], both.sent[k], w) for k, w in W.items()}


def converged(losses: list[float]) -> bool:
    return len(losses) > STEADY and torch.tensor(losses[-STEADY:]).std(correction=0).item() < WITHIN


@algorithm
class FedAla(AveragedModel[AlaState]):
    p: int = option(1, "how many of the highest layers are mixed, weight by weight", minimum=1)
    s: float = option(
        80.0, "per cent of a party's samples that W is learnt from in a round", above=0, maximum=100
    )
    eta: float = option(1.0, "η, step size of W", minimum=0)
    start_epochs: int = option(
        100, "epochs in a party's second round after which W need not converge any more", minimum=1
    )

    def highest(self, task: LearningTask) -> frozenset[str]:
        """The names of the weights that W mixes: the shared ones of the p highest stages with
        weights.
        """
        names = [k for k in task.shapes if not is_buffer(k) and k not in self.private_names(task)]
        stages = [
            stage
            for stage in task.network.stages
            if any(k.partition(".")[0] == stage for k in names)
        ]
        return frozenset(k for k in names if k.partition(".")[0] in stages[-self.p :])

    def init_party(self, key: Key, party: Party) -> AlaState:
        return AlaState(self.private_part(party.task.init(key), party.task), {}, {})

    @on_party
    async def local(
        self, state: AlaState, m: Model, party: Party, key: Key
    ) -> tuple[AlaState, Model]:
        both = Both(state.previous, m.theta | state.private)
        W = await self.weights(state, both, party, key.fold("weights")) if state.previous else {}
        theta = await self.train_locally(merge(both, W), m, party, key)
        task = party.task
        private = self.private_part(theta, task)
        highest = keep(theta, self.highest(task))
        return AlaState(private, highest, W), Model(self.shared_part(theta, task))

    async def weights(self, state: AlaState, both: Both, party: Party, key: Key) -> Params:
        """Learn W_i (l.7-14)."""
        train = party.data.train
        count = max(1, round(self.s / 100 * len(train)))
        some = train.take(key.fold("sample").choose(count, len(train)))
        how = replace(
            party.training,
            optimizer="sgd",
            lr=self.eta,
            momentum=0.0,
            decay=0.0,
            epochs=1,
            steps=None,
            keep=False,
        )
        W = state.W or {k: torch.ones_like(v) for k, v in state.previous.items()}
        buffers = {k: v for k, v in both.sent.items() if is_buffer(k)}
        losses: list[float] = []
        for n in range(1 if state.W else self.start_epochs):
            begin = {W_OF + k: w for k, w in W.items()} | buffers
            fitted = await party.fit(self.eq5, begin, key.fold(n), both, training=how, samples=some)
            W = {k: fitted.theta[W_OF + k].clamp(0, 1) for k in W}
            if not fitted.steps:
                break
            losses.append(float(fitted.scratch[LOSS]) / fitted.steps)
            if converged(losses):
                break
        return W

    def eq5(self, task: LearningTask, theta: Params, batch: Batch, both: Both) -> Tensor:
        """L(Θ̂_i) as a function of W_i, whose gradient is ∇_Θ̂ L ⊙ (Θ − Θ_i)."""
        W = {k: theta[W_OF + k] for k in both.mine}
        with torch.no_grad():
            for w in W.values():
                # The last step may have left the interval. vmap has no fast clamp_.
                w.copy_(w.clamp(0, 1))
        buffers = {k: v for k, v in theta.items() if is_buffer(k)}
        value = task.loss(merge(both, W) | buffers, batch)
        total = value.detach()
        if LOSS in batch.scratch:
            total = batch.scratch[LOSS] + total
        batch.scratch[LOSS] = total
        return value

    def newcomer_state(self, state: AlaState, theta: Params) -> AlaState:
        return replace(state, private=theta | state.private)

    def deployed_model(self, state: AlaState, m: Model, party: Party) -> Params:
        return merge(Both(state.previous, m.theta | state.private), state.W)

    # -- declarations ------------------------------------------------------------------------------

    traits = replace(
        AveragedModel.traits,
        one_model=False,
        not_private="it learns from some of its records how much it takes over of each weight",
    )
