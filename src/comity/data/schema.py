"""What parties' tables have in common: each is described by itself, and the descriptions become one
schema.

Nobody needs to see another's file for that: `comity data schema` describes a file, and makes one
schema of several descriptions. A folder with everybody's files takes the same way, so that parties
who import alone get what a pooled import would give them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import isfinite
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from comity.data.formats.common import few
from comity.data.formats.table import Table
from comity.data.preparation import (
    NUMBER,
    Cells,
    Column,
    Missing,
    Schema,
    Unusable,
    cells_of,
    find,
    folded,
    text_of,
)
from comity.errors import UsageError, quote, unknown

WORDS = 256  # a column with more different words is a name or a date, not a kind
MANY = 20  # rows from which on it says something that all of them differ
MOST_NUMBERED = 100_000  # classes
LONG = 40  # letters of a text that is no word
DATE = re.compile(
    r"(\d{4}-\d{1,2}-\d{1,2}|\d{1,2}[./]\d{1,2}[./]\d{2,4})([ T]\d{1,2}:\d{2}.*)?", re.ASCII
)
NAMES_A_ROW = re.compile(
    r"(^|[^a-z])(id|nr|no|number|key|mrn|pid|uuid|case|patient)([^a-z]|$)|(nummer|nr|number)$",
    re.IGNORECASE,
)
# from which on whole numbers that all differ, in as many rows as MANY_MORE, name rows rather than
# measure them
DIGITS = 5
MANY_MORE = 50
SENTENCE, REMARKS = (
    4,
    10,
)  # words of a text that is no word, if there are more different ones than this
KINDS = ("number", "flag", "words")


@dataclass(frozen=True)
class Wishes:
    """What whoever imports says of the columns."""

    label: str = "label"
    columns: tuple[str, ...] = ()
    """Only these are used, if there are any."""
    drop: tuple[str, ...] = ()
    kinds: Mapping[str, str] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    merge_case: bool | None = None
    """Whether words that differ in case only are one; None: that is to be asked."""
    scale: str = "own"
    rename: Mapping[str, str] = field(default_factory=dict)
    """What files call a column, and what it is to be called."""
    units: Mapping[str, str] = field(default_factory=dict)
    words: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """By column: what some write, and the word that it stands for."""
    positive: str = ""
    """The class that sensitivity is about: it is counted last."""

    def __post_init__(self) -> None:
        for name, kind in self.kinds.items():
            if kind not in KINDS:
                raise unknown(f"kind (of {name}) called", kind, KINDS)
        if self.scale not in ("own", "shared", "none"):
            raise UsageError(f"scale must be own, shared or none, not {quote(self.scale)}.")

    def about_label(self) -> Schema:
        """What is said of the label, as a schema says it."""
        written = self.words.get(self.label, {})
        also = self.also_called(self.label)
        return Schema(
            (), self.label, (), self.missing, label_also_called=also, label_also_written=written
        )

    def also_called(self, column: str) -> tuple[str, ...]:
        """Other names of a column."""
        return tuple(theirs for theirs, ours in self.rename.items() if ours == column)


# One party's table.


def describe(table: Table, wishes: Wishes) -> Schema:
    """The schema of one table by itself."""
    where = str(table.path)
    names = _names(table, wishes)
    label = find(names, wishes.label, (), where)
    if label is None:
        raise _without_label(wishes.label, table)
    columns: list[Column] = []
    left_out: dict[str, str] = {}
    for agreed, name in names.items():
        if (
            agreed == label
            or agreed in wishes.drop
            or (wishes.columns and agreed not in wishes.columns)
        ):
            continue
        plain = Column(
            agreed,
            "",
            unit=wishes.units.get(agreed, ""),
            also_called=wishes.also_called(agreed),
            also_written=wishes.words.get(agreed, {}),
        )
        texts = cells_of(plain, Schema((), "", (), wishes.missing), table[name])
        found = _described(plain, texts, wishes, where)
        if isinstance(found, str):
            left_out[agreed] = found
        else:
            columns.append(found)
    schema = Schema(
        (), wishes.label, (), wishes.missing, bool(wishes.merge_case), wishes.scale, left_out
    )
    display_name = tuple(sorted({*wishes.also_called(wishes.label), label} - {wishes.label}))
    schema = replace(
        schema,
        label_also_called=display_name,
        label_also_written=wishes.words.get(wishes.label, {}),
    )
    return replace(
        schema,
        columns=tuple(columns),
        classes=_classes(table[names[label]], schema, where, wishes.kinds.get(wishes.label)),
    )


def _names(table: Table, wishes: Wishes) -> dict[str, str]:
    """A table's columns: what each is to be called, and what the table calls it."""
    names: dict[str, str] = {}
    seen: dict[str, str] = {}
    for name in table.names:
        agreed = _agreed(name, wishes)
        if (other := seen.setdefault(folded(agreed), name)) != name:
            meant = _agreed(other, wishes)
            raise UsageError(
                f"{table.path} has the columns {other!r} and {name!r}, and either may be {meant!r}:"
                " remove one."
            )
        names[agreed] = name
    return names


