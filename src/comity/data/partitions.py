"""Partitions: rules that assign samples to parties.

A partition is a function of the labels, the number of parties and a generator, with options as
keyword arguments. It returns one array of positions per party; no sample is assigned twice. The
number of random draws is bounded: if no draw satisfies the options, the partition is refused.
Partitions by the natural groups of the data are in `groups.py`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from comity.base.samples import Ints
from comity.data.custom_partitions import PYTHON_PREFIX, CustomPartition, apply_custom_partition
from comity.data.groups import GROUPED, Groups, Piece
from comity.errors import UsageError, unknown
from comity.plugins import is_code
from comity.spec import Spec, call
from comity.text import first_paragraph

Partition = Callable[..., list[Ints]]
PARTITIONS: dict[str, Partition] = {}
TRIES = 100
"""Number of random draws after which a partition is refused."""
PARTIES = 10
"""Default number of parties, for data without natural parties."""


def partition(function: Partition) -> Partition:
    """Register a partition under its function name.

    `comity list partitions` shows the first paragraph of its docstring.
    """
    PARTITIONS[function.__name__] = function
    return function


def partition_catalogue() -> list[dict[str, object]]:
    """Name, description and options of each partition.

    Options are given with their defaults; None marks a required option.
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
    custom: CustomPartition | None = None,
) -> dict[str, Ints | Piece]:
    """Partition samples as `spec` says, or by the function `custom`.

    Returns:
        Each party's positions in `y`. Partitions by natural groups also give the group.

    Raises:
        UsageError: if the partition is unknown, or does not fit the data.
    """
    if parties is not None and parties < 1:
        raise UsageError(f"There must be at least one party, not {parties}.")
    if spec.name in GROUPED:
        return dict(call(spec, GROUPED[spec.name], groups, parties, rng))
    is_custom = custom is not None or is_code(spec.name)
    if spec.name.startswith(PYTHON_PREFIX) and not is_custom:
        raise UsageError(
            f"The partition {spec.name.removeprefix(PYTHON_PREFIX)} is a function that was passed"
            " from Python: use the split.json of its run instead."
        )
    if spec.name not in PARTITIONS and not is_custom:
        raise unknown("partition", spec.name, PARTITIONS | GROUPED)
    requested, parties = parties, PARTIES if parties is None else parties
    if is_custom:
        return dict(apply_custom_partition(spec, custom, y, requested, parties, rng))
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
    """Equal random parts."""
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
    """Each class is divided by shares drawn from Dir(alpha): the smaller alpha, the more parties
    differ.

    Shares are drawn again until each party has `min` samples. With `balanced`, a party that already
    has 1/parties of all samples gets no samples of the following classes (Li et al. 2022,
    NIID-Bench).
    """
    _check_range("alpha of dirichlet", alpha, 0, 1e6)
    _check_min("dirichlet", min, parties, len(y))
    _, label, sizes = np.unique(y, return_inverse=True, return_counts=True)
    for _ in range(TRIES):
        table = _dirichlet_table(sizes, parties, rng, alpha, balanced)
        if table.sum(axis=0).min() >= min:
            return _assign(_by_class(label, rng), table)
    raise UsageError(
        f"{TRIES} draws of dirichlet with alpha={alpha} each left one of {parties} parties with"
        f" fewer than {min} samples; use a smaller min, a larger alpha or fewer parties."
    )


