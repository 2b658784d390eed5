"""A federation: parties by name, each with the samples it trains, validates and tests on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property

import numpy as np
import torch
from torch import Tensor

from comity.base.key import Key
from comity.base.samples import Array, Ints, PartyData, Samples, combine
from comity.data.frames_given import named_columns, schema_of
from comity.data.preparation import Schema
from comity.data.protocols import Own, check_validation, read, stratified
from comity.data.split import Share, Split, check_name
from comity.errors import UsageError, unknown
from comity.spec import coerce

Pair = tuple[Array, Array]


@dataclass(frozen=True)
class Preprocess:
    """What is done to a party's values before a network sees them: scaled, normalised by constants,
    and filled in.
    """

    divisor: float = 1.0
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    marked: tuple[int, ...] = ()
    """Columns that may be missing: a column each is added that says where they were."""
    fills: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """What each party fills in for a missing value, by column, after normalising."""
    own: Mapping[str, tuple[tuple[float, ...], tuple[float, ...]]] = field(default_factory=dict)
    """Each party's own mean and std, where it has such."""
    label: tuple[float, float] = (0.0, 1.0)
    """Mean and std of a label that is a number."""
    own_label: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """Each party's own, where it has such."""

    @property
    def black(self) -> tuple[float, ...]:
        """What a pixel of 0 is once normalised, channel by channel."""
        return tuple(-m / s for m, s in zip(self.mean, self.std, strict=True))

    def for_party(self, party: str) -> Preprocess:
        """What is done to one party's values, and nothing of the others'."""
        mean, std = self.own.get(party, (self.mean, self.std))
        fills = {party: self.fills[party]} if party in self.fills else {}
        label = self.own_label.get(party, self.label)
        return replace(self, mean=mean, std=std, fills=fills, own={}, label=label, own_label={})

    def __hash__(self) -> int:
        return hash((self.divisor, self.mean, self.std, self.marked))

    def normal(self, x: Tensor) -> Tensor:
        """Values divided by `divisor`, less `mean`, over `std`."""
        values = x.float() / self.divisor if self.divisor != 1 else x
        mean, std = (torch.tensor(c).view(-1, *[1] * (x.dim() - 2)) for c in (self.mean, self.std))
        return (values - mean) / std

    def filled(self, x: Tensor, fill: Tensor) -> Tensor:
        """Missing values filled in, with the columns that say where."""
        marks = torch.tensor(self.marked, dtype=torch.int64)
        return torch.cat([torch.where(x.isnan(), fill, x), x[:, marks].isnan().float()], 1)

    def __call__(self, x: Tensor) -> Tensor:
        """Normalised and filled in, for a `Preprocess` of one party (`for_party`)."""
        x = self.normal(x.float())
        return self.filled(x, torch.tensor(next(iter(self.fills.values())))) if self.fills else x


