"""Krum: Blanchard et al., Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent,
NeurIPS 2017. A wrapper.

Idea: the server takes the one reply that is closest to its neighbours, or the mean of the m best
replies (multi-Krum). It tolerates f Byzantine parties, even if they collude.

Section 4: s(i) = Σ_{i→j} ‖w_i − w_j‖² over the |S| − f − 2 replies j nearest to i; w ← w_{i*} with
the smallest s(i*).
Multi-Krum: w ← the mean of the m replies with the smallest s. It needs 2f + 2 < |S|.

Symbols: S = the parties that replied in a round.
Deviations: distances are those of weights after E epochs, not of gradients (the common initial
weights cancel out). Among equal scores the first party is taken. Distances include all that parties
send, also BatchNorm's statistics, because values outside the distance could be arbitrary. m is at
most |S| − f, since one more would certainly include a faulty party. The server holds all replies at
once. A round with fewer than 2f + 3 replies is discarded; f = 0 gives no protection and accepts any
number. With m = 1 the model is that of a single party: if the parties' data differ, it is a poor
model for the others, even without faults. The paper sets no default for f; m of its experiments
could not be checked.
At a glance: personal = what the host's is; exchanged = what the host exchanges; kept = what the
host keeps; steps = the host's.
Compared: the same as Flower's Krum, and as its MultiKrum if all parties report equal sample counts,
by which Flower weights them. See docs/results/methods-beside.md.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import pdist

from comity.components.robust import RobustMean, RobustMeanAccounting
from comity.core import *


def distances(models: Sequence[Params]) -> Tensor:
    """‖w_i − w_j‖² for all pairs."""
    n = len(models)
    pairs = torch.zeros(n * (n - 1) // 2, dtype=torch.float64)
    for name in models[0]:
        rows = torch.stack([theta[name].flatten() for theta in models])
        pairs += pdist(rows.double()).square().to(pairs)  # double: an attacker's values may be huge
    i, j = torch.triu_indices(n, n, 1)
    square = torch.zeros(n, n, dtype=torch.float64)
    square[i, j] = square[j, i] = pairs
    return square


@algorithm
class Krum(RobustMean):
    host: AnyAlgorithm
    f: int = option(1, "how many parties of a round may send nonsense", minimum=0)
    m: int = option(
        1, "of how many replies the mean is taken: 1 is Krum, more is multi-Krum", minimum=1
    )

    @property
    def needs(self) -> int:
        return max(2 * self.f + 3, self.m + self.f) if self.f else self.m

    def scores(self, models: Sequence[Params]) -> Tensor:
        """s(i) for all models."""
        nearest = distances(models).sort(1).values[:, 1:]  # without the distance to itself
        return nearest[:, : max(0, len(models) - self.f - 2)].sum(1)

    def aggregate(self, models: Sequence[Params]) -> Params:
        best = self.scores(models).argsort(stable=True)[: self.m].tolist()
        return average({i: models[i] for i in best}, dict.fromkeys(best, 1.0))


# -- declarations ----------------------------------------------------------------------------------


@accounts_for(Krum)
class KrumAccounting(RobustMeanAccounting[Krum]):
    def warnings(self, info: Info) -> list[str]:
        warnings = [] if self.method.f else ["with f=0 it protects from nobody."]
        warnings += (
            [
                "with m=1 each round's model is a single party's, a poor one for those whose data"
                " differ."
            ]
            if self.method.m == 1
            else []
        )
        return super().warnings(info) + warnings
