"""Checks of parties' tables before training: what looks like a fault in the data.

Each check returns sentences for the user, which name the party, the column and what to type. They
are printed where the data are imported and inspected. No check changes a value: only identical rows
are kept together by splits (`number_copies`), and only label words are refused
(`check_label_words`). Checks that compare parties say nothing of a single party, as at a site.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Set
from math import comb
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from comity.base.samples import Ints
from comity.data.patients import number_patients
from comity.data.preparation import Column, Schema, fold_case
from comity.data.word_meanings import differing_words
from comity.errors import UsageError
from comity.metrics.auc import auc
from comity.text import join_names

Values = NDArray[np.float32]
SEVERAL_ROWS = "several rows of one patient"
"""What a warning says of repeated identifiers."""


class PartyRows(NamedTuple):
    """One party's encoded rows (NaN where missing) and labels."""

    x: Values
    y: NDArray[Any]
    numbers: Ints | None = None
    """The number of each row in its file, from 0, if some rows of the file are left out."""

    def number(self, position: int) -> int:
        """The number of a row in its file, from 1 below the header."""
        return 1 + (position if self.numbers is None else int(self.numbers[position]))


Parties = Mapping[str, PartyRows]


def check_tables(
    schema: Schema,
    parties: Parties,
    in_files: Parties | None = None,
    copies_stay_together: bool = True,
) -> list[str]:
    """All warnings about the parties' tables.

    Args:
        schema: the common schema.
        parties: the rows as encoded by the schema.
        in_files: the same with the numbers of the files, if some were converted to other units.
        copies_stay_together: whether splits keep copies of a row together.
    """
    return [
        *code_warnings(schema, in_files or parties),
        *outlier_warnings(schema, in_files or parties),
        *unit_warnings(schema, parties),
        *constant_warnings(schema, parties),
        *leak_warnings(schema, parties),
        *word_warnings(schema, parties),
        *renamed_warnings(schema, parties),
        *class_warnings(schema, parties),
        *duplicate_warnings(schema, parties, copies_stay_together),
    ]


# Columns of encoded rows.


def split_columns(schema: Schema, x: Values) -> dict[str, tuple[Column, Values]]:
    """The columns of a schema, and their features in `x`."""
    columns = {}
    start = 0
    for column in schema.columns:
        columns[column.name] = column, x[:, start : start + column.width]
        start += column.width
    return columns


def missing_rows(column: Column, values: Values) -> NDArray[np.bool_]:
    """A mask of the rows in which a column is missing."""
    empty: NDArray[np.bool_] = (
        values.sum(1) == 0 if column.kind == "words" else np.isnan(values[:, 0])
    )
    return empty


def _numbers(schema: Schema, x: Values) -> dict[str, Values]:
    """The values of each column of numbers."""
    return {
        name: values[:, 0]
        for name, (column, values) in split_columns(schema, x).items()
        if column.kind == "number"
    }


def percentiles(values: Values) -> tuple[float, float, float] | None:
    """The 5th, 50th and 95th percentile; None without values."""
    present = values[~np.isnan(values)]
    if not len(present):
        return None
    low, middle, high = np.percentile(present, [5, 50, 95]).tolist()
    return low, middle, high


def _in_schema(content: object) -> str:
    """A part of schema.json, for a message."""
    return json.dumps(content, ensure_ascii=False)[1:-1]


def _rows(count: int) -> str:
    """A number of rows as text."""
    return "1 row" if count == 1 else f"{count} rows"


# Codes for missing values.


FEWEST_OTHERS = 5
"""Rows that a column needs besides codes."""
MANY_VALUES = 10
"""Distinct other values from which on 0 and -1, which are often values, may be codes."""


def _looks_like_code(value: float) -> bool:
    """Whether a number is one that marks missing values: 0, -1, or only nines, eights or sevens."""
    digits = set(f"{abs(value):g}".replace(".", ""))
    return value in (0, -1) or (len(digits) == 1 and digits <= {"7", "8", "9"})


