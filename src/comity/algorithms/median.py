"""Median: Yin et al., Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates,
ICML 2018. A wrapper.

Idea: the server takes the median of the parties' weights, value by value, in place of their mean.
As long as fewer than half of the parties are faulty, each value lies between two values of honest
parties.

Algorithm 1, option I: w ← med{w_i : i ∈ S}, coordinate by coordinate; for an even number the mean
of the middle two.

Symbols: S = the parties that replied in a round.
Deviations: the paper takes the median of gradients, one step a round; here it is that of weights
after E epochs, its own one-round algorithm (Algorithm 2) once a round. All parties have equal
weight, as in the paper, whatever their sample counts; FedAvg weights by sample counts. If the
parties' data differ, their models are far apart, and the median leaves out honest ones, too. The
server holds all replies at once, |S| models where fedavg holds one. BatchNorm's statistics are
treated as weights are. The median of fewer than 3 replies is their mean and gives no protection;
the run warns about it.
At a glance: personal = what the host's is; exchanged = what the host exchanges; kept = what the
host keeps; steps = the host's.
Compared: the same as Flower's. See docs/results/methods-beside.md.
"""

from __future__ import annotations

from collections.abc import Sequence

from comity.components.robust import RobustMean, trimmed_mean
from comity.core import *


@algorithm
class Median(RobustMean):
    host: AnyAlgorithm

    def aggregate(self, models: Sequence[Params]) -> Params:
        return trimmed_mean(models, (len(models) - 1) // 2)
