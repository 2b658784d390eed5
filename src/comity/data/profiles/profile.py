"""The profile of a table, party by party: missing values, quantiles, histograms, words and labels.

In a simulation all figures are exact. Between sites, each site computes its own profile, and only
what its policy allows leaves (`deploy/site_profile.py`). Both use the same code.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from comity.base.key import Key
from comity.base.noise import gaussian
from comity.base.samples import Ints
from comity.data.dataset import Dataset
from comity.data.federation import Federation
from comity.data.preparation import Schema
from comity.data.profiles.cells import Counts, round_count, shown_bins, shown_cells
from comity.data.profiles.edges import Range, bin_edges, common_ranges, constant_range, own_range
from comity.data.table_checks import missing_rows, split_columns
from comity.errors import CorruptedFile
from comity.frames import frame
from comity.safe_files import write_atomically

if TYPE_CHECKING:
    import pandas

NUMBER, WORDS = "number", "words"
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
QUANTILE_DIGITS = 3
"""Significant digits of quantiles that are read off a histogram."""
FORMAT = 1
MOST_NAMES, MOST_CELLS = 10_000, 10_000
"""The largest number of columns of a profile that is read, and of cells of a column."""


@dataclass(frozen=True)
class ProfiledColumn:
    """A column of a profile. Columns of 0 and 1 are columns of words here."""

    name: str
    kind: str
    """number or words."""
    words: tuple[str, ...] = ()
    unit: str = ""
    is_label: bool = False


@dataclass(frozen=True)
class Protection:
    """How a party's figures are protected before anybody else sees them."""

    records: int = 0
    """The minimum group size. Counts of fewer records (or patients) are withheld."""
    rounding: int = 1
    """Counts are rounded to multiples of this number."""
    noise: float = 0.0
    """The standard deviation of the Gaussian noise on each count."""

    @property
    def is_exact(self) -> bool:
        """Whether all figures are shown as they are."""
        return self.records <= 1 and self.rounding <= 1 and not self.noise

    def __str__(self) -> str:
        parts = [
            f"counts below {self.records} withheld" if self.records > 1 else "",
            f"counts rounded to multiples of {self.rounding}" if self.rounding > 1 else "",
            f"noise of standard deviation {self.noise:.3g} on each count" if self.noise else "",
        ]
        return ", ".join(part for part in parts if part) or "exact"


NO_PROTECTION = Protection()


class Bin(NamedTuple):
    """A bin of a histogram: values from `low` to below `high`; None stands for no limit.

    `rows` is None if their number is withheld.
    """

    low: float | None
    high: float | None
    rows: int | None


@dataclass(frozen=True)
class ColumnProfile:
    """The profile of one column at one party."""

    missing: int | None
    """The number of rows without a value; None if it is withheld."""
    quantiles: tuple[float | None, ...] = ()
    """Of a column of numbers, at `QUANTILES`; None where they are not known. Read off the histogram
    if figures are protected.
    """
    histogram: tuple[Bin, ...] = ()
    """Of a column of numbers."""
    counts: Mapping[str, int | None] = field(default_factory=dict)
    """Of a column of words: the rows with each word; None if the count is withheld."""