def find_codes(values: Values) -> dict[float, int]:
    """Numbers that may mark missing values, and how often they occur.

    Such a number occurs at least twice and is outside the other values: negative where they are
    not, or further from them than half of their range.
    """
    present = values[~np.isnan(values)]
    numbers, counts = np.unique(present, return_counts=True)
    rounded = [float(f"{number:.7g}") for number in numbers]
    is_code = [
        count > 1 and _looks_like_code(number)
        for number, count in zip(rounded, counts, strict=True)
    ]
    # The codes are those of a block at one end of the sorted numbers that have a gap beside them.
    last = len(rounded)
    bottom = next((k for k in range(last) if not is_code[k]), last)
    top = next((k for k in range(last, 0, -1) if not is_code[k - 1]), 0)
    lowest = next((k for k in range(bottom, 0, -1) if _is_below(rounded, counts, k, top)), 0)
    highest = next((k for k in range(top, last) if _is_above(rounded, counts, k, lowest)), last)
    places = [*range(lowest), *range(highest, last)]
    return {rounded[place]: int(counts[place]) for place in places}


def _is_below(numbers: list[float], counts: Ints, end: int, top: int) -> bool:
    """Whether the numbers before `end` are codes of those from `end` to `top`, or to the last."""
    code, others = numbers[end - 1], numbers[end : top if top > end else None]
    if len(others) < 2 or counts[end : end + len(others)].sum() < FEWEST_OTHERS:
        return False
    if code < 0:
        has_values = code != -1 or len(others) >= MANY_VALUES
        is_far = others[0] - code > (others[-1] - others[0]) / 2
        return has_values and (others[0] >= 0 or is_far)
    low, high = np.percentile(others, [5, 95])
    return code == 0 and len(others) >= MANY_VALUES and bool(low > (high - low) / 2)


def _is_above(numbers: list[float], counts: Ints, start: int, lowest: int) -> bool:
    """Whether the numbers from `start` on are codes of those from `lowest` to it."""
    code, others = numbers[start], numbers[lowest:start]
    if len(others) < 2 or counts[lowest:start].sum() < FEWEST_OTHERS:
        return False
    return code > 0 and code - others[-1] > (others[-1] - others[0]) / 2


def _without_codes(values: Values) -> Values:
    """The values with codes as missing values."""
    codes = np.array([*find_codes(values)], np.float32)
    return np.where(np.isin(values, codes), np.float32(np.nan), values)


def code_warnings(schema: Schema, parties: Parties) -> list[str]:
    """Warnings about numbers such as -9 or 999 that may mark missing values."""
    warnings = []
    for party, rows in parties.items():
        for column, values in _numbers(schema, rows.x).items():
            codes = find_codes(values)
            if not codes:
                continue
            others = _without_codes(values)
            low, high = np.nanmin(others), np.nanmax(others)
            texts = [f"{code:g}" for code in codes]
            times = " and ".join(
                f"{text} in {count} rows" for text, count in zip(texts, codes.values(), strict=True)
            )
            entry = {"parties": {party: {"also_missing": {column: texts}}}}
            warnings.append(
                f"{column} of {party} is {times}, but from {low:g} to {high:g} in the others: if"
                f" that means missing, say --missing '{party}:{column}={','.join(texts)}', or write"
                f" {_in_schema(entry)} in the schema."
            )
    return warnings


OUTLIER_FACTOR = 4
"""Distance from the median of an outlier, in units of the 5-95 % percentile range."""


def outlier_warnings(schema: Schema, parties: Parties) -> list[str]:
    """Warnings about numbers far from a party's other numbers, which may be typing errors."""
    warnings = []
    for party, rows in parties.items():
        for name, values in _numbers(schema, rows.x).items():
            cells = _without_codes(values)
            quantiles = percentiles(cells)
            if quantiles is None:
                continue
            low, middle, high = quantiles
            distances = np.abs(np.nan_to_num(cells - middle))
            if high > low and distances.max() > OUTLIER_FACTOR * (high - low):
                row = int(distances.argmax())
                warnings.append(
                    f"{name} is {cells[row]:g} in row {rows.number(row)} of {party}, but from"
                    f" {low:g} to {high:g} in most: a typing error?"
                )
    return warnings


# Units.


