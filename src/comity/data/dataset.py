"""`Dataset`: pooled samples, before a partition assigns them to parties."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from comity.arguments import checks_arguments, refuses_wrong_arguments
from comity.base.key import Key
from comity.base.samples import (
    Ints,
    PartyData,
    Samples,
    check_channels_first,
    combine,
    numbers,
)
from comity.data import partitions, protocols, shifts
from comity.data.custom_partitions import CustomPartition, custom_partition_name
from comity.data.federation import Federation, Preprocess, Sums, share
from comity.data.groups import GROUPED, Groups, Piece
from comity.data.patients import (
    Units,
    check_patients,
    check_undivided,
    keep_shared_rows_together,
    merge_units,
    number_patients,
)
from comity.data.preparation import Schema
from comity.data.split import Indices, Share, Split
from comity.data.steps import STEPS, Steps, TooFewSamples
from comity.errors import UsageError
from comity.html import view
from comity.plugins import is_code
from comity.spec import Spec, coerce, parse
from comity.spec import split as cut
from comity.text import join_names

AUTO = "auto"
"""The partition name that stands for the dataset's own default partition."""
DEFAULT_PARTITION = "dirichlet(alpha=0.5)"
"""The default partition of datasets without natural parties."""
WITHOUT_CLASSES = ("iid", "natural", "domain", "quantity", "lognormal")
"""Partitions that do not use class labels, so that they also work for regression."""
MOST_NAMED = 10
"""How many labels a sentence names."""


def _scalar_constants(mean: tuple[float, ...], std: tuple[float, ...]) -> tuple[float, float]:
    """Mean and standard deviation of the only column."""
    return mean[0], std[0]


def unused_classes(y: Ints, classes: int) -> str:
    """A sentence if no sample has some of the classes; empty otherwise."""
    unused = sorted(set(range(classes)) - set(np.unique(y).tolist()))
    if not unused:
        return ""
    return f"no sample has the label {', '.join(map(str, unused[:MOST_NAMED]))}" + (
        " and others." if len(unused) > MOST_NAMED else "."
    )


def _content(schema: Schema) -> dict[str, Any]:
    """The fields of a schema for a fingerprint.

    Fields that earlier versions did not have are left out while they are empty, so that data that
    were imported before keep their fingerprints.
    """
    content = asdict(schema)
    for fields, names in (
        (content, ("parties",)),
        *((column, ("convert", "file_unit", "rounded_medians")) for column in content["columns"]),
    ):
        for name in names:
            if not fields[name]:
                del fields[name]
    return content


def _explain_too_few(why: TooFewSamples, partition: Spec, seed: int, samples: int) -> UsageError:
    """Return the error for a party with too few samples to keep, with the seed and what to type.

    `samples` is the number of the party's samples, of which some are for tests.
    """
    remedy = "use a smaller keep"
    if partition.name == "dirichlet":
        least = math.ceil(why.goal * samples / max(1, why.present))
        enough = replace(partition, options=partition.options | {"min": least})
        remedy += f", or give every party enough samples, as in {enough}"
    return UsageError(
        f"With seed {seed}, party {why.party!r} has {why.present} samples to learn from, not"
        f" {why.goal}: {remedy}."
    )


