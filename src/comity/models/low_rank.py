"""LoRA: Hu et al., LoRA: Low-Rank Adaptation of Large Language Models, ICLR 2022.

A linear layer becomes x W₀ᵀ + (α/r) x AᵀBᵀ + b: W₀ and b stay as they are, A (r x in) and B (out x
r) are trained. A begins with Gaussian values, B with zeros, so that at first the network is its
base. Beside the factors the head is trained, whole.

What stays as it is belongs to the network: it is no parameter, so that no method sends, averages or
keeps it, and the bytes of a round are those of the factors and the head. Everybody makes it from
the same settings: from a seed, or from an exported model, of which a digest is kept with a run.

A mean of factors is not the factors of a mean: averaging A and B by themselves, as FedAvg does,
gives mean(B) mean(A), not mean(BA). The two are the same only where parties have one of the factors
in common.
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import blake2b
from pathlib import Path

import torch
from torch import Tensor

from comity.base.key import Key
from comity.base.record import Params
from comity.errors import UsageError
from comity.models.exported import WEIGHTS, read_parameters
from comity.models.stack import Shape, Stack
from comity.spec import parse

OPTIONS = ("rank", "alpha", "adapt", "base")
"""The options of a network that are about its factors."""


@dataclass(frozen=True, eq=False)
class LowRank:
    """A stack of which only low-rank factors of some linear layers, and the head, are trained."""

    stack: Stack
    base: Params
    """What stays as it is: all but the head."""
    adapted: tuple[str, ...]
    """The linear layers that have factors."""
    rank: int
    alpha: float
    head: Params = field(default_factory=dict)
    """The head to begin with, if the base brings one."""
    _moved: dict[tuple[torch.device, torch.dtype], Params] = field(default_factory=dict, repr=False)

    @property
    def name(self) -> str:
        """The stack's, and its rank."""
        return f"{self.stack.name} of rank {self.rank}"

    @property
    def stages(self) -> tuple[str, ...]:
        """The stack's."""
        return self.stack.stages

    @property
    def cut(self) -> str:
        """The stack's."""
        return self.stack.cut

    @property
    def norms(self) -> frozenset[str]:
        """The names of BatchNorm layers that are trained: the base has none."""
        return self.stack.norms

    @property
    def draws(self) -> bool:
        """Whether any layer draws at random while it trains."""
        return self.stack.draws

    @property
    def dense(self) -> bool:
        """Whether all work is in linear layers."""
        return self.stack.dense

    @cached_property
    def fixed(self) -> str:
        """A digest of the base: networks whose factors are averaged must have the same."""
        made = blake2b(digest_size=8)
        for name, value in sorted({**self.base, **self.head}.items()):
            made.update(name.encode())
            made.update(value.contiguous().cpu().numpy().tobytes())
        return made.hexdigest()

    def init(self, key: Key) -> Params:
        """The base's head or, if it brings none, the stack's; and for each adapted layer a Gaussian
        A and a B of zeros.
        """
        theta = {
            k: self.head.get(k, v).clone()
            for k, v in self.stack.init(key).items()
            if k not in self.base
        }
        for name in self.adapted:
            out, into = self.base[f"{name}.weight"].shape
            draw = key.fold("weights", "low rank", name).generator()
            theta[f"{name}.A"] = torch.randn((self.rank, into), generator=draw) / math.sqrt(into)
            theta[f"{name}.B"] = torch.zeros(out, self.rank)
        return theta

    def run(self, theta: Params, x: Tensor, train: bool, begin: int, end: int) -> Tensor:
        """Stages begin..end-1 of the stack, with the factors beside the base."""
        some = next(iter(theta.values()))
        p = {**self._base_on(some.device, some.dtype), **theta}
        if (scale := self.alpha / self.rank) != 1:
            p.update(
                {name: scale * p[name] for layer in self.adapted if (name := f"{layer}.A") in theta}
            )
        return self.stack.run(p, x, train, begin, end)

    def merged(self, theta: Params) -> Params:
        """The stack's own parameters that answer as these do, W = W₀ + (α/r) BA, and whatever else
        `theta` holds.
        """
        whole = {**self.base, **theta}
        for layer in self.adapted:
            up, down = whole.pop(f"{layer}.B"), whole.pop(f"{layer}.A")
            whole[f"{layer}.weight"] = whole[f"{layer}.weight"] + self.alpha / self.rank * up @ down
        return whole

    def layer_stream(self, key: Key) -> AbstractContextManager[object]:
        """Where the layers that draw at random draw from `key`."""
        return self.stack.layer_stream(key)

    def shape_after(self, stage: str) -> Shape:
        """The shape of one sample after a stage."""
        return self.stack.shape_after(stage)

    def _base_on(self, device: torch.device, dtype: torch.dtype) -> Params:
        """The base where it is needed, moved there once."""
        if (device, dtype) not in self._moved:
            self._moved[device, dtype] = {k: v.to(device, dtype) for k, v in self.base.items()}
        return self._moved[device, dtype]