class KnownConversion(NamedTuple):
    """A common conversion: value in `unit` = value in `other_unit` * factor + offset."""

    columns: str
    """A pattern of the names of columns that have these units."""
    other_unit: str
    unit: str
    factor: float
    offset: float = 0.0


CONVERSIONS = (
    KnownConversion("gluc|gluk|sugar|zucker", "mmol/l", "mg/dl", 18.02),
    KnownConversion("trigly", "mmol/l", "mg/dl", 88.57),
    KnownConversion("chol|ldl|hdl", "mmol/l", "mg/dl", 38.67),
    KnownConversion("[ck]reatinin", "mg/dl", "µmol/l", 88.42),
    KnownConversion("bilirubin", "mg/dl", "µmol/l", 17.1),
    KnownConversion("uric|harns", "mg/dl", "µmol/l", 59.48),
    KnownConversion("urea|harnstoff", "mmol/l", "mg/dl", 6.006),
    KnownConversion("bun", "mmol/l", "mg/dl", 2.801),
    KnownConversion("calcium", "mmol/l", "mg/dl", 4.008),
    KnownConversion("a1c", "mmol/mol", "%", 0.09148, 2.152),
    KnownConversion("h(a)?emoglobin|^hb|^hgb", "g/dl", "g/l", 10.0),
    KnownConversion("h(a)?emoglobin|^hb|^hgb", "mmol/l", "g/dl", 1.611),
    KnownConversion("albumin|protein", "g/dl", "g/l", 10.0),
    KnownConversion("temp", "°F", "°C", 5 / 9, -160 / 9),
    KnownConversion("pressure|druck|systol|diastol|^[sd]?bp", "kPa", "mmHg", 7.501),
    KnownConversion("weight|gewicht|mass", "lb", "kg", 0.4536),
    KnownConversion("weight|gewicht|mass", "kg", "g", 1000.0),
    KnownConversion("height|length|gr(ö|oe)sse|größe", "in", "cm", 2.54),
    KnownConversion("height|length|gr(ö|oe)sse|größe", "m", "cm", 100.0),
    KnownConversion("age|alter", "months", "years", 1 / 12),
    KnownConversion("age|alter|time|duration|stay|days", "years", "days", 365.25),
    KnownConversion("time|duration|stay|days", "days", "hours", 24.0),
)
MUCH = 8.0
"""Ratio of medians that is called an order of magnitude."""
NEAR = 0.1
"""Relative distance of a ratio of medians from a factor that it may be."""


def known_factor(column: str, other_unit: str, unit: str) -> str:
    """The factor of a common conversion, as text for a message; "18.02" as an example if the units
    of this column are not known.
    """
    for conversion in CONVERSIONS:
        units = (conversion.other_unit, conversion.unit)
        if not re.search(conversion.columns, column, re.IGNORECASE) or conversion.offset:
            continue
        if units == (other_unit, unit):
            return f"{conversion.factor:.4g}"
        if units == (unit, other_unit):
            return f"{1 / conversion.factor:.4g}"
    return "18.02"


def _unit_guess(party: str, column: Column, middle: float, low: float, high: float) -> str:
    """Which common unit would explain a party's median, and what to type; "" if none.

    After the conversion, the median must be between `low` and `high`.
    """
    for conversion in CONVERSIONS:
        if not re.search(conversion.columns, column.name, re.IGNORECASE):
            continue
        for other_unit, unit, factor, offset in (
            (conversion.other_unit, conversion.unit, conversion.factor, conversion.offset),
            (
                conversion.unit,
                conversion.other_unit,
                1 / conversion.factor,
                -conversion.offset / conversion.factor,
            ),
        ):
            if not low <= middle * factor + offset <= high:
                continue
            rule: float | list[float] = float(f"{factor:.4g}")
            if offset:
                rule = [float(f"{factor:.4g}"), float(f"{offset:.4g}")]
            numbers = f"{rule:g}" if isinstance(rule, float) else f"{rule[0]:g},{rule[1]:g}"
            entry = {"parties": {party: {"units": {column.name: other_unit}}}}
            return (
                f"{other_unit} instead of {unit}? To convert it, say --unit"
                f" '{column.name}={unit}' --unit '{party}:{column.name}={other_unit}' --convert"
                f" '{column.name}:{other_unit}={numbers}', or write"
                f" {_in_schema({'unit': unit, 'convert': {other_unit: rule}})} in its column of the"
                f" schema, and {_in_schema(entry)}."
            )
    return ""