def _without_label(label: str, table: Table) -> UsageError:
    return UsageError(
        f"{table.path} has no column called {quote(label)}, which is to be learned: name it with"
        f" --label, or with --rename where a file calls it otherwise; it has {few(table.names)}."
    )


def _agreed(name: str, wishes: Wishes) -> str:
    return wishes.rename.get(name, name)


def _described(plain: Column, texts: list[str], wishes: Wishes, where: str) -> Column | str:
    """A column as it is in one table, or why it is better left out."""
    there = [text for text in texts if text]
    gaps = len(there) < len(texts)
    told = wishes.kinds.get(plain.name)
    numeric = [bool(NUMBER.fullmatch(text)) and isfinite(float(text)) for text in there]
    if not there:
        return replace(plain, kind=told or "", may_be_missing=True)
    if told is None and all(numeric):
        if why := _number_that_is_none(plain.name, there):
            return why
        told = "flag" if {float(text) for text in there} <= {0.0, 1.0} else "number"
    if told is None and sum(numeric) > len(there) / 2:
        row = next(row for row, text in enumerate(texts) if text and not NUMBER.fullmatch(text))
        raise UsageError(
            f"The column {plain.name!r} of {where} has {quote(texts[row])} in row {row + 1}, but"
            f" numbers in most: correct it, or say --missing {texts[row]!r} or --kind"
            f" '{plain.name}=words'."
        )
    if told is None:
        if why := _words_that_are_none(there):
            return why
        told = "words"
    words = tuple(sorted(set(there))) if told == "words" else ()
    return replace(plain, kind=told, words=words, may_be_missing=gaps)


def _number_that_is_none(name: str, there: Sequence[str]) -> str:
    """Why a column of numbers says nothing about a sample, if it does not."""
    values = [float(text) for text in there]
    if (
        len(values) < MANY
        or len(set(values)) < len(values)
        or any(value != int(value) for value in values)
    ):
        return ""
    counted = all(after - before == 1 for before, after in pairwise(values))
    long = (
        len(values) >= MANY_MORE
        and len({len(text) for text in there}) == 1
        and len(there[0]) >= DIGITS
    )
    if NAMES_A_ROW.search(name) or counted or long:
        return "looks like an identifier: a whole number that is another one in each row"
    return ""


def _words_that_are_none(there: Sequence[str]) -> str:
    """Why a column of words says nothing that can be learned, if it does not."""
    if sum(bool(DATE.fullmatch(text)) for text in there) > 0.9 * len(there):
        return "looks like dates, of which no number can be made without knowing what they mean"
    different = len(set(there))
    if len(there) >= MANY and different == len(there):
        return "looks like an identifier: each row has another word"
    wordy = (
        sum(len(text.split()) for text in there) >= SENTENCE * len(there) and different > REMARKS
    )
    if (
        wordy
        or sum(map(len, there)) > LONG * len(there)
        or (len(there) >= MANY and different > len(there) / 2)
    ):
        return "looks like free text: most rows have another"
    return ""


