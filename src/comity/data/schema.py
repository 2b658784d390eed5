"""Schemas of parties' tables: each table is described by itself, then the descriptions are merged.

No party needs to see another party's file: `comity data schema` describes one file, and merges
several descriptions. A folder with all parties' files is processed in the same way, so that parties
that import alone get the result of a pooled import.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from comity.data.conversions import known_factor, round_median
from comity.data.formats.table import RawTable
from comity.data.preparation import (
    NUMBER,
    Cells,
    Column,
    Conversion,
    MissingValues,
    PartyNotation,
    Schema,
    Unusable,
    cell_text,
    conversion,
    find_column,
    fold_case,
    read_cells,
    split_header,
)
from comity.data.table_checks import check_label_words, percentiles, without_codes
from comity.data.word_meanings import match_words
from comity.errors import ErrorCollector, UsageError, quote, unknown
from comity.text import join_names

MOST_WORDS = 256
"""A column with more distinct words holds names or dates, not categories."""
SOME_ROWS = 20
"""From this number of rows on, distinct values in all rows suggest an identifier."""
MOST_CLASSES = 100_000
LONG_TEXT = 40
"""Mean length, in letters, above which a column holds free text."""
DATE = re.compile(
    r"(\d{4}-\d{1,2}-\d{1,2}|\d{1,2}[./]\d{1,2}[./]\d{2,4})([ T]\d{1,2}:\d{2}.*)?", re.ASCII
)
IDENTIFIER_NAME = re.compile(
    r"(^|[^a-z])(id|nr|no|number|key|mrn|pid|uuid|case|patient)([^a-z]|$)|(nummer|nr|number)$",
    re.IGNORECASE,
)
"""Column names that suggest an identifier."""
PERSON_NAME = re.compile(
    r"(^|[^a-z])(id|mrn|pid|uuid|name|surname|nachname|vorname)$"
    r"|^(patient|pat|subject|person|case|fall)[^a-z]*(id|nr|no|number|nummer|key|code)?$",
    re.IGNORECASE,
)
"""Column names that suggest an identifier even if values occur more than once, as of patients with
several rows.
"""
CODE_ROWS = 4
"""Codes with digits that have fewer rows each, on average, are taken for identifiers."""
# Distinct whole numbers with at least so many digits, in so many rows, are taken for identifiers.
IDENTIFIER_DIGITS = 5
MANY_ROWS = 50
# A column holds free text if its cells have so many words on average, and more distinct values
# than this.
SENTENCE = 4
SENTENCES = 10
KINDS = ("number", "flag", "words")


@dataclass(frozen=True)
class ColumnOptions:
    """The user's options about the columns of tables."""

    label: str = "label"
    columns: tuple[str, ...] = ()
    """If not empty, only these columns are used."""
    drop: tuple[str, ...] = ()
    kinds: Mapping[str, str] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    merge_case: bool | None = None
    """Whether words that differ only in case are the same; None: refuse such words."""
    scale: str = "own"
    rename: Mapping[str, str] = field(default_factory=dict)
    """Column names in files, and the names to use instead."""
    units: Mapping[str, str] = field(default_factory=dict)
    words: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """By column: other spellings, and the words that they stand for."""
    positive: str = ""
    """The positive class of sensitivity; it becomes the last class."""
    also_missing: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By column: codes for missing values in this column only."""
    convert: Mapping[str, Mapping[str, Conversion]] = field(default_factory=dict)
    """By column: other units in files, and how their numbers are converted."""
    parties: Mapping[str, PartyNotation] = field(default_factory=dict)
    """By party: codes and units in its files only."""
    constants: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """By column of numbers: the mean and standard deviation to scale it by. If there are any, the
    schema's scale is `fixed`.
    """
    medians: bool | None = None
    """Whether descriptions have the rounded median of each column of numbers. None: those that are
    in schemas already are kept.
    """
    keep_label_words: bool = False
    """Whether label words that look like other parties' words are classes of their own."""

    def __post_init__(self) -> None:
        for name, kind in self.kinds.items():
            if kind not in KINDS:
                raise unknown(f"kind (of {name}) called", kind, KINDS)
        if self.scale == "fixed" and not self.constants:
            raise UsageError(
                "scale fixed needs constants: say --constant COLUMN=MEAN,STD for each column of"
                " numbers, as in --constant age=60,15."
            )
        if self.scale not in ("own", "shared", "none", "fixed"):
            raise UsageError(f"scale must be own, shared or none, not {quote(self.scale)}.")
        for name, (mean, std) in self.constants.items():
            if not (isfinite(mean) and isfinite(std) and std > 0):
                raise UsageError(
                    f"The constants of {name} are {mean:g} and {std:g}, but must be a mean and a"
                    " standard deviation above 0, as in --constant age=60,15."
                )

    def at(self, party: str) -> ColumnOptions:
        """The options for the files of one party, with its own codes and units."""
        notation = self.parties.get(party, PartyNotation())
        codes = dict(self.also_missing)
        for column, texts in notation.also_missing.items():
            codes[column] = (*codes.get(column, ()), *texts)
        return replace(
            self,
            missing=(*self.missing, *notation.missing),
            also_missing=codes,
            units={**self.units, **notation.units},
            parties={},
        )

    def label_schema(self) -> Schema:
        """A schema that holds only the options about the label."""
        spellings = self.words.get(self.label, {})
        other_names = self.also_called(self.label)
        return Schema(
            (),
            self.label,
            (),
            self.missing,
            label_also_called=other_names,
            label_also_written=spellings,
            parties={
                party: PartyNotation(notation.missing) for party, notation in self.parties.items()
            },
        )

    def also_called(self, column: str) -> tuple[str, ...]:
        """Other names of a column in files."""
        return tuple(name_in_file for name_in_file, name in self.rename.items() if name == column)