def _ratio_guess(ratio: float) -> str:
    """What a ratio of medians may come from, for columns whose names say nothing."""
    ratio = max(ratio, 1 / ratio)
    for conversion in CONVERSIONS:
        factor = max(conversion.factor, 1 / conversion.factor)
        if not conversion.offset and factor > 2 and abs(ratio / factor - 1) < NEAR:
            return (
                f"about {ratio:.3g} times, as between {conversion.other_unit} and {conversion.unit}"
            )
    return f"about {ratio:.3g} times" if ratio >= MUCH else ""


def unit_warnings(schema: Schema, parties: Parties) -> list[str]:
    """Warnings about columns whose median at one party is outside the ranges of all others.

    The party may use another unit, or have a different population. A label that is a number is
    looked at as well.
    """
    columns = {column.name: column for column in schema.columns}
    ranges: dict[str, dict[str, tuple[float, float, float]]] = {}
    for party, rows in parties.items():
        numbers = _numbers(schema, rows.x)
        if not schema.classes:
            numbers[schema.label] = rows.y.astype(np.float32)
        for name, values in numbers.items():
            if (quantiles := percentiles(_without_codes(values))) is not None:
                ranges.setdefault(name, {})[party] = quantiles
    return [
        sentence
        for name, party_ranges in ranges.items()
        for sentence in _range_warnings(columns.get(name, Column(name, "number")), party_ranges)
    ]


def _range_warnings(column: Column, parties: Mapping[str, tuple[float, float, float]]) -> list[str]:
    """Warnings about the percentiles of one column at several parties."""
    warnings = []
    for party, (_, middle, _) in parties.items():
        others = [found for other, found in parties.items() if other != party]
        if not others:
            continue
        low, high = min(low for low, _, _ in others), max(high for _, _, high in others)
        if low <= middle <= high:
            continue
        center = float(np.median([other_middle for _, other_middle, _ in others]))
        guess = _unit_guess(party, column, middle, low, high)
        if not guess:
            ratio = _ratio_guess(middle / center) if middle * center > 0 else ""
            guess = f"{ratio}: another unit?" if ratio else "another unit?"
        unit = f" {column.unit}" if column.unit else ""
        warnings.append(
            f"{column.name} is about {middle:g}{unit} at {party}, but between {low:g} and"
            f" {high:g} elsewhere: {guess}"
        )
    # Two parties differ from each other: one sentence says it.
    return warnings if len(parties) > 2 else sorted(warnings, key=lambda text: -len(text))[:1]


FAR_MEDIAN = 3.0
FAR_VALUE = 10.0
"""Distance from the schema's mean, in its standard deviations, of a median or a value that does not
fit the constants."""


def constant_warnings(schema: Schema, parties: Parties) -> list[str]:
    """Warnings about numbers far from the constants by which a schema scales them."""
    if schema.scale != "fixed":
        return []
    warnings = []
    columns = {column.name: column for column in schema.columns}
    for party, rows in parties.items():
        for name, values in _numbers(schema, rows.x).items():
            column = columns[name]
            constants = f"the schema's mean {column.mean:g} and standard deviation {column.std:g}"
            distances = np.abs(values - column.mean) / column.std
            quantiles = percentiles(_without_codes(values))
            if quantiles is None:
                continue
            middle = quantiles[1]
            if abs(middle - column.mean) > FAR_MEDIAN * column.std:
                low, high = column.mean - 2 * column.std, column.mean + 2 * column.std
                guess = _unit_guess(party, column, middle, low, high)
                warnings.append(
                    f"{name} is about {middle:g} at {party}, far from {constants}:"
                    f" {guess or 'another unit?'}"
                )
            elif (count := int((distances > FAR_VALUE).sum())) > 0:
                furthest = values[int(np.nanargmax(distances))]
                warnings.append(
                    f"{count} values of {name} at {party}, as {furthest:g}, are more than"
                    f" {FAR_VALUE:g} standard deviations from {constants}: correct them, or change"
                    " the constants."
                )
    return warnings


