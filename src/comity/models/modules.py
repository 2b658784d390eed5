"""Any pair of `nn.Module`s as a network: an encoder that makes the representation, a head that
answers.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm

from comity.base.key import Key
from comity.base.record import Params
from comity.models.layer_stream import LayerStream


@dataclass(frozen=True)
class Modules:
    """`encoder` and `head`, each a module of the user's; buffers' names get the `~` that marks them
    here.
    """

    encoder: nn.Module
    head: nn.Module
    shape: tuple[int, ...]
    name: str = "modules"
    draws: bool = True  # nobody knows what a user's layers do
    dense: bool = False
    stages: tuple[str, ...] = ("encoder", "head")
    cut: str = "encoder"

    @property
    def digest(self) -> str:
        """A short name for these layers as they print themselves: whoever gives modules again must
        give the same.
        """
        return blake2b(repr(self._parts).encode(), digest_size=8).hexdigest()

    @property
    def _parts(self) -> tuple[nn.Module, nn.Module]:
        return self.encoder, self.head

    @cached_property
    def _names(self) -> tuple[dict[str, str], dict[str, str]]:
        """For each part, our name of a tensor -> the module's own."""
        made: list[dict[str, str]] = []
        for stage, module in zip(self.stages, self._parts, strict=True):
            buffers = {name for name, _ in module.named_buffers()}
            made.append({})
            for name in module.state_dict():
                path, _, last = name.rpartition(".")
                ours = f"{stage}.{path + '.' if path else ''}{'~' if name in buffers else ''}{last}"
                made[-1][ours] = name
        return made[0], made[1]

    @cached_property
    def norms(self) -> frozenset[str]:
        """The names that belong to BatchNorm layers, found by their type."""
        found = set()
        for names, module in zip(self._names, self._parts, strict=True):
            layers = {
                path for path, layer in module.named_modules() if isinstance(layer, _BatchNorm)
            }
            found |= {ours for ours, theirs in names.items() if theirs.rpartition(".")[0] in layers}
        return frozenset(found)

    def init(self, key: Key) -> Params:
        """Each layer's own reset, its randomness from the key; what has no reset keeps the values
        it was given.
        """
        theta: Params = {}
        with LayerStream(key.fold("weights")):
            for names, module in zip(self._names, self._parts, strict=True):
                for layer in module.modules():
                    if callable(reset := getattr(layer, "reset_parameters", None)):
                        reset()
                values = module.state_dict()
                theta |= {ours: values[theirs].detach().clone() for ours, theirs in names.items()}
        return theta

    def run(self, theta: Params, x: Tensor, train: bool, begin: int, end: int) -> Tensor:
        """The encoder, the head, or one after the other."""
        for names, module in list(zip(self._names, self._parts, strict=True))[begin:end]:
            module.train(train)
            x = functional_call(
                module, {theirs: theta[ours] for ours, theirs in names.items()}, (x,)
            )
        return x

    def layer_stream(self, key: Key) -> LayerStream:
        """Where a user's layers draw from `key`."""
        return LayerStream(key)

    def shape_after(self, stage: str) -> tuple[int, ...]:
        """The shape of one sample after a stage, found by sending two zeros through."""
        with torch.no_grad():
            out = self.run(
                self.init(Key(0)),
                torch.zeros(2, *self.shape),
                False,
                0,
                self.stages.index(stage) + 1,
            )
        return tuple(out.shape[1:])