def _classes(cells: Cells, schema: Schema, where: str, kind: str | None) -> tuple[str, ...]:
    """The label's classes by name: words in their order, or all whole numbers up to the largest;
    none if it is an amount.
    """
    there = {text for text in labels_of(cells, schema) if text}
    if not there:
        raise UsageError(f"{where} has no label in any row of {schema.label!r}.")
    numbers = all(NUMBER.fullmatch(text) and isfinite(float(text)) for text in there)
    if kind == "number" and not numbers:
        word = next(text for text in sorted(there) if not NUMBER.fullmatch(text))
        raise UsageError(
            f"The label {schema.label!r} of {where} has {quote(word)} among its values, which is"
            " not a number."
        )
    if kind == "number" or (
        kind is None and numbers and any(float(text) != int(float(text)) for text in there)
    ):
        return ()
    if kind is None and numbers and len(there) > MANY:
        raise UsageError(
            f"The label {schema.label!r} of {where} has {len(there)} different numbers: say --kind"
            f" '{schema.label}=number' to predict it as a number, or --kind '{schema.label}=words'"
            " if they are classes."
        )
    if kind == "words":
        return tuple(sorted(there, key=lambda text: (float(text) if numbers else 0.0, text)))
    return _ordered(there, f"The label {schema.label!r} of {where}")


def _ordered(there: set[str], what: str) -> tuple[str, ...]:
    if not all(NUMBER.fullmatch(text) for text in there):
        return tuple(sorted(there))
    values = [float(text) for text in there]
    if any(value < 0 or value != int(value) for value in values):
        raise UsageError(
            f"{what} has {min(values):g} among its numbers, but classes are words, or whole numbers"
            " from 0."
        )
    if max(values) >= MOST_NUMBERED:
        raise UsageError(f"{what} has the number {max(values):g}: number the classes 0, 1, 2, ...")
    return tuple(map(str, range(int(max(values)) + 1)))


def labels_of(cells: Cells, schema: Schema) -> list[str]:
    """A table's labels as text, empty where they are missing."""
    missing = Missing(schema.missing)
    return [
        "" if (text := text_of(cell)) in missing else schema.label_also_written.get(text, text)
        for cell in cells
    ]


# Several parties' descriptions.


def merge(parties: Mapping[str, Schema], wishes: Wishes) -> Schema:
    """One schema of several parties' own."""
    first, model = next(iter(parties.items()))
    left_out: dict[str, str] = {}
    for name, schema in parties.items():
        if folded(schema.label) != folded(model.label):
            raise UsageError(
                f"The label of {name!r} is {schema.label!r} but that of {first!r} {model.label!r}:"
                " they must agree."
            )
        left_out = {**schema.left_out, **left_out}
    order = dict.fromkeys(column.name for schema in parties.values() for column in schema.columns)
    columns = [
        _merged(name, parties, wishes) for name in _without_doubles(order) if name not in left_out
    ]
    for column in columns:
        if not column.kind:
            left_out[column.name] = "is empty at all parties"
    _check_asked(wishes, {column.name for column in columns} | left_out.keys(), parties)
    used = tuple(column for column in columns if column.kind)
    if not used:
        raise UsageError(
            f"There is no column but {model.label!r} that could be used{_why(left_out)}."
        )
    label = f"The label {model.label!r}"
    seen = {word for schema in parties.values() for word in schema.classes}
    if any(not schema.classes for schema in parties.values()):  # an amount somewhere, so everywhere
        if word := next((word for word in sorted(seen) if not NUMBER.fullmatch(word)), ""):
            raise UsageError(
                f"{label} is a number at one party, but {quote(word)} at another: they must agree."
            )
        seen = set()
    numbered = {
        name: all(word.isdecimal() for word in schema.classes)
        for name, schema in parties.items()
        if schema.classes
    }
    if len(set(numbered.values())) > 1 and seen:
        number, word = (
            next(name for name, is_so in numbered.items() if is_so is which)
            for which in (True, False)
        )
        raise UsageError(
            f"{label} of party {number!r} is {few(parties[number].classes)} but that of party"
            f" {word!r} {few(parties[word].classes)}: they must agree; say what one stands for, as"
            f" in --word '{model.label}:1=dead'."
        )
    classes = _one_spelling(seen, wishes, label)
    also = sorted(
        {name for schema in parties.values() for name in (schema.label, *schema.label_also_called)}
        - {wishes.label}
    )
    return Schema(
        used,
        wishes.label,
        (
            _with_last(_together(set(classes), list(parties.values()), label), wishes.positive)
            if seen
            else ()
        ),
        wishes.missing,
        bool(wishes.merge_case),
        wishes.scale,
        left_out,
        tuple(also),
        _one_meaning([schema.label_also_written for schema in parties.values()], label),
    )


