"""`Federation`: parties by name, each with training, validation and test samples."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from comity.base.key import Key
from comity.base.samples import Array, Ints, PartyData, Samples, combine, digest_of
from comity.data.frames import FrameColumns
from comity.data.preparation import Schema
from comity.data.protocols import OwnPart, OwnSamples, check_validation, stratified, under_seed
from comity.data.split import Indices, Share, Split, check_name
from comity.errors import UsageError, unknown
from comity.html import view
from comity.machine import FreedMemory
from comity.spec import coerce

Pair = tuple[Array, Array]
TorchDataset = torch.utils.data.Dataset[Any]
PartyInput = Pair | tuple[Pair, Pair] | TorchDataset | tuple[TorchDataset, TorchDataset]
"""The samples of a party: one pair or dataset, or one for training and one for testing."""


@dataclass(frozen=True)
class Preprocess:
    """The preprocessing of parties' values: division, normalisation and imputation.

    Field names are keys of the `model.json` of exported models.
    """

    divisor: float = 1.0
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    marked: tuple[int, ...] = ()
    """Columns that may have missing values; each gets an indicator column."""
    fills: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """By party: the value of each column that replaces a missing one, after normalisation."""
    own: Mapping[str, tuple[tuple[float, ...], tuple[float, ...]]] = field(default_factory=dict)
    """By party: its mean and std, where parties are scaled by their own statistics."""
    label: tuple[float, float] = (0.0, 1.0)
    """Mean and std of the label, in regression."""
    own_label: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """By party: mean and std of its labels, where these are its own statistics."""

    @property
    def black(self) -> tuple[float, ...]:
        """The normalised value of a pixel of 0, by channel."""
        return tuple(-m / s for m, s in zip(self.mean, self.std, strict=True))

    def for_party(self, party: str) -> Preprocess:
        """The preprocessing of one party, without the statistics of the others."""
        mean, std = self.own.get(party, (self.mean, self.std))
        fills = {party: self.fills[party]} if party in self.fills else {}
        label = self.own_label.get(party, self.label)
        return replace(self, mean=mean, std=std, fills=fills, own={}, label=label, own_label={})

    def __hash__(self) -> int:
        return hash((self.divisor, self.mean, self.std, self.marked))

    def normalise(self, x: Tensor) -> Tensor:
        """Normalise: `(x / divisor - mean) / std`."""
        values = x.float() / self.divisor if self.divisor != 1 else x
        mean, std = (torch.tensor(c).view(-1, *[1] * (x.dim() - 2)) for c in (self.mean, self.std))
        return (values - mean) / std

    def fill_missing(self, x: Tensor, fill: Tensor) -> Tensor:
        """Replace missing values by `fill`, and append the indicator columns."""
        marks = torch.tensor(self.marked, dtype=torch.int64)
        return torch.cat([torch.where(x.isnan(), fill, x), x[:, marks].isnan().float()], 1)

    def __call__(self, x: Tensor) -> Tensor:
        """Normalise and impute; for the `Preprocess` of one party (see `for_party`)."""
        x = self.normalise(x.float())
        if not self.fills:
            return x
        fill = next(iter(self.fills.values()))
        return self.fill_missing(x, torch.tensor(fill))


@dataclass(frozen=True)
class Sums:
    """The statistics that a party sends for shared scaling: per column, the count of present
    values, their sum and their sum of squares.
    """

    count: Tensor
    total: Tensor
    squares: Tensor

    @staticmethod
    def of(x: Tensor, columns: Sequence[int]) -> Sums:
        """The sums over these columns or channels of the samples; missing values do not count."""
        values = x[:, list(columns)].double()
        dimensions = [0, *range(2, x.dim())]
        is_present = ~values.isnan()
        values = values.nan_to_num(0.0)
        return Sums(
            is_present.sum(dimensions).double(),
            values.sum(dimensions),
            values.square().sum(dimensions),
        )

    @staticmethod
    def nothing(columns: Sequence[int]) -> Sums:
        """The sums over no samples."""
        zero = torch.zeros(len(columns), dtype=torch.float64)
        return Sums(zero, zero, zero)

    def __add__(self, other: Sums) -> Sums:
        return Sums(
            self.count + other.count, self.total + other.total, self.squares + other.squares
        )

    def constants(
        self, width: int, columns: Sequence[int]
    ) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Mean and standard deviation of all `width` columns.

        They are 0 and 1 for a column that is not in `columns`, and the standard deviation is 1 for
        a column without values or with constant values.
        """
        mean_of_columns = self.total / self.count.clamp(min=1)
        std_of_columns = (
            (self.squares / self.count.clamp(min=1) - mean_of_columns.square()).clamp(min=0).sqrt()
        )
        std_of_columns = torch.where(
            std_of_columns > SMALLEST_SPREAD * mean_of_columns.abs().clamp(min=SMALLEST_SPREAD),
            std_of_columns,
            1.0,
        )
        mean, std = torch.zeros(width, dtype=torch.float64), torch.ones(width, dtype=torch.float64)
        mean[list(columns)], std[list(columns)] = mean_of_columns, std_of_columns
        return tuple(mean.tolist()), tuple(std.tolist())


