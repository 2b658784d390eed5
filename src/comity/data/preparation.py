"""Schemas, and the encoding of table cells as model inputs.

This module needs numpy only and nothing else of Comity. A copy of it is part of every exported
model, so that new rows are encoded by the same code as the training rows.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

MISSING = frozenset({"", "?", "-", ".", "na", "n/a", "nan", "null"})
"""Texts that mark a missing value in every column, in lower case."""
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+", re.ASCII)
SEPARATORS = (",", ";", "\t", "|")
Cells = Sequence[Any] | NDArray[Any]
FORMAT = 1
MOST_NAMED = 12
"""Number of words that a message lists."""
IMPUTATION = (
    "a missing number with the mean of the party's own training samples; a missing word with zeros"
    " for all words"
)


class Unusable(Exception):
    """A table or schema cannot be used; each argument is one sentence for the user."""

    def __str__(self) -> str:
        return " ".join(map(str, self.args))


Conversion = float | tuple[float, float]
"""How a number is converted to another unit: a factor, or a factor and what is added to the
product."""


@dataclass(frozen=True)
class Column:
    """An input column: numbers, flags (0 and 1, never scaled) or words (one-hot encoded).

    Field names are keys of `schema.json`.
    """

    name: str
    kind: str
    """number, flag or words; empty if no party has a value."""
    words: tuple[str, ...] = ()
    """The words of a column of words, in the order of their one-hot features."""
    may_be_missing: bool = False
    """Whether values may be missing; a number or flag then gets an indicator feature."""
    unit: str = ""
    """The unit of the numbers that models get."""
    also_missing: tuple[str, ...] = ()
    """Further texts that mark a missing value in this column, as 0 for a blood pressure."""
    also_called: tuple[str, ...] = ()
    """Other names of the column in files."""
    also_written: Mapping[str, str] = field(default_factory=dict)
    """Other spellings and the words that they stand for, as m for male."""
    mean: float = 0.0
    std: float = 1.0
    """Constants for scaling, used if the schema's `scale` is `fixed`."""
    convert: Mapping[str, Conversion] = field(default_factory=dict)
    """Other units that files may have, and how their numbers become those of `unit`: {"mmol/l":
    18.02} for glucose in mg/dl.
    """
    file_unit: str = ""
    """The unit in the files, if it is not `unit`; a unit in a file's header precedes it."""
    rounded_medians: tuple[float, ...] = ()
    """The lowest and the highest median of the parties, in `unit`, each rounded to a power of two;
    empty if they are not told. Numbers in another unit are noticed by them.
    """

    @property
    def width(self) -> int:
        """Number of features, without the missing-value indicator."""
        return len(self.words) if self.kind == "words" else 1

    @property
    def has_indicator(self) -> bool:
        """Whether the column has a missing-value indicator.

        Words need none: if the word is missing, all its one-hot features are 0.
        """
        return self.may_be_missing and self.kind != "words"


@dataclass(frozen=True)
class PartyNotation:
    """What one party's files write in their own way: missing values and units.

    Field names are keys of a party in `schema.json`.
    """

    missing: tuple[str, ...] = ()
    """Texts that mark a missing value in every column of this party."""
    also_missing: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By column: further texts that mark a missing value."""
    units: Mapping[str, str] = field(default_factory=dict)
    """By column: the unit in this party's files."""


