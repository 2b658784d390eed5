"""Cached representations: where the first stages of a network are frozen, their output for a sample
is the same in every round, and is computed once.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass

from torch import Tensor

from comity.base.key import Key
from comity.base.record import Params
from comity.models.modules import Modules
from comity.models.pretrained import Pretrained
from comity.training.task import Network


@dataclass(frozen=True, eq=False)
class Represented:
    """A network whose inputs are the outputs of its first stages, which are frozen."""

    network: Network
    skipped: int
    """The number of these stages. They return their input."""

    @property
    def name(self) -> str:
        """The network's name."""
        return self.network.name

    @property
    def stages(self) -> tuple[str, ...]:
        """The names of the stages, in order."""
        return self.network.stages

    @property
    def cut(self) -> str:
        """The stage whose output is the representation by default."""
        return self.network.cut

    @property
    def norms(self) -> frozenset[str]:
        """The names of the parameters and buffers of BatchNorm layers."""
        return self.network.norms

    @property
    def draws(self) -> bool:
        """Whether any layer draws random numbers in training."""
        return self.network.draws

    @property
    def dense(self) -> bool:
        """Whether linear layers take all the time."""
        return self.network.dense

    def init(self, key: Key) -> Params:
        """Return the network's initial values."""
        return self.network.init(key)

    def run(self, theta: Params, x: Tensor, train: bool, begin: int, end: int) -> Tensor:
        """Apply the stages begin..end-1 that are not skipped."""
        begin = max(begin, self.skipped)
        return self.network.run(theta, x, train, begin, end) if begin < end else x

    def layer_stream(self, key: Key) -> AbstractContextManager[object]:
        """Return a context in which layers draw random numbers from `key`."""
        return self.network.layer_stream(key)

    def shape_after(self, stage: str) -> tuple[int, ...]:
        """Return the shape of one sample after a stage."""
        return self.network.shape_after(stage)


def frozen_stages(network: Network) -> int:
    """Return how many of a network's first stages are frozen: 1 for a frozen encoder, or 0."""
    if not isinstance(network, Pretrained) or not isinstance(network.network, Modules):
        return 0
    names = [name for name in network.network.values() if name.startswith("encoder.")]
    return int(bool(names) and network.frozen.keys() >= {*names})
