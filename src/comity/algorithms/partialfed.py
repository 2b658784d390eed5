"""PartialFed: Sun, Huo, Yang, Bai, Cross-Domain Personalized Federated Learning via Partial
Initialization, NeurIPS 2021.

Idea: at the beginning of a round a party loads only some layers of the global model; the others
continue from its own last model. All layers are then trained, sent and averaged. Which are loaded
is decided by hand (fix), or learned by each party (adaptive).

Initialisation: θ_l ← w_l if A_i,l = global, else θ_i,l of its last training; then E epochs on F_i.
w ← Σ_{i∈S} (n_i / n_S) θ_i.
Adaptive: p_l = softmax((a_i,l + g_l) / τ), g_l ~ Gumbel(0, 1)², and min over a_i of F_i({p_l,1 w_l
+ p_l,2 θ_i,l}) with w and θ_i held; then A_i,l = argmax a_i,l, global if they are equal.

Symbols: w = the global model; A_i = party i's strategy, a source for each layer l; a_i = its
logits; τ = temperature.
At a glance: personal = the layers that are not loaded; exchanged = all weights, both ways; kept =
its last model, its logits; steps = E epochs, and strategy_epochs more on the logits (adaptive).
Deviations: only the abstract and summaries of the paper could be read, and no public code was
found. That adaptive mixes weights (not outputs) and makes one pass over the data for the logits
before the E epochs, τ, and the step size are choices of this file. A BatchNorm layer follows the
layer before it. The loss by which a strategy is learned is that of training, which does not use
running statistics. A party deploys w with those layers of its last model that it would not load
now; a newcomer deploys the result of its warm-up. Layers that a fixed strategy never loads are sent
as well. strategy=fix with own=none is FedAvg, and with own=bn FedBN, bit for bit. The default is
fix: the loss by which adaptive learns its strategy is that of the party's own training samples, on
which its own layers are nearly always better, so that parties learn to load nothing and the result
is SOLO's.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from comity.algorithms.fedavg import AveragedModel
from comity.components.averaged import AveragingAccounting
from comity.core import *

LOGITS = "partialfed.logits"


@record
class PartialState:
    """A party's state: the layers of its last model that it deploys, the rest of that model, and
    its strategy's logits.
    """

    own: Params
    rest: Params
    logits: Tensor


def layer_of(name: str) -> str:
    """The layer of a parameter: `conv1.bn` for `conv1.bn.weight`."""
    return name.rpartition(".")[0]


@record
class Sources:
    """The input of the mixture's loss: the party's last model, the difference of the received model
    from it, and the layer number of each weight.
    """

    last: Params
    gap: Params
    layer: dict[str, int]


def layers(task: LearningTask) -> dict[str, int]:
    """The layer number of each weight that is sent. A BatchNorm belongs to the layer before it."""
    names = [k for k in task.shapes if k not in task.private]
    norms = {layer_of(k) for k in task.norm_names}
    number: dict[str, int] = {}
    for layer in dict.fromkeys(map(layer_of, names)):
        before = max(number.values(), default=-1)
        number[layer] = max(0, before + (layer not in norms))
    return {k: number[layer_of(k)] for k in names}


def gap(received: Params, last: Params) -> Params:
    """w − θ_i for floating-point weights, which can be mixed."""
    return {k: w - last[k] for k, w in received.items() if w.is_floating_point()}


@algorithm
class PartialFed(AveragedModel[PartialState]):
    strategy: Literal["fix", "adaptive"] = option(
        "fix", "`own` says which layers a party does not load, or each party learns it"
    )
    own: Literal["bn+head", "bn", "head", "body", "none"] = option(
        "bn+head", "strategy=fix: the layers that are not loaded"
    )
    strategy_epochs: int = option(1, "epochs on the logits in a round", minimum=0)
    strategy_lr: float = option(0.01, "step size of the logits", minimum=0)
    temperature: float = option(1.0, "τ of the Gumbel-softmax", above=0)

    def init_party(self, key: Key, party: Party) -> PartialState:
        theta = party.task.init(key)
        return self.kept_of(theta, torch.zeros(1 + max(layers(party.task).values()), 2), party.task)

    def kept_of(self, theta: Params, logits: Tensor, task: LearningTask) -> PartialState:
        """The party's state after a training that ended at `theta`."""
        names = self.personal_names(logits, theta, task)
        return PartialState(
            keep(theta, names), drop(theta, names) if self.strategy == "adaptive" else {}, logits
        )

    def personal_names(self, logits: Tensor, theta: Params, task: LearningTask) -> frozenset[str]:
        """A_i: the names of weights that are not loaded from the global model."""
        if self.strategy == "fix":
            head = task.head_names
            bn = task.norm_names
            kinds = {
                "bn+head": bn | head,
                "bn": bn,
                "head": head,
                "body": frozenset(theta.keys() - head),
            }
            return task.private | kinds.get(self.own, frozenset())
        number, personal = layers(task), (logits[:, 1] > logits[:, 0]).tolist()
        return frozenset(k for k in theta if k in task.private or personal[number[k]])

    @on_party
    async def local(
        self, state: PartialState, m: Model, party: Party, key: Key
    ) -> tuple[PartialState, Model]:
        task, logits = party.task, state.logits
        last = state.rest | state.own
        if self.strategy == "adaptive" and self.strategy_epochs:
            sources = Sources(last, gap(m.theta, last), layers(task))
            how = replace(
                party.training,
                lr=self.strategy_lr,
                epochs=self.strategy_epochs,
                steps=None,
                decay=0.0,
            )
            request = party.fit(
                self.mixture_loss,
                {LOGITS: logits},
                key.fold("strategy"),
                sources,
                training=how,
                draw=self.gumbel,
            )
            logits = (await request).theta[LOGITS]
        begin = m.theta | keep(last, self.personal_names(logits, last, task))
        theta = await self.train_locally(begin, m, party, key)
        return self.kept_of(theta, logits, task), Model(self.shared_part(theta, task))

    def gumbel(self, batch: Batch, key: Key, sources: Sources) -> Tensor:
        uniform = torch.rand(
            1 + max(sources.layer.values()), 2, generator=key.fold("gumbel").generator()
        )
        return -(-uniform.clamp(min=1e-20).log()).log().to(batch.x.device)

    def mixture_loss(
        self, task: LearningTask, theta: Params, batch: Batch, sources: Sources
    ) -> Tensor:
        """F_i of p_l,1 w_l + p_l,2 θ_i,l = θ_i,l + p_l,1 (w_l − θ_i,l). Updates of BatchNorm's
        statistics are discarded.
        """
        share = ((theta[LOGITS] + batch.draws) / self.temperature).softmax(1)[:, 0].unbind()
        mixed = {
            k: sources.last[k] + share[sources.layer[k]] * more for k, more in sources.gap.items()
        }
        mixed |= {k: v.detach() for k, v in mixed.items() if is_buffer(k)}
        alone = {
            k: v.clone() if is_buffer(k) else v for k, v in sources.last.items() if k not in mixed
        }
        return task.loss(mixed | alone, batch)

    def newcomer_state(self, state: PartialState, theta: Params) -> PartialState:
        return replace(state, own=theta | state.rest | state.own, rest={})

    def deployed_model(self, state: PartialState, m: Model, party: Party) -> Params:
        return m.theta | state.own

    # -- declarations ------------------------------------------------------------------------------

    traits = replace(
        AveragedModel.traits,
        experimental="only the abstract and summaries of the paper could be read",
    )

    def adjust_traits(self, declared: Traits) -> Traits:
        adaptive = self.strategy == "adaptive"
        return replace(
            declared,
            one_model=not adaptive and self.own == "none",
            not_private="its strategy is learned with random draws of its own" if adaptive else "",
        )


@accounts_for(PartialFed)
class PartialFedAccounting(AveragingAccounting[PartialFed]):
    def warnings(self, info: Info) -> list[str]:
        if self.method.strategy == "fix" and "bn" in self.method.own and not info.task.norm_names:
            return [
                f"the model has no BatchNorm, so that own={self.method.own} is"
                f" own={'head' if 'head' in self.method.own else 'none'} here."
            ]
        return []