# One party's table


class MissingLabel(UsageError):
    """A table without a column of the label's name."""

    def __init__(self, label: str, table: RawTable) -> None:
        super().__init__(_missing_label_sentence(label, [table]))
        self.table = table


def describe_table(table: RawTable, options: ColumnOptions, errors: ErrorCollector) -> Schema:
    """The schema of one table by itself.

    Args:
        table: the table.
        options: the options for this party's files (`ColumnOptions.at`).
        errors: where errors about single columns are collected. The description is without these
            columns.

    Raises:
        UsageError: if the table lacks the label, or its label or its names cannot be used.
    """
    where = str(table.path)
    names = _agreed_names(table, options)
    label = find_column(names, options.label, (), where)
    if label is None:
        raise MissingLabel(options.label, table)
    columns: list[Column] = []
    left_out: dict[str, str] = {}
    for agreed_name, name in names.items():
        if (
            agreed_name == label
            or (options.drop and {agreed_name, name} & set(options.drop))
            or (options.columns and not {agreed_name, name} & set(options.columns))
        ):
            continue
        header_unit = "" if agreed_name == name else split_header(name)[1]
        column = Column(
            agreed_name,
            "",
            unit=header_unit or options.units.get(agreed_name, ""),
            also_missing=options.also_missing.get(agreed_name, ()),
            also_called=options.also_called(agreed_name),
            also_written=options.words.get(agreed_name, {}),
        )
        texts = read_cells(column, Schema((), "", (), options.missing), table[name])
        with errors.collect():
            result = _describe_column(column, texts, options, where)
            if isinstance(result, str):
                left_out[agreed_name] = result
            else:
                columns.append(result)
    schema = Schema(
        (), options.label, (), options.missing, bool(options.merge_case), options.scale, left_out
    )
    label_names = tuple(sorted({*options.also_called(options.label), label} - {options.label}))
    schema = replace(
        schema,
        label_also_called=label_names,
        label_also_written=options.words.get(options.label, {}),
    )
    return replace(
        schema,
        columns=tuple(columns),
        classes=_classes(table[names[label]], schema, where, options.kinds.get(options.label)),
    )


def _agreed_names(table: RawTable, options: ColumnOptions) -> dict[str, str]:
    """The agreed name of each column, and its name in the table."""
    plain_names = [split_header(name)[0] for name in table.names]
    names: dict[str, str] = {}
    names_by_spelling: dict[str, str] = {}
    for name, plain_name in zip(table.names, plain_names, strict=True):
        # A unit in brackets is no part of a name, unless the rest names two columns.
        is_unit = plain_names.count(plain_name) == 1 and fold_case(name) != fold_case(options.label)
        agreed_name = _agreed_name(name, options)
        if agreed_name == name and is_unit:
            agreed_name = _agreed_name(plain_name, options)
        if (other := names_by_spelling.setdefault(fold_case(agreed_name), name)) != name:
            agreed_other = next(agreed for agreed, it in names.items() if it == other)
            raise UsageError(
                f"{table.path} has the columns {other!r} and {name!r}, and either may be"
                f" {agreed_other!r}: remove one."
            )
        names[agreed_name] = name
    return names


def _missing_label_sentence(label: str, tables: Sequence[RawTable]) -> str:
    """The sentence about tables without the label; names columns with few values first."""
    names = dict.fromkeys(name for table in tables for name in table.names)
    values = {
        name: max(len({*map(str, table[name])}) for table in tables if name in table)
        for name in names
    }
    places = {name: place for place, name in enumerate(names)}
    # The label often is the last column.
    likely = sorted(names, key=lambda name: (values[name], -places[name]))
    files = join_names([str(tables[0].path), *(Path(table.path).name for table in tables[1:])], 6)
    has, it_has = ("have", "they have") if len(tables) > 1 else ("has", "it has")
    return (
        f"{files} {has} no column called {quote(label)}, the label to predict: name it with"
        f" --label, or with --rename if it has another name in some files; {it_has}"
        f" {join_names(likely)} (columns with few values first)."
    )