@partition
def mixture(
    y: Ints, parties: int, rng: np.random.Generator, *, alpha: float, samples: int | None = None
) -> list[Ints]:
    """Parties of equal size, whose class shares are drawn from Dir(alpha) (Hsu et al. 2019).

    With `dirichlet`, party sizes are random, and a small alpha leaves some parties with too few
    samples. Here any alpha works with any party size. `alpha` is the concentration of a single
    class. If a class has no samples left, a party gets more of its other classes; if those are
    used up too, it gets samples of the remaining classes.
    """
    _check_range("alpha of mixture", alpha, 0, 1e6)
    largest = len(y) // parties
    if samples is not None and not 1 <= samples <= largest:
        raise UsageError(
            f"samples of mixture must be from 1 to {largest} for {parties} parties and {len(y)}"
            f" samples, not {samples}."
        )
    _, label, available = np.unique(y, return_inverse=True, return_counts=True)
    table = np.zeros((len(available), parties), dtype=np.int64)
    for i in range(parties):
        # Without `samples`, all samples are assigned.
        size = largest + (i < len(y) % parties) if samples is None else samples
        class_shares = rng.dirichlet(np.full(len(available), alpha))
        while lacking := size - int(table[:, i].sum()):
            shares = (
                class_shares * (available > 0)
                if (class_shares * (available > 0)).sum() > 0
                else available
            )
            counts = np.minimum(_apportion(lacking, shares / shares.sum()), available)
            table[:, i] += counts
            available = available - counts
    order = _by_class(label, rng)
    rank = np.arange(len(y)) - np.searchsorted(label[order], label[order])
    return _assign(order[rank < table.sum(axis=1)[label[order]]], table)


@partition
def pathological(
    y: Ints, parties: int, rng: np.random.Generator, *, classes: int = 2, equal: bool = False
) -> list[Ints]:
    """Each party gets samples of exactly `classes` classes, in unequal amounts.

    Classes are assigned as evenly as possible. The parties of a class share all its samples with
    weights drawn between 0.1 and 1 (with `equal`: equally, as in LG-FedAvg). If there are too few
    parties to cover all classes, the samples of the others are not used.
    """
    present, label, sizes = np.unique(y, return_inverse=True, return_counts=True)
    if not 1 <= classes <= len(sizes):
        raise UsageError(
            f"classes of pathological must be from 1 to {len(sizes)}, as the data have, not"
            f" {classes}."
        )
    hands = _draw_classes(len(sizes), parties, rng, classes)
    table = np.zeros((len(sizes), parties), dtype=np.int64)
    for c, size in enumerate(sizes):
        takers = np.flatnonzero((hands == c).any(axis=1))
        if len(takers) > size:
            raise UsageError(
                f"{len(takers)} parties would share the {size} samples of class {present[c]}; "
                "use fewer parties or fewer classes per party."
            )
        if len(takers):
            weights = np.ones(len(takers)) if equal else rng.uniform(0.1, 1, len(takers))
            table[c, takers] = 1 + _apportion(size - len(takers), weights / weights.sum())
    order = _by_class(label, rng)
    used = table.sum(axis=1) > 0
    return _assign(order[used[label[order]]], table)