SMALLEST_SPREAD = 1e-6
"""A standard deviation below this fraction of the mean is taken for a rounding error."""


@dataclass(frozen=True, eq=False, repr=False)
class Federation:
    """Parties in a fixed order; their samples have the same shape and the same classes."""

    name: str
    """Name of the dataset."""
    parties: dict[str, PartyData] = field(repr=False)
    classes: int
    shape: tuple[int, ...]
    """Shape of one sample."""
    split: Split = field(repr=False)
    warnings: tuple[str, ...] = ()
    """Sentences for the user about the data, for example missing sources or imputed values."""
    preprocess: Preprocess = Preprocess()
    """The preprocessing that was applied to the values."""
    class_names: tuple[str, ...] = ()
    schema: Schema | None = field(default=None, repr=False)
    """The columns of a table before they were encoded as numbers."""
    shared_columns: int = 0
    """Number of columns whose sums and squares parties send for shared scaling."""
    own_constants: bool = False
    """Whether inputs are scaled or imputed by statistics of a party's records. If so, one record
    changes the preprocessed values of other records.
    """

    def __repr__(self) -> str:
        kinds = f"{self.classes} classes" if self.classes else "a number to predict"
        sizes = f"{min(self.sizes)} to {max(self.sizes)} training samples each"
        return (
            f"<federation {self.name}, {self.split.partition}: {len(self.names)} parties, {kinds},"
            f" {sizes}>"
        )

    def _repr_html_(self) -> str:
        return view(self)

    def schema_at(self, party: str) -> Schema | None:
        """The schema for the files of one party, with its own missing values and units; None for
        data that are no table.
        """
        return self.schema and self.schema.at(party)

    @property
    def names(self) -> list[str]:
        """The names of the parties, in order."""
        return list(self.parties)

    @property
    def sizes(self) -> list[int]:
        """The number of training samples of each party."""
        return [len(party.train) for party in self.parties.values()]

    def without(self, names: Iterable[str]) -> Federation:
        """The federation without some parties; the data of the others and the split do not change.

        Raises:
            UsageError: if a name is not that of a party.
        """
        missing = set(names)
        if unknown_names := sorted(missing - self.parties.keys()):
            raise unknown("party called", unknown_names[0], self.names)
        return replace(
            self, parties={name: data for name, data in self.parties.items() if name not in missing}
        )

    def under_folds(self, test: str, seed: int) -> Federation:
        """The same parties, tested by cross-validation: on the fold of `test`, as in `folds(5)`,
        that belongs to a seed.

        Values keep the scaling and imputation of this federation, whose constants come from its
        own training samples.

        Raises:
            UsageError: if parties are not tested on samples of their own, or the data name
                patients, of whom a federation knows only those in training.
        """
        rule, partition_seed = under_seed(test, seed)
        if not isinstance(under_seed(self.split.test, seed)[0], OwnSamples):
            raise UsageError(
                f"Cross-validation tests parties on their own samples, but this federation was made"
                f" with test={self.split.test!r}: make it with test={test!r}."
            )
        if any(party.patients is not None for party in self.parties.values()):
            raise UsageError(
                "Cross-validation must keep a patient's samples together, and a federation knows"
                f" the patients of its training samples only: make it with test={test!r}, or give"
                " data and partition in place of a federation."
            )
        key = Key.root(partition_seed).fold("data")
        shares: dict[str, Share] = {}
        parties: dict[str, PartyData] = {}
        for name, data in self.parties.items():
            before = self.split.parties[name]
            samples, order = _in_order(data, before)
            y = samples.y.numpy() if self.classes else np.zeros(len(samples), np.int64)
            train, tests = rule.divide(OwnPart.whole(name, y), key.fold("test", name).numpy())
            part = share(name, y, train, tests, validation=self.split.validation, key=key)
            parties[name] = replace(
                data,
                train=samples.take(part.train),
                validation=samples.take(part.validation),
                test=samples.take(part.test),
            )
            shares[name] = replace(
                before,
                train=tuple(order[list(part.train)].tolist()),
                validation=tuple(order[list(part.validation)].tolist()),
                test=tuple(order[list(part.test)].tolist()),
            )
        split = replace(self.split, test=test, seed=seed, parties=shares)
        return replace(self, parties=parties, split=split)

    def counts(self) -> Tensor:
        """The number of training samples per party (rows) and class (columns).

        In regression there is one column.
        """
        if not self.classes:
            return torch.tensor(self.sizes)[:, None]
        return torch.stack(
            [torch.bincount(p.train.y, minlength=self.classes) for p in self.parties.values()]
        )

    def fingerprint(self) -> str:
        """A hash of all parties and values, by which a resumed run checks its data."""
        return self._fingerprint

    @cached_property
    def _fingerprint(self) -> str:
        digest = cache(Samples.digest)  # a common test set is one object and is hashed once

        def parts(party: PartyData) -> list[str]:
            patients = [] if party.patients is None else [combine(party.patients.tolist())]
            return [*map(digest, (party.train, party.validation, party.test)), *patients]

        return combine((name, *parts(party)) for name, party in self.parties.items())

    @staticmethod
    def from_arrays(
        parties: Mapping[str, PartyInput],
        test: str = "own(0.25)",
        validation: float = 0.1,
        seed: int = 0,
        classes: int | None = None,
    ) -> Federation:
        """Build a federation from each party's arrays.

        Args:
            parties: by name, `(x, y)` or `((x, y), (x_test, y_test))`, as numpy arrays, tensors,
                lists or pandas frames; or a torch dataset in place of a pair. Columns of
                frames are matched by name. Values are used without scaling.
            test: test protocol for parties without test arrays: `own(...)`, `tail(...)` or
                `folds(...)`.
            validation: fraction of the training samples that is used for validation.
            seed: seed of the random choices.
            classes: number of classes; 0 for regression. Default: the largest label plus 1, if
                all labels from 0 occur.

        Raises:
            UsageError: if the arrays do not fit together.

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
        validation = check_validation(validation)
        seed = coerce("seed", seed, int)
        rule, partition_seed = under_seed(test, seed)
        if not isinstance(rule, OwnSamples):
            raise UsageError(
                f"Parties that bring their own arrays have no common test set for {test!r}; "
                "use own(...), tail(...) or folds(...), or give each party a test pair."
            )
        if not isinstance(parties, Mapping) or not parties:
            raise UsageError(
                "A federation needs a dict with at least one party, as in {'north': (x, y)}."
            )
        columns = FrameColumns.of(parties)
        inputs = dict(parties)
        del parties  # frees, as they are read, arrays that the caller does not keep
        key = Key.root(partition_seed).fold("data")
        amounts = classes == 0
        # Only one party's samples are in memory twice, beside the arrays that the caller keeps.
        freed = FreedMemory()
        arrays: dict[str, _PartyArrays] = {}
        for name in list(inputs):
            arrays[name] = _read_party(name, columns.arrays(inputs.pop(name)), amounts)
            freed.add(arrays[name].nbytes)
        shape = _check_same_shape(
            {f"party {name!r}": party.samples for name, party in arrays.items()}
        )
        if not amounts:
            classes = _count_classes({name: party.y for name, party in arrays.items()}, classes)

        data: dict[str, PartyData] = {}
        shares: dict[str, Share] = {}
        digests: list[tuple[str, str]] = []
        for name in list(arrays):
            party = arrays.pop(name)
            digests.append((name, party.digest()))
            y = np.zeros(len(party.y), np.int64) if amounts else party.y.numpy()
            if party.tests:
                train_positions, test_positions = np.split(np.arange(len(y)), [len(party.samples)])
            else:
                train_positions, test_positions = rule.divide(
                    OwnPart.whole(name, y), key.fold("test", name).numpy()
                )
            shares[name] = share(
                name, y, train_positions, test_positions, validation=validation, key=key
            )
            data[name] = PartyData(
                _take(party.samples, shares[name].train),
                _take(party.samples, shares[name].validation),
                party.tests or _take(party.samples, tuple(test_positions.tolist())),
            )
            freed.add(party.nbytes)
        fingerprint = combine(digests)
        split = Split("arrays", fingerprint, "given", test, validation, seed, shares)
        return Federation(
            "arrays", data, classes or 0, shape, split, schema=columns.schema(classes or 0)
        )


def share(
    party: str,
    y: Ints,
    train: Ints,
    test: Ints,
    *,
    validation: float,
    key: Key,
    shift: str | None = None,
    labels: tuple[int, ...] | None = None,
) -> Share:
    """Build a party's share: a stratified part of `train` becomes the validation part.

    A party with too few samples gets no validation part.
    """
    is_validation = stratified(y[train], validation, key.fold("validation", party).numpy())
    return Share(
        tuple(train[~is_validation].tolist()),
        tuple(train[is_validation].tolist()),
        tuple(test.tolist()),
        shift,
        labels,
    )


def _in_order(data: PartyData, part: Share) -> tuple[Samples, Ints]:
    """All samples of a party in the order of their positions, and the positions."""
    parts = (data.train, data.validation, data.test)
    positions = np.array(part.train + part.validation + part.test, dtype=np.int64)
    order = np.argsort(positions)
    samples = Samples(
        torch.cat([samples.x for samples in parts]), torch.cat([samples.y for samples in parts])
    )
    return samples.take(order), positions[order]


class _PartyArrays(NamedTuple):
    """The samples that a party gave."""

    samples: Samples
    tests: Samples | None
    """Its test samples, if it gave them apart. Their positions follow those of `samples`."""

    @property
    def parts(self) -> list[Samples]:
        return [self.samples, self.tests] if self.tests else [self.samples]

    @property
    def y(self) -> Tensor:
        return torch.cat([part.y for part in self.parts])

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self.parts)

    def digest(self) -> str:
        return digest_of(self.parts)


def _read_party(name: str, party_input: PartyInput, amounts: bool) -> _PartyArrays:
    """Checked copies of a party's arrays."""
    check_name(name)
    value = _unpack(name, party_input)
    if not isinstance(value, tuple | list) or len(value) != 2:
        raise UsageError(f"Party {name!r} must give (x, y), or ((x, y), (x_test, y_test)).")
    # Lists are arrays; only tuples are pairs.
    if not all(isinstance(part, tuple) and len(part) == 2 for part in value):
        return _PartyArrays(Samples.of(f"party {name!r}", *value, amounts=amounts), None)
    train, tests = (
        Samples.of(f"{what} of party {name!r}", *pair, amounts=amounts)
        for what, pair in zip(("the training part", "the test part"), value, strict=True)
    )
    _check_same_shape({f"the training part of party {name!r}": train, "its test part": tests})
    return _PartyArrays(train, tests)