def missing_label_error(label: str, errors: Sequence[MissingLabel]) -> UsageError:
    """One error for all tables without the label."""
    return UsageError(_missing_label_sentence(label, [error.table for error in errors]))


def _agreed_name(name: str, options: ColumnOptions) -> str:
    """The name to use for a column of a file."""
    return options.rename.get(name, name)


def _describe_column(
    column: Column, texts: list[str], options: ColumnOptions, where: str
) -> Column | str:
    """The description of a column in one table, or the reason to leave it out."""
    present = [text for text in texts if text]
    has_gaps = len(present) < len(texts)
    kind = options.kinds.get(column.name)
    numeric = [bool(NUMBER.fullmatch(text)) and isfinite(float(text)) for text in present]
    if not present:
        return replace(column, kind=kind or "", may_be_missing=True)
    if kind is None and all(numeric):
        if reason := _reason_against_numbers(column.name, present):
            return reason
        kind = "flag" if {float(text) for text in present} <= {0.0, 1.0} else "number"
    if kind is None and sum(numeric) > len(present) / 2:
        row = next(row for row, text in enumerate(texts) if text and not NUMBER.fullmatch(text))
        raise UsageError(
            f"The column {column.name!r} of {where} has {quote(texts[row])} in row {row + 1}, but"
            f" numbers in most: correct it, or say --missing {texts[row]!r} or --kind"
            f" '{column.name}=words'."
        )
    if kind is None:
        if reason := _reason_against_words(column.name, present):
            return reason
        kind = "words"
    if kind == "words":  # brackets in a header may list words, as in sex [m/f]
        words = tuple(sorted(set(present)))
        unit = options.units.get(column.name, "")
        return replace(column, kind=kind, words=words, may_be_missing=has_gaps, unit=unit)
    medians = _rounded_medians(present) if kind == "number" and options.medians else ()
    return replace(column, kind=kind, may_be_missing=has_gaps, rounded_medians=medians)


FEWEST_OF_MEDIAN = 10
"""Numbers that a median is described from."""
WIDEST = 32.0
"""Ratio of the 95th to the 5th percentile up to which medians are described: those of wider columns
differ by as much as units do.
"""


def _rounded_medians(texts: Sequence[str]) -> tuple[float, ...]:
    """The median of one party's numbers, rounded, as the lowest and the highest of the parties'.

    Codes for missing values do not count. Empty if there are few numbers, if the 5th percentile is
    not positive, or if the numbers are too different (`WIDEST`).
    """
    numbers = [float(text) for text in texts if NUMBER.fullmatch(text)]
    values = without_codes(np.array(numbers, np.float32))
    spread = percentiles(values[np.isfinite(values)])
    if np.isfinite(values).sum() < FEWEST_OF_MEDIAN or spread is None:
        return ()
    if not 0 < spread.low <= spread.high <= WIDEST * spread.low:
        return ()
    return (round_median(spread.middle),) * 2


def _reason_against_numbers(name: str, texts: Sequence[str]) -> str:
    """The reason to leave out a column of numbers: it looks like an identifier; "" if none."""
    values = [float(text) for text in texts]
    if any(value != int(value) for value in values):
        return ""
    if len(set(values)) < len(values):
        return _reason_against_person(name, texts)
    if len(values) < SOME_ROWS:
        return ""
    consecutive = all(after - before == 1 for before, after in pairwise(values))
    long_numbers = (
        len(values) >= MANY_ROWS
        and len({len(text) for text in texts}) == 1
        and len(texts[0]) >= IDENTIFIER_DIGITS
    )
    if IDENTIFIER_NAME.search(name) or consecutive or long_numbers:
        return f"{IDENTIFIER}: a different whole number in each row"
    return ""


def _reason_against_person(name: str, texts: Sequence[str]) -> str:
    """The reason to leave out a column that seems to identify patients with several rows."""
    distinct = len(set(texts))
    if PERSON_NAME.search(name) and (distinct > SOME_ROWS or 2 < len(texts) < 2 * distinct):
        return f"{IDENTIFIER}: {distinct} different values in {len(texts)} rows"
    return ""


def identifies_person(name: str, left_out: Mapping[str, str]) -> bool:
    """Whether a column's name, or the reason to leave it out, suggests that it names patients."""
    return bool(PERSON_NAME.search(name)) or left_out.get(name, "").startswith(IDENTIFIER)


def _reason_against_words(name: str, texts: Sequence[str]) -> str:
    """The reason to leave out a column of words: dates, identifiers or free text; "" if none."""
    if sum(bool(DATE.fullmatch(text)) for text in texts) > 0.9 * len(texts):
        return "looks like dates, which cannot be encoded without knowing their meaning"
    distinct = len(set(texts))
    if len(texts) >= SOME_ROWS and distinct == len(texts):
        return f"{IDENTIFIER}: a different word in each row"
    if reason := _reason_against_person(name, texts):
        return reason
    with_digits = sum(any(map(str.isdecimal, text)) for text in texts)
    if distinct > SOME_ROWS and distinct * CODE_ROWS > len(texts) and 2 * with_digits > len(texts):
        return f"{IDENTIFIER}: {distinct} different words in {len(texts)} rows"
    has_sentences = (
        sum(len(text.split()) for text in texts) >= SENTENCE * len(texts) and distinct > SENTENCES
    )
    if (
        has_sentences
        or sum(map(len, texts)) > LONG_TEXT * len(texts)
        or (len(texts) >= SOME_ROWS and distinct > len(texts) / 2)
    ):
        return "looks like free text: a different text in most rows"
    return ""


