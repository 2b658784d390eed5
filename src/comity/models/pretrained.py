"""Networks that start from given weights, and networks of which a part is frozen.

Initial weights that a user gives, with modules or in a file, replace those that would be drawn.
Frozen tensors (`requires_grad=False`) belong to the network: they are no parameters, so no method
trains, sends, averages or stores them. Every party has them before the run, as it has the network.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from comity.base.key import Key
from comity.base.record import Params
from comity.models.around import AroundNetwork, digest_of
from comity.text import join_names
from comity.training.task import Network, fixed_in

MOST_NAMES = 4
"""How many names of tensors a sentence lists."""


@dataclass(frozen=True)
class InitialWeights:
    """Where the initial values of a network's tensors come from, by name.

    Tensors that are the same in every new network of this kind, such as zeros, count as drawn.
    """

    source: str
    """What gave the kept values: `the model`, or the name of a file."""
    kept: tuple[str, ...] = ()
    """Tensors that start from the given values."""
    drawn: tuple[str, ...] = ()
    """Tensors that are drawn from the seed."""
    frozen: tuple[str, ...] = ()
    """Tensors that keep the given values for the whole run."""
    redrawn: bool = False
    """Whether the settings ask to draw weights that were given."""
    unfilled: tuple[str, ...] = ()
    """Frozen tensors that the file has no values for."""
    unused: tuple[str, ...] = ()
    """What the file has and the network has not, with the reason if only the shapes differ."""

    @property
    def text(self) -> str:
        """One sentence for the user."""
        parts = []
        if self.kept:
            parts.append(f"{_tensors(self.kept)} kept as in {self.source}")
        if self.drawn:
            anew = " anew, instead of the given values" if self.redrawn else ""
            parts.append(f"{_tensors(self.drawn)} drawn{anew}")
        if self.frozen:
            parts.append(f"{_tensors(self.frozen)} frozen, neither trained nor sent")
        if self.unfilled:
            parts.append(f"of the frozen ones {_tensors(self.unfilled)} not in {self.source}")
        if self.unused:
            parts.append(f"not used of {self.source}: {join_names(self.unused)}")
        return f"Initial weights: {'; '.join(parts)}."

    @property
    def is_partial(self) -> bool:
        """Whether a file of weights fits the network in part only."""
        return bool(self.unfilled or self.unused)

    @property
    def entry(self) -> dict[str, Any]:
        """The entry of `summary.json`."""
        parts = ("kept", "drawn", "frozen", "unfilled", "unused")
        names = {name: list(getattr(self, name)) for name in parts}
        return {"text": self.text, "source": self.source, "redrawn": self.redrawn, **names}


def _tensors(names: tuple[str, ...]) -> str:
    return f"{len(names)} tensor{'s' * (len(names) != 1)} ({join_names(names, MOST_NAMES)})"


@dataclass(frozen=True, eq=False)
class Pretrained(AroundNetwork):
    """A network with given initial weights, a part of which may be frozen."""

    given: Params
    """Initial values of parameters and buffers, which replace those that the network draws."""
    frozen: Params
    """Values that are no parameters."""
    start: InitialWeights

    @cached_property
    def norms(self) -> frozenset[str]:
        """The names of the parameters and buffers of BatchNorm layers that are not frozen."""
        return self.network.norms - self.frozen.keys()

    @cached_property
    def fixed(self) -> str:
        """A digest of the frozen values. Networks whose weights are averaged must have the same."""
        return digest_of(self.frozen)

    @cached_property
    def digest(self) -> str:
        """A digest of the network's layers and its frozen values. Who reopens a run must give a
        network of the same digest.
        """
        layers: str = getattr(self.network, "digest", "") or fixed_in(self.network)
        return digest_of(self.frozen, layers) if self.frozen else layers

    @cached_property
    def given_digest(self) -> str:
        """A digest of the given initial values. A resumed run must have the same digest."""
        return digest_of(self.given)

    def init(self, key: Key) -> Params:
        """Return the given initial values, and drawn ones for what is not given."""
        return {
            name: self.given[name].clone() if name in self.given else value
            for name, value in self.network.init(key).items()
            if name not in self.frozen
        }

    def run(self, theta: Params, x: Tensor, train: bool, begin: int, end: int) -> Tensor:
        """Apply the stages begin..end-1, with the frozen values."""
        if not self.frozen:
            return self.network.run(theta, x, train, begin, end)
        like = next((value for value in theta.values() if value.is_floating_point()), x)
        dtype = like.dtype if like.is_floating_point() else torch.get_default_dtype()
        frozen = self.copy_on(self.frozen, like.device, dtype)
        return self.network.run({**frozen, **theta}, x, train, begin, end)

    def whole(self, theta: Params) -> Params:
        """Return parameters with the frozen values among them."""
        return {**self.frozen, **theta}


def initial_weights(network: Network) -> InitialWeights | None:
    """Return where a network's initial weights come from; None if all are drawn from the seed."""
    return network.start if isinstance(network, Pretrained) else None