@dataclass(frozen=True)
class Sums:
    """What a party tells of its numbers so that all can be scaled alike: count, sum and sum of
    squares of each column.
    """

    count: Tensor
    total: Tensor
    squares: Tensor

    @staticmethod
    def of(x: Tensor, columns: Sequence[int]) -> Sums:
        """Those of some samples' columns or channels; what is missing does not count."""
        values = x[:, list(columns)].double()
        over = [0, *range(2, x.dim())]
        there = ~values.isnan()
        values = values.nan_to_num(0.0)
        return Sums(there.sum(over).double(), values.sum(over), values.square().sum(over))

    @staticmethod
    def nothing(columns: Sequence[int]) -> Sums:
        """Those of no samples."""
        zero = torch.zeros(len(columns), dtype=torch.float64)
        return Sums(zero, zero, zero)

    def __add__(self, other: Sums) -> Sums:
        return Sums(
            self.count + other.count, self.total + other.total, self.squares + other.squares
        )

    def constants(
        self, width: int, columns: Sequence[int]
    ) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Mean and spread of all `width` columns; 0 and 1 for those that are not scaled, were never
        seen or never vary.
        """
        middle = self.total / self.count.clamp(min=1)
        spread = (self.squares / self.count.clamp(min=1) - middle.square()).clamp(min=0).sqrt()
        spread = torch.where(spread > SAME * middle.abs().clamp(min=SAME), spread, 1.0)
        mean, std = torch.zeros(width, dtype=torch.float64), torch.ones(width, dtype=torch.float64)
        mean[list(columns)], std[list(columns)] = middle, spread
        return tuple(mean.tolist()), tuple(std.tolist())


SAME = 1e-6  # a spread that is smaller than this part of the mean is rounding


@dataclass(frozen=True, eq=False, repr=False)
class Federation:
    """Parties in a fixed order, whose data differ but are of one shape and one set of classes."""

    name: str  # of the dataset
    parties: dict[str, PartyData] = field(repr=False)
    classes: int
    shape: tuple[int, ...]  # of one sample
    split: Split = field(repr=False)
    notes: tuple[str, ...] = ()
    """What a user should know of these data: a source that is missing, values that were filled in.
    """
    preprocess: Preprocess = Preprocess()
    """What was done to the values."""
    class_names: tuple[str, ...] = ()
    schema: Schema | None = field(default=None, repr=False)
    """Of a table: what its columns were, before they became numbers."""
    shared_columns: int = 0
    """Of how many columns parties send sums and squares, so that all scale them alike."""
    own_constants: bool = False
    """Whether inputs are scaled or filled in by figures of records: then one record moves what
    others are.
    """

    def __repr__(self) -> str:
        kinds = f"{self.classes} classes" if self.classes else "a number to predict"
        sizes = f"{min(self.sizes)} to {max(self.sizes)} training samples each"
        return (
            f"<federation {self.name}, {self.split.partition}: {len(self.names)} parties, {kinds},"
            f" {sizes}>"
        )

    def _repr_html_(self) -> str:
        from comity.notebook.views import of_federation

        return of_federation(self)

    @property
    def names(self) -> list[str]:
        """The parties' names, in order."""
        return list(self.parties)

    @property
    def sizes(self) -> list[int]:
        """How many training samples each party has."""
        return [len(party.train) for party in self.parties.values()]

    def without(self, names: Iterable[str]) -> Federation:
        """The same federation with some parties missing; the others' data, and the split, are what
        they were.
        """
        missing = set(names)
        if strangers := sorted(missing - self.parties.keys()):
            raise unknown("party called", strangers[0], self.names)
        return replace(
            self, parties={name: data for name, data in self.parties.items() if name not in missing}
        )

    def counts(self) -> Tensor:
        """How many training samples of each class (columns) each party (rows) has; in one column
        where there are no classes.
        """
        if not self.classes:
            return torch.tensor(self.sizes)[:, None]
        return torch.stack(
            [torch.bincount(p.train.y, minlength=self.classes) for p in self.parties.values()]
        )

    def fingerprint(self) -> str:
        """A short name for exactly these parties and values: a resumed run checks that its data are
        the same.
        """
        return self._fingerprint

    @cached_property
    def _fingerprint(self) -> str:
        digest = cache(Samples.digest)  # a common test set is one object, and read once
        return combine(
            (name, *map(digest, (p.train, p.validation, p.test)))
            for name, p in self.parties.items()
        )

    @staticmethod
    def from_arrays(
        parties: Mapping[str, Pair | tuple[Pair, Pair]],
        test: str = "own(0.25)",
        validation: float = 0.1,
        seed: int = 0,
        classes: int | None = None,
    ) -> Federation:
        """Parties that bring their own data: numpy arrays, tensors, lists or pandas frames, whose
        columns keep their names.

        A party gives `(x, y)`, of which the `own` protocol keeps a test part, or `((x, y), (x_test,
        y_test))`. Values are used as they are. Without `classes`, there are as many as the largest
        label says; with `classes=0` labels are numbers that are to be predicted.

        Examples:
            >>> from comity.data import load
            >>> digits = load("digits")
            >>> north, south = (digits.x[:60], digits.y[:60]), (digits.x[60:100], digits.y[60:100])
            >>> fed = Federation.from_arrays({"north": north, "south": south}, classes=10)
            >>> fed.names, fed.shape, fed.classes
            (['north', 'south'], (1, 8, 8), 10)
            >>> [len(party.test) for party in fed.parties.values()]
            [15, 10]
        """
        rule = read(test)
        validation = check_validation(validation)
        seed = coerce("seed", seed, int)
        if not isinstance(rule, Own):
            raise UsageError(
                f"Parties that bring their own arrays have no common test set for {test!r}; "
                "use own(...) or tail(...), or give each party a test pair."
            )
        if not isinstance(parties, Mapping) or not parties:
            raise UsageError(
                "A federation needs a dict with at least one party, as in {'north': (x, y)}."
            )
        parties, columns = named_columns(parties)
        key = Key.root(seed).fold("data")
        amounts = classes == 0
        given = {name: _gather(name, value, amounts) for name, value in parties.items()}
        shape = _one_shape({f"party {name!r}": samples for name, (samples, _) in given.items()})
        if not amounts:
            classes = _count_classes(
                {name: samples for name, (samples, _) in given.items()}, classes
            )

        data: dict[str, PartyData] = {}
        shares: dict[str, Share] = {}
        for name, (samples, tests) in given.items():
            y = np.zeros(len(samples), np.int64) if amounts else samples.y.numpy()
            everything = np.arange(len(samples))
            if tests:
                learn, held = everything[:-tests], everything[-tests:]
            else:
                learn, held = rule.divide(
                    name, y, everything, everything[:0], None, key.fold("test", name).numpy()
                )
            shares[name] = share(name, y, learn, held, validation=validation, key=key)
            train, validation_part, test_part = (
                samples.take(i) for i in (shares[name].train, shares[name].validation, held)
            )
            data[name] = PartyData(train, validation_part, test_part)
        fingerprint = combine((name, samples.digest()) for name, (samples, _) in given.items())
        split = Split("arrays", fingerprint, "given", test, validation, seed, shares)
        return Federation(
            "arrays", data, classes or 0, shape, split, schema=schema_of(columns, classes or 0)
        )