def _classes(cells: Cells, schema: Schema, where: str, kind: str | None) -> tuple[str, ...]:
    """The names of the label's classes: sorted words, or all whole numbers up to the largest.

    Empty if the label is a number to predict.
    """
    present = {text for text in label_texts(cells, schema) if text}
    if not present:
        raise UsageError(f"{where} has no label in any row of {schema.label!r}.")
    all_numbers = all(NUMBER.fullmatch(text) and isfinite(float(text)) for text in present)
    if kind == "number" and not all_numbers:
        word = next(text for text in sorted(present) if not NUMBER.fullmatch(text))
        raise UsageError(
            f"The label {schema.label!r} of {where} has {quote(word)} among its values, which is"
            " not a number."
        )
    if kind == "number" or (
        kind is None and all_numbers and any(float(text) != int(float(text)) for text in present)
    ):
        return ()
    if kind is None and all_numbers and len(present) > SOME_ROWS:
        raise UsageError(
            f"The label {schema.label!r} of {where} has {len(present)} different numbers: say"
            f" --kind '{schema.label}=number' to predict it as a number, or"
            f" --kind '{schema.label}=words' if they are classes."
        )
    if kind == "words":
        return tuple(sorted(present, key=lambda text: (float(text) if all_numbers else 0.0, text)))
    return _order_classes(present, f"The label {schema.label!r} of {where}")


def _order_classes(texts: set[str], where: str) -> tuple[str, ...]:
    """Sorted words, or all whole numbers from 0 to the largest."""
    if not all(NUMBER.fullmatch(text) for text in texts):
        return tuple(sorted(texts))
    values = [float(text) for text in texts]
    if any(value < 0 or value != int(value) for value in values):
        raise UsageError(
            f"{where} has {min(values):g} among its numbers, but classes are words, or whole"
            " numbers from 0."
        )
    if max(values) >= MOST_CLASSES:
        raise UsageError(f"{where} has the number {max(values):g}: number the classes 0, 1, 2, ...")
    return tuple(map(str, range(int(max(values)) + 1)))


def label_texts(cells: Cells, schema: Schema) -> list[str]:
    """A table's labels as text; "" where they are missing."""
    missing = MissingValues(schema.missing)
    return [
        "" if (text := cell_text(cell)) in missing else schema.label_also_written.get(text, text)
        for cell in cells
    ]


# Several parties' descriptions.


IDENTIFIER = "looks like an identifier"
"""How the reason begins for which a column that identifies rows is left out."""
EMPTY = "is empty at all parties"
"""Why a column without a value is left out."""


def merge_schemas(
    parties: Mapping[str, Schema], options: ColumnOptions, is_complete: bool = True
) -> Schema:
    """Merge the parties' schemas into one.

    Args:
        parties: the parties' schemas.
        options: the user's options for all parties.
        is_complete: whether all parties and columns are there. If not, only contradictions between
            those that are there are looked for.

    Raises:
        UsageError: if the schemas contradict each other.
    """
    first, model = next(iter(parties.items()))
    empty: dict[str, str] = {}
    for name, schema in parties.items():
        if fold_case(schema.label) != fold_case(model.label):
            raise UsageError(
                f"The label of {name!r} is {schema.label!r} but that of {first!r} {model.label!r}:"
                " they must agree."
            )
        # A column that is empty at one party may have values at another.
        empty |= {column: why for column, why in schema.left_out.items() if why == EMPTY}
    left_out = _merge_left_out(parties)
    # Columns with values come first, in the parties' order: a description of one party alone does
    # not have its empty columns, and the order must not depend on who describes them.
    every_column = [column for schema in parties.values() for column in schema.columns]
    order = dict.fromkeys(
        [
            *(column.name for column in every_column if column.kind),
            *(column.name for column in every_column),
        ]
    )
    errors = ErrorCollector()
    columns: list[Column] = []
    for name in _distinct_names(order):
        if name not in left_out:
            with errors.collect():
                columns.append(_merge_column(name, parties, options))
    for column in columns:
        if not column.kind:
            left_out[column.name] = EMPTY
    left_out |= {name: why for name, why in empty.items() if name not in order}
    used = tuple(column for column in columns if column.kind)
    classes: tuple[str, ...] = ()
    with errors.collect():
        classes = _merge_labels(parties, options)
    is_complete = is_complete and not errors.sentences
    if is_complete:
        names = {column.name for column in columns} | left_out.keys()
        with errors.collect():
            _check_option_columns(options, names, parties)
        with errors.collect():
            used = _with_constants(used, options.constants)
        with errors.collect():
            classes = _with_positive_last(classes, options.positive)
    if is_complete and not used:
        raise UsageError(
            f"There is no column but {model.label!r} that could be used{_reasons(left_out)}."
        )
    errors.check()
    label_names = sorted(
        {name for schema in parties.values() for name in (schema.label, *schema.label_also_called)}
        - {options.label}
    )
    label_spellings = [schema.label_also_written for schema in parties.values()]
    merged = Schema(
        used,
        options.label,
        classes,
        (),
        bool(options.merge_case),
        "fixed" if options.constants else options.scale,
        left_out,
        tuple(label_names),
        _merge_spellings(label_spellings, f"The label {model.label!r}"),
    )
    return _with_notations(merged, parties, options)