# Columns that give away the label.


LEAKING = 0.99
"""AUC, or share of rows, from which a single column predicts the label nearly perfectly."""
ENOUGH_ROWS = 30
FEWEST_OF_A_CLASS = 5
ROWS_PER_WORD = 5
"""Rows, rows of each class and rows for each distinct word that such a figure needs."""


def leak_warnings(schema: Schema, parties: Parties) -> list[str]:
    """Warnings about columns that predict the label nearly perfectly, over all or at a party."""
    everywhere = _leaks(schema, _pool(parties))
    leaking_at = {column: list(parties) for column in everywhere}
    for party, rows in parties.items():
        for column in _leaks(schema, rows):
            if column not in everywhere:
                leaking_at.setdefault(column, []).append(party)
    target = "separates the classes" if schema.classes else "gives the label"
    return [
        f"{column} alone {target} at {join_names(names)}: is it known before the label is? If not,"
        f" leave it out with --drop '{column}'."
        for column, names in leaking_at.items()
    ]


def _pool(parties: Parties) -> PartyRows:
    """The rows of all parties."""
    return PartyRows(
        np.concatenate([rows.x for rows in parties.values()]),
        np.concatenate([rows.y for rows in parties.values()]),
    )


def _leaks(schema: Schema, rows: PartyRows) -> list[str]:
    """Columns that predict the label nearly perfectly in these rows."""
    if len(rows.y) < ENOUGH_ROWS:
        return []
    predicts = _predicts_class if schema.classes else _predicts_number
    return [
        name
        for name, (column, values) in split_columns(schema, rows.x).items()
        if predicts(column, values, rows.y)
    ]


def _predicts_number(column: Column, values: Values, y: NDArray[Any]) -> bool:
    """Whether a column of numbers is a straight line of the label, nearly."""
    is_present = ~missing_rows(column, values)
    if column.kind == "words" or is_present.sum() < ENOUGH_ROWS:
        return False
    cells, labels = values[is_present, 0].astype(np.float64), y[is_present].astype(np.float64)
    if np.ptp(cells) == 0 or np.ptp(labels) == 0:
        return False
    return bool(abs(np.corrcoef(cells, labels)[0, 1]) >= LEAKING)


def _predicts_class(column: Column, values: Values, y: NDArray[Any]) -> bool:
    """Whether a column predicts the class nearly perfectly, by its values or by being missing."""
    is_missing = missing_rows(column, values)
    if column.kind == "words":
        return _is_pure(np.where(is_missing, -1, values.argmax(1)), y)
    if _is_pure(is_missing.astype(np.int64), y):
        return True
    cells, labels = values[~is_missing, 0], y[~is_missing]
    classes, counts = np.unique(labels, return_counts=True)
    if len(classes) == 2 and counts.min() >= FEWEST_OF_A_CLASS and counts.sum() >= ENOUGH_ROWS:
        area = auc(torch.from_numpy(cells), torch.from_numpy(labels == classes[1]))
        if area is not None and max(area, 1 - area) >= LEAKING:
            return True
    return _is_pure(np.unique(np.nan_to_num(values[:, 0], nan=np.inf), return_inverse=True)[1], y)


def _is_pure(words: NDArray[np.int64], y: NDArray[Any]) -> bool:
    """Whether nearly all rows of each class have words that only this class has.

    Classes count alike, so that a rare class is not overlooked.
    """
    classes, labels, counts = np.unique(y, return_inverse=True, return_counts=True)
    distinct, numbers = np.unique(words, return_inverse=True)
    if (
        len(y) < ENOUGH_ROWS
        or len(classes) < 2
        or sorted(counts)[-2] < FEWEST_OF_A_CLASS
        or len(distinct) * ROWS_PER_WORD > len(y)
    ):
        return False
    shares = np.zeros((len(distinct), len(classes)))
    np.add.at(shares, (numbers, labels), 1)
    is_enough = counts >= FEWEST_OF_A_CLASS
    shares = shares[:, is_enough] / counts[is_enough]
    return bool(shares.max(1).sum() / is_enough.sum() >= LEAKING)


