"""Cached representations: where the first stages of a network are frozen, their output for a sample
is the same in every round, and is computed once.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from comity.base.key import Key
from comity.base.record import Params
from comity.models.around import AroundNetwork
from comity.models.modules import Modules
from comity.models.pretrained import Pretrained
from comity.training.task import Network


@dataclass(frozen=True, eq=False)
class Represented(AroundNetwork):
    """A network whose inputs are the outputs of its first stages, which are frozen."""

    skipped: int
    """The number of these stages. They return their input."""

    def init(self, key: Key) -> Params:
        """Return the network's initial values."""
        return self.network.init(key)

    def run(self, theta: Params, x: Tensor, train: bool, begin: int, end: int) -> Tensor:
        """Apply the stages begin..end-1 that are not skipped."""
        begin = max(begin, self.skipped)
        return self.network.run(theta, x, train, begin, end) if begin < end else x


def frozen_stages(network: Network) -> int:
    """Return how many of a network's first stages are frozen: 1 for a frozen encoder, or 0."""
    if not isinstance(network, Pretrained) or not isinstance(network.network, Modules):
        return 0
    names = [name for name in network.network.values() if name.startswith("encoder.")]
    return int(bool(names) and network.frozen.keys() >= {*names})
