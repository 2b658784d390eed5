"""Per-FedAvg: Fallah, Mokhtari, Ozdaglar, Personalized Federated Learning with Theoretical
Guarantees, NeurIPS 2020.

Idea: model-agnostic meta-learning (MAML) across parties. The averaged model is a starting point
from which one step on a party's own data gives a good model for that party.

Eq. 3: min_w (1/n) Σ_i F_i(w), with F_i(w) = f_i(w − α ∇f_i(w)).
Algorithm 1: on batches D, D′, D″, w̃ = w − α ∇f_i(w; D), then w ← w − β (I − α ∇²f_i(w; D″))
∇f_i(w̃; D′).
FO: the Hessian is left out.
HF: ∇²f_i(w) v is (∇f_i(w + δv) − ∇f_i(w − δv)) / 2δ, with v = ∇f_i(w̃; D′).
Section 5: at test time the model is updated by one step. Here that is w − α ∇f_i(w; D), with one
batch D of the party's training samples, in every evaluation and in what is exported.

Symbols: w = m.theta; f_i = the party's loss; β = the experiment's learning rate.
Deviations: α = β by default, as in PFLlib. The paper's values (α = 0.01, β = 0.001; δ = 0.001 is
that of public versions) could not be checked. D, D′ and D″ are parts of one batch of twice (HF:
three times) the size, in as many times the epochs, so that there are as many steps as in FedAvg.
The outer step is the experiment's optimizer's. The average is weighted by samples, as in PFLlib;
the paper's is uniform. The batch that a party adapts by is drawn once; PFLlib draws another for
each evaluation. Where α times the curvature is above 1, HF ascends (on digits α = 0.1 diverges,
0.05 does not). BatchNorm's statistics see all parts of a batch. MTFL's and flgo's public versions
differ from Algorithm 1: the former has two inner steps, and the next step of the latter continues
from w̃.
At a glance: personal = one gradient step from the common model; exchanged = the weights, both ways;
kept = nothing; steps = E epochs of two gradients (HF: four).
Compared: within chance of PFLlib's, and of fluke's after its second step was changed to start at w,
as in Algorithm 1, not at w̃. See docs/results/methods-beside.md.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from torch import Tensor

from comity.algorithms.fedavg import FedAvg
from comity.components.averaged import AveragingAccounting
from comity.core import *


@record
class Inner:
    """The constant of a local step: α."""

    alpha: float


def move(w: Params, by: float, along: Params) -> Params:
    """w + by · along, without buffers."""
    return {k: w[k] if is_buffer(k) else w[k] + by * along[k] for k in w}


@algorithm
class PerFedAvg(FedAvg):
    alpha: float | Literal["lr"] = option(
        "lr", "α, by which a party adapts; lr: the experiment's learning rate", minimum=0
    )
    order: Literal["fo", "hf"] = option(
        "fo", "the Hessian is left out, or its product is a finite difference"
    )
    delta: float = option(0.001, "δ of the finite difference", above=0)

    @property
    def parts(self) -> int:
        """The number of batches that a step takes."""
        return 2 if self.order == "fo" else 3

    def check(self, info: Info) -> None:
        super().check(info)
        if self.order == "hf" and any(task.network.draws for task in info.tasks):
            raise UsageError(
                "order=hf compares gradients at two points, but layers draw at random: use"
                " order=fo."
            )

    def least(self, task: LearningTask) -> int:
        """The smallest batch that can be split into these parts."""
        return self.parts * (2 if task.network.norms else 1)

    def inner(self, party: Party) -> Inner:
        return Inner(party.training.lr if self.alpha == "lr" else self.alpha)

    async def train_locally(self, theta: Params, m: Model, party: Party, key: Key) -> Params:
        how, k = party.training, self.parts
        least = max(self.least(party.task), min(k * how.min_batch, len(party.data.train)))
        how = replace(how, batch=k * how.batch, epochs=k * how.epochs, min_batch=least)
        # Not batched: w̃ and its gradient are as large as the weights, and those of a single
        # party fit in the cache.
        return (
            await party.fit(self.meta, theta, key, self.inner(party), training=how, batched=False)
        ).theta

    def meta(self, task: LearningTask, w: Params, batch: Batch, aux: Inner) -> Tensor:
        """A loss whose gradient is the direction of a local step."""
        xs, ys = batch.x.tensor_split(self.parts), batch.y.tensor_split(self.parts)
        D = [replace(batch, x=x, y=y) for x, y in zip(xs, ys, strict=True)]
        w_tilde = move(w, -aux.alpha, value_and_gradient(lambda at: task.loss(at, D[0]), w)[1])
        if self.order == "fo":
            return task.loss(w_tilde, D[1])
        value, v = value_and_gradient(lambda at: task.loss(at, D[1]), w_tilde)
        along = sum(((w[k] - w[k].detach()) * v[k]).sum() for k in v)  # 0, with gradient v
        twist = task.loss(move(w, self.delta, v), D[2]) - task.loss(move(w, -self.delta, v), D[2])
        return value + along - aux.alpha / (2 * self.delta) * twist

    def deployed_model(self, state: Params, m: Model, party: Party) -> Params:
        how = party.training
        one_step = Training(
            lr=self.inner(party).alpha, batch=how.batch, steps=1, min_batch=how.min_batch
        )
        return party.adapted(m.theta | state, one_step)

    # -- declarations ------------------------------------------------------------------------------

    traits = replace(
        FedAvg.traits,
        one_model=False,
        not_private="a step's two gradients couple the records of a batch",
    )


@accounts_for(PerFedAvg)
class PerFedAvgAccounting(AveragingAccounting[PerFedAvg]):
    def warnings(self, info: Info) -> list[str]:
        few = [
            name
            for name, n, task in zip(info.names, info.sizes, info.tasks, strict=True)
            if n < self.method.least(task)
        ]
        warnings = (
            [f"{', '.join(few)} cannot cut a batch into {self.method.parts} and trains nothing."]
            if few
            else []
        )
        return warnings if self.method.alpha else [*warnings, "with alpha=0 nothing is adapted."]
