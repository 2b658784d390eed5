"""From a table's cells to the numbers that a network is given, as a schema says.

This file needs numpy only and nothing else of Comity: a copy of it lies beside every exported
model, so that what is done to a new patient's row is, line by line, what was done to those that the
model learned from.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

MISSING = frozenset({"", "?", "-", ".", "na", "n/a", "nan", "null"})
"""What stands for a missing value in every column, in small letters."""
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+", re.ASCII)
SEPARATORS = (",", ";", "\t", "|")
Cells = Sequence[Any] | NDArray[Any]
FORMAT = 1
SHOWN = 12  # words in a sentence
FILLED = (
    "a missing number with the mean of the party's own training samples; a missing word with zeros"
    " for all words"
)


class Unusable(Exception):
    """Why a table cannot be used, in one sentence."""


@dataclass(frozen=True)
class Column:
    """A column that a model is given: numbers, flags (0 and 1, never scaled) or words (one number a
    word).
    """

    name: str
    kind: str
    """number, flag or words; empty as long as nobody has a value."""
    words: tuple[str, ...] = ()
    """Of a column of words: all there are, in the order of their numbers."""
    may_be_missing: bool = False
    """A number or flag of this kind has a second one beside it that says where it was missing."""
    unit: str = ""
    also_missing: tuple[str, ...] = ()
    """What else stands for a missing value here, as 0 does for a blood pressure."""
    also_called: tuple[str, ...] = ()
    """Other names that the column goes by."""
    also_written: Mapping[str, str] = field(default_factory=dict)
    """What some write, and the word that it stands for, as m for male."""
    mean: float = 0.0
    std: float = 1.0
    """Constants that numbers are scaled by, where the schema's are `fixed`."""

    @property
    def width(self) -> int:
        """How many numbers it becomes, without the one that says what was missing."""
        return len(self.words) if self.kind == "words" else 1

    @property
    def marked(self) -> bool:
        """Whether another number says where it was missing; a missing word needs none, as all its
        numbers are 0 then.
        """
        return self.may_be_missing and self.kind != "words"