@dataclass(frozen=True)
class PartyProfile:
    """The profile of one party."""

    rows: int
    columns: Mapping[str, ColumnProfile]
    protection: Protection = NO_PROTECTION

    def to_dict(self) -> dict[str, Any]:
        """The profile as plain values for JSON."""
        return asdict(self)

    @staticmethod
    def from_dict(content: Any, columns: Sequence[ProfiledColumn]) -> PartyProfile:
        """The inverse of `to_dict`. What does not fit the columns is refused.

        Raises:
            CorruptedFile: if the content is no profile of these columns.
        """
        try:
            by_name = {column.name: column for column in columns}
            if set(content["columns"]) != set(by_name):
                raise ValueError("other columns")
            return PartyProfile(
                _count(content["rows"]),
                {
                    name: _read_column(content["columns"][name], column)
                    for name, column in by_name.items()
                },
                Protection(
                    _count(content["protection"]["records"]),
                    _count(content["protection"]["rounding"]),
                    _number(content["protection"]["noise"]),
                ),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as why:
            raise CorruptedFile("A profile of a party is damaged, or of other columns.") from why


def _read_column(content: Any, column: ProfiledColumn) -> ColumnProfile:
    histogram = [Bin(*cells) for cells in content["histogram"]]
    if len(histogram) > MOST_CELLS or set(content["counts"]) != set(column.words):
        raise ValueError("other cells")
    return ColumnProfile(
        _optional(content["missing"], _count),
        tuple(_optional(value, _number) for value in content["quantiles"][: len(QUANTILES)]),
        tuple(
            Bin(_optional(low, _number), _optional(high, _number), _optional(count, _count))
            for low, high, count in histogram
        ),
        {word: _optional(content["counts"][word], _count) for word in column.words},
    )


def _optional(value: Any, read: Any) -> Any:
    return None if value is None else read(value)


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 2**53:
        raise ValueError("no count")
    return value


def _number(value: Any) -> float:
    if type(value) not in (int, float) or not math.isfinite(value):
        raise ValueError("no number")
    return float(value)


@dataclass(frozen=True)
class Profile:
    """The profiles of several parties, side by side.

    Examples:
        >>> import comity
        >>> profile = comity.profile(comity.load("heart"))
        >>> profile.parties["switzerland"].columns["cholesterol"].missing
        123
        >>> list(profile.to_pandas().columns)
        ['column', 'party', 'figure', 'value']
    """

    name: str
    columns: tuple[ProfiledColumn, ...]
    parties: Mapping[str, PartyProfile]
    refusals: Mapping[str, str] = field(default_factory=dict)
    """By party that sent no profile: the reason."""

    def figures(self) -> Iterator[tuple[str, str, str, float | None]]:
        """All figures: column, party, figure and value; None for a value that is withheld."""
        for column in self.columns:
            for party, profile in self.parties.items():
                own = profile.columns[column.name]
                yield column.name, party, "rows", profile.rows
                yield column.name, party, "missing", own.missing
                for q, value in zip(QUANTILES, own.quantiles, strict=False):
                    yield column.name, party, f"{q:.0%} quantile", value
                for low, high, count in own.histogram:
                    yield column.name, party, f"rows in {bin_text(low, high)}", count
                for word, count in own.counts.items():
                    yield column.name, party, f"rows with {word!r}", count

    def to_pandas(self) -> pandas.DataFrame:
        """All figures as a data frame, one figure a row."""
        return frame(self.figures(), ["column", "party", "figure", "value"])

    def to_dict(self) -> dict[str, Any]:
        """The profile as plain values for JSON."""
        return {
            "comity_profile": FORMAT,
            "name": self.name,
            "columns": [asdict(column) for column in self.columns],
            "parties": {name: party.to_dict() for name, party in self.parties.items()},
            "refusals": dict(self.refusals),
        }

    def save(self, path: str | Path) -> None:
        """Write the profile to a JSON file."""
        text = json.dumps(self.to_dict(), indent=1, allow_nan=False) + "\n"
        write_atomically(Path(path), text)

    @staticmethod
    def read(path: str | Path) -> Profile:
        """Read a profile that `save` wrote.

        Raises:
            CorruptedFile: if the file is no profile.
        """
        try:
            content = json.loads(Path(path).read_text(encoding="utf-8"))
            if content["comity_profile"] != FORMAT:
                raise ValueError("another version")
            columns = tuple(
                ProfiledColumn(**{**column, "words": tuple(column["words"])})
                for column in content["columns"]
            )
            parties = {
                name: PartyProfile.from_dict(party, columns)
                for name, party in content["parties"].items()
            }
            return Profile(content["name"], columns, parties, content["refusals"])
        except (OSError, KeyError, TypeError, ValueError, AttributeError) as why:
            raise CorruptedFile(f"{path} cannot be read: it holds no profile.") from why


def bin_text(low: float | None, high: float | None) -> str:
    """A bin as text, as in `5 to 10`."""
    if low is None:
        return "all" if high is None else f"below {high:g}"
    return f"{low:g} or more" if high is None else f"{low:g} to {high:g}"


# Computing a profile.


@dataclass(frozen=True)
class PartyTable:
    """A party's rows, column by column, as a profile reads them."""

    rows: int
    columns: Mapping[str, NDArray[Any]]
    """Numbers as float64, with NaN where missing; words as their positions, -1 where missing."""
    patients: Ints | None = None
    """The patient of each row, if the data name patients."""

    @property
    def size(self) -> int:
        """The number of patients, or of rows if the data name no patients."""
        return self.rows if self.patients is None else len(np.unique(self.patients))


def profiled_columns(
    schema: Schema | None, classes: int, class_names: Sequence[str]
) -> tuple[ProfiledColumn, ...]:
    """The columns of a profile, the label first. Data that are no table have a label only."""
    names = tuple(class_names) or tuple(map(str, range(classes)))
    label = ProfiledColumn(
        schema.label if schema else "label", WORDS if classes else NUMBER, names, is_label=True
    )
    columns = [
        ProfiledColumn(column.name, NUMBER, unit=column.unit)
        if column.kind == NUMBER
        else ProfiledColumn(
            column.name,
            WORDS,
            column.words if column.kind == WORDS else ("0", "1"),
            column.unit,
        )
        for column in (schema.columns if schema else ())
        if column.kind
    ]
    return label, *columns


def party_table(dataset: Dataset, positions: Sequence[int] | Ints) -> PartyTable:
    """The rows of a party: those of a dataset at these positions."""
    places = np.asarray(positions, np.int64)
    labels = dataset.y.numpy()[places]
    label, *_ = profiled_columns(dataset.schema, dataset.classes, dataset.class_names)
    columns: dict[str, NDArray[Any]] = {
        label.name: labels if dataset.classes else _decimal(labels),
    }
    if dataset.schema:
        x = dataset.x.numpy()[places]
        for name, (column, values) in split_columns(dataset.schema, x).items():
            if column.kind == NUMBER:
                columns[name] = _decimal(values[:, 0])
            elif column.kind:
                word = values.argmax(1) if column.kind == WORDS else np.nan_to_num(values[:, 0])
                is_missing = missing_rows(column, values)
                columns[name] = np.where(is_missing, -1, word).astype(np.int64)
    patients = None if dataset.patients is None else dataset.patients[places]
    return PartyTable(len(places), columns, patients)


def _decimal(values: NDArray[Any]) -> NDArray[np.float64]:
    """The numbers that were typed: 0.7 instead of the nearest number of 32 bits, 0.699999988."""
    return values.astype(np.float32).astype(str).astype(np.float64)


def own_ranges(
    schema: Schema | None,
    columns: Sequence[ProfiledColumn],
    table: PartyTable,
    protection: Protection,
) -> dict[str, Range | None]:
    """The range of each column of numbers, which a party tells before histograms are computed.

    If the schema has constants for scaling, ranges follow from them. Otherwise they follow from the
    party's values, unless its figures need noise: then the party tells none.
    """
    constants = {
        column.name: constant_range(column.mean, column.std)
        for column in (schema.columns if schema and schema.scale == "fixed" else ())
    }
    ranges: dict[str, Range | None] = {}
    for column in columns:
        if column.kind != NUMBER:
            continue
        if column.name in constants or protection.noise:
            ranges[column.name] = constants.get(column.name)
            continue
        values = table.columns[column.name]
        is_present = ~np.isnan(values)
        patients = None if table.patients is None else table.patients[is_present]
        ranges[column.name] = own_range(values[is_present], patients, protection.records)
    return ranges


def profile_table(
    columns: Sequence[ProfiledColumn],
    table: PartyTable,
    ranges: Mapping[str, Range],
    protection: Protection = NO_PROTECTION,
    key: Key | None = None,
) -> PartyProfile:
    """The profile of a party.

    Args:
        columns: the columns
        table: the party's rows
        ranges: the common range of each column of numbers, which determines its bins
        protection: how figures are protected
        key: what the noise is drawn from, if there is any
    """

    def count(name: str, cell_of: Ints, cells: int) -> Counts:
        noise = None
        if protection.noise:
            assert key is not None
            noise = gaussian(key.fold("profile", name), (cells,), protection.noise).double().numpy()
        cell = np.where(cell_of < 0, cells - 1, cell_of)
        return Counts(cell, cells, table.patients, noise, protection.noise)

    profiles: dict[str, ColumnProfile] = {}
    for column in columns:
        values = table.columns[column.name]
        if column.kind == WORDS:
            counts = count(column.name, values, len(column.words) + 1)
            profiles[column.name] = _profile_words(column, counts, protection)
        else:
            edges = bin_edges(ranges.get(column.name))
            bins = np.where(np.isnan(values), -1, np.searchsorted(edges, values, "right"))
            counts = count(column.name, bins, len(edges) + 2)
            profiles[column.name] = _profile_numbers(values, edges, counts, protection)
    rows = round_count(table.rows, protection.rounding)
    return PartyProfile(rows, profiles, protection)


def _rounded(value: float | None, protection: Protection) -> int | None:
    return None if value is None else round_count(value, protection.rounding)


def _profile_words(column: ProfiledColumn, counts: Counts, protection: Protection) -> ColumnProfile:
    rows_by_cell = shown_cells(counts, protection.records)
    words = {word: _rounded(rows_by_cell[k], protection) for k, word in enumerate(column.words)}
    return ColumnProfile(_rounded(rows_by_cell[len(column.words)], protection), counts=words)


def _profile_numbers(
    values: NDArray[Any], edges: Sequence[float], counts: Counts, protection: Protection
) -> ColumnProfile:
    limits = [None, *edges, None]
    groups = shown_bins(counts, protection.records)
    histogram = tuple(
        Bin(limits[group.bins[0]], limits[group.bins[-1] + 1], _rounded(group.rows, protection))
        for group in groups.groups
    )
    quantiles: tuple[float | None, ...]
    if protection.is_exact:
        present = values[~np.isnan(values)]
        quantiles = tuple(np.quantile(present, QUANTILES).tolist()) if len(present) else ()
    else:
        quantiles = tuple(_read_quantile(histogram, q) for q in QUANTILES)
    return ColumnProfile(_rounded(groups.missing, protection), quantiles, histogram)


def _read_quantile(histogram: Sequence[Bin], q: float) -> float | None:
    """A quantile as a histogram tells it; None if it lies in a bin without a limit."""
    cells = [(low, high, count) for low, high, count in histogram if count]
    left = q * sum(count for _, _, count in cells)
    for low, high, count in cells:
        if left <= count:
            if low is None or high is None:
                return None
            return float(f"{low + (high - low) * left / count:.{QUANTILE_DIGITS}g}")
        left -= count
    return None


def profile_data(
    federation: Federation, dataset: Dataset, protection: Protection = NO_PROTECTION
) -> Profile:
    """The profile of all samples that the parties of a federation have.

    Args:
        federation: the parties
        dataset: the dataset that the federation was made of
        protection: shows what sites with such a policy would send; default: exact figures
    """
    columns = profiled_columns(dataset.schema, dataset.classes, dataset.class_names)
    tables = {
        name: party_table(dataset, sorted({*share.train, *share.validation, *share.test}))
        for name, share in federation.split.parties.items()
        if name in federation.parties
    }
    ranges = common_ranges(
        own_ranges(dataset.schema, columns, table, protection) for table in tables.values()
    )
    return Profile(
        federation.name,
        columns,
        {name: profile_table(columns, table, ranges, protection) for name, table in tables.items()},
    )