def _with_constants(
    columns: tuple[Column, ...], constants: Mapping[str, tuple[float, float]]
) -> tuple[Column, ...]:
    """The columns with the constants to scale by; refuse columns of numbers without constants."""
    if not constants:
        return columns
    numbers = [column.name for column in columns if column.kind == "number"]
    for name in constants:
        if name not in numbers:
            raise unknown("column of numbers called", name, numbers)
    if without := [name for name in numbers if name not in constants]:
        options = " ".join(f"--constant '{name}=MEAN,STD'" for name in without)
        raise UsageError(
            f"If one column of numbers is scaled by constants, all must be: say {options}."
        )
    return tuple(
        replace(  # constants show another unit, too, and come from no record
            column,
            mean=float(constants[column.name][0]),
            std=float(constants[column.name][1]),
            rounded_medians=(),
        )
        if column.name in constants
        else column
        for column in columns
    )


def _merge_left_out(parties: Mapping[str, Schema]) -> dict[str, str]:
    """The columns that at least one party leaves out, with the reason; not empty ones."""
    names = dict.fromkeys(name for schema in parties.values() for name in schema.left_out)
    reasons = {name: _reason_of_all(name, parties) for name in names}
    return {name: why for name, why in reasons.items() if why}


def _reason_of_all(column: str, parties: Mapping[str, Schema]) -> str:
    """Why a column is left out, and at which parties if not at all that have it; "" if no party
    leaves it out, or only because it is empty.
    """
    reasons: dict[str, list[str]] = {}
    for party, schema in parties.items():
        if (why := schema.left_out.get(column, EMPTY)) != EMPTY:
            reasons.setdefault(why, []).append(party)
    if not reasons:
        return ""
    using = any(
        fold_case(other.name) == fold_case(column) and other.kind
        for schema in parties.values()
        for other in schema.columns
    )
    # That values are repeated says more than that they are not.
    why = next((why for why in reasons if "different values in" in why), next(iter(reasons)))
    if " (at " in why or (len(reasons) == 1 and not using):
        return why
    return f"{why} (at {join_names(reasons[why])})"


def _merge_labels(parties: Mapping[str, Schema], options: ColumnOptions) -> tuple[str, ...]:
    """All parties' classes; empty if the label is a number to predict."""
    label = f"The label {next(iter(parties.values())).label!r}"
    class_words = {word for schema in parties.values() for word in schema.classes}
    if any(not schema.classes for schema in parties.values()):  # regression for all parties
        if word := next((word for word in sorted(class_words) if not NUMBER.fullmatch(word)), ""):
            raise UsageError(
                f"{label} is a number at one party, but {quote(word)} at another: they must agree."
            )
        return ()
    numbered = {
        name: all(word.isdecimal() for word in schema.classes) for name, schema in parties.items()
    }
    if len(set(numbered.values())) > 1:
        number, word = (
            next(name for name, is_so in numbered.items() if is_so is expected)
            for expected in (True, False)
        )
        raise UsageError(
            f"{label} of party {number!r} is {join_names(parties[number].classes)} but that of"
            f" party {word!r} {join_names(parties[word].classes)}: they must agree; say which word"
            f" a number stands for, as in --word '{options.label}:{parties[number].classes[-1]}="
            f"{parties[word].classes[-1]}'."
        )
    words = _merge_case(class_words, options, label)
    if not options.keep_label_words:
        # Words that differ in case only are no matter here: --merge-case or --keep-case decides.
        spellings = {fold_case(word): word for word in words}
        party_words = {
            name: {spellings[fold_case(word)] for word in schema.classes}
            for name, schema in parties.items()
        }
        check_label_words(options.label, party_words)
    return _merge_classes(set(words), list(parties.values()), label)


class _FileNotation(NamedTuple):
    """How one party's files write missing values and units, by the folded names of columns."""

    missing: tuple[str, ...]
    also_missing: Mapping[str, tuple[str, ...]]
    units: Mapping[str, str]


