"""FedBABU: Oh, Kim, Yun, Toward Enhanced Representation for Federated Image Classification, ICLR
2022.

Idea: body aggregation and body update. All parties have the same random head, which is never
trained; only the body is trained and averaged. Fine-tuning after the last round gives personal
models.

Algorithm 1: θ_i ← SGD on the body from θ^t under the common head θ_cls^0; θ^{t+1} ← Σ_i (n_i / n_S)
θ_i.
Afterwards: (θ_i, θ_cls,i) ← τ_f epochs from (θ^T, θ_cls^0) on the party's own data, of the whole
model, its head or its body.

At a glance: personal = after fine-tuning the whole model, before it nothing; exchanged = the body's
weights, both ways; kept = nothing but the head that all began with; steps = E epochs, and
fine-tuning after the last round.
Symbols: θ = the stages up to the cut, shared; θ_cls^0 = the head, the same for all since it is
drawn from one key and never sent.
Deviations: τ_f = 10, as in PFLlib, at the experiment's learning rate. Newcomers fine-tune for the
epochs that the experiment grants them. The terms of wrappers for shared parameters do not apply to
fine-tuning.
Compared: the same as PFLlib's and fluke's, before fine-tuning. See docs/results/methods-beside.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

from comity.algorithms.fedper import FedPer
from comity.components.averaged import AveragingAccounting
from comity.core import *


@algorithm
class FedBabu(FedPer):
    finetune: Literal["all", "head", "body"] = option(
        "all", "what is fine-tuned after the last round"
    )
    finetune_epochs: int = option(10, "τ_f, epochs of fine-tuning", minimum=0)

    async def train_locally(self, theta: Params, m: Model, party: Party, key: Key) -> Params:
        body = frozenset(theta.keys() - party.task.head_names)
        return (await party.fit(plain, theta, key, only=body)).theta

    def finish(self, theta: Params, server: Server) -> Params:
        server.call(self.tune, {i: self.message_for(theta, i) for i in server.info.parties})
        return theta

    @on_party
    async def tune(self, state: Params, m: Model, party: Party, key: Key) -> tuple[Params, None]:
        how = replace(party.training, epochs=self.finetune_epochs, steps=None)
        return await self.tuned(state, m, party, key, how), None

    @on_party
    async def warm_up(self, state: Params, m: Model, party: Party, key: Key) -> tuple[Params, None]:
        return await self.tuned(state, m, party, key, party.training), None

    async def tuned(self, state: Params, m: Model, party: Party, key: Key, how: Training) -> Params:
        """Fine-tune the received model. The result is the party's own model, which replaces what it
        receives later.
        """
        theta = m.theta | state
        heads = party.task.head_names
        only = {"all": None, "head": heads, "body": frozenset(theta.keys() - heads)}[self.finetune]
        return (
            await party.fit(plain, theta, key, task=party.task.personal, training=how, only=only)
        ).theta

    # -- declarations ------------------------------------------------------------------------------

    traits = replace(
        FedPer.traits,
        finishes=True,
        start_weights=None,
        common_start="needs one head for all, which comes from one key and is never sent",
        bytes_formula="2 · Σ_t |S_t| · S_body, and N · S_body once after the last round",
    )


@accounts_for(FedBabu)
class FedBabuAccounting(AveragingAccounting[FedBabu]):
    def declared_trainings(self, stage: Stage, how: Training) -> Mapping[str, Sequence[Training]]:
        tune = {"tune": [replace(how, epochs=self.method.finetune_epochs, steps=None)]}
        return tune if stage == "finish" else super().declared_trainings(stage, how)

    def finish_traffic(self, info: Info) -> Traffic:
        return Traffic(down=len(info.names) * self.shared_bytes(info))
