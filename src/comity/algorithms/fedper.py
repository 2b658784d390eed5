"""FedPer: Arivazhagan et al., Federated Learning with Personalization Layers, 2019.

Idea: base layers are shared and averaged, the personalization layers on top stay with the party;
both are trained together.

Algorithms 1 and 2: (W_B, W_Pi) ← SGD from (W_B^t, W_Pi); W_B^{t+1} ← Σ_i (n_i / n) W_Bi.

At a glance: personal = the head; exchanged = the body's weights, both ways; kept = the head; steps
= E epochs.
Symbols: W_B = the stages up to the cut; W_P = the head.
Deviations: none.
Compared: the same as PFLlib's and fluke's. See docs/results/methods-beside.md.
"""

from __future__ import annotations

from dataclasses import replace

from comity.algorithms.fedavg import FedAvg
from comity.core import *


@algorithm
class FedPer(FedAvg):
    def private_names(self, task: LearningTask) -> frozenset[str]:
        return task.private | task.head_names

    # -- declarations ------------------------------------------------------------------------------

    traits = replace(
        FedAvg.traits,
        shares="body",
        one_model=False,
        bytes_formula="2 · Σ_t |S_t| · S_body",
    )
