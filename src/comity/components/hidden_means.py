"""Class means with noise (`+ldp`): their computation, and their sensitivity to one row or one
party.

level=row: each row is clipped to the norm C. Each class has the sum of its rows and, as a further
value, C times their number. Replacing one row by a blank one changes one sum by at most C and one
count by 1, so everything by at most √2·C in the ℓ2 norm. Noise is added to both, and the mean is
their quotient. An absent class is a sum and a count of noise.

level=party: each class mean is clipped to the norm C; the mean of an absent class is zero. Two
parties differ by at most 2·C in each of K classes, so by at most 2·C·√K in total. Counts would show
which classes a party has, so they are not sent: every class is reported as present.

All later steps use the noisy values only, which costs no privacy: means are clipped to the norm C
again.
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
    """The fields of a reply that contain class means, and those that show which classes they are
    of.
    """

    means: tuple[str, ...]
    classes: tuple[str, ...]


class SendsMeans(Algorithm[S, C, M]):
    """A method whose parties send class means, to which noise can be added."""

    means_in: ClassVar[Mapping[str, Holding]]
    """By party function: the fields of its reply that are computed from class means, and from
    nothing else of a record.
    """

    def class_means_of(
        self, party: Party, values: Callable[[Tensor], Tensor], key: Key
    ) -> tuple[Tensor, Tensor]:
        """The class means of `values(x)` over a party's samples, and the sample counts, as both may
        be sent: with noise if `+ldp` asks for it.
        """
        classes = party.task.classes
        if party.hidden_means:
            return hidden_means(party.hidden_means, values, classes, key.fold("noise"))
        train = party.data.train
        return class_means(in_chunks(values, train.x), train.y, classes)


def release(level: Level, clip: float, noise: float, classes: int) -> Release:
    """The release of such means. The standard deviation is `noise` times the sensitivity."""
    if level == "party":
        change = 2 * clip * math.sqrt(classes)
        return Release("party", "gaussian", change, noise * change, "replaced")
    change = math.sqrt(2) * clip
    return Release("row", "gaussian", change, noise * change)


def within(z: Tensor, most: float) -> Tensor:
    """Clip rows to the norm `most`. NaN counts as 0."""
    z = z.nan_to_num()
    size: Tensor = torch.linalg.vector_norm(z, dim=1, keepdim=True)
    return z * (most / size.clamp(min=most))


def bare(how: HiddenMeans, z: Tensor, classes: int) -> Tensor:
    """The values that noise is added to, one line per class: C times the count and the sum of its
    rows, or its mean (see the module's docstring).
    """
    y = how.samples.y
    if how.level == "party":
        return within(class_means(z.nan_to_num(), y, classes)[0], how.clip)
    rows = torch.cat([torch.full_like(z[:, :1], how.clip), within(z, how.clip)], 1)
    return torch.zeros(classes, rows.shape[1], device=z.device).index_add_(0, y, rows)


def noisy(how: HiddenMeans, z: Tensor, classes: int, key: Key) -> Tensor:
    """The same values with noise: all that leaves the party."""
    exact = bare(how, z, classes)
    return exact + gaussian(
        key, exact.shape, release(how.level, how.clip, how.noise, classes).noise
    ).to(exact)


def hidden_means(
    how: HiddenMeans, values: Callable[[Tensor], Tensor], classes: int, key: Key
) -> tuple[Tensor, Tensor]:
    """The class means of a party's samples and their counts, both computed from noisy values."""
    lines = noisy(how, in_chunks(values, how.samples.x), classes, key)
    how.class_counts.append(classes)
    if how.level == "party":
        return within(lines, how.clip), torch.ones(classes, dtype=torch.int32, device=lines.device)
    counts = lines[:, 0] / how.clip
    # If a count is not clearly above its noise, the quotient is mostly noise: the class counts as
    # absent.
    present = counts >= max(1.0, 2 * math.sqrt(2) * how.noise)
    means = within(lines[:, 1:] / counts.clamp(min=1)[:, None], how.clip)
    return means * present[:, None], torch.where(present, counts.round(), 0).int()
