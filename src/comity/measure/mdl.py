"""Minimum description length (MDL) of labels given representations.

A loss-data curve (Whitney et al., Evaluating representations by the complexity of learning low-loss
predictors, 2020; their library `reprieve` made DBE's tables): probes are trained on s_1 < ... < s_k
samples, L_i is their loss on held-out samples, and

    MDL = Σ_i (s_i − s_{i−1}) · L_i,  s_0 = 0.

The length of each chunk is the loss of the probe that was trained on it, so this is optimistic.
`prequential` is the length of a real code (Voita and Titov, EMNLP 2020): the first chunk costs ln C
per label, and chunk i the loss of the probe that was trained on the chunks before it.

Natural logarithms give nats. DBE prints "bits" from that library without a conversion, so its
tables are in nats as well; here both are given. Lengths depend on the number of samples: compare
changes between tables, not values. Deviation: a probe's subsets are nested (prefixes of one random
order), so that one set of probes gives both codes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from comity.base.key import Key
from comity.errors import UsageError
from comity.measure.probe import Probes

LEAST = 20  # the fewest samples of a curve


@dataclass(frozen=True)
class Settings:
    """Settings of the probes; the defaults are those of `reprieve`."""

    points: int = 10
    seeds: int = 5
    steps: int = 4000
    batch: int = 256
    lr: float = 1e-4
    hidden: tuple[int, ...] = (512, 512)
    validation: float = 0.1


FULL = Settings()
CHEAP = Settings(points=6, seeds=3, steps=500)


@dataclass(frozen=True, eq=False)
class Curve:
    """A loss-data curve, in nats per label."""

    sizes: tuple[int, ...]
    """s_1 < ... < s_k; s_k is the number of training samples."""
    losses: Tensor
    """Loss on the validation samples after each size (rows), for each seed (columns)."""
    coding: Tensor
    """Loss on the chunk that follows each size except the last."""
    classes: int

    @property
    def means(self) -> Tensor:
        """L_i, the mean loss over seeds."""
        return self.losses.mean(1)

    @property
    def chunks(self) -> Tensor:
        """s_i − s_{i−1}."""
        return torch.tensor(self.sizes, dtype=torch.float64).diff(
            prepend=torch.zeros(1, dtype=torch.float64)
        )

    @property
    def nats(self) -> float:
        """MDL in nats."""
        return float(self.chunks @ self.means)

    @property
    def bits(self) -> float:
        """MDL in bits."""
        return self.nats / math.log(2)

    @property
    def std(self) -> float:
        """Population standard deviation of the MDL over seeds, in nats."""
        return float((self.chunks @ self.losses).std(correction=0))

    @property
    def prequential(self) -> float:
        """The length of the prequential code, in nats."""
        chunks = self.chunks
        return float(chunks[0] * math.log(self.classes) + chunks[1:] @ self.coding.mean(1))

    def surplus(self, epsilon: float) -> float:
        """Return the surplus description length: nats above a loss of `epsilon`.

        It is a lower bound if the loss never falls to `epsilon`.
        """
        return float(self.chunks @ (self.means - epsilon).clamp(min=0))

    def complexity(self, epsilon: float) -> int | None:
        """Return the ε-sample complexity: the smallest size with a loss of at most `epsilon`.

        It is None if there is no such size.
        """
        return next(
            (s for s, loss in zip(self.sizes, self.means.tolist(), strict=True) if loss <= epsilon),
            None,
        )

    def plain(self) -> dict[str, Any]:
        """Return the curve and its description lengths as numbers and lists."""
        return {
            "nats": self.nats,
            "bits": self.bits,
            "std_nats": self.std,
            "prequential_nats": self.prequential,
            "prequential_bits": self.prequential / math.log(2),
            "sizes": list(self.sizes),
            "losses": self.means.tolist(),
        }


def sizes(train: int, points: int) -> tuple[int, ...]:
    """Return ceil(logspace(1, log10(train), points)), from ten samples to all, without
    duplicates.
    """
    counts = np.ceil(np.logspace(1, math.log10(train), points)).astype(int)
    return tuple(np.unique(counts.clip(max=train)).tolist())


def split_samples(count: int, share: float, key: Key) -> tuple[Tensor, Tensor]:
    """Return indices of training samples and of held-out samples, the last `share` of an order."""
    order = key.fold("split").permutation(count)
    train = count - math.ceil(count * share)
    return order[:train], order[train:]


def curve(
    x: Tensor, y: Tensor, key: Key, settings: Settings = FULL, classes: int | None = None
) -> Curve:
    """Return the loss-data curve of labels y (0..classes-1) given representations x (rows)."""
    if len(x) < LEAST or len(x) != len(y):
        raise UsageError(
            f"A description length needs at least {LEAST} samples and a label for each, not"
            f" {len(x)} and {len(y)}."
        )
    classes = classes or int(y.max()) + 1
    train, validation = split_samples(len(x), settings.validation, key)
    x = _normalise(x.flatten(1).float(), train)
    steps = sizes(len(train), settings.points)
    seeds = [key.fold("seed", k) for k in range(settings.seeds)]
    orders = train[torch.stack([seed.fold("subset").permutation(len(train)) for seed in seeds])]
    losses = []
    coding = []
    for size, following in pairwise([*steps, 0]):
        keys = [seed.fold("probe", size) for seed in seeds]
        probes = Probes(keys, (x.shape[1], *settings.hidden, classes), settings.lr)
        probes.learn(x, y, orders[:, :size], settings.steps, settings.batch)
        losses.append(probes.losses(x[validation], y[validation]))
        chunk = orders[:, size:following]
        coding.append(probes.losses(x[chunk], y[chunk]))  # empty after the last size
    return Curve(steps, torch.stack(losses).double(), torch.stack(coding)[:-1].double(), classes)


def _normalise(x: Tensor, train: Tensor) -> Tensor:
    """Subtract the mean of all training values and divide by their standard deviation.

    So the result does not depend on the scale of a representation.
    """
    values = x[train].double()
    mean = float(values.mean())
    std = float(values.std(correction=0))
    return (x - mean) / (std or 1.0)