@dataclass(frozen=True)
class Schema:
    """The encoding that parties agree on: columns, words, classes, missing values and scaling."""

    columns: tuple[Column, ...]
    label: str
    classes: tuple[str, ...]
    """The names of the classes, in the order of their numbers; empty for regression."""
    missing: tuple[str, ...] = ()
    """Further texts that mark a missing value in every column."""
    merge_case: bool = False
    """Whether words that differ only in case or blanks are the same word."""
    scale: str = "own"
    """How numbers are standardised: by statistics of each party's own training samples (`own`), by
    those of all parties (`shared`), by constants of the schema (`fixed`), or not at all (`none`).
    """
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Columns that are not used, with the reason."""
    label_also_called: tuple[str, ...] = ()
    label_also_written: Mapping[str, str] = field(default_factory=dict)
    parties: Mapping[str, PartyNotation] = field(default_factory=dict)
    """By party: what only its files write so. Empty if all parties write alike."""

    def at(self, party: str) -> Schema:
        """The schema for the files of one party, with its own missing values and units."""
        notation = self.parties.get(party)
        if notation is None:
            return replace(self, parties={})
        columns = tuple(
            replace(
                column,
                also_missing=(*column.also_missing, *notation.also_missing.get(column.name, ())),
                file_unit=notation.units.get(column.name, column.file_unit),
            )
            for column in self.columns
        )
        return replace(
            self, columns=columns, missing=(*self.missing, *notation.missing), parties={}
        )

    @property
    def indicator_columns(self) -> tuple[int, ...]:
        """Positions of the features with a missing-value indicator."""
        return tuple(
            offset
            for offset, column in zip(self._offsets(), self.columns, strict=True)
            if column.has_indicator
        )

    @property
    def scaled(self) -> tuple[int, ...]:
        """Positions of the features that are scaled."""
        return tuple(
            offset
            for offset, column in zip(self._offsets(), self.columns, strict=True)
            if column.kind == "number"
        )

    @property
    def width(self) -> int:
        """Number of features of a row, without missing-value indicators."""
        return sum(column.width for column in self.columns)

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of all features, indicators included: age, cp=typical angina, chol missing."""
        names = [
            f"{c.name}={word}"
            for c in self.columns
            for word in (c.words if c.kind == "words" else ("",))
        ]
        return (
            *(name.removesuffix("=") for name in names),
            *(f"{c.name} missing" for c in self.columns if c.has_indicator),
        )

    def _offsets(self) -> list[int]:
        """The position of each column's first feature."""
        widths = [column.width for column in self.columns]
        return [sum(widths[:k]) for k in range(len(widths))]

    def to_dict(self) -> dict[str, Any]:
        """The schema as plain values for JSON; columns omit fields with default values."""
        defaults = asdict(Column("", ""))
        content = {"comity_schema": FORMAT, **asdict(self), "filled": IMPUTATION}
        content["columns"] = [
            {
                k: v
                for k, v in asdict(column).items()
                if k in ("name", "kind", *self._constants(column)) or v != defaults[k]
            }
            for column in self.columns
        ]
        parties = {
            name: {key: value for key, value in notation.items() if value}
            for name, notation in content.pop("parties").items()
        }
        return content | ({"parties": parties} if parties else {})

    def _constants(self, column: Column) -> tuple[str, ...]:
        """The constants that a column must have in a schema file, whatever their values."""
        return CONSTANTS if self.scale == "fixed" and column.kind == "number" else ()

    @staticmethod
    def from_dict(content: Mapping[str, Any]) -> Schema:
        """The inverse of `to_dict`.

        Raises:
            ValueError, KeyError, TypeError, AttributeError: if the content is no schema.
        """
        fields = dict(content)
        if fields.pop("comity_schema") != FORMAT:
            raise ValueError("another version")
        fields.pop("filled", None)  # for human readers only
        parties = {
            name: PartyNotation(**{k: _tuples(v) for k, v in notation.items()})
            for name, notation in fields.pop("parties", {}).items()
        }
        column_fields = fields.pop("columns")
        columns = tuple(_read_column(column, parties) for column in column_fields)
        options: dict[str, Any] = {
            k: v if isinstance(v, dict) else _tuple(v) for k, v in fields.items()
        }
        schema = Schema(columns, parties=parties, **options)
        _check_schema(schema)
        _check_constants(schema, column_fields)
        return schema

    @staticmethod
    def read(path: Path) -> Schema:
        """Read a schema from its file.

        Raises:
            Unusable: if the file cannot be read or holds no valid schema.
        """
        try:
            return Schema.from_dict(json.loads(path.read_text(encoding="utf-8")))
        except OSError as error:
            raise Unusable(f"{path} cannot be read ({error.strerror}).") from error
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise Unusable(f"{path} holds no valid schema: {error}.") from error

    def write(self, path: Path) -> None:
        """Write the schema to a JSON file, which users may read and edit."""
        path.write_text(self.to_text(), encoding="utf-8")

    def to_text(self) -> str:
        """Return the content of the schema's JSON file."""
        return json.dumps(self.to_dict(), indent=1, ensure_ascii=False) + "\n"


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _tuples(value: Any) -> Any:
    """A list as a tuple, also inside a dict."""
    return {k: _tuple(v) for k, v in value.items()} if isinstance(value, dict) else _tuple(value)


