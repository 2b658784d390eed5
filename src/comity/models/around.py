"""What networks around another network have in common: low-rank factors, given or frozen weights,
cached representations.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from hashlib import blake2b

import torch

from comity.base.key import Key
from comity.base.record import Params
from comity.training.task import Network


@dataclass(frozen=True, eq=False)
class AroundNetwork:
    """A network around another one, with its name, stages and layers."""

    network: Network
    _copies: dict[tuple[torch.device, torch.dtype], Params] = field(
        default_factory=dict, repr=False, kw_only=True
    )

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

    def layer_stream(self, key: Key) -> AbstractContextManager[object]:
        """Return a context in which layers draw random numbers from `key`."""
        return self.network.layer_stream(key)

    def shape_after(self, stage: str) -> tuple[int, ...]:
        """Return the shape of one sample after a stage."""
        return self.network.shape_after(stage)

    def copy_on(self, frozen: Params, device: torch.device, dtype: torch.dtype) -> Params:
        """Return the network's frozen values on a device, floats in a dtype; each copy is made
        once.
        """
        if (device, dtype) not in self._copies:
            self._copies[device, dtype] = {
                name: value.to(device, dtype if value.is_floating_point() else value.dtype)
                for name, value in frozen.items()
            }
        return self._copies[device, dtype]


def digest_of(values: Params, layers: str = "") -> str:
    """Return a digest of tensors by name; empty if there are none."""
    if not values and not layers:
        return ""
    digest = blake2b(layers.encode(), digest_size=8)
    for name, value in sorted(values.items()):
        digest.update(name.encode())
        digest.update(value.detach().contiguous().cpu().view(-1).numpy().tobytes())
    return digest.hexdigest()