@dataclass(frozen=True)
class Schema:
    """What parties agree on: columns, words, classes, what is missing, and how numbers are scaled."""

    columns: tuple[Column, ...]
    label: str
    classes: tuple[str, ...]
    """The classes by name, in the order of their numbers; none where the label is a number that is
    to be predicted.
    """
    missing: tuple[str, ...] = ()
    """What stands for a missing value beside the usual words."""
    merge_case: bool = False
    """Whether words that differ in case or blanks only are one."""
    scale: str = "own"
    """Numbers have mean 0 and spread 1 by each party's `own` training samples, by everybody's
    (`shared`), by constants of the schema (`fixed`), or are used as they are (`none`).
    """
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Columns that are not used, and why."""
    label_also_called: tuple[str, ...] = ()
    label_also_written: Mapping[str, str] = field(default_factory=dict)

    @property
    def marked(self) -> tuple[int, ...]:
        """Which of the numbers have another that says where they were missing."""
        return tuple(
            at for at, column in zip(self._places(), self.columns, strict=True) if column.marked
        )

    @property
    def scaled(self) -> tuple[int, ...]:
        """Which of the numbers are scaled."""
        return tuple(
            at
            for at, column in zip(self._places(), self.columns, strict=True)
            if column.kind == "number"
        )

    @property
    def width(self) -> int:
        """How many numbers a row becomes, without those that say what was missing."""
        return sum(column.width for column in self.columns)

    @property
    def display_name(self) -> tuple[str, ...]:
        """What each of the numbers is called, those included that say what was missing: age,
        cp=typical angina, chol missing.
        """
        made = [
            f"{c.name}={word}"
            for c in self.columns
            for word in (c.words if c.kind == "words" else ("",))
        ]
        return (
            *(name.removesuffix("=") for name in made),
            *(f"{c.name} missing" for c in self.columns if c.marked),
        )

    def _places(self) -> list[int]:
        widths = [column.width for column in self.columns]
        return [sum(widths[:k]) for k in range(len(widths))]

    def told(self) -> dict[str, Any]:
        """All of it as plain values, for JSON; what is as usual is left out of the columns."""
        usual = asdict(Column("", ""))
        made = {"comity_schema": FORMAT, **asdict(self), "filled": FILLED}
        made["columns"] = [
            {k: v for k, v in asdict(column).items() if k in ("name", "kind") or v != usual[k]}
            for column in self.columns
        ]
        return made

    @staticmethod
    def of(told: Mapping[str, Any]) -> Schema:
        """What `told` made; any of the usual errors where it makes no sense."""
        plain = dict(told)
        if plain.pop("comity_schema") != FORMAT:
            raise ValueError("another version")
        plain.pop("filled", None)  # it is said for people
        columns = tuple(
            Column(**{k: _tuple(v) for k, v in one.items()}) for one in plain.pop("columns")
        )
        given: dict[str, Any] = {
            k: v if isinstance(v, dict) else _tuple(v) for k, v in plain.items()
        }
        made = Schema(columns, **given)
        _check(made)
        return made

    @staticmethod
    def read(path: Path) -> Schema:
        """A schema from its file."""
        try:
            return Schema.of(json.loads(path.read_text(encoding="utf-8")))
        except OSError as why:
            raise Unusable(f"{path} cannot be read ({why.strerror}).") from why
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as why:
            raise Unusable(f"{path} holds no schema that can be used: {why}.") from why

    def write(self, path: Path) -> None:
        """The schema as a file that people can read and change."""
        path.write_text(
            json.dumps(self.told(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
        )


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


KINDS = ("number", "flag", "words", "")
SCALES = ("own", "shared", "fixed", "none")


def _check(schema: Schema) -> None:
    """Refuse what somebody has written into a schema by hand and makes no sense."""
    names = [column.name for column in schema.columns]
    words = [word for column in schema.columns for word in column.words]
    if not all(
        isinstance(text, str)
        for text in (schema.label, *names, *schema.classes, *schema.missing, *words)
    ):
        raise ValueError("names and words must be texts")
    for what, given, known in (
        ("kind", [column.kind for column in schema.columns], KINDS),
        ("scale", [schema.scale], SCALES),
    ):
        if wrong := [one for one in given if one not in known]:
            raise ValueError(f"there is no {what} called {wrong[0]!r}")
    for every in (names, schema.classes, *(column.words for column in schema.columns)):
        if len(set(every)) < len(every):
            raise ValueError(
                f"{next(one for one in every if list(every).count(one) > 1)!r} is in it twice"
            )
    for column in schema.columns:
        if not (isfinite(column.mean) and isfinite(column.std) and column.std > 0):
            raise ValueError(
                f"mean and std of {column.name!r} must be numbers, and std more than 0"
            )


# Cells.


def folded(text: str) -> str:
    """A text without what people write differently: case, and how many blanks."""
    return " ".join(text.split()).casefold()


def text_of(cell: Any) -> str:
    """A cell as text without blanks around; whole numbers have no decimals, so that 3.0 and 3 are
    one word.
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


class Missing:
    """What stands for a missing value."""

    def __init__(self, words: Sequence[str]) -> None:
        self._words = MISSING | {text_of(word).casefold() for word in words}

    def __contains__(self, text: str) -> bool:
        return text.casefold() in self._words


def cells_of(column: Column, schema: Schema, cells: Cells) -> list[str]:
    """A column's cells as text, empty where they are missing."""
    missing = Missing((*schema.missing, *column.also_missing))
    return [
        "" if (text := text_of(cell)) in missing else column.also_written.get(text, text)
        for cell in cells
    ]


def _few(words: Sequence[str]) -> str:
    rest = len(words) - SHOWN
    return ", ".join(words[:SHOWN]) + (f" and {rest} more" if rest > 0 else "")


