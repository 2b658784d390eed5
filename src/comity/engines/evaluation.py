"""Evaluation of the models that the parties of one process would deploy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from comity.base.call import Message
from comity.engines.engine import Sites
from comity.metrics.evaluation import Evaluation, score_predicted

BLOCK_PARTIES = 64
BLOCK_BYTES = 6_000_000  # of models, whose parties are in memory at the same time


def evaluate_one_by_one(
    sites: Sites, messages: Mapping[int, Message], final: bool
) -> Iterator[tuple[int, Evaluation]]:
    """Apply each party's model by itself, and score the predictions of a few parties together.

    The results are those of `Site.evaluate` bit for bit.
    """
    for block in _blocks(sites, messages):
        predicted = [sites[i].predict(messages[i], final) for i in block]
        metric = sites[block[0]].party.metric
        yield from zip(block, score_predicted(predicted, final, metric), strict=True)


def _blocks(sites: Sites, messages: Mapping[int, Message]) -> Iterator[Sequence[int]]:
    """The parties in their order: 64 with small models, and those with large models alone."""
    block: list[int] = []
    size = 0
    for i in messages:
        weight = sites[i].party.task.bytes()
        if block and (len(block) == BLOCK_PARTIES or size + weight > BLOCK_BYTES):
            yield block
            block, size = [], 0
        block.append(i)
        size += weight
    if block:
        yield block