def low_rank(
    stack: Stack, layers: tuple[str, ...], rank: int, alpha: float, base: int | str
) -> LowRank:
    """The stack with factors of that rank for all linear layers of its body that are so called (`q`
    is encoder.0.q, ...).
    """
    if isinstance(base, int) and base < 0:
        raise UsageError(
            f"The base of {stack.name} must be a seed, 0 or more, or an exported model's folder,"
            f" not {base}."
        )
    body = stack.stages[: stack.stages.index(stack.cut) + 1]
    first = stack.init(Key.root(base if isinstance(base, int) else 0).fold("init"))
    kept = {k: v for k, v in first.items() if k.partition(".")[0] in body}
    adapted = tuple(
        layer
        for k in kept
        if kept[k].dim() == 2
        and (layer := k.removesuffix(".weight")) != k
        and layer.rpartition(".")[2] in layers
    )
    if not adapted:
        raise UsageError(
            f"{stack.name} has no linear layers called {' or '.join(layers)}, of which there could"
            " be factors."
        )
    most = min(min(kept[f"{layer}.weight"].shape) for layer in adapted)
    if rank > most:
        raise UsageError(
            f"{stack.name} has layers of {most} values, so that factors have a rank of {most} at"
            f" most, not {rank}."
        )
    if isinstance(base, int):
        return LowRank(stack, kept, adapted, rank, alpha)
    held = read_parameters(_folder(base))
    if wrong := next((k for k, v in kept.items() if not _fits(held, k, v)), None):
        form = f"has one of shape {tuple(held[wrong].shape)}" if wrong in held else "has none"
        wanted = f"it wants {wrong} of shape {tuple(kept[wrong].shape)}"
        raise UsageError(
            f"{base} is no base for this {stack.name}: {wanted}, and the model {form}."
        )
    head = {k: v for k, v in first.items() if k not in kept}
    brought = head if all(_fits(held, k, v) for k, v in head.items()) else {}
    return LowRank(
        stack, {k: held[k] for k in kept}, adapted, rank, alpha, {k: held[k] for k in brought}
    )


def _fits(held: Params, name: str, like: Tensor) -> bool:
    return name in held and held[name].shape == like.shape


def without_factors(model: str) -> str:
    """The network of which `model` trains factors, by name."""
    spec = parse(model)
    return str(replace(spec, options={k: v for k, v in spec.options.items() if k not in OPTIONS}))


def base_file(model: str) -> Path | None:
    """The file that holds the base of a network, by its absolute path, if it is an exported model."""
    base = parse(model).options.get("base") if "base" in model else None
    return _folder(base).resolve() / WEIGHTS if isinstance(base, str) else None


def located(model: str) -> str:
    """`model` with the path of its base made absolute, so that a run can be resumed from anywhere."""
    spec, file = parse(model), base_file(model)
    return str(replace(spec, options=spec.options | {"base": str(file.parent)})) if file else model


def _folder(base: str) -> Path:
    """An exported model's folder, which may be named by the file of its weights."""
    return Path(base).parent if Path(base).name == WEIGHTS else Path(base)