def _read_column(content: Mapping[str, Any], parties: Mapping[str, PartyNotation]) -> Column:
    """A column of a schema file.

    A column with a code for missing values at any party may be missing, so that the code is all
    that a user has to add.
    """
    fields = {k: _tuples(v) for k, v in content.items()}
    # Whole numbers are valid constants, but a dataset's fingerprint tells 60 from 60.0.
    fields |= {k: float(fields[k]) for k in CONSTANTS if type(fields.get(k)) is int}
    medians = fields.get("rounded_medians", ())
    fields["rounded_medians"] = tuple(float(v) if type(v) is int else v for v in medians)
    column = Column(**fields)
    has_codes = any(column.name in notation.also_missing for notation in parties.values())
    return replace(column, may_be_missing=True) if has_codes else column


CONSTANTS = ("mean", "std")
"""The keys of a column's constants for scaling."""
KINDS = ("number", "flag", "words", "")
SCALES = ("own", "shared", "fixed", "none")


def _check_schema(schema: Schema) -> None:
    """Refuse invalid values, which a user may have written into the file."""
    names = [column.name for column in schema.columns]
    words = [word for column in schema.columns for word in column.words]
    if not all(
        isinstance(text, str)
        for text in (schema.label, *names, *schema.classes, *schema.missing, *words)
    ):
        raise ValueError("names and words must be text")
    for setting, values, allowed in (
        ("kind", [column.kind for column in schema.columns], KINDS),
        ("scale", [schema.scale], SCALES),
    ):
        if unknown_values := [value for value in values if value not in allowed]:
            raise ValueError(f"there is no {setting} called {unknown_values[0]!r}")
    for group in (names, schema.classes, *(column.words for column in schema.columns)):
        if len(set(group)) < len(group):
            raise ValueError(
                f"{next(value for value in group if list(group).count(value) > 1)!r} is in it twice"
            )
    for column in schema.columns:
        constants = (column.mean, column.std)
        are_numbers = all(isinstance(value, float) and isfinite(value) for value in constants)
        if not (are_numbers and column.std > 0):
            raise ValueError(
                f"mean and std of {column.name!r} must be numbers, and std more than 0"
            )
        _check_medians(column)
        for unit in column.convert:
            conversion(column, unit)
    for name, notation in schema.parties.items():
        _check_notation(name, notation, schema)


def _check_medians(column: Column) -> None:
    """Refuse rounded medians that are not two positive numbers."""
    medians = column.rounded_medians
    if not medians:
        return
    are_numbers = all(isinstance(value, float) and isfinite(value) for value in medians)
    if not are_numbers or len(medians) != 2 or not 0 < medians[0] <= medians[1]:
        raise ValueError(
            f"rounded_medians of {column.name!r} must be two numbers above 0, the lower one first"
        )


def _check_constants(schema: Schema, columns: Sequence[Mapping[str, Any]]) -> None:
    """Refuse a schema of scale fixed with columns of numbers without their constants."""
    without = [
        column.name
        for column, content in zip(schema.columns, columns, strict=True)
        if any(key not in content for key in schema._constants(column))
    ]
    if without:
        several = len(without) > 1
        raise ValueError(
            f"the column{'s' * several} {_join_words(without)} {'have' if several else 'has'} no"
            " mean and std, which scale fixed needs: write both in each column of numbers, as in"
            ' "mean": 60, "std": 15'
        )


