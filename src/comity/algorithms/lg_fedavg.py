"""LG-FedAvg: Liang et al., Think Locally, Act Globally: Federated Learning with Local and Global
Representations, 2020.

Idea: the mirror image of FedPer. Each party learns its own representation; only the head on top of
it is averaged.

Algorithm 1: (θ_i^l, θ_i^g) ← SGD from (θ_i^l, θ^g); θ^g ← Σ_i (n_i / n) θ_i^g.

At a glance: personal = the body; exchanged = the head's weights, both ways; kept = the body; steps
= E epochs.
Symbols: θ^l = the stages up to the cut, local; θ^g = the head, global.
Deviations: no FedAvg warm-up before the split (optional in the authors' code); no unsupervised
auxiliary losses.
Compared: the same as PFLlib's and fluke's, and as HtFLlib's after it was changed to shuffle. See
docs/results/methods-beside.md.
"""

from __future__ import annotations

from dataclasses import replace

from comity.algorithms.fedavg import FedAvg
from comity.core import *


@algorithm
class LgFedAvg(FedAvg):
    def private_names(self, task: LearningTask) -> frozenset[str]:
        return task.private | (task.shapes.keys() - task.head_names)

    # -- declarations ------------------------------------------------------------------------------

    traits = replace(
        FedAvg.traits,
        shares="head",
        one_model=False,
        bytes_formula="2 · Σ_t |S_t| · S_head",
    )