@partition
def shard(
    y: Ints, parties: int, rng: np.random.Generator, *, per_party: int = 2, by_class: bool = False
) -> list[Ints]:
    """Samples sorted by label are divided into equal shards, of which each party gets `per_party`
    (McMahan et al. 2017).

    With `by_class`, each class is divided into the same number of shards, so that no shard holds
    two classes (FedUFO, section 4.1).
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
        per_class, remainder = divmod(shards, len(sizes))
        if remainder or per_class > sizes.min():
            raise UsageError(
                f"{len(sizes)} classes cannot be divided equally into {shards} shards of at least"
                " one sample; change parties or per_party, or use by_class=false."
            )
        pieces = [
            piece
            for class_positions in np.split(order, np.cumsum(sizes)[:-1])
            for piece in np.array_split(class_positions, per_class)
        ]
    else:
        pieces = np.array_split(order, shards)
    assignment = rng.permutation(shards).reshape(parties, per_party)
    return [np.concatenate([pieces[s] for s in hand]) for hand in assignment]


@partition
def quantity(
    y: Ints, parties: int, rng: np.random.Generator, *, beta: float = 0.5, min: int = 10
) -> list[Ints]:
    """Random samples, unequal party sizes: each party gets `min` samples and a share of the rest
    drawn from Dir(beta).
    """
    _check_range("beta of quantity", beta, 0, 1e6)
    _check_min("quantity", min, parties, len(y))
    return _random_parts(len(y), min, rng.dirichlet(np.full(parties, beta)), rng)


@partition
def lognormal(
    y: Ints, parties: int, rng: np.random.Generator, *, sigma: float = 1.0, min: int = 10
) -> list[Ints]:
    """Random samples, unequal party sizes: each party gets `min` samples and a log-normally
    distributed share of the rest.
    """
    _check_range("sigma of lognormal", sigma, 0, 100)
    _check_min("lognormal", min, parties, len(y))
    weights = np.exp(sigma * rng.normal(size=parties))
    return _random_parts(len(y), min, weights / weights.sum(), rng)


def _apportion(total: int, shares: NDArray[np.float64]) -> Ints:
    """Integers in proportion to `shares` that add up to `total`."""
    ends = np.rint(np.cumsum(shares)[:-1] * total).astype(np.int64)
    return np.diff(ends, prepend=0, append=total)


def _random_parts(
    samples: int, least: int, shares: NDArray[np.float64], rng: np.random.Generator
) -> list[Ints]:
    """Random parts: `least` samples each, and the rest in proportion to `shares`."""
    sizes = least + _apportion(samples - least * len(shares), shares)
    return np.split(rng.permutation(samples), np.cumsum(sizes)[:-1])


def _by_class(label: Ints, rng: np.random.Generator) -> Ints:
    """All positions sorted by class, in random order within a class."""
    order = rng.permutation(len(label))
    return order[np.argsort(label[order], kind="stable")]


def _assign(order: Ints, table: Ints) -> list[Ints]:
    """Assign positions sorted by class: `table[c, i]` of class c to party i."""
    owner = np.repeat(np.tile(np.arange(table.shape[1]), len(table)), table.ravel())
    return np.split(order[np.argsort(owner, kind="stable")], np.cumsum(table.sum(axis=0))[:-1])


def _dirichlet_table(
    sizes: Ints, parties: int, rng: np.random.Generator, alpha: float, balanced: bool
) -> Ints:
    """Draw the number of samples of each class (rows) for each party (columns)."""
    table = np.zeros((len(sizes), parties), dtype=np.int64)
    totals = np.zeros(parties, dtype=np.int64)
    for c, size in enumerate(sizes):
        shares = rng.dirichlet(np.full(parties, alpha))
        if balanced:
            # At least one party has room, because this class is not yet assigned.
            room = totals * parties < sizes.sum()
            shares = np.where(room, shares, 0)
            shares = shares / shares.sum() if shares.sum() > 0 else room / room.sum()
        table[c] = _apportion(size, shares)
        totals += table[c]
    return table


def _draw_classes(classes: int, parties: int, rng: np.random.Generator, count: int) -> Ints:
    """Draw `count` different classes for each party, using every class about equally often.

    Classes are taken from a shuffled deck; an empty deck is replaced by a new one.
    """
    hands: list[list[int]] = []
    deck: list[int] = []
    for _ in range(parties):
        hand, deck = deck[:count], deck[count:]
        if len(hand) < count:
            shuffled = rng.permutation(classes).tolist()
            shuffled = [c for c in shuffled if c not in hand] + [c for c in shuffled if c in hand]
            hand, deck = hand + shuffled[: count - len(hand)], shuffled[count - len(hand) :]
        hands.append(hand)
    return np.array(hands)


def _check_range(what: str, value: float, low: float, high: float) -> None:
    """Refuse a value outside (low, high]."""
    if not low < value <= high:
        raise UsageError(f"{what} must be more than {low} and at most {high:g}, not {value}.")


def _check_min(name: str, least: int, parties: int, samples: int) -> None:
    """Refuse a minimum party size that is below 1, or that the samples do not allow."""
    if least < 1:
        raise UsageError(f"min of {name} must be at least 1, not {least}.")
    if parties * least > samples:
        raise UsageError(
            f"{name} with min={least} needs {parties * least} samples for {parties} parties, but"
            f" there are {samples}; use a smaller min or fewer parties."
        )