def _check_notation(party: str, notation: PartyNotation, schema: Schema) -> None:
    """Refuse what a schema says of one party, if a column or a unit is unknown."""
    columns = {column.name: column for column in schema.columns}
    codes = (notation.missing, *notation.also_missing.values())
    if not all(
        isinstance(texts, tuple) and all(isinstance(code, str) for code in texts) for texts in codes
    ):
        raise ValueError(f"the missing values of party {party!r} must be lists of text")
    for column in (*notation.also_missing, *notation.units):
        if column not in columns:
            raise ValueError(f"party {party!r} has something of {column!r}, which is no column")
    for column, unit in notation.units.items():
        try:
            conversion(columns[column], unit)
        except Unusable as error:
            raise ValueError(f"party {party!r} has {column!r} in {unit!r}, and {error}") from error


# Cells.


def fold_case(text: str) -> str:
    """A text in lower case with single blanks, to compare spellings."""
    return " ".join(text.split()).casefold()


def cell_text(cell: Any) -> str:
    """The text of a cell, stripped; "" if missing.

    Whole numbers have no decimals, so that 3.0 and 3 are the same word.
    """
    if cell is None or (isinstance(cell, float | np.floating) and np.isnan(cell)):
        return ""
    text = str(cell).strip()
    if (
        NUMBER.fullmatch(text)
        and isfinite(value := float(text))
        and value == int(value)
        and abs(value) < 1e15
    ):
        return str(int(value))
    return text


class MissingValues:
    """The set of texts that mark a missing value."""

    def __init__(self, words: Sequence[str]) -> None:
        self._words = MISSING | {cell_text(word).casefold() for word in words}

    def __contains__(self, text: str) -> bool:
        return text.casefold() in self._words


def read_cells(column: Column, schema: Schema, cells: Cells) -> list[str]:
    """A column's cells as text; "" where they are missing."""
    missing = MissingValues((*schema.missing, *column.also_missing))
    return [
        "" if (text := cell_text(cell)) in missing else column.also_written.get(text, text)
        for cell in cells
    ]


def conversion(column: Column, unit: str) -> tuple[float, float]:
    """The factor, and what is added to the product, that convert a unit to that of the column.

    Raises:
        Unusable: if the column does not say how; the message is the end of a sentence.
        ValueError: if the column says it by something else than numbers.
    """
    if not unit or fold_case(unit) == fold_case(column.unit):
        return 1.0, 0.0
    known_units = {fold_case(name): rule for name, rule in column.convert.items()}
    if fold_case(unit) not in known_units:
        raise Unusable(
            f"the column's unit is {column.unit!r}, but it has no factor for {unit!r} in"
            f' "convert", as in "convert": {{"{unit}": 18.02}}'
            if column.unit
            else f'the column has no "unit" to which {unit!r} could be converted'
        )
    rule = known_units[fold_case(unit)]
    numbers = rule if isinstance(rule, tuple) else (rule, 0.0)
    is_valid = len(numbers) == 2 and all(
        isinstance(number, int | float) and isfinite(number) for number in numbers
    )
    if not is_valid or not numbers[0]:
        raise ValueError(
            f"convert of {column.name!r} must have a factor for {unit!r}, or a factor and what is"
            " added"
        )
    return float(numbers[0]), float(numbers[1])


HEADER_UNIT = re.compile(r"(.*\S)\s*\[([^][]+)\]")


def split_header(header: str) -> tuple[str, str]:
    """The name and the unit of a header such as glucose [mmol/l]; "" if it has no unit."""
    match = HEADER_UNIT.fullmatch(header)
    return (match[1], match[2].strip()) if match else (header, "")