def _together(classes: set[str], parties: Sequence[Schema], label: str) -> tuple[str, ...]:
    """Everybody's classes in one order; numbers that somebody has taken as words stay without those
    between them.
    """
    whole = all(schema.classes == tuple(map(str, range(len(schema.classes)))) for schema in parties)
    if whole or not all(word.isdecimal() for word in classes):
        return _ordered(classes, label)
    return tuple(sorted(classes, key=int))


def _with_last(classes: tuple[str, ...], positive: str) -> tuple[str, ...]:
    """Classes with the one at the end that sensitivity is to be about."""
    if not positive:
        return classes
    if positive not in classes:
        raise unknown("class called", positive, classes)
    if classes == tuple(map(str, range(len(classes)))):
        raise UsageError(
            "Classes 0, 1, 2, ... stay in their order: the last of them is the positive one."
        )
    return (*(name for name in classes if name != positive), positive)


def _why(left_out: Mapping[str, str]) -> str:
    return f" ({'; '.join(f'{name} {why}' for name, why in left_out.items())})" if left_out else ""


def said_of(schema: Schema, wishes: Wishes) -> Schema:
    """A party's own schema, with what is said of its columns when several become one."""
    if wishes.kinds:
        raise UsageError(
            "What kind a column is depends on its values: say --kind where the file is described,"
            " not here."
        )
    columns = []
    for column in schema.columns:
        name = _agreed(column.name, wishes)
        if name in wishes.drop or (wishes.columns and name not in wishes.columns):
            continue
        unit = wishes.units.get(name, column.unit)
        also = column.also_called if name == column.name else (*column.also_called, column.name)
        meant = wishes.words.get(name, {})
        words = tuple(sorted({meant.get(word, word) for word in column.words}))
        written = {**column.also_written, **meant}
        columns.append(
            replace(
                column, name=name, unit=unit, also_called=also, words=words, also_written=written
            )
        )
    label = _agreed(schema.label, wishes)
    meant = wishes.words.get(label, {})
    classes = tuple(dict.fromkeys(meant.get(word, word) for word in schema.classes))
    return replace(
        schema,
        columns=tuple(columns),
        label=label,
        classes=classes,
        label_also_written={**schema.label_also_written, **meant},
    )


def check_named(wishes: Wishes, names: set[str]) -> None:
    """Whoever drops or renames a column that nobody has has mistyped it."""
    there = {folded(name) for name in (*names, *wishes.rename.values())}
    for name in (*wishes.drop, *wishes.rename):
        if folded(name) not in there:
            raise unknown("column called", name, sorted(names))


def _check_asked(wishes: Wishes, there: set[str], parties: Mapping[str, Schema]) -> None:
    """Whoever names a column that nobody has has mistyped it."""
    known = sorted(there | set(wishes.drop))
    for name in (*wishes.columns, *wishes.kinds, *wishes.units, *wishes.words):
        if name not in known and name != wishes.label:
            raise unknown("column called", name, known)


def _without_doubles(names: Mapping[str, None]) -> list[str]:
    """Column names, those that differ in case or blanks once."""
    seen: dict[str, str] = {}
    for name in names:
        seen.setdefault(folded(name), name)
    return list(seen.values())


class Own(NamedTuple):
    """A party's description of a column."""

    party: str
    column: Column