def numbers_of(column: Column, schema: Schema, cells: Cells, where: str) -> NDArray[np.float32]:
    """A column of numbers, NaN where it is missing."""
    made = np.full((len(cells), 1), np.nan, np.float64)
    if (
        isinstance(cells, np.ndarray)
        and cells.dtype.kind in "biuf"
        and not (schema.missing or column.also_missing)
    ):
        made[:, 0] = cells
        cells = ()  # numbers already
    for row, text in enumerate(cells_of(column, schema, cells)):
        if not text:
            continue
        if not NUMBER.fullmatch(text) or not isfinite(value := float(text)):
            raise Unusable(
                f"The column {column.name!r} of {where} has {text!r} in row {row + 1}, which is not"
                " a number: correct it, or leave it empty if it is not known."
            )
        if column.kind == "flag" and value not in (0.0, 1.0):
            raise Unusable(
                f"The column {column.name!r} of {where} has {text!r} in row {row + 1}, but is 0 or"
                " 1 elsewhere."
            )
        made[row] = value
    return made.astype(np.float32)


def flags_of(
    column: Column, schema: Schema, cells: Cells, where: str, allow_unknown: bool, hint: str
) -> tuple[NDArray[np.float32], list[str]]:
    """A column of words as one number a word: 1 for the word that is there, and all 0 where it is
    missing. Unknown words, too.
    """
    plain = folded if schema.merge_case else str
    known = {plain(word): k for k, word in enumerate(column.words)}
    made = np.zeros((len(cells), len(column.words)), np.float32)
    unknown: dict[str, int] = {}
    for row, text in enumerate(cells_of(column, schema, cells)):
        if text and plain(text) not in known:
            unknown.setdefault(text, row + 1)
        elif text:
            made[row, known[plain(text)]] = 1
    if unknown and not allow_unknown:
        word, row = next(iter(unknown.items()))
        raise Unusable(
            f"The column {column.name!r} of {where} has {word!r} in row {row}, which is not one of"
            f" its words ({_few(column.words)}): correct it{hint}."
        )
    return made, list(unknown)


def find(table: Mapping[str, Any], column: str, also: Sequence[str], where: str) -> str | None:
    """What a table calls a column: by its name, then by other names, then by either in another
    case.
    """
    there = [name for name in (column, *also) if name in table]
    if len(there) > 1:
        raise Unusable(
            f"{where} has the columns {there[0]!r} and {there[1]!r}, which are both {column!r}:"
            " remove one."
        )
    if there:
        return there[0]
    names = {folded(name) for name in (column, *also)}
    alike = [name for name in table if folded(name) in names]
    if len(alike) > 1:
        raise Unusable(
            f"{where} has the columns {alike[0]!r} and {alike[1]!r}, and either may be {column!r}:"
            " remove one of them."
        )
    return alike[0] if alike else None


@dataclass(frozen=True)
class Encoded:
    """A table's rows as numbers, NaN where one is missing, and what a reader should know."""

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
    """The rows of a table (columns by name) as the schema's numbers, unscaled.

    A column that may be missing may be missing altogether. One that never was is refused when it is
    not there, or, if `strict`, when a cell of it is missing; else that cell is filled like others,
    and a remark says so. `hint` is what else can be done about a word that nobody knows.
    """
    parts = []
    warnings = []
    for column in schema.columns:
        name = find(table, column.name, column.also_called, where)
        if name is None and not column.may_be_missing:
            raise Unusable(
                f"{where} has no column {column.name!r}{_named(column.also_called)}, which was"
                f" never missing before; it has {_few(list(table))}."
            )
        if name is None:
            warnings.append(f"{where} has no column {column.name!r}: it is taken as missing.")
            parts.append(
                np.full((rows, column.width), np.nan if column.kind != "words" else 0, np.float32)
            )
            continue
        if column.kind == "words":
            values, unknown = flags_of(column, schema, table[name], where, allow_unknown, hint)
            if unknown:
                warnings.append(
                    f"The column {column.name!r} of {where} has unknown words, taken as missing:"
                    f" {_few(unknown)}."
                )
        else:
            values = numbers_of(column, schema, table[name], where)
        if not column.may_be_missing and (gap := _gap(column, values)) is not None:
            said = (
                f"The column {column.name!r} of {where} is missing in row {gap + 1}, which it never"
                " was before"
            )
            if strict:
                raise Unusable(
                    f"{said}: fill it in, or let all parties agree on a schema in which it may be."
                )
            warnings.append(f"{said}: it is treated like other missing values.")
        parts.append(values)
    return Encoded(np.concatenate(parts, axis=1), tuple(warnings))