def _join_words(words: Sequence[str]) -> str:
    """Join words for a message, shortened after `MOST_NAMED`."""
    rest = len(words) - MOST_NAMED
    return ", ".join(words[:MOST_NAMED]) + (f" and {rest} more" if rest > 0 else "")


def _list_cells(rows: Mapping[str, Sequence[int]]) -> str:
    """Texts of cells with their first rows, for a message: 'abc' in row 3 (and 2 more rows)."""
    return _join_words(
        [
            f"{text!r} in row {first}" + (f" (and {len(more)} more rows)" if more else "")
            for text, (first, *more) in rows.items()
        ]
    )


def _is_or_are(texts: Mapping[str, Any]) -> str:
    return "is" if len(texts) == 1 else "are"


def encode_numbers(
    column: Column, schema: Schema, cells: Cells, where: str, unit: str = ""
) -> NDArray[np.float32]:
    """Encode a column of numbers or flags; NaN where missing.

    Args:
        column: the column.
        schema: its schema.
        cells: the cells.
        where: name of the table in messages.
        unit: the unit that the table's header names.

    Raises:
        Unusable: if a cell is not a number, a flag is neither 0 nor 1, or the unit is unknown.
    """
    try:
        factor, offset = conversion(column, unit or column.file_unit)
    except Unusable as error:
        raise Unusable(
            f"The column {column.name!r} of {where} is in {unit or column.file_unit!r}: {error}."
        ) from error
    numbers = np.full((len(cells), 1), np.nan, np.float64)
    if (
        isinstance(cells, np.ndarray)
        and cells.dtype.kind in "biuf"
        and not (schema.missing or column.also_missing)
    ):
        numbers[:, 0] = cells
        cells = ()  # numbers already
    problems: dict[str, list[int]] = {}
    for row, text in enumerate(read_cells(column, schema, cells)):
        if not text:
            continue
        is_number = NUMBER.fullmatch(text) and isfinite(float(text))
        if not is_number or (column.kind == "flag" and float(text) not in (0.0, 1.0)):
            problems.setdefault(text, []).append(row + 1)
        else:
            numbers[row] = float(text)
    if problems:
        is_flag = column.kind == "flag" and all(NUMBER.fullmatch(text) for text in problems)
        raise Unusable(
            f"The column {column.name!r} of {where} has {_list_cells(problems)}, "
            + (
                "but is 0 or 1 elsewhere."
                if is_flag
                else f"which {_is_or_are(problems)} not a number: correct it, or leave it empty if"
                " it is not known."
            )
        )
    return (numbers * factor + offset).astype(np.float32)


def encode_words(
    column: Column, schema: Schema, cells: Cells, where: str, allow_unknown: bool, hint: str
) -> tuple[NDArray[np.float32], list[str]]:
    """One-hot encode a column of words; all features are 0 where the word is missing or unknown.

    Returns:
        The features, and the unknown words.

    Raises:
        Unusable: if there is an unknown word and `allow_unknown` is false.
    """
    fold = fold_case if schema.merge_case else str
    positions = {fold(word): k for k, word in enumerate(column.words)}
    flags = np.zeros((len(cells), len(column.words)), np.float32)
    unknown: dict[str, list[int]] = {}
    for row, text in enumerate(read_cells(column, schema, cells)):
        if text and fold(text) not in positions:
            unknown.setdefault(text, []).append(row + 1)
        elif text:
            flags[row, positions[fold(text)]] = 1
    if unknown and not allow_unknown:
        raise Unusable(
            f"The column {column.name!r} of {where} has {_list_cells(unknown)}, which"
            f" {_is_or_are(unknown)} not one of its words ({_join_words(column.words)}): correct"
            f" it{hint}."
        )
    return flags, list(unknown)


