"""Test protocols: on which samples a party is tested, and how the rest divides into training and
validation.

`own` and `tail` cut the test part from the party's own samples; a dataset's official test part is
then pooled with the rest. `matched` and `common` use a common test set that no party trains on: the
dataset's official test part, or else a stratified `fraction` held out before the samples are
partitioned. `official` is the part of it that comes from where the party's own samples come from.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from comity.base.samples import Ints
from comity.errors import UsageError, unknown
from comity.spec import call, coerce, parse

Mask = NDArray[np.bool_]
HELD_OUT = 0.2  # of a dataset without an official test part


class Rule(Protocol):
    """What a test protocol does."""

    shifted: ClassVar[bool]  # whether a party's feature shift applies to its test samples too

    def reserve(
        self, y: Ints, official: Mask | None, cut_by: Ints | None, rng: np.random.Generator
    ) -> Mask:
        """The samples to keep from all parties; `cut_by` names those whose official part is not
        their makers' (`Dataset`).
        """

    def divide(
        self,
        party: str,
        y: Ints,
        mine: Ints,
        common: Ints,
        source: Ints | None,
        rng: np.random.Generator,
    ) -> tuple[Ints, Ints]:
        """The party's samples to learn from and to be tested on, of `mine` and the common test set.

        `source` are those of the common test set that come from the party's own group, where
        parties follow groups.
        """


@dataclass(frozen=True)
class Own:
    """Each party is tested on a held-out part of its own samples, stratified by class."""

    fraction: float = 0.25
    shifted: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _check_fraction(type(self).__name__.lower(), self.fraction)

    def reserve(
        self, y: Ints, official: Mask | None, cut_by: Ints | None, rng: np.random.Generator
    ) -> Mask:
        return np.zeros(len(y), dtype=np.bool_)

    def divide(
        self,
        party: str,
        y: Ints,
        mine: Ints,
        common: Ints,
        source: Ints | None,
        rng: np.random.Generator,
    ) -> tuple[Ints, Ints]:
        _check_two(party, mine)
        taken = stratified(y[mine], self.fraction, rng, at_least=1)
        return mine[~taken], mine[taken]


@dataclass(frozen=True)
class Tail(Own):
    """Each party is tested on the last part of its samples of each class, in the data's order.

    For recordings whose neighbouring samples overlap, where a random part would leak; what lies up
    to `gap` samples from a test sample is left out.
    """

    gap: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.gap < 0:
            raise UsageError(f"gap of tail must be at least 0, not {self.gap}.")

    def divide(
        self,
        party: str,
        y: Ints,
        mine: Ints,
        common: Ints,
        source: Ints | None,
        rng: np.random.Generator,
    ) -> tuple[Ints, Ints]:
        _check_two(party, mine)
        taken = np.zeros(len(mine), dtype=np.bool_)
        dropped = np.zeros(len(mine), dtype=np.bool_)
        for c in np.unique(y[mine]):
            at = np.flatnonzero(y[mine] == c)
            taken[at[max(1, len(at) - round(self.fraction * len(at))) :]] = True
        for step in range(
            1, min(self.gap + 1, len(mine))
        ):  # a test sample's neighbours, of whatever class
            dropped[step:] |= taken[:-step]
            dropped[:-step] |= taken[step:]
        learn = mine[~taken & ~dropped]
        test = mine[taken]
        if not len(learn) or not len(test):
            raise UsageError(
                f"Party {party!r} has too few samples to set the last {self.fraction:g} of each"
                " class apart; use own(0.25)."
            )
        return learn, test


@dataclass(frozen=True)
class Official:
    """Each party is tested on the official test samples of its own source: all of them, or a
    stratified draw of `size`.

    With `redraw`, what the data's makers did not cut in training and test themselves is cut anew
    for each seed.
    """

    size: int | None = None
    redraw: bool = False
    shifted: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.size is not None and self.size < 1:
            raise UsageError(f"size of official must be at least 1, not {self.size}.")

    def reserve(
        self, y: Ints, official: Mask | None, cut_by: Ints | None, rng: np.random.Generator
    ) -> Mask:
        if official is None:
            raise UsageError(
                "These data have no official test part; use own(0.25), matched or common."
            )
        if not self.redraw:
            return official
        if cut_by is None:
            raise UsageError(
                "None of these data are marked as cut in training and test by others than their"
                " makers; leave out redraw."
            )
        return redrawn(official, cut_by, rng)

    def divide(
        self,
        party: str,
        y: Ints,
        mine: Ints,
        common: Ints,
        source: Ints | None,
        rng: np.random.Generator,
    ) -> tuple[Ints, Ints]:
        if source is None:
            raise UsageError(
                "official tests each party on its own source's test samples, but this partition"
                " follows no sources; use natural or domain, or test on matched or common."
            )
        if not len(source):
            raise UsageError(
                f"The official test part has no samples of party {party!r}; use own(0.25)."
            )
        if self.size is None or self.size >= len(source):
            return mine, source
        return mine, source[proportional(y[source], self.size, rng)]


@dataclass(frozen=True)
class Matched:
    """Each party is tested on `size` samples of the common test set, in its own class proportions,
    with its own shift.

    Without `size`, on as many as there are without repeating one. Classes that the common test set
    lacks are left out.
    """

    size: int | None = None
    fraction: float | None = None
    shifted: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _check_fraction("matched", self.fraction)
        if self.size is not None and self.size < 1:
            raise UsageError(f"size of matched must be at least 1, not {self.size}.")

    def reserve(
        self, y: Ints, official: Mask | None, cut_by: Ints | None, rng: np.random.Generator
    ) -> Mask:
        return _common_test_set("matched", self.fraction, y, official, rng)

    def divide(
        self,
        party: str,
        y: Ints,
        mine: Ints,
        common: Ints,
        source: Ints | None,
        rng: np.random.Generator,
    ) -> tuple[Ints, Ints]:
        room = np.bincount(y[common], minlength=int(y.max()) + 1)
        counts = np.where(room > 0, np.bincount(y[mine], minlength=len(room)), 0)
        total = int(counts.sum())
        classes = np.flatnonzero(counts)
        if total == 0:
            raise UsageError(
                f"The common test set has no samples of the classes of party {party!r}; use"
                " own(0.25)."
            )
        most = int((room[classes] * total // counts[classes]).min())
        size = self.size or most
        if size > most:
            raise UsageError(
                f"The common test set has {most} samples in the class proportions of party"
                f" {party!r}, not {size}; use size={most} or less, or a larger fraction."
            )
        return (
            mine,
            common[_draw(y[common], _apportion(size * counts / total, size, room, rng), rng)],
        )


@dataclass(frozen=True)
class Common:
    """Every party is tested on the whole common test set: literally the same samples, which no
    shift touches.
    """

    fraction: float | None = None
    shifted: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _check_fraction("common", self.fraction)

    def reserve(
        self, y: Ints, official: Mask | None, cut_by: Ints | None, rng: np.random.Generator
    ) -> Mask:
        return _common_test_set("common", self.fraction, y, official, rng)

    def divide(
        self,
        party: str,
        y: Ints,
        mine: Ints,
        common: Ints,
        source: Ints | None,
        rng: np.random.Generator,
    ) -> tuple[Ints, Ints]:
        return mine, common


RULES: dict[str, Callable[..., Rule]] = {
    "own": Own,
    "tail": Tail,
    "official": Official,
    "matched": Matched,
    "common": Common,
}


def read(text: str) -> Rule:
    """The test protocol that `text` names, as in `own(0.25)`."""
    spec = parse(text)
    if spec.name not in RULES:
        raise unknown("test protocol", spec.name, RULES)
    return call(spec, RULES[spec.name])


def check_validation(fraction: object) -> float:
    """A usable validation fraction; 0 means none."""
    value: float = coerce("validation", fraction, float)
    if not 0 <= value < 1:
        raise UsageError(f"validation must be at least 0 and less than 1, not {value}.")
    return value


def stratified(y: Ints, fraction: float, rng: np.random.Generator, at_least: int = 0) -> Mask:
    """A random `fraction` of the samples, each class giving its share but never its last sample.

    Only where every class has a single one, and `at_least` asks for some, single ones are given;
    never all of them.
    """
    sizes = np.bincount(y)
    total = min(max(at_least, round(fraction * len(y))), len(y) - 1)
    room = np.maximum(sizes - 1, 0)
    room = sizes if room.sum() < at_least else room
    return _draw(y, _apportion(fraction * sizes, total, room, rng), rng)


def proportional(y: Ints, count: int, rng: np.random.Generator) -> Mask:
    """Exactly `count` random samples, with the classes in proportion."""
    sizes = np.bincount(y)
    return _draw(y, _apportion(count * sizes / len(y), count, sizes, rng), rng)


def redrawn(official: Mask, cut_by: Ints, rng: np.random.Generator) -> Mask:
    """The test part with the samples of `cut_by` cut anew: wholes in random order go to training,
    where they fit.

    Training gets as many samples as it had, or a few less if no whole is small enough to fill it.
    """
    loose = np.flatnonzero(cut_by >= 0)
    room = int((~official[loose]).sum())
    held = official.copy()
    held[loose] = True
    for whole in rng.permutation(np.unique(cut_by[loose])):
        members = loose[cut_by[loose] == whole]
        if len(members) <= room:
            held[members] = False
            room -= len(members)
    return held


def _apportion(
    quotas: NDArray[np.floating], total: int, room: Ints, rng: np.random.Generator
) -> Ints:
    """Whole numbers near `quotas` and within `room` that add up to `total` where they can: largest
    remainders first.
    """
    counts: Ints = np.minimum(np.floor(quotas).astype(np.int64), room)
    order = np.lexsort(
        (rng.random(len(quotas)), counts - quotas)
    )  # equal remainders: chance, not the lower label
    order = order[counts[order] < room[order]]
    counts[order[: max(0, total - int(counts.sum()))]] += 1
    return counts


def _draw(y: Ints, counts: Ints, rng: np.random.Generator) -> Mask:
    """`counts[c]` random samples of each class c."""
    order = rng.permutation(len(y))
    order = order[np.argsort(y[order], kind="stable")]
    sizes = np.bincount(y, minlength=len(counts))
    rank = np.arange(len(y)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    taken = np.zeros(len(y), dtype=np.bool_)
    taken[order[rank < np.repeat(counts, sizes)]] = True
    return taken


def _common_test_set(
    rule: str, fraction: float | None, y: Ints, official: Mask | None, rng: np.random.Generator
) -> Mask:
    """The official test samples, or a stratified part of all."""
    if official is None:
        return stratified(y, HELD_OUT if fraction is None else fraction, rng, at_least=1)
    if fraction is not None:
        raise UsageError(
            f"{rule} uses the dataset's official test part, which has its own size; leave out"
            " fraction."
        )
    return official


def _check_two(party: str, mine: Ints) -> None:
    if len(mine) < 2:
        raise UsageError(
            f"Party {party!r} has {len(mine)} sample, but one to train on and one to test on are"
            " needed; give it more samples or use fewer parties."
        )


def _check_fraction(rule: str, fraction: float | None) -> None:
    if fraction is not None and not 0 < fraction < 1:
        raise UsageError(f"fraction of {rule} must be more than 0 and less than 1, not {fraction}.")
