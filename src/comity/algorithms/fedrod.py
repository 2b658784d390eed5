"""FedRoD: Chen, Chao, On Bridging Generic and Personalized Federated Learning for Image
Classification, ICLR 2022.

Idea: two tasks, two heads on one body. The body and a generic head are averaged as in FedAvg, but
trained with a class-balanced loss at every party. A personal head on top of their constant features
and logits learns the residual: the party's own distribution of classes.

Generic, balanced softmax: min over (f, h^G) of −log( n_{i,y} e^{g_y} / Σ_c n_{i,c} e^{g_c} ), with
g = h^G(f(x)).
Personal, empirical risk: min over h^P_i of CE(sg(g) + h^P_i(sg(f(x))), y).
Prediction: argmax of g + h^P_i(f(x)).

At a glance: personal = a second head; exchanged = weights without it, both ways; kept = that head;
steps = E epochs.
Symbols: f = the stages up to the cut, shared; h^G = the head, shared; h^P_i = a head of its kind,
at the party; n_{i,c} = training samples of class c at party i; sg = a constant.
Deviations: both are minimised at once, step by step. A class that a party lacks drops out of its
balanced softmax (log 0 = −∞), so its row of h^G stays as received. h^P_i starts equal to h^G. The
variant whose h^P_i comes from a hypernetwork is not included. The terms of wrappers apply to the
generic loss. If mr has a cut of its own behind the model's, the personal head begins there.
Compared: the same as PFLlib's and fluke's. See docs/results/methods-beside.md.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from comity.algorithms.fedavg import FedAvg
from comity.components.around import Around
from comity.core import *

OWN = "fedrod."


def personal_head(theta: Params) -> Params:
    """h^P with the names of h^G."""
    return {k.removeprefix(OWN): v for k, v in theta.items() if k.startswith(OWN)}


@dataclass(frozen=True, kw_only=True)
class TwoHeads(Around):
    """A task whose logits are the sum of a shared and a private head's."""

    log_n: Tensor

    def init(self, key: Key) -> Params:
        theta = self.inner.init(key)
        return theta | {OWN + k: theta[k].clone() for k in theta if k in self.head_names}

    def head(self, theta: Params, z: Tensor, train: bool = False) -> Tensor:
        return self.inner.head(theta, z, train) + self.inner.head(
            theta | personal_head(theta), z, train
        )

    def objective(self, theta: Params, z: Tensor, batch: Batch) -> Tensor:
        g = self.inner.head(theta, z, train=True)
        generic = self.inner.criterion(g + self.log_n, z, batch)
        constant = {k: v.clone() if is_buffer(k) else v.detach() for k, v in theta.items()}
        h_p = self.inner.head(constant | personal_head(theta), z.detach(), train=True)
        return generic + mean_cross_entropy(g.detach() + h_p, batch.y)


@algorithm
class FedRod(FedAvg):
    def check(self, info: Info) -> None:
        super().check(info)
        info.needs_classes("fedrod", "balances classes")

    def party_for(self, party: Party, state: Params) -> Party:
        task = party.task
        log_n = torch.bincount(party.data.train.y, minlength=task.classes).log()
        personal_names = frozenset(OWN + k for k in task.head_names)
        return with_task(party, TwoHeads.of(task, personal_names, log_n=log_n))

    # -- declarations ------------------------------------------------------------------------------

    traits = replace(
        FedAvg.traits,
        shares="generic",
        one_model=False,
        not_private="it balances its loss by how many records there are of each class",
    )
