"""How parties train: the settings, the mini-batches that come of them, and what an optimizer
remembers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from comity.base.key import Key
from comity.base.record import Params, record
from comity.base.samples import Samples
from comity.training.task import Batch

GATHERED_BATCHES = 64  # made by one indexing call: few calls for many steps, and bounded memory


@dataclass(frozen=True)
class Training:
    """How parties train: the experiment's settings, the same for every method so that a comparison
    is fair.
    """

    optimizer: Literal["sgd", "adam"] = "sgd"
    lr: float = 0.01
    momentum: float = 0.0
    decay: float = 0.0
    batch: int = 10
    epochs: int = 1
    steps: int | None = None
    """A fixed number of steps instead of epochs."""
    min_batch: int = 1
    """A smaller last batch is dropped: 2 with BatchNorm, `batch` if last batches are dropped."""
    keep: bool = False
    """Whether a party's optimizer remembers its moments from round to round."""
    augment: Callable[[Tensor, Key], Tensor] | None = None
    """Random changes to a batch's inputs, drawn from the batch's key."""

    def steps_for(self, samples: int) -> int:
        """How many steps a party with that many training samples makes in one local training."""
        if self.steps is not None:
            return self.steps if self.an_epoch(samples) else 0
        return self.epochs * self.an_epoch(samples)

    def an_epoch(self, samples: int) -> int:
        """How many batches so many samples make."""
        whole, rest = divmod(samples, self.batch)
        return (whole if self.batch >= self.min_batch else 0) + (
            rest >= self.min_batch and rest > 0
        )


@record
class Moments:
    """What an optimizer remembers: momentum, or Adam's first and second moments and its step count."""

    first: Params
    second: Params
    count: int


def orders(samples: int, key: Key, training: Training) -> Iterator[Tensor]:
    """The samples in a fresh order each epoch, without those of batches that are not made."""
    left = training.steps_for(samples)
    epoch = 0
    while left > 0:
        made = min(left, training.an_epoch(samples))
        yield key.fold("order", epoch).permutation(samples)[: made * training.batch]
        left -= made
        epoch += 1


def batches(data: Samples, key: Key, training: Training) -> Iterator[Batch]:
    """Mini-batches in a fresh order each epoch; all of them share one `scratch`."""
    scratch: dict[str, Tensor] = {}
    number = 0
    for order in orders(len(data), key, training):
        for block in order.to(data.x.device).split(training.batch * GATHERED_BATCHES):
            xs = data.x.index_select(0, block).split(training.batch)
            ys = data.y.index_select(0, block).split(training.batch)
            rows = {
                name: every.index_select(0, block).split(training.batch)
                for name, every in data.rows.items()
            }
            for n, (x, y, indices) in enumerate(
                zip(xs, ys, block.split(training.batch), strict=True)
            ):
                seen = training.augment(x, key.fold("augment", number)) if training.augment else x
                yield Batch(
                    seen,
                    y,
                    indices,
                    number,
                    scratch,
                    {name: each[n] for name, each in rows.items()},
                )
                number += 1