def _file_notations(parties: Mapping[str, Schema]) -> dict[str, _FileNotation]:
    """How each party's files write missing values and units.

    A schema of several parties, which were merged before, stands for these parties.
    """
    notations = {}
    for name, schema in parties.items():
        for party in schema.parties or (name,):
            own = schema.at(party)
            notations[party] = _FileNotation(
                own.missing,
                {fold_case(column.name): column.also_missing for column in own.columns},
                {fold_case(column.name): column.file_unit or column.unit for column in own.columns},
            )
    return notations


def _with_notations(
    schema: Schema, parties: Mapping[str, Schema], options: ColumnOptions
) -> Schema:
    """Add the codes for missing values that all parties have to a merged schema, and codes and
    units that only some parties have to these parties.
    """
    notations = _file_notations(parties)
    missing = _in_all([notation.missing for notation in notations.values()], options.missing)
    columns = []
    for column in schema.columns:
        party_codes = [
            notation.also_missing[fold_case(column.name)]
            for notation in notations.values()
            if fold_case(column.name) in notation.also_missing
        ]
        columns.append(replace(column, also_missing=_in_all(party_codes, ())))
    own_notations = {
        party: PartyNotation(
            tuple(code for code in notation.missing if code not in missing),
            {
                column.name: codes
                for column in columns
                if (
                    codes := tuple(
                        code
                        for code in notation.also_missing.get(fold_case(column.name), ())
                        if code not in column.also_missing
                    )
                )
            },
            {
                column.name: unit
                for column in columns
                if (unit := notation.units.get(fold_case(column.name), ""))
                and column.kind == "number"
                and fold_case(unit) != fold_case(column.unit)
            },
        )
        for party, notation in notations.items()
    }
    # All parties are named if one is, so that a party that nobody knows of can be noticed.
    differ = any(notation != PartyNotation() for notation in own_notations.values())
    # As when the schema is read from its file: a column with codes may be missing.
    with_codes = {name for notation in own_notations.values() for name in notation.also_missing}
    return replace(
        schema,
        columns=tuple(
            replace(column, may_be_missing=True) if column.name in with_codes else column
            for column in columns
        ),
        missing=missing,
        parties=own_notations if differ else {},
    )


def _in_all(codes: Sequence[tuple[str, ...]], others: tuple[str, ...]) -> tuple[str, ...]:
    """The codes that all parties have, and others."""
    shared = [code for code in codes[0] if all(code in texts for texts in codes)]
    return tuple(dict.fromkeys((*shared, *others)))


def _merge_classes(classes: set[str], parties: Sequence[Schema], label: str) -> tuple[str, ...]:
    """All parties' classes in one order.

    If a party has numbers as words, no numbers between them are added.
    """
    all_numbered = all(
        schema.classes == tuple(map(str, range(len(schema.classes)))) for schema in parties
    )
    if all_numbered or not all(word.isdecimal() for word in classes):
        return _order_classes(classes, label)
    return tuple(sorted(classes, key=int))


def _with_positive_last(classes: tuple[str, ...], positive: str) -> tuple[str, ...]:
    """The classes with the positive class of sensitivity at the end."""
    if not positive:
        return classes
    if positive not in classes:
        raise unknown("class called", positive, classes)
    if classes == tuple(map(str, range(len(classes)))):
        raise UsageError(
            "Classes 0, 1, 2, ... keep their order, and the last one is the positive class; leave"
            " out --positive."
        )
    return (*(name for name in classes if name != positive), positive)


def _reasons(left_out: Mapping[str, str]) -> str:
    """Why columns are left out, in brackets for a message."""
    return f" ({'; '.join(f'{name} {why}' for name, why in left_out.items())})" if left_out else ""


def apply_options(schema: Schema, options: ColumnOptions) -> Schema:
    """Apply the options about columns to a party's schema, before schemas are merged."""
    if options.kinds:
        raise UsageError(
            "The kind of a column depends on its values: use --kind where the file is described,"
            " not where schemas are merged."
        )
    columns = []
    for column in schema.columns:
        name = _agreed_name(column.name, options)
        if name in options.drop or (options.columns and name not in options.columns):
            continue
        unit = column.unit or options.units.get(name, "")
        codes = options.also_missing.get(name, ())
        other_names = (
            column.also_called if name == column.name else (*column.also_called, column.name)
        )
        meanings = options.words.get(name, {})
        words = tuple(sorted({meanings.get(word, word) for word in column.words}))
        spellings = {**column.also_written, **meanings}
        columns.append(
            replace(
                column,
                name=name,
                unit=unit,
                also_missing=(*column.also_missing, *codes),
                may_be_missing=column.may_be_missing or bool(codes),
                also_called=other_names,
                words=words,
                also_written=spellings,
            )
        )
    label = _agreed_name(schema.label, options)
    meanings = options.words.get(label, {})
    classes = tuple(dict.fromkeys(meanings.get(word, word) for word in schema.classes))
    return replace(
        schema,
        columns=tuple(columns),
        missing=tuple(dict.fromkeys((*schema.missing, *options.missing))),
        label=label,
        classes=classes,
        label_also_written={**schema.label_also_written, **meanings},
    )


