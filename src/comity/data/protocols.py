"""Test protocols: rules that choose the samples that each party is tested on.

`own`, `tail` and `folds` take the test part from the party's own samples; a dataset's official test
part is then pooled with the other samples. Under consecutive seeds, `folds` tests on every sample
once. `matched` and `common` use a common test set that no party
trains on: the dataset's official test part, or otherwise a stratified `fraction` that is held out
before the samples are partitioned. `official` uses the official test samples that come from the
same source as the party's samples.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from comity.base.key import Key
from comity.base.samples import Ints, PartyData
from comity.errors import UsageError, unknown
from comity.spec import call, coerce, parse

Mask = NDArray[np.bool_]
COMMON_FRACTION = 0.2
"""Default size of the common test set, for datasets without an official test part."""


@dataclass(frozen=True)
class OwnPart:
    """What a test protocol divides: a party's samples, by their positions in the data."""

    party: str
    y: Ints
    """The labels of all samples of the data."""
    positions: Ints
    """The party's own samples."""
    common: Ints
    """The common test set."""
    source: Ints | None = None
    """The samples of the common test set from the party's group, if the partition follows
    groups.
    """

    @classmethod
    def whole(cls, party: str, y: Ints) -> OwnPart:
        """All samples of data that a single party has."""
        everything = np.arange(len(y))
        return cls(party, y, everything, everything[:0])


class SplitProtocol(Protocol):
    """A test protocol."""

    shifted: ClassVar[bool]
    """Whether a party's feature shift also applies to its test samples."""

    def reserve(
        self, y: Ints, official: Mask | None, cut_by: Ints | None, rng: np.random.Generator
    ) -> Mask:
        """A mask of the samples that no party gets (the common test set).

        Args:
            y: labels.
            official: mask of the official test samples, if the dataset has them.
            cut_by: units whose test part may be redrawn (see `Dataset.cut_by`).
            rng: generator.
        """

    def divide(self, own: OwnPart, rng: np.random.Generator) -> tuple[Ints, Ints]:
        """The positions of a party's training samples (validation included) and test samples."""


class OwnSamples:
    """Base class of protocols that test each party on samples of its own."""

    shifted: ClassVar[bool] = True

    def reserve(
        self, y: Ints, official: Mask | None, cut_by: Ints | None, rng: np.random.Generator
    ) -> Mask:
        return np.zeros(len(y), dtype=np.bool_)


@dataclass(frozen=True)
class Own(OwnSamples):
    """Each party is tested on a held-out fraction of its own samples, stratified by class."""

    fraction: float = 0.25

    def __post_init__(self) -> None:
        _check_fraction(type(self).__name__.lower(), self.fraction)

    def divide(self, own: OwnPart, rng: np.random.Generator) -> tuple[Ints, Ints]:
        _check_two(own.party, own.positions)
        is_test = stratified(own.y[own.positions], self.fraction, rng, at_least=1)
        return own.positions[~is_test], own.positions[is_test]


@dataclass(frozen=True)
class Tail(Own):
    """Each party is tested on its last samples of each class, in the order of the data.

    Use it for recordings whose neighbouring samples overlap, where a random test part would leak.
    Samples at most `gap` positions from a test sample are not used.
    """

    gap: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.gap < 0:
            raise UsageError(f"gap of tail must be at least 0, not {self.gap}.")

    def divide(self, own: OwnPart, rng: np.random.Generator) -> tuple[Ints, Ints]:
        _check_two(own.party, own.positions)
        positions, y = own.positions, own.y[own.positions]
        is_test = np.zeros(len(positions), dtype=np.bool_)
        is_gap = np.zeros(len(positions), dtype=np.bool_)
        for c in np.unique(y):
            at = np.flatnonzero(y == c)
            is_test[at[max(1, len(at) - round(self.fraction * len(at))) :]] = True
        # Neighbours of a test sample are excluded whatever their class.
        for step in range(1, min(self.gap + 1, len(positions))):
            is_gap[step:] |= is_test[:-step]
            is_gap[:-step] |= is_test[step:]
        train = positions[~is_test & ~is_gap]
        test = positions[is_test]
        if not len(train) or not len(test):
            raise UsageError(
                f"Party {own.party!r} has too few samples to test on the last {self.fraction:g} of"
                " each class; use own(0.25)."
            )
        return train, test