# Words.


def _words_by_party(schema: Schema, parties: Parties) -> dict[str, dict[str, set[str]]]:
    """By column of words, then by party: the words that the party has."""
    words: dict[str, dict[str, set[str]]] = {}
    for party, rows in parties.items():
        for name, (column, values) in split_columns(schema, rows.x).items():
            if column.kind == "words":
                places = np.flatnonzero(values.any(axis=0)).tolist()
                words.setdefault(name, {})[party] = {column.words[k] for k in places}
    return words


def word_warnings(schema: Schema, parties: Parties) -> list[str]:
    """Warnings about words that may mean the same as other parties' words, with a mapping."""
    return [
        sentence
        for column, party_words in _words_by_party(schema, parties).items()
        for sentence in differing_word_warnings(column, party_words)
    ]


def described_word_warnings(descriptions: Mapping[str, Schema], common: Schema) -> list[str]:
    """The same as `word_warnings`, of parties that have described their tables.

    Words that the common schema merges are one word.
    """
    fold = fold_case if common.merge_case else str
    merged = {column.name: {fold(word): word for word in column.words} for column in common.columns}
    words: dict[str, dict[str, set[str]]] = {}
    for party, schema in descriptions.items():
        for column in schema.columns:
            if column.kind == "words":
                common_words = merged.get(column.name, {})
                words.setdefault(column.name, {})[party] = {
                    common_words.get(fold(word), word) for word in column.words
                }
    return [
        sentence
        for column, party_words in words.items()
        for sentence in differing_word_warnings(column, party_words)
    ]


def differing_word_warnings(column: str, parties: Mapping[str, Set[str]]) -> list[str]:
    """Warnings about the words of one column at several parties."""
    present = {party: words for party, words in parties.items() if words}
    if len(present) < 2:
        return []
    replaced = differing_words(present, column)
    mapping = {word: meaning for words in replaced.values() for word, meaning in words.items()}
    if mapping:
        return [
            f"{column} is {_list_words(present)}: if words mean the same, say"
            f" {_word_options(column, mapping)}, or write {_in_schema({'also_written': mapping})}"
            " in its column of the schema."
        ]
    apart = [
        party
        for party, words in present.items()
        if not any(words & others for name, others in present.items() if name != party)
    ]
    if not apart:
        return []
    return [
        f"{column} is {_list_words(present)}, without a word in common at {join_names(apart)}: if"
        f" words mean the same, say so, as in --word '{column}:{min(present[apart[-1]])}=...'."
    ]


def _list_words(parties: Mapping[str, Set[str]]) -> str:
    """The words of parties, for a message: a, b at north, south but c at east."""
    names: dict[tuple[str, ...], list[str]] = {}
    for party, words in parties.items():
        names.setdefault(tuple(sorted(words)), []).append(party)
    by_frequency = sorted(names.items(), key=lambda item: -len(item[1]))
    return " but ".join(
        f"{join_names(words, 6)} at {join_names(group, 6)}" for words, group in by_frequency
    )


def _word_options(column: str, mapping: Mapping[str, str]) -> str:
    """The options that say which words mean the same."""
    return " ".join(f"--word '{column}:{word}={meaning}'" for word, meaning in mapping.items())


# Columns with another name at one party.


def renamed_warnings(schema: Schema, parties: Parties) -> list[str]:
    """Warnings about columns that only one party has, instead of one that all others have."""
    return renamed_column_warnings(
        {
            party: {
                name: column.kind
                for name, (column, values) in split_columns(schema, rows.x).items()
                if not missing_rows(column, values).all()
            }
            for party, rows in parties.items()
        }
    )


def described_column_warnings(descriptions: Mapping[str, Schema]) -> list[str]:
    """The same as `renamed_warnings`, of parties that have described their tables."""
    return renamed_column_warnings(
        {
            party: {column.name: column.kind for column in schema.columns if column.kind}
            for party, schema in descriptions.items()
        }
    )


