"""Settings of local training, the mini-batches that follow from them, and optimizer states."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from comity.base.key import Key
from comity.base.record import Params, record
from comity.base.samples import Samples
from comity.training.task import Batch

Precision = Literal["float32", "bf16"]
GATHERED_BATCHES = 64  # per indexing call: few calls for many steps, with bounded memory


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
    precision: Precision = "float32"
    """The precision of the network's passes within a step. Weights, updates and optimizer states
    are float32.
    """
    keep: bool = False
    """Whether a party's optimizer keeps its moments from round to round."""
    augment: Callable[[Tensor, Key], Tensor] | None = None
    """Random augmentation of a batch's inputs, drawn from the batch's key."""

    def steps_for(self, samples: int) -> int:
        """How many steps a party with that many training samples takes in one local training."""
        if self.steps is not None:
            return self.steps if self.batches_per_epoch(samples) else 0
        return self.epochs * self.batches_per_epoch(samples)

    def batches_per_epoch(self, samples: int) -> int:
        """The number of batches in one epoch over that many samples."""
        full_batches, last_batch = divmod(samples, self.batch)
        if self.batch < self.min_batch:
            full_batches = 0
        return full_batches + (last_batch >= self.min_batch and last_batch > 0)


@record
class Moments:
    """An optimizer's state: momentum, or Adam's first and second moments and its step count."""

    first: Params
    second: Params
    count: int


def orders(samples: int, key: Key, training: Training) -> Iterator[Tensor]:
    """The sample indices in a new random order each epoch, without those of dropped batches."""
    remaining = training.steps_for(samples)
    epoch = 0
    while remaining > 0:
        batches = min(remaining, training.batches_per_epoch(samples))
        order = key.fold("order", epoch).permutation(samples)
        kept = batches * training.batch
        yield order[:kept] if kept < samples else order
        remaining -= batches
        epoch += 1


def batches(data: Samples, key: Key, training: Training) -> Iterator[Batch]:
    """Mini-batches in a new random order each epoch. All of them share one `scratch`."""
    scratch: dict[str, Tensor] = {}
    number = 0
    for order in orders(len(data), key, training):
        for block in order.to(data.x.device).split(training.batch * GATHERED_BATCHES):
            xs = data.x.index_select(0, block).split(training.batch)
            ys = data.y.index_select(0, block).split(training.batch)
            rows = {
                name: values.index_select(0, block).split(training.batch)
                for name, values in data.rows.items()
            }
            for n, (inputs, y, indices) in enumerate(
                zip(xs, ys, block.split(training.batch), strict=True)
            ):
                x = inputs
                if training.augment:
                    x = training.augment(inputs, key.fold("augment", number))
                batch_rows = {name: parts[n] for name, parts in rows.items()}
                yield Batch(x, y, indices, number, scratch, batch_rows)
                number += 1
