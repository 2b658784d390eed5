"""The works of `peers.py`: what is trained, by how many parties, and how many of them take part in
a round.
"""

from __future__ import annotations

from dataclasses import dataclass

import bare
import torch
from torch import Tensor, nn

Pair = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Work:
    """Parties with random images, all of one size, some or all of whom train one epoch in a round."""

    model: str
    parties: int
    samples: int
    """Of each party, to train on; it tests on a quarter as many."""
    cohort: int
    """Parties in a round."""

    @property
    def tests(self) -> int:
        return -(-self.samples // 4)

    def data(self) -> list[tuple[Pair, Pair]]:
        """What each party trains and tests on, drawn as the bare loop draws it."""
        draw = torch.Generator().manual_seed(1)

        def pair(count: int) -> Pair:
            return torch.randn(count, 1, 28, 28, generator=draw), torch.randint(
                0, 10, (count,), generator=draw
            )

        return [(pair(self.samples), pair(self.tests)) for _ in range(self.parties)]

    def network(self) -> nn.Sequential:
        if self.model not in bare.WORKS:
            raise ValueError(f"The bare loop has no {self.model}.")
        return bare.network(self.model)


WORKS = {
    "cnn4-20": Work("cnn4", 20, 370, 20),
    "mlp2-100": Work("mlp2", 100, 70, 100),
    "mlp2-10of100": Work("mlp2", 100, 70, 10),
    "mlp2-100of1000": Work("mlp2", 1000, 70, 100),
    "lenet5-100": Work("lenet5", 100, 70, 100),
    "linear-1000": Work("linear", 1000, 50, 1000),
}
TRIALS = {"trial": Work("linear", 4, 25, 4), "trial-2of4": Work("mlp2", 4, 25, 2)}
"""To see whether everything still works; too small to tell anything."""
