"""Trimmed mean: Yin et al., Byzantine-Robust Distributed Learning: Towards Optimal Statistical
Rates, ICML 2018. A wrapper.

Idea: of each value of the parties' weights the server leaves out the largest and the smallest, and
averages the rest. It protects from a share β of parties that send nonsense, and wastes less of what
the honest ones send than a median does.

Algorithm 1, option II: w ← trmean_β{w_i : i ∈ S}, coordinate by coordinate: the mean without the
β|S| largest and β|S| smallest.

Symbols: β = share; S = the parties heard in a round.
Deviations: weights after E epochs in place of gradients, all parties count alike, all replies are
held at once, and fewer than 3 of them protect from nobody: as in median. β|S| is rounded up, so
that it protects from no fewer than was asked for, but at most to what leaves a median. The paper
sets no default for β; its experiments use 0.05 of 40 machines and 0.1 of 10, which is from memory
and could not be checked.
At a glance: personal = what the host's is; exchanged = what the host exchanges; kept = what the
host keeps; steps = the host's.
Compared: the same as Flower's. See docs/methods-beside.md.
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
