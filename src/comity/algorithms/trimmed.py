"""Trimmed mean: Yin et al., Byzantine-Robust Distributed Learning: Towards Optimal Statistical
Rates, ICML 2018. A wrapper.

Idea: for each value of the weights, the server leaves out the largest and the smallest replies and
averages the rest. It tolerates a share β of Byzantine parties, and uses more of the honest replies
than a median.

Algorithm 1, option II: w ← trmean_β{w_i : i ∈ S}, coordinate by coordinate: the mean without the
β|S| largest and β|S| smallest.

Symbols: β = share; S = the parties that replied in a round.
Deviations: as in median: weights after E epochs instead of gradients, equal weights of all parties,
all replies held at once, and no protection with fewer than 3 replies. β|S| is rounded up, so that
at least the given share is tolerated, but at most to the median. The paper sets no default for β;
its experiments use 0.05 of 40 machines and 0.1 of 10, from memory, which could not be checked.
At a glance: personal = what the host's is; exchanged = what the host exchanges; kept = what the
host keeps; steps = the host's.
Compared: the same as Flower's. See docs/results/methods-beside.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from comity.components.robust import RobustMean, RobustMeanAccounting, trimmed_mean
from comity.core import *


@algorithm
class Trimmed(RobustMean):
    host: AnyAlgorithm
    share: float = option(
        0.1,
        "β, the share of parties that is left out on either side; ½ is the median",
        minimum=0,
        maximum=0.5,
    )

    def trims(self, replies: int) -> int:
        """The number of replies that are left out on either side."""
        # rounded first: 0.1 · 30 is a little more than 3 in floating point
        trims = math.ceil(round(self.share * replies, 9))
        return min(trims, (replies - 1) // 2)

    def aggregate(self, models: Sequence[Params]) -> Params:
        return trimmed_mean(models, self.trims(len(models)))


# -- declarations ----------------------------------------------------------------------------------


@accounts_for(Trimmed)
class TrimmedAccounting(RobustMeanAccounting[Trimmed]):
    def warnings(self, info: Info) -> list[str]:
        return super().warnings(info) + (
            [] if self.method.share else ["with share=0 nobody is left out: it is a plain mean."]
        )