@checks_arguments
@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """Pooled samples with labels, and how to preprocess and partition them.

    Images are N x C x H x W, either floats in [0, 1] or bytes (uint8) from 0 to 255.

    `mean` and `std` hold one number, or one number per channel. They are fixed constants and are
    applied after a party's feature shift: statistics of the pooled data would give each party
    information about the others. With `scale="own"`, each party instead standardises the columns or
    channels `scaled` by the mean and standard deviation of its own training samples. With
    `scale="shared"`, all parties use the statistics of all training samples; the sums and squares
    that they exchange for this are charged as communication.

    With `missing="impute"`, a party replaces NaN by the mean of its own training samples. If the
    party has no value of a feature, it uses 0 after normalisation. Each feature with missing values
    gets an additional indicator column.

    Examples:
        >>> data = Dataset("toy", torch.rand(6, 3), torch.tensor([0, 1, 0, 1, 0, 1]), classes=2)
        >>> data
        <dataset toy: 6 samples of shape (3,), 2 classes>
    """

    name: str
    x: Tensor = field(repr=False)
    y: Tensor = field(repr=False)
    classes: int
    """Number of classes; 0 for regression."""
    description: str = ""
    licence: str = ""
    official_test: Tensor | None = field(default=None, repr=False)
    """Boolean mask of the official test samples, if the dataset has them."""
    mean: tuple[float, ...] = (0.5,)
    std: tuple[float, ...] = (0.5,)
    groups: Mapping[str, Groups] = field(default_factory=dict, repr=False)
    """Groupings by name, as in `{"site": Groups(names, of)}`: the origin of each sample."""
    default_partition: str = DEFAULT_PARTITION
    """The partition that `auto` stands for."""
    missing: Literal["refuse", "impute"] = "refuse"
    class_names: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    """Sentences for the user, for example about missing samples or changed values."""
    scale: Literal["fixed", "own", "shared"] = "fixed"
    scaled: tuple[int, ...] = ()
    schema: Schema | None = field(default=None, repr=False)
    """The columns of a table before they were encoded as numbers."""
    cut_by: Ints | None = field(default=None, repr=False)
    """For samples whose test part was not chosen by the authors of the dataset: the id of the unit
    (for example a photo) that the sample belongs to. All samples of a unit stay in the same part.
    -1 marks samples whose part is official.
    """
    patients: Ints | None = field(default=None, repr=False)
    """The number of each sample's patient, if the data name patients: see `number_patients`. A
    partition keeps a patient's samples together.
    """
    copies: Ints | None = field(default=None, repr=False)
    """The number of each row's content, if a table has rows that are copies of others, numbered
    like patients. A partition keeps copies together.
    """
    shared_rows: Ints | None = field(default=None, repr=False)
    """The number of each row's content, if parties of a table have rows in common, numbered like
    patients. Each party keeps its rows, but no party trains on what another one is tested on.
    """

    def __post_init__(self) -> None:
        coerce("missing", self.missing, Literal["refuse", "impute"])
        coerce("scale", self.scale, Literal["fixed", "own", "shared"])
        self._convert_values()
        for by, group in self.groups.items():
            if not isinstance(group, Groups):
                raise UsageError(
                    f"The grouping {by!r} of {self._display_name} must be"
                    " comity.data.Groups(names, of)."
                )
            group.check(by, len(self.y))
        self._check_ranges()
        self._check_constants()
        self._check_official_test()
        self._check_cut()
        for numbers_of_units in (self.patients, self.copies):
            if numbers_of_units is not None:
                check_patients(numbers_of_units, len(self.y), self.groups)
        if self.shared_rows is not None:
            check_patients(self.shared_rows, len(self.y), {})

    @cached_property
    def units(self) -> Ints | None:
        """The number of each sample's unit, which a split must not divide: a patient's samples, and
        copies of a row. None if each sample is a unit.
        """
        return merge_units(self.patients, self.copies)

    @property
    def _display_name(self) -> str:
        """The name of the dataset in error messages."""
        return f"dataset {self.name!r}"

    def _convert_values(self) -> None:
        """Convert samples and labels to the tensor types that training needs, and check them.

        Images given as bytes stay bytes.
        """
        if isinstance(self.x, np.ndarray) and self.x.dtype == np.uint8:
            object.__setattr__(self, "x", torch.from_numpy(np.require(self.x, requirements="CW")))
        if (
            isinstance(self.x, Tensor)
            and self.x.dtype == torch.uint8
            and self.x.dim() == 4
            and len(self.x)
        ):
            check_channels_first(self._display_name, tuple(self.x.shape[1:]))
            # Bytes are not copied: all processes share the pages of a memory-mapped file. Only
            # the labels are checked.
            labels = Samples.of(
                self._display_name, np.zeros((len(self.x), 1)), self.y, amounts=self.amounts
            )
            object.__setattr__(self, "y", labels.y)
            return
        complete = self.missing != "impute"
        checked = (
            Samples.of(self._display_name, self.x, self.y, amounts=self.amounts)
            if complete
            else self._samples_with_missing_values()
        )
        object.__setattr__(self, "x", checked.x)
        object.__setattr__(self, "y", checked.y)

    def _samples_with_missing_values(self) -> Samples:
        """Check a table's samples and labels; missing values stay NaN and are not checked."""
        values = numbers(f"The x of {self._display_name}", self.x)
        if values.ndim != 2:
            raise UsageError(
                "Missing values can be imputed in tables only, but a sample of"
                f" {self._display_name} has shape {values.shape[1:]}; use missing='refuse' and"
                " fill in the values."
            )
        is_missing = np.isnan(values)
        filled_values = torch.from_numpy(np.where(is_missing, 0, values))
        checked = Samples.of(self._display_name, filled_values, self.y, amounts=self.amounts)
        return replace(checked, x=checked.x.masked_fill(torch.from_numpy(is_missing), torch.nan))

    def _check_ranges(self) -> None:
        """Check that labels are less than `classes`, and that pixels are between 0 and 1."""
        if coerce("classes", self.classes, int) and self.y.max() >= self.classes:
            raise UsageError(
                f"A label of {self._display_name} is {int(self.y.max())}, but labels must be less"
                f" than classes={self.classes}: number the classes from 0."
            )
        if self.x.dim() == 4 and not self._bytes and not 0 <= self.x.min() <= self.x.max() <= 1:
            raise UsageError(
                f"The images of {self._display_name} have values from {self.x.min():g} to"
                f" {self.x.max():g}; scale them to [0, 1]."
            )

    def _check_constants(self) -> None:
        """Check that `mean` and `std` hold one number, or one number per channel."""
        for constant in ("mean", "std"):
            object.__setattr__(
                self, constant, coerce(constant, getattr(self, constant), tuple[float, ...])
            )
        if any(len(c) not in (1, self.x.shape[1]) for c in (self.mean, self.std)) or not all(
            s > 0 for s in self.std
        ):
            raise UsageError(
                f"mean and std of {self._display_name} must be one number or one per channel, and"
                " std more than 0."
            )

    def _check_official_test(self) -> None:
        """Check that `official_test` is a mask that selects some samples, but not all."""
        mask = self.official_test
        if mask is not None and not (
            isinstance(mask, Tensor)
            and mask.dtype == torch.bool
            and mask.shape == self.y.shape
            and mask.any()
            and not mask.all()
        ):
            raise UsageError(
                f"official_test of {self._display_name} must be a mask with true for some samples"
                " and false for others."
            )

    def _check_cut(self) -> None:
        """Check that `cut_by` fits `official_test`, and that no unit is in both parts."""
        wholes = self.cut_by
        if wholes is None:
            return
        if (
            self.official_test is None
            or wholes.dtype.kind not in "iu"
            or wholes.shape != self.y.shape
        ):
            raise UsageError(
                f"cut_by of {self._display_name} must hold one integer per sample, and"
                " official_test must say which samples are for testing."
            )
        if self.patients is not None:
            raise UsageError(
                f"{self._display_name} has patients and cut_by, which both say what stays together:"
                " leave out cut_by."
            )
        is_test = self.official_test.numpy()
        if np.intersect1d(wholes[is_test & (wholes >= 0)], wholes[~is_test & (wholes >= 0)]).size:
            raise UsageError(
                f"cut_by of {self._display_name} has a unit with samples in both training and test."
            )

    def __len__(self) -> int:
        return len(self.y)

    def __repr__(self) -> str:
        kinds = f"{self.classes} classes" if self.classes else "a number to predict"
        return f"<dataset {self.name}: {len(self):,} samples of shape {self.shape}, {kinds}>"

    def _repr_html_(self) -> str:
        return view(self)

    @property
    def amounts(self) -> bool:
        """Whether the labels are numbers to predict (regression), not classes."""
        return self.classes == 0

    @property
    def _bytes(self) -> bool:
        return self.x.dtype == torch.uint8

    @cached_property
    def preprocess(self) -> Preprocess:
        """The preprocessing that is the same for all parties."""
        width = max(len(self.mean), len(self.std))
        mean, std = ((c * width)[:width] for c in (self.mean, self.std))
        return Preprocess(255.0 if self._bytes else 1.0, mean, std, self.indicator_columns)

    @cached_property
    def indicator_columns(self) -> tuple[int, ...]:
        """The features with missing values, each of which gets an indicator column.

        With a schema, these are the columns that the schema allows to be missing.
        """
        if self.schema:
            return self.schema.indicator_columns
        return (
            tuple(torch.where(self.x.isnan().any(0))[0].tolist())
            if self.missing == "impute"
            else ()
        )

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample as the model receives it, with indicator columns."""
        first, *rest = self.x.shape[1:]
        return (first + len(self.indicator_columns), *rest)

    @cached_property
    def _fingerprint(self) -> str:
        groups = [(by, g.names, combine(g.of.tolist())) for by, g in self.groups.items()]
        optional_parts: list[object] = (
            [groups, self.missing] if groups or self.missing != "refuse" else []
        )
        if self.scale != "fixed" or self.schema:
            optional_parts += [self.scale, self.scaled, self.schema and _content(self.schema)]
        if self.patients is not None:
            optional_parts += ["patients", combine(self.patients.tolist())]
        if self.copies is not None:
            optional_parts += ["copies", combine(self.copies.tolist())]
        if self.shared_rows is not None:
            optional_parts += ["shared rows", combine(self.shared_rows.tolist())]
        return combine(
            (Samples(self.x, self.y).digest(), self.classes, self.mean, self.std, *optional_parts)
        )

    def fingerprint(self) -> str:
        """A hash of the samples, the labels and the preprocessing."""
        return self._fingerprint

    @refuses_wrong_arguments
    def partition(
        self,
        spec: str | CustomPartition,
        parties: int | None = None,
        seed: int = 0,
        test: str = "own(0.25)",
        validation: float = 0.1,
    ) -> Federation:
        """Assign the samples to parties.

        Args:
            spec: the partition and the steps after it, as in
                `dirichlet(alpha=0.1)|shift(kinds=none,invert)`. `auto` is the dataset's default
                partition: its natural parties, if it has them. A path that ends in `.json` is a
                saved split, which determines everything. A path of a Python file (`./mine.py`) or
                a function is a custom partition: from the labels, the number of parties and a
                generator, it returns each party's positions.
            parties: number of parties. Default: the natural parties of the data, otherwise 10.
            seed: seed of all random choices.
            test: test protocol, as in `own(0.25)`.
            validation: fraction of a party's samples to learn from that is used for validation.

        Returns:
            The federation, with the split that it was built from.

        Raises:
            UsageError: if the partition is unknown or does not fit the data.

        Examples:
            >>> data = Dataset("toy", torch.rand(40, 3), torch.arange(40) % 2, classes=2)
            >>> def halves(y, parties, rng):
            ...     return np.array_split(np.arange(len(y)), parties)
            >>> data.partition(halves, parties=2).split.partition
            'given:halves'
        """
        parties = None if parties is None else coerce("parties", parties, int)
        custom = None if isinstance(spec, str) else spec
        spec = spec if isinstance(spec, str) else custom_partition_name(spec)
        if spec.endswith(".json"):
            federation = self.split(spec)
            if parties not in (None, len(federation.parties)):
                raise UsageError(
                    f"The split {spec!r} has {len(federation.parties)} parties, not {parties}."
                )
            return federation
        first, chained = self._read(spec)
        steps = Steps.read(chained)
        is_custom = custom is not None or is_code(first.name)
        if self.amounts:
            self._check_without_classes(WITHOUT_CLASSES[0] if is_custom else first.name, steps)
        validation = protocols.check_validation(validation)
        seed = coerce("seed", seed, int)
        rule, partition_seed = protocols.under_seed(test, seed)
        # Each purpose has its own key: the test and shift settings must not change which party
        # gets which sample.
        key = Key.root(partition_seed).fold("data")
        # Parts are drawn class by class; a regression dataset is treated as one class.
        # From here on, positions are those of units: samples, or patients with all their samples.
        units = Units(self.units)
        y = units.labels(np.zeros(len(self), np.int64) if self.amounts else self.y.numpy())
        contents = self._shared_contents(units)
        is_common_test = self._reserve(rule, y, units, contents, key)
        pool, common_test = np.flatnonzero(~is_common_test), np.flatnonzero(is_common_test)
        unit_groups = units.groups(self.groups)
        groups = {by: g.take(pool) for by, g in unit_groups.items()}
        labels_to_divide = units.labels(self.y.numpy()) if is_custom else y
        pieces = partitions.divide(
            first, labels_to_divide[pool], groups, parties, key.fold("partition").numpy(), custom
        )

        shares: dict[str, Share] = {}
        for i, (name, piece) in enumerate(pieces.items()):
            if isinstance(piece, Piece):
                positions = np.sort(pool[piece.positions])
                source = common_test[unit_groups[piece.by].of[common_test] == piece.group]
            else:
                positions = np.sort(pool[piece])
                source = None
            own = protocols.OwnPart(name, y, positions, common_test, source)
            train_positions, test_positions = rule.divide(own, key.fold("test", name).numpy())
            try:
                train_positions = steps.keep(name, y, train_positions, key)
            except TooFewSamples as why:
                raise _explain_too_few(why, first, seed, len(positions)) from None
            labels = steps.labels(i, self.classes, key)
            shares[name] = share(
                name,
                y,
                train_positions,
                test_positions,
                validation=validation,
                key=key,
                shift=steps.shift(i),
                labels=labels,
            )
        shares = {
            name: units.samples(part)
            for name, part in keep_shared_rows_together(shares, contents).items()
        }
        text = "|".join(map(str, [first, *chained]))
        federation = self._build(
            Split(self.name, self.fingerprint(), text, test, validation, seed, shares)
        )
        if parties is None or first.name not in GROUPED:
            return federation
        all_parties = partitions.divide(first, y[pool], groups, None, key.fold("partition").numpy())
        return replace(
            federation,
            warnings=(*federation.warnings, *self._absence_warnings(all_parties, pieces)),
        )

    def _reserve(
        self, rule: protocols.SplitProtocol, y: Ints, units: Units, contents: Ints | None, key: Key
    ) -> protocols.Mask:
        """A mask of the units that no party gets (the common test set)."""
        official = None if self.official_test is None else self.official_test.numpy()
        if official is not None and not isinstance(rule, protocols.OwnSamples):
            official = units.mask("the official test part", official)
        mask = rule.reserve(y, official, self.cut_by, key.fold("reserve").numpy())
        if contents is None or official is not None:
            return mask
        first_units = np.unique(contents, return_index=True)[1]
        return mask[first_units][contents]

    def _shared_contents(self, units: Units) -> Ints | None:
        """The number of each unit's content: units with a row in common, at several parties, have
        one number. None if parties have no row in common.
        """
        if self.shared_rows is None:
            return None
        contents = merge_units(self.units, self.shared_rows)
        assert contents is not None
        return units.of_first_samples(contents)

    def _absence_warnings(
        self, all_parties: Iterable[str], present_parties: Collection[str]
    ) -> list[str]:
        """A warning if some of the natural parties of the data are left out."""
        absent_parties = [name for name in all_parties if name not in present_parties]
        sentence = (
            f"{self.name}: {len(present_parties)} parties were requested, so"
            f" {len(absent_parties)} of the data's natural parties are left out: "
        )
        return [f"{sentence}{join_names(absent_parties, 10)}."] if absent_parties else []

    def _read(self, spec: str) -> tuple[Spec, list[Spec]]:
        """Parse a partition text into the partition and the steps after it."""
        first, *chained = [parse(part) for part in cut(spec, "|")]
        if first.name == AUTO:
            if first.args or first.options:
                raise UsageError(
                    f"auto takes no options, as in {spec!r}; name a partition instead."
                )
            first, *default_steps = [parse(part) for part in cut(self.default_partition, "|")]
            return first, [*default_steps, *chained]
        if is_code(first.name):
            return replace(first, name=str(Path(first.name).resolve())), chained
        return (parse("iid"), [first, *chained]) if first.name in STEPS else (first, chained)

    @staticmethod
    def _check_without_classes(partition: str, steps: Steps) -> None:
        """Refuse partitions and steps that need classes."""
        if partition not in WITHOUT_CLASSES or steps.concepts:
            name = "concept" if steps.concepts else partition
            raise UsageError(
                f"{name} partitions by class, but the label of these data is a number: use"
                f" {', '.join(WITHOUT_CLASSES)}."
            )

    def split(self, source: Split | str | Path) -> Federation:
        """Rebuild the federation of a saved split.

        Raises:
            UsageError: if the split was made for other data.
        """
        split = source if isinstance(source, Split) else Split.read(source)
        if split.fingerprint != self.fingerprint():
            raise UsageError(
                f"The split was made for other data (dataset {split.dataset!r}), not for"
                f" {self.name!r} as it is here; use the dataset it was made for."
            )
        split.check(len(self), self.classes or 1)
        return self._build(split)

    def _build(self, split: Split) -> Federation:
        """Build the parties' tensors from a split, which is new or was saved."""
        rule, partition_seed = protocols.under_seed(split.test, split.seed)
        shifted = rule.shifted
        key = Key.root(partition_seed).fold("data", "shift")
        preprocess = self._preprocess_for(split)
        take_once = cache(self._take)  # a common test set is stored once for all parties
        parties: dict[str, PartyData] = {}
        fills: dict[str, Tensor] = {}
        for name, part in split.parties.items():
            if self.units is not None:
                check_undivided(name, self.units, part)
            party_preprocess = preprocess.for_party(name)
            used = part.train + part.validation + (part.test if shifted else ())
            # In the dataset's order, so that a sample's noise does not depend on its part.
            order = tuple(sorted(used))
            samples = self._take(order, party_preprocess, part.shift, key.fold(name))
            train, validation = (
                samples.take(np.searchsorted(order, i)) for i in (part.train, part.validation)
            )
            test = (
                samples.take(np.searchsorted(order, part.test))
                if shifted
                else take_once(part.test, party_preprocess)
            )
            if self.missing == "impute":  # means of the party's training samples only
                own_means = train.x.nanmean(0).nan_to_num(0.0)
                fills[name] = torch.zeros_like(own_means) if self._fills_by_constants else own_means
            parties[name] = self._finish_party(
                PartyData(train, validation, test), part, fills.get(name), party_preprocess
            )
        preprocess = replace(
            preprocess, fills={name: tuple(fill.tolist()) for name, fill in fills.items()}
        )
        return Federation(
            self.name,
            parties,
            self.classes,
            self.shape,
            split,
            self._all_warnings,
            preprocess,
            self.class_names,
            self.schema,
            len(self.scaled) + self.amounts if self.scale == "shared" else 0,
            self.scale != "fixed" or (self.missing == "impute" and not self._fills_by_constants),
        )

    @cached_property
    def _all_warnings(self) -> tuple[str, ...]:
        """The warnings of the dataset, with one about classes without samples."""
        unused = unused_classes(self.y.numpy(), self.classes)
        if not unused or any(unused in warning for warning in self.warnings):
            return self.warnings
        advice = (
            f" {self.classes} classes were declared: if there are fewer, number them from 0"
            " without gaps (names, y = numpy.unique(y, return_inverse=True))."
        )
        return (*self.warnings, f"{self.name}: {unused}{advice}")

    @property
    def _fills_by_constants(self) -> bool:
        """Whether missing numbers are replaced by the constants of the schema.

        This is so where the schema's constants also scale the numbers: then no value depends on a
        party's other records.
        """
        return self.schema is not None and self.schema.scale == "fixed"

    def _preprocess_for(self, split: Split) -> Preprocess:
        """The preprocessing of each party in this split.

        Unless the constants are fixed, they are computed from the training samples.
        """
        if self.scale == "fixed":
            return self.preprocess
        sums = {
            name: Sums.of(self.x[list(part.train)], self.scaled)
            for name, part in split.parties.items()
        }
        channels = self.x.shape[1]
        preprocess = self.preprocess
        if self.amounts:
            labels = {
                name: Sums.of(self.y[list(part.train)][:, None], (0,))
                for name, part in split.parties.items()
            }
            own_label = {
                name: _scalar_constants(*party_sums.constants(1, (0,)))
                for name, party_sums in labels.items()
            }
            label = _scalar_constants(*sum(labels.values(), Sums.nothing((0,))).constants(1, (0,)))
            preprocess = (
                replace(preprocess, own_label=own_label)
                if self.scale == "own"
                else replace(preprocess, label=label)
            )
        if self.scale == "own":
            return replace(
                preprocess,
                own={
                    name: party_sums.constants(channels, self.scaled)
                    for name, party_sums in sums.items()
                },
            )
        mean, std = sum(sums.values(), Sums.nothing(self.scaled)).constants(channels, self.scaled)
        return replace(preprocess, mean=mean, std=std)

    def _finish_party(
        self, data: PartyData, part: Share, fill: Tensor | None, preprocess: Preprocess
    ) -> PartyData:
        """Apply a party's class names, fill in its missing values, and scale numeric labels."""
        parts = [data.train, data.validation, data.test]
        if part.labels is not None:
            names = torch.tensor(part.labels)
            parts = [replace(s, y=names[s.y]) for s in parts]
        if fill is not None:
            parts = [replace(s, x=self.preprocess.fill_missing(s.x, fill)) for s in parts]
        if self.amounts:
            parts = [replace(s, y=(s.y - preprocess.label[0]) / preprocess.label[1]) for s in parts]
        patients, held_out_patients = None, None
        if self.patients is not None:
            patients = torch.from_numpy(number_patients(self.patients[list(part.train)]))
            held_out_patients = (
                len(set(self.patients[list(part.validation)].tolist())),
                len(set(self.patients[list(part.test)].tolist())),
            )
        return PartyData(
            parts[0],
            parts[1],
            parts[2],
            preprocess.label[1],
            (preprocess.mean, preprocess.std),
            patients,
            held_out_patients,
        )

    def _take(
        self,
        indices: Indices,
        preprocess: Preprocess,
        shift: str | None = None,
        key: Key | None = None,
    ) -> Samples:
        """Select samples, apply the feature shift, then normalise."""
        samples = Samples(self.x, self.y).take(indices)
        if not (shift and key):
            return Samples(preprocess.normalise(samples.x), samples.y)
        values = samples.x.float() / preprocess.divisor if self._bytes else samples.x
        x = shifts.apply(shift, values, key)
        return Samples(replace(preprocess, divisor=1.0).normalise(x), samples.y)