def _take(samples: Samples, positions: Indices) -> Samples:
    """The samples at these positions, which are in order; not copied if they are all."""
    return samples if len(positions) == len(samples) else samples.take(positions)


def _unpack(name: str, value: Any) -> Any:
    """The arrays of torch datasets: of one, or of a pair for training and test. Other values are
    returned as they are.
    """
    if isinstance(value, torch.utils.data.Dataset):
        return _arrays_of(name, value)
    if isinstance(value, tuple) and any(isinstance(v, torch.utils.data.Dataset) for v in value):
        return tuple(_unpack(name, part) for part in value)
    return value


def _arrays_of(name: str, dataset: TorchDataset) -> tuple[Any, Any]:
    """All samples of a torch dataset as two arrays."""
    try:
        items = [dataset[k] for k in range(len(dataset))]  # type: ignore[arg-type]
        return (
            torch.stack([torch.as_tensor(x) for x, _ in items]),
            torch.as_tensor([float(y) for _, y in items]),
        )
    except Exception as why:
        raise UsageError(
            f"The torch dataset of party {name!r} must have a length, and items (x, y) with x a"
            f" tensor and y a number (for pictures: transform=ToTensor()): {why}"
        ) from why


def _check_same_shape(samples: dict[str, Samples]) -> tuple[int, ...]:
    """The common shape of the samples; refuse different shapes."""
    (first, expected), *others = [(owner, s.shape) for owner, s in samples.items()]
    for owner, shape in others:
        if shape != expected:
            raise UsageError(
                f"A sample of {owner} has shape {shape}, but one of {first} has {expected}; bring"
                " all samples to the same shape."
            )
    return expected


def _count_classes(labels: dict[str, Tensor], classes: int | None) -> int:
    """The number of classes: `classes` if given, otherwise the largest label plus 1."""
    if classes is None:
        inferred = 1 + max(int(y.max()) for y in labels.values())
        if inferred > sum(map(len, labels.values())):
            raise UsageError(
                f"The labels reach {inferred - 1}, but there are fewer samples than that; "
                "number the classes from 0, or give their number with classes=..."
            )
        present = np.unique(np.concatenate([y.numpy() for y in labels.values()]))
        if len(present) < inferred:
            missing = sorted(set(range(inferred)) - set(present.tolist()))
            raise UsageError(
                f"No party has a sample of class {missing[0]}, but labels reach {inferred - 1}:"
                " number the classes from 0 without gaps (names, y = numpy.unique(y,"
                " return_inverse=True) over all parties), or say with"
                f" classes={inferred} that there are that many."
            )
        return inferred
    count: int = coerce("classes", classes, int)
    for name, y in labels.items():
        if y.max() >= count:
            raise UsageError(
                f"Party {name!r} has the label {int(y.max())}, but labels must be less than"
                f" classes={count}."
            )
    return count
