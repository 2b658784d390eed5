"""Partitions: who gets which samples.

A partition is a function of the labels, the number of parties and a generator, and of options that
its signature declares. It returns one array of positions a party; no sample is given twice. Tries
are bounded: what cannot be drawn is refused. Partitions that follow the data's own groups are in
`groups.py`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from comity.base.samples import Ints
from comity.data.custom_partitions import GIVEN, OwnPartition, deal
from comity.data.groups import GROUPED, Groups, Piece
from comity.errors import UsageError, unknown
from comity.plugins import is_code
from comity.spec import Spec, call
from comity.text import first_paragraph

Partition = Callable[..., list[Ints]]
PARTITIONS: dict[str, Partition] = {}
TRIES = 100
PARTIES = 10  # unless told, and unless the data have parties of their own


def partition(function: Partition) -> Partition:
    """Register a partition under its own name; the first line of its docstring is what `comity
    list` shows.
    """
    PARTITIONS[function.__name__] = function
    return function


def partition_catalogue() -> list[dict[str, object]]:
    """Each partition's name, one-line description, and options with their defaults (None: must be
    given).
    """
    rows: list[dict[str, object]] = []
    for name, function in (PARTITIONS | GROUPED).items():
        options = list(inspect.signature(function).parameters.values())[3:]
        rows.append(
            {
                "name": name,
                "description": first_paragraph(inspect.getdoc(function) or ""),
                "options": {p.name: None if p.default is p.empty else p.default for p in options},
            }
        )
    return rows


def divide(
    spec: Spec,
    y: Ints,
    groups: Mapping[str, Groups],
    parties: int | None,
    rng: np.random.Generator,
    given: OwnPartition | None = None,
) -> dict[str, Ints | Piece]:
    """Follow `spec`, or a function that was `given`: each party's positions in `y`, and of which
    group they are where the partition follows groups.
    """
    if parties is not None and parties < 1:
        raise UsageError(f"There must be at least one party, not {parties}.")
    if spec.name in GROUPED:
        return dict(call(spec, GROUPED[spec.name], groups, parties, rng))
    own = given is not None or is_code(spec.name)
    if spec.name.startswith(GIVEN) and not own:
        raise UsageError(
            f"The partition {spec.name.removeprefix(GIVEN)} was given from Python as a function:"
            " name the split.json of its run."
        )
    if spec.name not in PARTITIONS and not own:
        raise unknown("partition", spec.name, PARTITIONS | GROUPED)
    asked, parties = parties, PARTIES if parties is None else parties
    if own:
        return dict(deal(spec, given, y, asked, parties, rng))
    if parties > len(y):
        raise UsageError(
            f"There are {len(y)} samples to share, too few for {parties} parties; use fewer"
            " parties."
        )
    return {
        f"p{i}": positions
        for i, positions in enumerate(call(spec, PARTITIONS[spec.name], y, parties, rng))
    }


@partition
def iid(y: Ints, parties: int, rng: np.random.Generator) -> list[Ints]:
    """Equal parts at random."""
    return np.array_split(rng.permutation(len(y)), parties)


@partition
def dirichlet(
    y: Ints,
    parties: int,
    rng: np.random.Generator,
    *,
    alpha: float,
    min: int = 10,
    balanced: bool = False,
) -> list[Ints]:
    """Each class is cut in shares drawn from Dir(alpha): the smaller alpha, the more parties
    differ.

    Drawn again until each party has `min` samples. `balanced`: a party that already holds its equal
    part of the data gets nothing of the classes that follow (Li et al. 2022, NIID-Bench).
    """
    _check_range("alpha of dirichlet", alpha, 0, 1e6)
    _check_min("dirichlet", min, parties, len(y))
    _, label, sizes = np.unique(y, return_inverse=True, return_counts=True)
    for _ in range(TRIES):
        table = _dirichlet_table(sizes, parties, rng, alpha, balanced)
        if table.sum(axis=0).min() >= min:
            return _deal(_by_class(label, rng), table)
    raise UsageError(
        f"{TRIES} draws of dirichlet with alpha={alpha} each left one of {parties} parties with"
        f" fewer than {min} samples; use a smaller min, a larger alpha or fewer parties."
    )


@partition
def mixture(
    y: Ints, parties: int, rng: np.random.Generator, *, alpha: float, samples: int | None = None
) -> list[Ints]:
    """Equally many samples each, of classes in shares that each party draws from Dir(alpha) (Hsu et
    al. 2019).

    `dirichlet` cuts classes and leaves sizes to chance, so few parties with a small alpha come out
    with enough; here any alpha goes with any size. `alpha` is that of a single class. Whoever finds
    a class used up gets more of its other classes, and where all of those are used up, of what is
    left.
    """
    _check_range("alpha of mixture", alpha, 0, 1e6)
    most = len(y) // parties
    if samples is not None and not 1 <= samples <= most:
        raise UsageError(
            f"samples of mixture must be from 1 to {most} for {parties} parties and {len(y)}"
            f" samples, not {samples}."
        )
    _, label, left = np.unique(y, return_inverse=True, return_counts=True)
    table = np.zeros((len(left), parties), dtype=np.int64)
    for i in range(parties):
        each = (
            most + (i < len(y) % parties) if samples is None else samples
        )  # all are dealt out, unless told
        drawn = rng.dirichlet(np.full(len(left), alpha))
        while wanted := each - int(table[:, i].sum()):
            shares = drawn * (left > 0) if (drawn * (left > 0)).sum() > 0 else left
            given = np.minimum(_cut(wanted, shares / shares.sum()), left)
            table[:, i] += given
            left = left - given
    order = _by_class(label, rng)
    rank = np.arange(len(y)) - np.searchsorted(label[order], label[order])
    return _deal(order[rank < table.sum(axis=1)[label[order]]], table)


@partition
def pathological(
    y: Ints, parties: int, rng: np.random.Generator, *, classes: int = 2, equal: bool = False
) -> list[Ints]:
    """Each party gets samples of exactly so many classes, in unequal amounts.

    Classes are dealt like cards, so that all are used as evenly as can be. A class's parties share
    all of its samples with weights drawn between 0.1 and 1 (`equal`: equally, as LG-FedAvg does);
    where parties are so few that a class has none, its samples go unused.
    """
    present, label, sizes = np.unique(y, return_inverse=True, return_counts=True)
    if not 1 <= classes <= len(sizes):
        raise UsageError(
            f"classes of pathological must be from 1 to {len(sizes)}, as the data have, not"
            f" {classes}."
        )
    hands = _hands(len(sizes), parties, rng, classes)
    table = np.zeros((len(sizes), parties), dtype=np.int64)
    for c, size in enumerate(sizes):
        takers = np.flatnonzero((hands == c).any(axis=1))
        if len(takers) > size:
            raise UsageError(
                f"{len(takers)} parties would share the {size} samples of class {present[c]}; "
                "use fewer parties or fewer classes a party."
            )
        if len(takers):
            weights = np.ones(len(takers)) if equal else rng.uniform(0.1, 1, len(takers))
            table[c, takers] = 1 + _cut(size - len(takers), weights / weights.sum())
    order = _by_class(label, rng)
    used = table.sum(axis=1) > 0
    return _deal(order[used[label[order]]], table)


@partition
def shard(
    y: Ints, parties: int, rng: np.random.Generator, *, per_party: int = 2, by_class: bool = False
) -> list[Ints]:
    """Samples sorted by label are cut in equal shards, and each party is dealt so many (McMahan et
    al. 2017).

    `by_class`: each class is cut in equally many shards, so that none holds two classes (FedUFO,
    section 4.1).
    """
    shards = parties * per_party
    if not 1 <= per_party <= len(y) // parties:
        raise UsageError(
            f"per_party of shard must be from 1 to {len(y) // parties} for {parties} parties and"
            f" {len(y)} samples, not {per_party}."
        )
    order = _by_class(y, rng)
    if by_class:
        sizes = np.unique(y, return_counts=True)[1]
        each, rest = divmod(shards, len(sizes))
        if rest or each > sizes.min():
            raise UsageError(
                f"{shards} shards cannot be {len(sizes)} classes cut in equally many of at least"
                " one sample; use other parties or per_party, or by_class=false."
            )
        pieces = [
            piece
            for one in np.split(order, np.cumsum(sizes)[:-1])
            for piece in np.array_split(one, each)
        ]
    else:
        pieces = np.array_split(order, shards)
    dealt = rng.permutation(shards).reshape(parties, per_party)
    return [np.concatenate([pieces[s] for s in hand]) for hand in dealt]


@partition
def quantity(
    y: Ints, parties: int, rng: np.random.Generator, *, beta: float = 0.5, min: int = 10
) -> list[Ints]:
    """Labels alike, sizes unequal: each party gets `min` samples, and of the rest a share drawn
    from Dir(beta).
    """
    _check_range("beta of quantity", beta, 0, 1e6)
    _check_min("quantity", min, parties, len(y))
    return _sized(len(y), min, rng.dirichlet(np.full(parties, beta)), rng)


@partition
def lognormal(
    y: Ints, parties: int, rng: np.random.Generator, *, sigma: float = 1.0, min: int = 10
) -> list[Ints]:
    """Labels alike, sizes unequal: each party gets `min` samples, and of the rest a log-normally
    drawn share.
    """
    _check_range("sigma of lognormal", sigma, 0, 100)
    _check_min("lognormal", min, parties, len(y))
    weights = np.exp(sigma * rng.normal(size=parties))
    return _sized(len(y), min, weights / weights.sum(), rng)


def _cut(total: int, shares: NDArray[np.float64]) -> Ints:
    """Whole numbers in proportion to `shares` that add up to `total`."""
    ends = np.rint(np.cumsum(shares)[:-1] * total).astype(np.int64)
    return np.diff(ends, prepend=0, append=total)


def _sized(
    samples: int, least: int, shares: NDArray[np.float64], rng: np.random.Generator
) -> list[Ints]:
    """Random parts of `least` samples each, and of the rest by `shares`."""
    sizes = least + _cut(samples - least * len(shares), shares)
    return np.split(rng.permutation(samples), np.cumsum(sizes)[:-1])


def _by_class(label: Ints, rng: np.random.Generator) -> Ints:
    """All positions, class after class, in random order within a class."""
    order = rng.permutation(len(label))
    return order[np.argsort(label[order], kind="stable")]


def _deal(order: Ints, table: Ints) -> list[Ints]:
    """Hand out positions sorted by class: `table[c, i]` of class c to party i."""
    owner = np.repeat(np.tile(np.arange(table.shape[1]), len(table)), table.ravel())
    return np.split(order[np.argsort(owner, kind="stable")], np.cumsum(table.sum(axis=0))[:-1])


def _dirichlet_table(
    sizes: Ints, parties: int, rng: np.random.Generator, alpha: float, balanced: bool
) -> Ints:
    """One draw of how many samples of each class each party gets."""
    table = np.zeros((len(sizes), parties), dtype=np.int64)
    held = np.zeros(parties, dtype=np.int64)
    for c, size in enumerate(sizes):
        shares = rng.dirichlet(np.full(parties, alpha))
        if balanced:
            room = held * parties < sizes.sum()  # never empty: this class is still to be given
            shares = np.where(room, shares, 0)
            shares = shares / shares.sum() if shares.sum() > 0 else room / room.sum()
        table[c] = _cut(size, shares)
        held += table[c]
    return table


def _hands(classes: int, parties: int, rng: np.random.Generator, each: int) -> Ints:
    """Deal `each` different classes to every party from one shuffled deck of classes after another."""
    hands: list[list[int]] = []
    deck: list[int] = []
    for _ in range(parties):
        hand, deck = deck[:each], deck[each:]
        if len(hand) < each:
            fresh = rng.permutation(classes).tolist()
            fresh = [c for c in fresh if c not in hand] + [c for c in fresh if c in hand]
            hand, deck = hand + fresh[: each - len(hand)], fresh[each - len(hand) :]
        hands.append(hand)
    return np.array(hands)


def _check_range(what: str, value: float, low: float, high: float) -> None:
    if not low < value <= high:
        raise UsageError(f"{what} must be more than {low} and at most {high:g}, not {value}.")


def _check_min(name: str, least: int, parties: int, samples: int) -> None:
    if least < 1:
        raise UsageError(f"min of {name} must be at least 1, not {least}.")
    if parties * least > samples:
        raise UsageError(
            f"{name} with min={least} needs {parties * least} samples for {parties} parties, but"
            f" there are {samples}; use a smaller min or fewer parties."
        )