def _named(names: Sequence[str]) -> str:
    return f" (also called {_few(names)})" if names else ""


def _gap(column: Column, values: NDArray[np.float32]) -> int | None:
    """The first row in which a column is missing."""
    gaps = values.sum(1) == 0 if column.kind == "words" else np.isnan(values[:, 0])
    return int(np.argmax(gaps)) if gaps.any() else None


# Tables and pictures from files, for whoever has only an exported model.


def separator_of(line: str) -> str:
    """What separates the cells of a table, by its first line: whatever there is most of, outside of
    quotes.
    """
    bare = re.sub(r'"[^"]*"', "", line)
    return max(SEPARATORS, key=lambda one: (bare.count(one), -SEPARATORS.index(one)))


def without_decimal_comma(text: str) -> str:
    """3,5 as 3.5: in tables whose cells commas do not separate."""
    return text.replace(",", ".") if DECIMAL_COMMA.fullmatch(text) else text


def read_table(path: Path) -> dict[str, list[str]]:
    """The columns of a csv file by name."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            separator = separator_of(file.readline())
            file.seek(0)
            header, *rows = [
                row
                for row in csv.reader(file, delimiter=separator)
                if any(cell.strip() for cell in row)
            ]
    except (OSError, UnicodeDecodeError, csv.Error) as why:
        raise Unusable(
            f"{path} cannot be read as a table: save it as csv in UTF-8 (in Excel: 'CSV UTF-8')."
        ) from why
    except ValueError as why:
        raise Unusable(f"{path} has no rows.") from why
    if not rows:
        raise Unusable(f"{path} has no rows.")
    names = [name.strip() for name in header]
    if twice := next((name for name in names if names.count(name) > 1), ""):
        raise Unusable(f"{path} has two columns called {twice!r}: remove or rename one.")
    for k, row in enumerate(rows):
        if len(row) != len(names):
            raise Unusable(f"{path} has {len(row)} cells in row {k + 1}, but {len(names)} columns.")
    plain = (lambda text: text) if separator == "," else without_decimal_comma
    return {name: [plain(row[k].strip()) for row in rows] for k, name in enumerate(names)}


def normalised(
    x: NDArray[Any], divisor: float, mean: Sequence[float], std: Sequence[float]
) -> NDArray[np.float32]:
    """Values over `divisor`, less `mean`, over `std`: constants are one, or one a channel or
    column.
    """
    ends = (1,) * (x.ndim - 2)
    middle, spread = (np.asarray(c, np.float32).reshape(-1, *ends) for c in (mean, std))
    values = x.astype(np.float32)
    made: NDArray[np.float32] = (
        (values / np.float32(divisor) if divisor != 1 else values) - middle
    ) / spread
    return made


def filled(
    x: NDArray[np.float32], fill: Sequence[float], marked: Sequence[int]
) -> NDArray[np.float32]:
    """Missing values filled in, and beside them numbers that say where."""
    gaps = np.isnan(x)
    marks = gaps[:, list(marked)].astype(np.float32)
    return np.concatenate([np.where(gaps, np.asarray(fill, np.float32), x), marks], axis=1)
