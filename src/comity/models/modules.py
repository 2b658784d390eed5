"""A pair of `nn.Module`s as a network: an encoder that computes the representation, and a head that
computes the scores.
"""

from __future__ import annotations

import math
from copy import deepcopy
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
    """A network of a user's `encoder` and `head`.

    Its parameters are called `encoder.NAME` and `head.NAME`. The last part of a buffer's name
    begins with `~`, the mark of buffers in Comity.
    """

    encoder: nn.Module
    head: nn.Module
    shape: tuple[int, ...]
    name: str = "modules"
    draws: bool = True  # a user's layers may draw random numbers
    dense: bool = False
    stages: tuple[str, ...] = ("encoder", "head")
    cut: str = "encoder"

    @property
    def digest(self) -> str:
        """A digest of the printed layers."""
        return blake2b(repr(self._parts).encode(), digest_size=8).hexdigest()

    @property
    def _parts(self) -> tuple[nn.Module, nn.Module]:
        return self.encoder, self.head

    @cached_property
    def _names(self) -> tuple[dict[str, str], dict[str, str]]:
        """For each part, Comity's name of a tensor -> the module's name."""
        by_part: list[dict[str, str]] = []
        for stage, module in zip(self.stages, self._parts, strict=True):
            buffers = {name for name, _ in module.named_buffers()}
            names: dict[str, str] = {}
            for name in module.state_dict():
                *path, last = name.split(".")
                mark = "~" if name in buffers else ""
                names[".".join([stage, *path, mark + last])] = name
            by_part.append(names)
        return by_part[0], by_part[1]

    @cached_property
    def frozen_names(self) -> frozenset[str]:
        """The names of the frozen tensors: parameters that require no gradient, and the buffers of
        modules whose parameters all are frozen.
        """
        frozen = set()
        for names, module, layers in zip(
            self._names, self._parts, self._frozen_layers, strict=True
        ):
            inside = {id(buffer) for layer in layers for buffer in layer.buffers()}
            tensors = {
                **dict(module.named_buffers(remove_duplicate=False)),
                **dict(module.named_parameters(remove_duplicate=False)),
            }
            frozen |= {
                name
                for name, module_name in names.items()
                if id(tensors[module_name]) in inside
                or (
                    isinstance(tensors[module_name], nn.Parameter)
                    and not tensors[module_name].requires_grad
                )
            }
        return frozenset(frozen)

    @cached_property
    def _frozen_layers(self) -> tuple[list[nn.Module], list[nn.Module]]:
        """For each part, the modules whose parameters all are frozen."""
        by_part = [[layer for layer in part.modules() if _is_frozen(layer)] for part in self._parts]
        return by_part[0], by_part[1]

    def values(self) -> Params:
        """Return the values that the modules have now. Those of frozen parts are no copies."""
        values: Params = {}
        for names, part in zip(self._names, self._parts, strict=True):
            copies = not _is_frozen(part)
            tensors = part.state_dict()
            for name, module_name in names.items():
                tensor = tensors[module_name].detach()
                values[name] = tensor.clone() if copies else tensor
        return values

    @cached_property
    def norms(self) -> frozenset[str]:
        """The names of the parameters and buffers of BatchNorm layers."""
        norm_names = set()
        for names, module in zip(self._names, self._parts, strict=True):
            layers = {
                path for path, layer in module.named_modules() if isinstance(layer, _BatchNorm)
            }
            norm_names |= {
                name
                for name, module_name in names.items()
                if module_name.rpartition(".")[0] in layers
            }
        return frozenset(norm_names)

    def init(self, key: Key) -> Params:
        """Return initial values: each layer's `reset_parameters`, with random numbers from `key`.

        A layer without that method keeps the values that its module was passed with.
        """
        # A frozen part may be large, and its initial values are never used.
        encoder, head = (part if _is_frozen(part) else deepcopy(part) for part in self._parts)
        with LayerStream(key.fold("weights")):
            for part in (encoder, head):
                if not _is_frozen(part):
                    _redraw(part)
        return Modules(encoder, head, self.shape).values()

    def redrawn_names(self) -> frozenset[str]:
        """Return the names of the tensors that `init` sets."""
        copy = Modules(*deepcopy(self._parts), self.shape)
        with torch.no_grad():
            for part in copy._parts:
                for tensor in part.state_dict().values():
                    if tensor.is_floating_point():
                        tensor.fill_(math.nan)
        values = copy.init(Key(0))
        return frozenset(name for name, value in values.items() if not value.isnan().any())

    def run(self, theta: Params, x: Tensor, train: bool, begin: int, end: int) -> Tensor:
        """Apply the encoder (stage 0), the head (stage 1), or both."""
        parts = zip(self._names, self._parts, self._frozen_layers, strict=True)
        for names, module, frozen_layers in list(parts)[begin:end]:
            module.train(train)
            for layer in frozen_layers:  # as in evaluation: no dropout, fixed statistics
                layer.eval()
            values = {module_name: theta[name] for name, module_name in names.items()}
            x = functional_call(module, values, (x,))
        return x

    def layer_stream(self, key: Key) -> LayerStream:
        """Return a context in which the layers draw random numbers from `key`."""
        return LayerStream(key)

    def shape_after(self, stage: str) -> tuple[int, ...]:
        """Return the shape of one sample after a stage, found by a forward pass of zeros."""
        with torch.no_grad():
            out = self.run(
                self.values(),
                torch.zeros(2, *self.shape),
                False,
                0,
                self.stages.index(stage) + 1,
            )
        return tuple(out.shape[1:])


def _is_frozen(layer: nn.Module) -> bool:
    """Return whether a module has parameters, and all of them are frozen."""
    parameters = [*layer.parameters()]
    return bool(parameters) and not any(p.requires_grad for p in parameters)


def _redraw(part: nn.Module) -> None:
    """Draw the weights of all layers that have a method for it, under either of torch's names."""
    for layer in part.modules():
        for method in ("reset_parameters", "_reset_parameters"):
            if callable(reset := getattr(layer, method, None)):
                reset()
                break