def check_known_columns(options: ColumnOptions, names: set[str]) -> None:
    """Refuse options that drop or rename a column that no party has."""
    known_names = {fold_case(name) for name in (*names, *options.rename.values())}
    for name in (*options.drop, *options.rename):
        if fold_case(name) not in known_names:
            raise unknown("column called", name, sorted(names))


def _check_option_columns(
    options: ColumnOptions, names: set[str], parties: Mapping[str, Schema]
) -> None:
    """Refuse options about a column that no party has."""
    all_names = sorted(names | set(options.drop))
    for name in (
        *options.columns,
        *options.kinds,
        *options.units,
        *options.words,
        *options.also_missing,
        *options.convert,
        *(name for notation in options.parties.values() for name in notation.also_missing),
        *(name for notation in options.parties.values() for name in notation.units),
    ):
        if name not in all_names and name != options.label:
            raise unknown("column called", name, all_names)


def _distinct_names(names: Mapping[str, None]) -> list[str]:
    """Column names, without those that differ from another only in case or blanks."""
    names_by_spelling: dict[str, str] = {}
    for name in names:
        names_by_spelling.setdefault(fold_case(name), name)
    return list(names_by_spelling.values())


class PartyColumn(NamedTuple):
    """A party, and its description of a column."""

    party: str
    column: Column


def _merge_column(name: str, parties: Mapping[str, Schema], options: ColumnOptions) -> Column:
    """Merge the parties' descriptions of a column, which a party may lack."""
    party_columns = [
        PartyColumn(party, c)
        for party, schema in parties.items()
        for c in schema.columns
        if fold_case(c.name) == fold_case(name)
    ]
    kinds = {entry.column.kind: entry.party for entry in party_columns if entry.column.kind}
    if "words" in kinds and len(kinds) > 1:
        other = next(kind for kind in kinds if kind != "words")
        all_words = [word for entry in party_columns for word in entry.column.words]
        word = min(all_words, key=lambda word: bool(NUMBER.fullmatch(word)))
        raise UsageError(
            f"The column {name!r} of party {kinds['words']!r} has {quote(word)}, but that of party"
            f" {kinds[other]!r} only numbers: correct one of them, or say --kind '{name}=words'."
        )
    kind = next(iter(kinds)) if len(kinds) == 1 else "number" if kinds else ""
    words = {word for entry in party_columns for word in entry.column.words}
    if kind == "words":
        words = set(_merge_case(words, options, f"The column {name!r}"))
    if len(words) > MOST_WORDS:
        raise UsageError(
            f"The column {name!r} has {len(words)} different words, but at most {MOST_WORDS}"
            f" are allowed: leave it out with --drop {name!r}, or convert it to numbers."
        )
    unit, convert = _merge_units(name, party_columns, options)
    medians = () if options.medians is False else _merge_medians(party_columns, unit, convert)
    other_names = {
        other for entry in party_columns for other in (entry.column.name, *entry.column.also_called)
    } - {name}
    return Column(
        name,
        kind,
        tuple(sorted(words)),
        may_be_missing=len(party_columns) < len(parties)
        or any(entry.column.may_be_missing for entry in party_columns),
        unit=unit,
        convert=convert,
        rounded_medians=medians,
        also_called=tuple(sorted(other_names)),
        also_written=_merge_spellings(
            [entry.column.also_written for entry in party_columns], f"The column {name!r}"
        ),
    )


def _merge_units(
    name: str, party_columns: Sequence[PartyColumn], options: ColumnOptions
) -> tuple[str, dict[str, Conversion]]:
    """The common unit of a column, and the conversions from the units of single parties to it.

    Raises:
        UsageError: if a party has another unit that cannot be converted.
    """
    convert: dict[str, Conversion] = {}
    for rules in (*(entry.column.convert for entry in party_columns), options.convert.get(name)):
        for other_unit, rule in (rules or {}).items():
            if convert.setdefault(other_unit, rule) != rule:
                raise UsageError(
                    f"The column {name!r} converts {other_unit!r} by {convert[other_unit]} at one"
                    f" party and by {rule} at another: they must agree."
                )
    units = {fold_case(entry.column.unit): entry for entry in party_columns if entry.column.unit}
    convertible = {fold_case(other_unit) for other_unit in convert}
    targets = [entry.column.unit for unit, entry in units.items() if unit not in convertible]
    unit = options.units.get(name) or next(iter(targets), "")
    if not unit and units:
        raise UsageError(
            f"The column {name!r} has a conversion for each of its units: say to which with"
            f" --unit '{name}=...'."
        )
    column = Column(name, "number", unit=unit, convert=convert)
    for entry in units.values():
        try:
            conversion(column, entry.column.unit)
        except Unusable as error:
            raise UsageError(
                f"The column {name!r} is in {entry.column.unit!r} at party {entry.party!r} but in"
                f" {unit!r} at others: say by what its numbers are multiplied, as in --unit"
                f" '{name}={unit}' --convert '{name}:{entry.column.unit}="
                f"{known_factor(name, entry.column.unit, unit)}'."
            ) from error
        except ValueError as error:
            raise UsageError(f"{str(error)[0].upper()}{str(error)[1:]}.") from error
    return unit, convert