def find_column(
    table: Mapping[str, Any], column: str, other_names: Sequence[str], where: str
) -> str | None:
    """The name of a column in a table; None if the table does not have it.

    The column is looked up by its name, then by its other names, then by either in another case.

    Raises:
        Unusable: if two columns of the table match.
    """
    exact = [name for name in (column, *other_names) if name in table]
    if len(exact) > 1:
        raise Unusable(
            f"{where} has the columns {exact[0]!r} and {exact[1]!r}, which are both {column!r}:"
            " remove one."
        )
    if exact:
        return exact[0]
    names = {fold_case(name) for name in (column, *other_names)}
    similar = [name for name in table if fold_case(name) in names]
    if len(similar) > 1:
        raise Unusable(
            f"{where} has the columns {similar[0]!r} and {similar[1]!r}, and either may be"
            f" {column!r}: remove one of them."
        )
    return similar[0] if similar else None


def find_header(table: Mapping[str, Any], column: Column, where: str) -> tuple[str, str] | None:
    """The header of a column in a table and the unit in it, as in glucose [mmol/l]; None if the
    table does not have the column.

    Raises:
        Unusable: if two columns of the table match.
    """
    header = find_column(table, column.name, column.also_called, where)
    if header is None:
        names = {fold_case(name) for name in (column.name, *column.also_called)}
        similar = [name for name in table if fold_case(split_header(name)[0]) in names]
        if len(similar) > 1:
            raise Unusable(
                f"{where} has the columns {similar[0]!r} and {similar[1]!r}, and either may be"
                f" {column.name!r}: remove one of them."
            )
        if not similar:
            return None
        header = similar[0]
    # Brackets in the column's own name are a part of it.
    return header, "" if header == column.name else split_header(header)[1]


@dataclass(frozen=True)
class Encoded:
    """A table's rows as features (NaN where missing), and warnings for the user."""

    x: NDArray[np.float32]
    warnings: tuple[str, ...]


def encode(
    schema: Schema,
    table: Mapping[str, Cells],
    rows: int,
    where: str,
    *,
    allow_unknown: bool = False,
    strict: bool = False,
    hint: str = "",
) -> Encoded:
    """Encode the rows of a table by a schema, without scaling.

    Args:
        schema: the schema to follow.
        table: cells by column name.
        rows: number of rows.
        where: name of the table in messages.
        allow_unknown: treat unknown words as missing, with a warning, instead of refusing them.
        strict: refuse a missing cell in a column that the schema does not allow to be missing.
            Otherwise the cell is treated like other missing values, with a warning.
        hint: addition to the message about an unknown word.

    Raises:
        Unusable: if the table does not fit the schema. A column that may be missing may be absent
            altogether; any other column must be present.
    """
    parts: list[NDArray[np.float32]] = []
    warnings: list[str] = []
    problems: list[str] = []
    for column in schema.columns:
        try:
            values, column_warnings = _encode_column(
                column, schema, table, rows, where, allow_unknown, strict, hint
            )
        except Unusable as error:
            problems += error.args
            continue
        parts.append(values)
        warnings += column_warnings
    if problems:
        raise Unusable(*problems)
    return Encoded(np.concatenate(parts, axis=1), tuple(warnings))


def _encode_column(
    column: Column,
    schema: Schema,
    table: Mapping[str, Cells],
    rows: int,
    where: str,
    allow_unknown: bool,
    strict: bool,
    hint: str,
) -> tuple[NDArray[np.float32], list[str]]:
    """Encode one column of a table; see `encode`."""
    matching = find_header(table, column, where)
    if matching is None:
        if not column.may_be_missing:
            raise Unusable(
                f"{where} has no column {column.name!r}{_other_names(column.also_called)}, which"
                f" was never missing before; it has {_join_words(list(table))}."
            )
        gap = np.nan if column.kind != "words" else 0
        return np.full((rows, column.width), gap, np.float32), [
            f"{where} has no column {column.name!r}: it is taken as missing."
        ]
    header, unit = matching
    warnings = []
    if column.kind == "words":
        values, unknown = encode_words(column, schema, table[header], where, allow_unknown, hint)
        if unknown:
            warnings.append(
                f"The column {column.name!r} of {where} has unknown words, taken as missing:"
                f" {_join_words(unknown)}."
            )
    else:
        values = encode_numbers(column, schema, table[header], where, unit)
    first_gap = None if column.may_be_missing else _first_missing_row(column, values)
    if first_gap is not None:
        problem = (
            f"The column {column.name!r} of {where} is missing in row {first_gap + 1}, which it"
            " never was before"
        )
        if strict:
            raise Unusable(
                f"{problem}: fill it in, or let all parties agree on a schema in which it may be."
            )
        warnings.append(f"{problem}: it is treated like other missing values.")
    return values, warnings


