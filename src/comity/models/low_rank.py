"""LoRA: Hu et al., LoRA: Low-Rank Adaptation of Large Language Models, ICLR 2022.

A linear layer becomes x W₀ᵀ + (α/r) x AᵀBᵀ + b: W₀ and b are frozen, A (r x in) and B (out x r) are
trained. A starts with Gaussian values and B with zeros, so that the initial network equals its
base. The head is trained as well, without factors.

The frozen weights belong to the network. They are no parameters, so no method sends, averages or
stores them, and the bytes of a round are those of the factors and the head. Every party builds the
base from the same settings: from a seed, or from an exported model, whose digest is stored with a
run.

FedAvg averages A and B separately, which gives mean(B) mean(A), not mean(BA). The two are equal
only where all parties have the same A or the same B.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from comity.base.key import Key
from comity.base.record import Params
from comity.errors import UsageError
from comity.models.around import AroundNetwork, digest_of
from comity.models.exported import WEIGHTS, read_parameters
from comity.models.stack import Stack
from comity.spec import parse

OPTIONS = ("rank", "alpha", "adapt", "base")
"""The options of a network that concern its low-rank factors."""


@dataclass(frozen=True, eq=False)
class LowRank(AroundNetwork):
    """A stack in which only the head and low-rank factors of some linear layers are trained."""

    base: Params
    """The frozen weights: all but the head."""
    adapted: tuple[str, ...]
    """The names of the linear layers with factors."""
    rank: int
    alpha: float
    head: Params = field(default_factory=dict)
    """The initial head, if the base is an exported model with a fitting head."""

    @property
    def name(self) -> str:
        """The stack's name and the rank."""
        return f"{self.network.name} of rank {self.rank}"

    @cached_property
    def fixed(self) -> str:
        """A digest of the base. Networks whose factors are averaged must have the same digest."""
        return digest_of({**self.base, **self.head})

    def init(self, key: Key) -> Params:
        """Return the initial head (the base's, if it has one), and for each adapted layer a
        Gaussian A and a B of zeros.
        """
        theta = {
            k: self.head.get(k, v).clone()
            for k, v in self.network.init(key).items()
            if k not in self.base
        }
        for name in self.adapted:
            out, into = self.base[f"{name}.weight"].shape
            draw = key.fold("weights", "low rank", name).generator()
            theta[f"{name}.A"] = torch.randn((self.rank, into), generator=draw) / math.sqrt(into)
            theta[f"{name}.B"] = torch.zeros(out, self.rank)
        return theta

    def run(self, theta: Params, x: Tensor, train: bool, begin: int, end: int) -> Tensor:
        """Apply the stages begin..end-1 of the stack, with the base and the factors."""
        example = next(iter(theta.values()))
        p = {**self.copy_on(self.base, example.device, example.dtype), **theta}
        if (scale := self.alpha / self.rank) != 1:
            p.update(
                {name: scale * p[name] for layer in self.adapted if (name := f"{layer}.A") in theta}
            )
        return self.network.run(p, x, train, begin, end)

    def merged(self, theta: Params) -> Params:
        """Return equivalent parameters of the stack: W = W₀ + (α/r) BA.

        Other parameters in `theta` are returned unchanged.
        """
        whole = {**self.base, **theta}
        for layer in self.adapted:
            up, down = whole.pop(f"{layer}.B"), whole.pop(f"{layer}.A")
            whole[f"{layer}.weight"] = whole[f"{layer}.weight"] + self.alpha / self.rank * up @ down
        return whole


def low_rank(
    stack: Stack, layers: tuple[str, ...], rank: int, alpha: float, base: int | str
) -> LowRank:
    """Add low-rank factors to a stack.

    Args:
        stack: The network.
        layers: The last parts of the names of the linear layers that get factors: `q` stands for
            `encoder.0.q`, `encoder.1.q`, ... The head gets none.
        rank: The rank r of the factors.
        alpha: The scale α; the product of the factors is multiplied by α/r.
        base: The frozen weights: a seed to draw them from, or the folder of an exported model.

    Raises:
        UsageError: No layer has such a name, the rank is too large, or the base does not fit.
        ComityError: The base cannot be read.
    """
    if isinstance(base, int) and base < 0:
        raise UsageError(
            f"The base of {stack.name} must be a seed, 0 or more, or an exported model's folder,"
            f" not {base}."
        )
    body = stack.stages[: stack.stages.index(stack.cut) + 1]
    initial = stack.init(Key.root(base if isinstance(base, int) else 0).fold("init"))
    frozen = {k: v for k, v in initial.items() if k.partition(".")[0] in body}
    adapted = tuple(
        layer
        for k in frozen
        if frozen[k].dim() == 2
        and (layer := k.removesuffix(".weight")) != k
        and layer.rpartition(".")[2] in layers
    )
    if not adapted:
        raise UsageError(
            f"{stack.name} has no linear layers called {' or '.join(layers)} that could get"
            " low-rank factors."
        )
    most = min(min(frozen[f"{layer}.weight"].shape) for layer in adapted)
    if rank > most:
        raise UsageError(
            f"{stack.name} has layers of {most} values, so the rank of their factors is at most"
            f" {most}, not {rank}."
        )
    if isinstance(base, int):
        return LowRank(stack, frozen, adapted, rank, alpha)
    weights = read_parameters(base_folder(base))
    if wrong := next((k for k, v in frozen.items() if not _fits(weights, k, v)), None):
        actual = (
            f"has one of shape {tuple(weights[wrong].shape)}" if wrong in weights else "has none"
        )
        expected = f"it needs {wrong} of shape {tuple(frozen[wrong].shape)}"
        raise UsageError(
            f"{base} is no base for this {stack.name}: {expected}, and the model {actual}."
        )
    head = {k: v for k, v in initial.items() if k not in frozen}
    if all(_fits(weights, k, v) for k, v in head.items()):
        head = {k: weights[k] for k in head}
    else:
        head = {}
    return LowRank(stack, {k: weights[k] for k in frozen}, adapted, rank, alpha, head)


def _fits(weights: Params, name: str, like: Tensor) -> bool:
    return name in weights and weights[name].shape == like.shape


def without_factors(model: str) -> str:
    """Return the setting `model` without its options for low-rank factors."""
    spec = parse(model)
    return str(replace(spec, options={k: v for k, v in spec.options.items() if k not in OPTIONS}))


def base_folder(base: str) -> Path:
    """Return the folder of an exported model; `base` is that folder or the file of its weights."""
    return Path(base).parent if Path(base).name == WEIGHTS else Path(base)