def _merge_medians(
    party_columns: Sequence[PartyColumn], unit: str, convert: Mapping[str, Conversion]
) -> tuple[float, ...]:
    """The lowest and the highest rounded median of the parties that tell theirs, in one unit."""
    common = Column("", "number", unit=unit, convert=convert)
    medians = [
        median
        for entry in party_columns
        for median in convert_medians(entry.column, common).rounded_medians
    ]
    return (min(medians), max(medians)) if medians else ()


def convert_medians(column: Column, common: Column) -> Column:
    """A party's column with its rounded medians in the unit of the common column."""
    if not column.rounded_medians:
        return column
    factor, offset = conversion(common, column.unit)
    converted = sorted(factor * median + offset for median in column.rounded_medians)
    medians = tuple(map(round_median, converted)) if converted[0] > 0 else ()
    return replace(column, rounded_medians=medians)


def _merge_spellings(parties: Sequence[Mapping[str, str]], where: str) -> dict[str, str]:
    """Merge the parties' spellings; refuse a spelling with two meanings."""
    merged: dict[str, str] = {}
    for spellings in parties:
        for spelling, meaning in spellings.items():
            if merged.setdefault(spelling, meaning) != meaning:
                raise UsageError(
                    f"{where} has {quote(spelling)}, which stands for {quote(meaning)} at one party"
                    " only: they must agree."
                )
    return merged


def _merge_case(words: set[str], options: ColumnOptions, where: str) -> list[str]:
    """Merge words that differ only in case or blanks, if the options say so.

    Raises:
        UsageError: if there are such words and the options do not decide.
    """
    groups: dict[str, list[str]] = {}
    for word in sorted(words):
        groups.setdefault(fold_case(word), []).append(word)
    ambiguous = next((spellings for spellings in groups.values() if len(spellings) > 1), None)
    if ambiguous and options.merge_case is None:
        raise UsageError(
            f"{where} has {quote(ambiguous[0])} and {quote(ambiguous[1])}, which differ in case or"
            " blanks only: say --merge-case if they are one, --keep-case if they are two."
        )
    if not options.merge_case:
        return sorted(words)
    return [
        min(spellings, key=lambda word: (word != word.lower(), word))
        for spellings in groups.values()
    ]


# Labels by a schema.


def find_label(table: RawTable, schema: Schema) -> str | None:
    """The name of the label in a table; None if the table does not have it."""
    try:
        return find_column(
            dict.fromkeys(table.names), schema.label, schema.label_also_called, str(table.path)
        )
    except Unusable as error:
        raise UsageError(str(error)) from error


def check_labelled(schema: Schema, table: RawTable) -> None:
    """Refuse a table with rows without a label."""
    name = find_label(table, schema)
    if name is None:
        raise MissingLabel(schema.label, table)
    empty = [row + 1 for row, text in enumerate(label_texts(table[name], schema)) if not text]
    if empty:
        more = f" and {len(empty) - 1} more" if len(empty) > 1 else ""
        raise UsageError(
            f"{table.path} has no label in row {empty[0]}{more} of {name!r}: fill it in, or say"
            " --skip-unlabelled."
        )


def encode_labels(schema: Schema, table: RawTable) -> NDArray[Any]:
    """Each row's class number or, if the schema has no classes, the number to predict.

    Raises:
        UsageError: if a label is missing or unknown.
    """
    where = str(table.path)
    name = find_label(table, schema)
    if name is None:
        raise MissingLabel(schema.label, table)
    check_labelled(schema, table)
    fold = fold_case if schema.merge_case else str
    numbers = {fold(word): k for k, word in enumerate(schema.classes)}
    labels = np.empty(len(table), np.int64 if numbers else np.float64)
    unknown_rows: dict[str, int] = {}
    for row, text in enumerate(label_texts(table[name], schema)):
        if not numbers:
            if not NUMBER.fullmatch(text) or not isfinite(float(text)):
                raise UsageError(
                    f"{where} has the label {quote(text)} in row {row + 1} of {name!r}, which is"
                    " not a number."
                )
            labels[row] = float(text)
        elif fold(text) in numbers:
            labels[row] = numbers[fold(text)]
        else:
            unknown_rows.setdefault(text, row + 1)
    if unknown_rows:
        word, row = next(iter(unknown_rows.items()))
        others = [quote(other) for other in unknown_rows if other != word]
        mapping = match_words(unknown_rows.keys(), set(schema.classes), schema.label)
        hint = f', or write "label_also_written": {json.dumps(mapping)} in the schema'
        raise UsageError(
            f"{where} has the label {quote(word)} in row {row}{' and ' * bool(others)}"
            f"{join_names(others)}, which is not one of {join_names(schema.classes)}: correct"
            f" it{hint if mapping else ''}."
        )
    return labels
