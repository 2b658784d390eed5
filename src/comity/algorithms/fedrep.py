"""FedRep: Collins et al., Exploiting Shared Representations for Personalized Federated Learning,
ICML 2021.

Idea: FedPer with the two parts trained in turn: first the party's own head on the received body,
then the body under that head.

Algorithm 1: h_i ← τ_h epochs of SGD on the head with the body φ^t frozen; φ_i ← E epochs with h_i
frozen; φ^{t+1} ← Σ_i (n_i / n_S) φ_i.

At a glance: personal = the head; exchanged = the body's weights, both ways; kept = the head; steps
= E epochs of the body after ten of the head.
Symbols: φ = the stages up to the cut, shared; h_i = the head, at the party.
Deviations: the average is weighted by sample counts, as in all methods here (the paper's parties
are of equal size). Ten head epochs are those of the paper's experiments; the body's epochs are the
experiment's.
Compared: the same as PFLlib's and fluke's. See docs/results/methods-beside.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from comity.algorithms.fedper import FedPer
from comity.components.averaged import AveragingAccounting
from comity.core import *


@algorithm
class FedRep(FedPer):
    head_epochs: int = option(10, "τ_h, epochs on the head before the body is trained", minimum=0)

    async def train_locally(self, theta: Params, m: Model, party: Party, key: Key) -> Params:
        head = party.task.head_names
        first = replace(party.training, epochs=self.head_epochs, steps=None)
        theta = (await party.fit(plain, theta, key.fold("head"), training=first, only=head)).theta
        return (await party.fit(plain, theta, key, only=frozenset(theta.keys() - head))).theta


# -- declarations ----------------------------------------------------------------------------------


@accounts_for(FedRep)
class FedRepAccounting(AveragingAccounting[FedRep]):
    def declared_trainings(self, stage: Stage, how: Training) -> Mapping[str, Sequence[Training]]:
        both = {
            function: [replace(how, epochs=self.method.head_epochs, steps=None), how]
            for function in ("local", "warm_up")
        }
        return {function: both[function] for function in super().declared_trainings(stage, how)}