@dataclass(frozen=True)
class Folds(OwnSamples):
    """Cross-validation: each party is tested on one of `number` folds of its own samples,
    stratified by class.

    Seed s tests on fold s mod number. The parties and the folds are drawn from s // number, so
    `number` consecutive seeds from a multiple of it test on every sample once.
    """

    number: int = 5
    fold: int = 0
    """The fold that the parties are tested on. It follows from the seed (see `under_seed`)."""

    def __post_init__(self) -> None:
        if self.number < 2:
            raise UsageError(f"folds needs at least two folds, as in folds(5), not {self.number}.")

    def divide(self, own: OwnPart, rng: np.random.Generator) -> tuple[Ints, Ints]:
        positions = own.positions
        if len(positions) < self.number:
            raise UsageError(
                f"Party {own.party!r} has {len(positions)} samples, too few for"
                f" {self.number} folds; use fewer folds, or leave it out with --without."
            )
        order = rng.permutation(len(positions))
        order = order[np.argsort(own.y[positions][order], kind="stable")]
        # Neighbours in the order by class get different folds.
        is_test = np.zeros(len(positions), dtype=np.bool_)
        is_test[order[self.fold :: self.number]] = True
        return positions[~is_test], positions[is_test]


@dataclass(frozen=True)
class Official:
    """Each party is tested on the official test samples of its own source.

    With `size`, it is tested on a stratified draw of so many of them. With `redraw`, training and
    test samples are drawn anew for each seed where the split is not from the authors of the data
    (see `Dataset.cut_by`).
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
                "redraw needs data whose test part may be redrawn (Dataset.cut_by), but these data"
                " have none; leave out redraw."
            )
        return redraw_test_part(official, cut_by, rng)

    def divide(self, own: OwnPart, rng: np.random.Generator) -> tuple[Ints, Ints]:
        if own.source is None:
            raise UsageError(
                "official tests each party on the test samples of its source, but this partition"
                " does not follow sources; use the partition natural or domain, or the test"
                " protocol matched or common."
            )
        if not len(own.source):
            raise UsageError(
                f"The official test part has no samples of party {own.party!r}; use own(0.25)."
            )
        if self.size is None or self.size >= len(own.source):
            return own.positions, own.source
        return own.positions, own.source[proportional(own.y[own.source], self.size, rng)]


class CommonTestSet:
    """Base class of protocols that test parties on a common test set: the official test samples,
    or otherwise a stratified fraction of all samples.
    """

    fraction: float | None

    def reserve(
        self, y: Ints, official: Mask | None, cut_by: Ints | None, rng: np.random.Generator
    ) -> Mask:
        if official is None:
            fraction = COMMON_FRACTION if self.fraction is None else self.fraction
            return stratified(y, fraction, rng, at_least=1)
        if self.fraction is not None:
            raise UsageError(
                f"{type(self).__name__.lower()} uses the dataset's official test part, which has"
                " its own size; leave out fraction."
            )
        return official


@dataclass(frozen=True)
class Matched(CommonTestSet):
    """Each party is tested on `size` samples of the common test set, in the party's class
    proportions and with its feature shift.

    Without `size`, it is tested on as many samples as possible without repetition. Classes that the
    common test set lacks are left out.
    """

    size: int | None = None
    fraction: float | None = None
    shifted: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _check_fraction("matched", self.fraction)
        if self.size is not None and self.size < 1:
            raise UsageError(f"size of matched must be at least 1, not {self.size}.")

    def divide(self, own: OwnPart, rng: np.random.Generator) -> tuple[Ints, Ints]:
        y, common = own.y, own.common
        room = np.bincount(y[common], minlength=int(y.max()) + 1)
        counts = np.where(room > 0, np.bincount(y[own.positions], minlength=len(room)), 0)
        total = int(counts.sum())
        classes = np.flatnonzero(counts)
        if total == 0:
            raise UsageError(
                f"The common test set has no samples of the classes of party {own.party!r}; use"
                " own(0.25)."
            )
        largest = int((room[classes] * total // counts[classes]).min())
        size = self.size or largest
        if size > largest:
            raise UsageError(
                f"The common test set has {largest} samples in the class proportions of party"
                f" {own.party!r}, not {size}; use size={largest} or less, or a larger fraction."
            )
        by_class = _apportion(size * counts / total, size, room, rng)
        return own.positions, common[_draw(y[common], by_class, rng)]


@dataclass(frozen=True)
class Common(CommonTestSet):
    """Every party is tested on the whole common test set, without feature shifts."""

    fraction: float | None = None
    shifted: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _check_fraction("common", self.fraction)

    def divide(self, own: OwnPart, rng: np.random.Generator) -> tuple[Ints, Ints]:
        return own.positions, own.common


RULES: dict[str, Callable[..., SplitProtocol]] = {
    "own": Own,
    "tail": Tail,
    "folds": Folds,
    "official": Official,
    "matched": Matched,
    "common": Common,
}


def read(text: str) -> SplitProtocol:
    """Parse a test protocol, as in `own(0.25)`."""
    spec = parse(text)
    if spec.name not in RULES:
        raise unknown("test protocol", spec.name, RULES)
    rule = call(spec, RULES[spec.name])
    if isinstance(rule, Folds) and rule.fold:
        raise UsageError(
            f"The seed says which fold is tested on: give {rule.number} seeds in place of fold."
        )
    return rule


def under_seed(text: str, seed: int) -> tuple[SplitProtocol, int]:
    """Parse a test protocol. Returns the rule under this seed, and the seed of the partition.

    Examples:
        >>> under_seed("folds(5)", 7)
        (Folds(number=5, fold=2), 1)
        >>> under_seed("own(0.25)", 7)
        (Own(fraction=0.25), 7)
    """
    rule = read(text)
    if not isinstance(rule, Folds):
        return rule, seed
    return replace(rule, fold=seed % rule.number), seed // rule.number


def folds_of(text: str) -> int:
    """The number of folds of a test protocol; 1 if it is not cross-validation."""
    rule = read(text)
    return rule.number if isinstance(rule, Folds) else 1


TRAINING_FOLDS = 5
"""The number of folds of `training_folds`."""


def training_folds(data: PartyData, key: Key) -> Ints:
    """The fold of each training sample of a party, stratified by the label: for choices that must
    not look at test samples.

    All samples of a patient are in one fold. There are fewer than `TRAINING_FOLDS` folds if there
    are fewer samples or patients.
    """
    y = data.train.y.numpy()
    units = np.arange(len(y)) if data.patients is None else data.patients.numpy()
    _, first, unit_of = np.unique(units, return_index=True, return_inverse=True)
    order = key.numpy().permutation(len(first))
    order = order[np.argsort(y[first][order], kind="stable")]
    fold_of_unit = np.zeros(len(first), dtype=np.int64)
    fold_of_unit[order] = np.arange(len(first)) % min(TRAINING_FOLDS, len(first))
    folds: Ints = fold_of_unit[unit_of]
    return folds


def check_validation(fraction: object) -> float:
    """Check a validation fraction; 0 means no validation samples."""
    value: float = coerce("validation", fraction, float)
    if not 0 <= value < 1:
        raise UsageError(f"validation must be at least 0 and less than 1, not {value}.")
    return value


def stratified(y: Ints, fraction: float, rng: np.random.Generator, at_least: int = 0) -> Mask:
    """A mask of a random `fraction` of the samples, stratified by class.

    The last sample of a class is never selected. The exception is data in which all classes have a
    single sample: there, `at_least` samples are selected, but never all of them.
    """
    sizes = np.bincount(y)
    total = min(max(at_least, round(fraction * len(y))), len(y) - 1)
    room = np.maximum(sizes - 1, 0)
    room = sizes if room.sum() < at_least else room
    return _draw(y, _apportion(fraction * sizes, total, room, rng), rng)


def proportional(y: Ints, count: int, rng: np.random.Generator) -> Mask:
    """A mask of exactly `count` random samples, in proportion to the classes."""
    sizes = np.bincount(y)
    return _draw(y, _apportion(count * sizes / len(y), count, sizes, rng), rng)


def redraw_test_part(official: Mask, cut_by: Ints, rng: np.random.Generator) -> Mask:
    """Redraw the test part of the samples that have a unit in `cut_by`.

    Units in random order are assigned to training as long as they fit. Training gets as many
    samples as before, or slightly fewer if no remaining unit is small enough.
    """
    redrawable = np.flatnonzero(cut_by >= 0)
    room = int((~official[redrawable]).sum())
    is_test = official.copy()
    is_test[redrawable] = True
    for unit in rng.permutation(np.unique(cut_by[redrawable])):
        members = redrawable[cut_by[redrawable] == unit]
        if len(members) <= room:
            is_test[members] = False
            room -= len(members)
    return is_test


def _apportion(
    quotas: NDArray[np.floating], total: int, room: Ints, rng: np.random.Generator
) -> Ints:
    """Round `quotas` by largest remainders to integers that add up to `total`, if `room` allows."""
    counts: Ints = np.minimum(np.floor(quotas).astype(np.int64), room)
    # Equal remainders are ordered at random, not by label.
    order = np.lexsort((rng.random(len(quotas)), counts - quotas))
    order = order[counts[order] < room[order]]
    counts[order[: max(0, total - int(counts.sum()))]] += 1
    return counts


def _draw(y: Ints, counts: Ints, rng: np.random.Generator) -> Mask:
    """A mask of `counts[c]` random samples of each class c."""
    order = rng.permutation(len(y))
    order = order[np.argsort(y[order], kind="stable")]
    sizes = np.bincount(y, minlength=len(counts))
    rank = np.arange(len(y)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    selected = np.zeros(len(y), dtype=np.bool_)
    selected[order[rank < np.repeat(counts, sizes)]] = True
    return selected


def _check_two(party: str, positions: Ints) -> None:
    """Refuse a party with fewer than two samples."""
    if len(positions) < 2:
        raise UsageError(
            f"Party {party!r} has {len(positions)} sample, but one to train on and one to test on"
            " are needed; give it more samples or use fewer parties."
        )


def _check_fraction(rule: str, fraction: float | None) -> None:
    """Refuse a fraction outside (0, 1)."""
    if fraction is not None and not 0 < fraction < 1:
        raise UsageError(f"fraction of {rule} must be more than 0 and less than 1, not {fraction}.")