def share(
    party: str,
    y: Ints,
    learn: Ints,
    test: Ints,
    *,
    validation: float,
    key: Key,
    shift: str | None = None,
    labels: tuple[int, ...] | None = None,
) -> Share:
    """A party's share: of what it learns from, a stratified part is kept for validation (none if it
    has too few).
    """
    kept = stratified(y[learn], validation, key.fold("validation", party).numpy())
    return Share(
        tuple(learn[~kept].tolist()),
        tuple(learn[kept].tolist()),
        tuple(test.tolist()),
        shift,
        labels,
    )


def _gather(name: str, given: Pair | tuple[Pair, Pair], amounts: bool) -> tuple[Samples, int]:
    """A party's samples, and how many at their end it gave for testing."""
    check_name(name)
    if not isinstance(given, tuple | list) or len(given) != 2:
        raise UsageError(f"Party {name!r} must give (x, y), or ((x, y), (x_test, y_test)).")
    if not all(
        isinstance(part, tuple) and len(part) == 2 for part in given
    ):  # lists are arrays, tuples are pairs
        return Samples.of(f"party {name!r}", *given, amounts=amounts), 0
    train, test = (
        Samples.of(f"{what} of party {name!r}", *pair, amounts=amounts)
        for what, pair in zip(("the training part", "the test part"), given, strict=True)
    )
    _one_shape({f"the training part of party {name!r}": train, "its test part": test})
    return Samples(torch.cat([train.x, test.x]), torch.cat([train.y, test.y])), len(test)


def _one_shape(samples: dict[str, Samples]) -> tuple[int, ...]:
    """The shape that all these have."""
    (first, expected), *others = [(owner, s.shape) for owner, s in samples.items()]
    for owner, shape in others:
        if shape != expected:
            raise UsageError(
                f"A sample of {owner} has shape {shape}, but one of {first} has {expected}; bring"
                " all to one shape."
            )
    return expected


def _count_classes(samples: dict[str, Samples], classes: int | None) -> int:
    """`classes`, which no label may reach, or as many as the labels show."""
    if classes is None:
        inferred = 1 + max(int(s.y.max()) for s in samples.values())
        if inferred > sum(map(len, samples.values())):
            raise UsageError(
                f"The labels reach {inferred - 1}, but there are fewer samples than that; "
                "number the classes from 0, or say how many there are with classes."
            )
        return inferred
    wanted: int = coerce("classes", classes, int)
    for name, part in samples.items():
        if part.y.max() >= wanted:
            raise UsageError(
                f"Party {name!r} has the label {int(part.y.max())}, but labels must be less than"
                f" classes={wanted}."
            )
    return wanted