def _other_names(names: Sequence[str]) -> str:
    """Other names of a column, in brackets for a message."""
    return f" (also called {_join_words(names)})" if names else ""


def _first_missing_row(column: Column, values: NDArray[np.float32]) -> int | None:
    """The first row in which a column is missing; None if there is none."""
    gaps = values.sum(1) == 0 if column.kind == "words" else np.isnan(values[:, 0])
    return int(np.argmax(gaps)) if gaps.any() else None


# Reading tables and normalising values, for users who only have an exported model.


def detect_separator(line: str) -> str:
    """The separator of a table's cells: the most frequent one in the first line, outside quotes."""
    unquoted = re.sub(r'"[^"]*"', "", line)
    return max(
        SEPARATORS, key=lambda separator: (unquoted.count(separator), -SEPARATORS.index(separator))
    )


def without_decimal_comma(text: str) -> str:
    """Convert 3,5 to 3.5, in tables that are not separated by commas."""
    return text.replace(",", ".") if DECIMAL_COMMA.fullmatch(text) else text


def read_table(path: Path) -> dict[str, list[str]]:
    """Read the columns of a csv file, by name.

    Raises:
        Unusable: if the file is no table.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            separator = detect_separator(file.readline())
            file.seek(0)
            header, *rows = [
                row
                for row in csv.reader(file, delimiter=separator)
                if any(cell.strip() for cell in row)
            ]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise Unusable(
            f"{path} cannot be read as a table: save it as csv in UTF-8 (in Excel: 'CSV UTF-8')."
        ) from error
    except ValueError as error:
        raise Unusable(f"{path} has no rows.") from error
    if not rows:
        raise Unusable(f"{path} has no rows.")
    names = [name.strip() for name in header]
    if duplicate := next((name for name in names if names.count(name) > 1), ""):
        raise Unusable(f"{path} has two columns called {duplicate!r}: remove or rename one.")
    for k, row in enumerate(rows):
        if len(row) != len(names):
            raise Unusable(f"{path} has {len(row)} cells in row {k + 1}, but {len(names)} columns.")
    convert = (lambda text: text) if separator == "," else without_decimal_comma
    return {name: [convert(row[k].strip()) for row in rows] for k, name in enumerate(names)}


def normalise(
    x: NDArray[Any], divisor: float, mean: Sequence[float], std: Sequence[float]
) -> NDArray[np.float32]:
    """`(x / divisor - mean) / std`, with one constant or one per channel or column."""
    trailing = (1,) * (x.ndim - 2)
    mean_values, std_values = (
        np.asarray(c, np.float32).reshape(-1, *trailing) for c in (mean, std)
    )
    values = x.astype(np.float32)
    result: NDArray[np.float32] = (
        (values / np.float32(divisor) if divisor != 1 else values) - mean_values
    ) / std_values
    return result


def fill_missing(
    x: NDArray[np.float32], fill: Sequence[float], indicator_columns: Sequence[int]
) -> NDArray[np.float32]:
    """Replace missing values by `fill`, and append the missing-value indicators."""
    is_missing = np.isnan(x)
    indicators = is_missing[:, list(indicator_columns)].astype(np.float32)
    return np.concatenate(
        [np.where(is_missing, np.asarray(fill, np.float32), x), indicators], axis=1
    )
