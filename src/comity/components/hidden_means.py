"""Class means that leave a party behind noise (`+ldp`): how they are made, and how far one row, or
one party, moves them.

level=row: each row is clipped to the norm C, and every class has a sum of its rows and a count of
them, C times the count beside the sum. One row, there or blank, moves one sum by C at most and one
count by 1, so all of it by √2·C in the ℓ2 norm. Noise on both, and the mean is their quotient. A
class that is absent is a sum and a count of noise.

level=party: each class mean is clipped to the norm C; one that is absent is zero. Any two parties
differ by 2·C in each of K classes, so by 2·C·√K in all. Counts would tell which classes there are,
and do not leave: every class is said to be there.

Whatever is made of the noisy numbers afterwards tells nothing more: a mean lies within C, and is
brought back there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from comity.base.noise import gaussian
from comity.components.classwise import class_means
from comity.core import Algorithm, C, Key, M, Party, Release, S, in_chunks
from comity.training.requests import HiddenMeans, Level


class Holding(NamedTuple):
    """Which fields of a reply hold class means, and which tell of what classes they are."""

    means: tuple[str, ...]
    classes: tuple[str, ...]


class SendsMeans(Algorithm[S, C, M]):
    """A method whose parties send class means, which can leave behind noise."""

    means_in: ClassVar[Mapping[str, Holding]]
    """By party function: the fields of its reply that are computed from class means, and from
    nothing else of a record.
    """

    def class_means_of(
        self, party: Party, values: Callable[[Tensor], Tensor], key: Key
    ) -> tuple[Tensor, Tensor]:
        """The mean by class of what `values` makes of a party's samples, and how many there are, as
        both may leave.
        """
        classes = party.task.classes
        if party.hidden_means:
            return hidden_means(party.hidden_means, values, classes, key.fold("noise"))
        train = party.data.train
        return class_means(in_chunks(values, train.x), train.y, classes)


def release(level: Level, clip: float, noise: float, classes: int) -> Release:
    """Through which noise such means leave, if it is `noise` times what one unit can change."""
    if level == "party":
        change = 2 * clip * math.sqrt(classes)
        return Release("party", "gaussian", change, noise * change, "replaced")
    change = math.sqrt(2) * clip
    return Release("row", "gaussian", change, noise * change)


def within(z: Tensor, most: float) -> Tensor:
    """Rows of that norm at most; what is no number is none."""
    z = z.nan_to_num()
    size: Tensor = torch.linalg.vector_norm(z, dim=1, keepdim=True)
    return z * (most / size.clamp(min=most))


def bare(how: HiddenMeans, z: Tensor, classes: int) -> Tensor:
    """What noise is added to, a line for each class: C times its count and the sum of its rows, or
    its mean. See above.
    """
    y = how.samples.y
    if how.level == "party":
        return within(class_means(z.nan_to_num(), y, classes)[0], how.clip)
    rows = torch.cat([torch.full_like(z[:, :1], how.clip), within(z, how.clip)], 1)
    return torch.zeros(classes, rows.shape[1], device=z.device).index_add_(0, y, rows)


def noisy(how: HiddenMeans, z: Tensor, classes: int, key: Key) -> Tensor:
    """The same behind noise: all that anybody else ever learns of it."""
    exact = bare(how, z, classes)
    return exact + gaussian(
        key, exact.shape, release(how.level, how.clip, how.noise, classes).noise
    ).to(exact)


def hidden_means(
    how: HiddenMeans, values: Callable[[Tensor], Tensor], classes: int, key: Key
) -> tuple[Tensor, Tensor]:
    """Class means of a party's samples, and of how many each is, both behind noise."""
    lines = noisy(how, in_chunks(values, how.samples.x), classes, key)
    how.class_counts.append(classes)
    if how.level == "party":
        return within(lines, how.clip), torch.ones(classes, dtype=torch.int32, device=lines.device)
    counts = lines[:, 0] / how.clip
    # Of a class that is not clearly there the quotient is noise, which teaches nothing: it counts
    # as absent.
    present = counts >= max(1.0, 2 * math.sqrt(2) * how.noise)
    means = within(lines[:, 1:] / counts.clamp(min=1)[:, None], how.clip)
    return means * present[:, None], torch.where(present, counts.round(), 0).int()
