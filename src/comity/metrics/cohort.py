"""Metrics of many parties' predictions at once, equal bit for bit to those of each party alone.

A metric takes a table of weights with a row for each of its values (`metrics.py`). So one call
computes it for a block of parties: their samples follow each other, and the row of a party has a 1
for each of its own samples and a 0 for all others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from comity.metrics.metrics import METRICS, Metric

MAX_ELEMENTS = 1 << 14
"""Of a table of weights for scores. Larger ones cost more than the calls that they replace."""


class Predictions(NamedTuple):
    """The logits of a classifier (samples x classes) and the labels of one or more samples."""

    logits: Tensor
    y: Tensor

    @property
    def shape(self) -> tuple[int, int]:
        """The number of samples and of logits per sample."""
        samples, width = self.logits.shape
        return samples, width

    def cpu(self) -> Predictions:
        """The same on the CPU."""
        return Predictions(self.logits.cpu(), self.y.cpu())


class Block:
    """The predictions for a few parties, with equally many logits per sample."""

    def __init__(self, parties: Sequence[Predictions]) -> None:
        self.parties = parties
        self._sizes = [party.shape[0] for party in parties]
        self._logits = torch.cat([party.logits for party in parties])
        self._y = torch.cat([party.y for party in parties])

    @cached_property
    def _weights(self) -> Tensor:
        """The samples of each party (parties x samples)."""
        owner = torch.arange(len(self.parties)).repeat_interleave(torch.tensor(self._sizes))
        return (owner == torch.arange(len(self.parties))[:, None]).double()

    @cached_property
    def _one_by_one(self) -> bool:
        """Whether each party needs a call of its own. NaN has no place in an order of scores."""
        return len(self.parties) == 1 or bool(self._logits.isnan().any())

    def right(self) -> list[int]:
        """The number of right predictions of each party."""
        begins = [0, *accumulate(self._sizes)][:-1]
        right: list[int] = np.add.reduceat(
            (self._logits.argmax(1) == self._y).numpy(), begins, dtype=np.int64
        ).tolist()
        return right

    def values(self, metric: Metric) -> list[float | None]:
        """A metric of each party; None where it has none."""
        if self._one_by_one or not metric.counts_only:
            return [metric.of(*party) for party in self.parties]
        values = metric.figures(self._logits, self._y, self._weights).tolist()
        return [
            value if metric.is_defined(party.y) else None
            for value, party in zip(values, self.parties, strict=True)
        ]


def blocks_of(parties: Sequence[Predictions]) -> Iterator[Block]:
    """The parties in blocks, in their order. Parties with many samples have blocks of their own."""
    block: list[Predictions] = []
    total, block_width = 0, 0
    for party in parties:
        samples, width = party.shape
        elements = (len(block) + 1) * (total + samples) * width
        if block and (elements > MAX_ELEMENTS or width != block_width):
            yield Block(block)
            block, total = [], 0
        block.append(party)
        total, block_width = total + samples, width
    if block:
        yield Block(block)


def figures_of(blocks: Sequence[Block], names: Sequence[str]) -> list[dict[str, float]]:
    """The metrics of all parties of these blocks, by name, where a party has them."""
    figures: list[dict[str, float]] = [{} for block in blocks for _ in block.parties]
    for name in names:
        values = (value for block in blocks for value in block.values(METRICS[name]))
        for party_figures, value in zip(figures, values, strict=True):
            if value is not None:
                party_figures[name] = value
    return figures
