"""FedBN: Li et al., Federated Learning on Non-IID Features via Local Batch Normalization, ICLR
2021.

Idea: FedAvg on everything but the BatchNorm layers (weights, biases and running statistics), which
stay at the party and absorb its feature shift.

Algorithm 1: for each layer l that is not BatchNorm, w_l ← average of the parties' w_l; BatchNorm
layers are not averaged.

At a glance: personal = BatchNorm's weights and statistics; exchanged = all other weights, both
ways; kept = BatchNorm's weights and statistics; steps = E epochs.
Symbols: kept = the names of BatchNorm layers, found by their type, never by a substring.
Deviations: averages are weighted by sample counts, as in all methods here; the authors' code
averages uniformly (the same for equal sizes). On a network without BatchNorm this is FedAvg bit for
bit.
Compared: the same as PFLlib's and fluke's. See docs/results/methods-beside.md.
"""

from __future__ import annotations

from dataclasses import replace

from comity.algorithms.fedavg import FedAvg
from comity.components.averaged import AveragingAccounting
from comity.core import *


@algorithm
class FedBN(FedAvg):
    def private_names(self, task: LearningTask) -> frozenset[str]:
        return task.private | task.norm_names

    # -- declarations ------------------------------------------------------------------------------

    traits = replace(FedAvg.traits, one_model=False, bytes_formula="2 · Σ_t |S_t| · (S − S_BN)")


@accounts_for(FedBN)
class FedBNAccounting(AveragingAccounting[FedBN]):
    def warnings(self, info: Info) -> list[str]:
        alike = self.method.private_names(info.task) == info.task.private
        return (
            [
                "the model has no BatchNorm that would be shared otherwise, so that this is fedavg"
                " here."
            ]
            if alike
            else []
        )