def renamed_column_warnings(parties: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Warnings about columns with possibly another name at one party.

    Args:
        parties: by party: the kinds of the columns that it has values of, by name.
    """
    warnings = []
    explained: set[str] = set()
    for party in reversed(list(parties)):
        own_columns = parties[party]
        others = [columns for other, columns in parties.items() if other != party]
        if not others:
            continue
        at_others = set().union(*others)
        at_all_others = set.intersection(*(set(columns) for columns in others))
        for name, kind in own_columns.items():
            if name in at_others or name in explained:
                continue
            lacking = [
                other
                for other in others[0]
                if other in at_all_others
                and other not in own_columns
                and kind == others[0][other]
                and other not in explained
            ]
            if not lacking:
                continue
            explained |= {name, *lacking}
            options = " or ".join(f"--rename '{name}={other}'" for other in lacking[:MOST_RENAMED])
            warnings.append(
                f"{name} is only at {party}, which lacks {join_names(lacking, MOST_RENAMED)}: one"
                f" column? If so, say {options}."
            )
    return warnings


MOST_RENAMED = 3
"""The most columns that a column of another name is guessed to be."""


# Labels.


def check_label_words(label: str, parties: Mapping[str, Set[str]]) -> None:
    """Refuse label words of one party that seem to be other words for other parties' classes.

    They seem so if a party
    - has a word that looks like one of the others', which it does not have: another spelling, an
      abbreviation, a translation, or the label's own name;
    - has no word in common with any other party, and there are more than two words in all;
    - has a word of its own instead of one of the two words that all others together have.

    Numbers and words that only one party has besides the others' are classes: `class_warnings`.

    Raises:
        UsageError: if there are such words; it says what to type.
    """
    all_words = set().union(*parties.values())
    if len(parties) < 2 or all(word.isdecimal() for word in all_words):
        return
    replaced = differing_words(parties, label)
    suspects = set(replaced)
    for party, words in parties.items():
        others = set().union(*(them for name, them in parties.items() if name != party))
        has_own = bool(words - others)
        is_apart = not words & others and len(all_words) > 2
        if is_apart or (has_own and len(others) == 2 and not others <= words):
            suspects.add(party)
    if not suspects:
        return
    mapping = {word: meaning for words in replaced.values() for word, meaning in words.items()}
    if not mapping:  # what the words stand for is left to the user
        last = max(suspects, key=list(parties).index)
        others = set().union(*(them for name, them in parties.items() if name != last))
        mapping = dict.fromkeys(sorted(set(parties[last]) - others), "...")
    raise UsageError(
        f"The label {label!r} is {_list_words(parties)}: say which words mean the same, as in"
        f" {_word_options(label, mapping)} (in the schema"
        f" {_in_schema({'label_also_written': mapping})}), or say --keep-label-words if they are"
        " different classes."
    )


def class_warnings(schema: Schema, parties: Parties) -> list[str]:
    """Warnings about classes that only one party has."""
    if len(parties) < 2 or len(schema.classes) < 3:
        return []
    present = {party: set(rows.y.tolist()) for party, rows in parties.items()}
    warnings = []
    for party, classes in present.items():
        others = [them for name, them in present.items() if name != party]
        own = sorted(classes - set().union(*others))
        if not own:
            continue
        absent = sorted(set.intersection(*others) - classes)
        names = join_names([repr(schema.classes[k]) for k in own], 6)
        if absent:
            lacks = join_names([repr(schema.classes[k]) for k in absent], 6)
            warnings.append(
                f"only {party} has the label {names}, and it never has {lacks}, which all others"
                f" have: if they are the same, say so, as in --word"
                f" '{schema.label}:{schema.classes[own[0]]}={schema.classes[absent[0]]}'."
            )
        else:
            warnings.append(f"only {party} has the label {names}: is it a class of its own?")
    return warnings


# Duplicates.


MOST_COPIES = 20
"""If more rows of a party are alike, they are so by chance: its columns say little."""


def _row_values(schema: Schema, rows: PartyRows) -> list[NDArray[np.int64]]:
    """Each column of a party's rows, and the label, as numbers of distinct values."""
    columns: list[NDArray[Any]] = [
        np.where(missing_rows(column, values), -1, values.argmax(1))
        if column.kind == "words"
        else np.nan_to_num(values[:, 0], nan=np.inf) + 0.0
        for column, values in split_columns(schema, rows.x).values()
    ]
    return [np.unique(values, return_inverse=True)[1] for values in (*columns, rows.y)]


def number_copies(schema: Schema, rows: PartyRows) -> Ints | None:
    """The number of each row's content, from 0 in the order of the first rows: copies of a row have
    its number. None if no row is there twice, or if rows are alike by chance.

    Identical rows are copies if less than one pair of them were expected of independent columns,
    and if at most `MOST_COPIES` are alike. Others are taken for different people who happen to have
    the same values, as in tables of a few flags.
    """
    columns = _row_values(schema, rows)
    _, numbers, counts = np.unique(
        np.stack(columns), axis=1, return_inverse=True, return_counts=True
    )
    if counts.max() == 1 or counts.max() > MOST_COPIES or _pairs_by_chance(columns) >= 1:
        return None
    return number_patients(numbers.ravel())


def first_copies(schema: Schema, rows: PartyRows, patients: Ints | None) -> Ints:
    """The positions of all rows but copies of an earlier row of the same patient."""
    numbers = number_copies(schema, rows)
    if numbers is None:
        return np.arange(len(rows.y))
    keys = np.stack([numbers, numbers if patients is None else patients])
    return np.sort(np.unique(keys, axis=1, return_index=True)[1])


def _pairs_by_chance(columns: list[NDArray[np.int64]]) -> float:
    """How many pairs of identical rows are expected if the columns are independent."""
    rows = len(columns[0])
    chances = [float(np.sum((np.bincount(numbers) / rows) ** 2)) for numbers in columns]
    return comb(rows, 2) * float(np.prod(chances))


def duplicate_warnings(schema: Schema, parties: Parties, copies_stay_together: bool) -> list[str]:
    """Warnings about rows that a party has twice, or that two parties have in common."""
    warnings = []
    effect = (
        "copies stay in one part of a split"
        if copies_stay_together
        else "a split may train on a row and test on its copy"
    )
    for party, rows in parties.items():
        copies = number_copies(schema, rows)
        if copies is not None:
            count = len(copies) - int(copies.max()) - 1
            first, again = _first_copy(copies)
            warnings.append(
                f"{_rows(count)} of {party} {'is' if count == 1 else 'are'} equal to other rows"
                f" there in all columns that are used, as row {rows.number(again)} to row"
                f" {rows.number(first)}"
                f" (counted below the header): {effect}; if they are mistakes, import with"
                " --drop-copies."
            )
    return [*warnings, *_shared_row_warnings(schema, parties)]


def _first_copy(copies: Ints) -> tuple[int, int]:
    """The positions of the first row that is a copy of an earlier one: the earlier one, and it."""
    positions: dict[int, int] = {}
    for position, number in enumerate(copies.tolist()):
        if positions.setdefault(number, position) != position:
            return positions[number], position
    raise ValueError("there is no copy")


def _shared_row_warnings(schema: Schema, parties: Parties) -> list[str]:
    """Warnings about rows that two parties have in common."""
    pooled = _pool(parties)
    columns = _row_values(schema, pooled)
    if len(parties) < 2 or _pairs_by_chance(columns) >= 1:
        return []
    numbers = np.unique(np.stack(columns), axis=1, return_inverse=True)[1].ravel()
    owner: dict[int, str] = {}
    counts: dict[tuple[str, str], int] = {}
    ends = np.cumsum([len(rows.y) for rows in parties.values()])[:-1]
    for party, contents in zip(parties, np.split(numbers, ends), strict=True):
        for content in contents.tolist():
            if (first := owner.setdefault(content, party)) != party:
                counts[first, party] = counts.get((first, party), 0) + 1
    return [
        f"{_rows(count)} of {party} {'is' if count == 1 else 'are'} identical to rows of {first}:"
        " the same people?"
        for (first, party), count in counts.items()
    ]