def _merged(name: str, parties: Mapping[str, Schema], wishes: Wishes) -> Column:
    """A column as all parties have it; who has none has it missing."""
    own = [
        Own(party, c)
        for party, schema in parties.items()
        for c in schema.columns
        if folded(c.name) == folded(name)
    ]
    kinds = {one.column.kind: one.party for one in own if one.column.kind}
    if "words" in kinds and len(kinds) > 1:
        other = next(kind for kind in kinds if kind != "words")
        words_there = [word for one in own for word in one.column.words]
        word = min(words_there, key=lambda word: bool(NUMBER.fullmatch(word)))
        raise UsageError(
            f"The column {name!r} of party {kinds['words']!r} has {quote(word)}, but that of party"
            f" {kinds[other]!r} only numbers: correct one of them, or say --kind '{name}=words'."
        )
    kind = next(iter(kinds)) if len(kinds) == 1 else "number" if kinds else ""
    words = {word for one in own for word in one.column.words}
    if kind == "words":
        words = set(_one_spelling(words, wishes, f"The column {name!r}"))
    if len(words) > WORDS:
        raise UsageError(
            f"The column {name!r} has {len(words)} different words, more than {WORDS}, so it names"
            f" no kinds: leave it out with --drop {name!r}, or make numbers of it."
        )
    units = sorted({one.column.unit for one in own} - {""})
    if len(units) > 1:
        raise UsageError(
            f"The column {name!r} has the unit {units[0]!r} at one party and {units[1]!r} at"
            " another: they must agree."
        )
    display_name = {
        other for one in own for other in (one.column.name, *one.column.also_called)
    } - {name}
    return Column(
        name,
        kind,
        tuple(sorted(words)),
        may_be_missing=len(own) < len(parties) or any(one.column.may_be_missing for one in own),
        unit=units[0] if units else "",
        also_called=tuple(sorted(display_name)),
        also_written=_one_meaning([one.column.also_written for one in own], f"The column {name!r}"),
    )


def _one_meaning(parties: Sequence[Mapping[str, str]], what: str) -> dict[str, str]:
    """What parties write, and what it stands for, if that is the same for all of them."""
    made: dict[str, str] = {}
    for own in parties:
        for written, meant in own.items():
            if made.setdefault(written, meant) != meant:
                raise UsageError(
                    f"{what} has {quote(written)}, which stands for {quote(meant)} at one party"
                    " only: they must agree."
                )
    return made


def _one_spelling(words: set[str], wishes: Wishes, what: str) -> list[str]:
    """Words, those that differ in case or blanks only as one of them, if that is wanted; whether it
    is must be said.
    """
    alike: dict[str, list[str]] = {}
    for word in sorted(words):
        alike.setdefault(folded(word), []).append(word)
    doubled = next((same for same in alike.values() if len(same) > 1), None)
    if doubled and wishes.merge_case is None:
        raise UsageError(
            f"{what} has {quote(doubled[0])} and {quote(doubled[1])}, which differ in case or"
            " blanks only: say --merge-case if they are one, --keep-case if they are two."
        )
    if not wishes.merge_case:
        return sorted(words)
    return [min(same, key=lambda word: (word != word.lower(), word)) for same in alike.values()]


# Labels by a schema.


def label_in(table: Table, schema: Schema) -> str | None:
    """What a table calls the label, if it has one."""
    try:
        return find(
            dict.fromkeys(table.names), schema.label, schema.label_also_called, str(table.path)
        )
    except Unusable as why:
        raise UsageError(str(why)) from why


def labels_by(schema: Schema, table: Table) -> NDArray[Any]:
    """Each row's class by its number or, where the schema has no classes, the amount itself."""
    where = str(table.path)
    name = label_in(table, schema)
    if name is None:
        raise _without_label(schema.label, table)
    plain = folded if schema.merge_case else str
    known = {plain(word): k for k, word in enumerate(schema.classes)}
    made = np.empty(len(table), np.int64 if known else np.float64)
    for row, text in enumerate(labels_of(table[name], schema)):
        if not text:
            raise UsageError(
                f"{where} has no label in row {row + 1} of {name!r}: fill it in, or say"
                " --skip-unlabelled."
            )
        if not known:
            if not NUMBER.fullmatch(text) or not isfinite(float(text)):
                raise UsageError(
                    f"{where} has the label {quote(text)} in row {row + 1} of {name!r}, which is"
                    " not a number."
                )
            made[row] = float(text)
            continue
        if plain(text) not in known:
            raise UsageError(
                f"{where} has the label {quote(text)} in row {row + 1}, which is not one of"
                f" {few(schema.classes)}."
            )
        made[row] = known[plain(text)]
    return made
