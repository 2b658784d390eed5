"""Checks of parties' tables before training: what looks like a fault in the data.

Each check returns sentences for the user, which name the party, the column and what to type. They
are printed where the data are imported and inspected. No check changes a value: only identical rows
are kept together by splits (`number_copies`), and only label words are refused
(`check_label_words`). Checks that compare parties say nothing of a single party, as at a site.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from math import comb
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from comity.base.samples import Ints
from comity.data.conversions import (
    Spread,
    common_spread,
    find_conversion,
    ratio_text,
    round_median,
    rounded_medians_differ,
    unit_groups,
)
from comity.data.patients import number_patients
from comity.data.preparation import Column, Schema, fold_case
from comity.data.word_meanings import differing_words, parties_apart
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
    shared_stay_together: bool = True,
) -> list[str]:
    """All warnings about the parties' tables.

    Args:
        schema: the common schema.
        parties: the rows as encoded by the schema.
        in_files: the same with the numbers of the files, if some were converted to other units.
        copies_stay_together: whether splits keep copies of a row at one party together.
        shared_stay_together: the same of rows that several parties have.
    """
    return [
        *value_warnings(schema, parties, in_files),
        *word_warnings(schema, parties),
        *renamed_warnings(schema, parties),
        *class_warnings(schema, parties),
        *duplicate_warnings(schema, parties, copies_stay_together, shared_stay_together),
    ]


def value_warnings(schema: Schema, parties: Parties, in_files: Parties | None = None) -> list[str]:
    """The warnings of `check_tables` about values, which descriptions do not show."""
    return [
        *code_warnings(schema, in_files or parties),
        *outlier_warnings(schema, in_files or parties),
        *unit_warnings(schema, parties),
        *median_warnings(schema, parties),
        *constant_warnings(schema, parties),
        *leak_warnings(schema, parties),
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


def percentiles(values: Values) -> Spread | None:
    """The 5th, 50th and 95th percentile; None without values."""
    present = values[~np.isnan(values)]
    return Spread(*np.percentile(present, [5, 50, 95]).tolist()) if len(present) else None


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


def _is_well_known(value: float) -> bool:
    """Whether a number is one of the best-known codes: -9, -99, 99, -999, 999 and so on."""
    return {*f"{abs(value):g}"} == {"9"} and value != 9


def find_codes(values: Values) -> dict[float, int]:
    """Numbers that may mark missing values, and how often they occur.

    Such a number is outside the other values: negative where they are not, or further from them
    than half of their range. It occurs at least twice. Of the best-known codes, such as -9 and 999,
    one suffices, if it is negative where the others are not, or further from them than their range.
    """
    present = values[~np.isnan(values)]
    numbers, counts = np.unique(present, return_counts=True)
    rounded = [float(f"{number:.7g}") for number in numbers]
    is_code = [
        _looks_like_code(number) if count > 1 else _is_well_known(number)
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
        is_far = others[0] - code > (others[-1] - others[0]) * _least_distance(counts[end - 1])
        return has_values and (others[0] >= 0 or is_far)
    low, high = np.percentile(others, [5, 95])
    # A 0 in most rows means that there is none, as of a rare income.
    is_rare = counts[:end].sum() <= counts[end : end + len(others)].sum()
    is_far = low > (high - low) / 2
    return bool(code == 0 and len(others) >= MANY_VALUES and is_far and is_rare)


def _is_above(numbers: list[float], counts: Ints, start: int, lowest: int) -> bool:
    """Whether the numbers from `start` on are codes of those from `lowest` to it."""
    code, others = numbers[start], numbers[lowest:start]
    if len(others) < 2 or counts[lowest:start].sum() < FEWEST_OTHERS:
        return False
    least = (others[-1] - others[0]) * _least_distance(counts[start])
    return code > 0 and code - others[-1] > least


def _least_distance(count: int) -> float:
    """The distance of a code from the other values, in units of their range, if it occurs `count`
    times.
    """
    return 0.5 if count > 1 else 1.0


def without_codes(values: Values) -> Values:
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
            others = without_codes(values)
            low, high = np.nanmin(others), np.nanmax(others)
            texts = [f"{code:g}" for code in codes]
            times = " and ".join(
                f"{text} in {_rows(count)}"
                for text, count in zip(texts, codes.values(), strict=True)
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
            cells = without_codes(values)
            quantiles = percentiles(cells)
            if quantiles is None:
                continue
            low, middle, high = quantiles
            if middle in (low, high):  # most are equal, as no income: judge the others
                cells = np.where(cells == np.float32(middle), np.float32(np.nan), cells)
                low, middle, high = percentiles(cells) or (0.0, 0.0, 0.0)
            distances = np.abs(np.nan_to_num(cells - middle))
            if high > low and distances.max() > OUTLIER_FACTOR * (high - low):
                row = int(distances.argmax())
                warnings.append(
                    f"{name} is {cells[row]:g} in row {rows.number(row)} of {party}, but from"
                    f" {low:g} to {high:g} in most: a typing error?"
                )
    return warnings


# Units.


def _unit_guess(parties: Sequence[str], column: Column, spread: Spread) -> str:
    """Which common unit would explain the median of parties, and what to type; "" if none.

    Args:
        parties: the parties that may have another unit.
        column: the column.
        spread: the parties' median, and between which numbers it must be after the conversion.
    """
    guess = find_conversion(column.name, spread)
    if guess is None:
        return ""
    rule: float | list[float] = float(f"{guess.factor:.4g}")
    if guess.offset:
        rule = [float(f"{guess.factor:.4g}"), float(f"{guess.offset:.4g}")]
    numbers = f"{rule:g}" if isinstance(rule, float) else f"{rule[0]:g},{rule[1]:g}"
    notations = {party: {"units": {column.name: guess.other_unit}} for party in parties}
    units = " ".join(f"--unit '{party}:{column.name}={guess.other_unit}'" for party in parties)
    in_column = {"unit": guess.unit, "convert": {guess.other_unit: rule}}
    return (
        f"{guess.other_unit} instead of {guess.unit}? To convert it, say --unit"
        f" '{column.name}={guess.unit}' {units} --convert"
        f" '{column.name}:{guess.other_unit}={numbers}', or write {_in_schema(in_column)} in its"
        f" column of the schema, and {_in_schema({'parties': notations})}."
    )


def unit_warnings(schema: Schema, parties: Parties) -> list[str]:
    """Warnings about columns whose median at one party is outside the ranges of all others, or
    whose medians fall into groups of parties (`unit_groups`).

    The parties may use another unit, or have a different population. A label that is a number is
    looked at as well.
    """
    columns = {column.name: column for column in schema.columns}
    ranges: dict[str, dict[str, Spread]] = {}
    for party, rows in parties.items():
        numbers = _numbers(schema, rows.x)
        if not schema.classes:
            numbers[schema.label] = rows.y.astype(np.float32)
        for name, values in numbers.items():
            if (quantiles := percentiles(without_codes(values))) is not None:
                ranges.setdefault(name, {})[party] = quantiles
    return [
        sentence
        for name, party_ranges in ranges.items()
        for sentence in _range_warnings(columns.get(name, Column(name, "number")), party_ranges)
    ]


def _range_warnings(column: Column, parties: Mapping[str, Spread]) -> list[str]:
    """Warnings about the percentiles of one column at several parties."""
    groups = unit_groups(column.name, parties)
    is_single_outlier = len(groups) == 2 and min(map(len, groups)) == 1
    if len(groups) > 1 and not is_single_outlier and max(map(len, groups)) > 1:
        return _group_warnings(column, parties, groups)
    warnings = []
    for party, (_, middle, _) in parties.items():
        others = [found for other, found in parties.items() if other != party]
        if not others:
            continue
        usual = common_spread(others)
        if usual.low <= middle <= usual.high:
            continue
        guess = _unit_guess([party], column, usual._replace(middle=middle)) or _ratio_guess(
            middle, usual.middle
        )
        if middle == 0:  # no unit makes other numbers 0
            guess = (
                "does 0 mean missing? If so, say"
                f" --missing '{party}:{column.name}=0'; or is it another unit?"
            )
        unit = f" {column.unit}" if column.unit else ""
        warnings.append(
            f"{column.name} is about {middle:g}{unit} at {party}, but between {usual.low:g} and"
            f" {usual.high:g} elsewhere: {guess}"
        )
    # Two parties differ from each other: one sentence says it.
    return warnings if len(parties) > 2 else sorted(warnings, key=lambda text: -len(text))[:1]


def _group_warnings(
    column: Column, parties: Mapping[str, Spread], groups: Sequence[Sequence[str]]
) -> list[str]:
    """Warnings about groups of parties that may have different units.

    The unit of most parties is taken for the common one.
    """
    most = max(groups, key=len)
    usual = common_spread([parties[name] for name in most])
    unit = f" {column.unit}" if column.unit else ""
    warnings = []
    for group in groups:
        if group == most:
            continue
        middle = common_spread([parties[name] for name in group]).middle
        guess = _unit_guess(group, column, usual._replace(middle=middle)) or _ratio_guess(
            middle, usual.middle
        )
        warnings.append(
            f"{column.name} is about {middle:.4g}{unit} at {join_names(group)}, but about"
            f" {usual.middle:.4g} at {join_names(most)} (numbers cannot show which side is right):"
            f" {guess}"
        )
    return warnings


def _ratio_guess(middle: float, usual: float) -> str:
    """What the ratio of two medians may come from, for columns whose names say nothing."""
    ratio = ratio_text(middle / usual) if middle * usual > 0 else ""
    return f"{ratio}: another unit?" if ratio else "another unit?"


def median_warnings(schema: Schema, parties: Parties) -> list[str]:
    """Warnings about numbers far from the rounded medians in the schema, of the parties that
    described their tables.
    """
    warnings = []
    columns = {column.name: column for column in schema.columns if column.rounded_medians}
    for party, rows in parties.items():
        for name, values in _numbers(schema, rows.x).items():
            quantiles = percentiles(without_codes(values)) if name in columns else None
            if quantiles is None or quantiles.middle <= 0:
                continue
            (low, high), own = columns[name].rounded_medians, round_median(quantiles.middle)
            is_below = own < low and rounded_medians_differ(name, own, low)
            if is_below or (own > high and rounded_medians_differ(name, high, own)):
                spread = Spread(low / 2, quantiles.middle, high * 2)
                guess = _unit_guess([party], columns[name], spread) or _ratio_guess(
                    quantiles.middle, low if is_below else high
                )
                warnings.append(
                    f"{name} is about {quantiles.middle:.4g} at {party}, far from the medians in"
                    f" the schema, {_median_range(low, high)}: {guess}"
                )
    return warnings


def _median_range(low: float, high: float) -> str:
    """Rounded medians, for a message."""
    return f"about {low:g}" if low == high else f"about {low:g} to {high:g}"


def described_median_warnings(medians: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Warnings about units of parties that have described their tables.

    Args:
        medians: by column, then by party: the rounded median in the common unit.
    """
    warnings = []
    for name, by_party in medians.items():
        groups: list[list[str]] = []
        for party in sorted(by_party, key=lambda party: by_party[party]):
            last = by_party[groups[-1][-1]] if groups else 0.0
            if not groups or rounded_medians_differ(name, last, by_party[party]):
                groups.append([])
            groups[-1].append(party)
        most = max(groups, key=len, default=[])
        for group in groups:
            if group == most:
                continue
            middle = common_spread([Spread(*[by_party[party]] * 3) for party in group]).middle
            usual = [by_party[party] for party in most]
            spread = Spread(min(usual) / 2, middle, max(usual) * 2)
            guess = _unit_guess(group, Column(name, "number"), spread) or _ratio_guess(
                middle, usual[0]
            )
            warnings.append(
                f"the median of {name} is about {middle:g} at {join_names(group)}, but"
                f" {_median_range(min(usual), max(usual))} at {join_names(most)} (rounded to powers"
                f" of two; numbers cannot show which side is right): {guess}"
            )
    return warnings


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
            quantiles = percentiles(without_codes(values))
            if quantiles is None:
                continue
            middle = quantiles[1]
            if abs(middle - column.mean) > FAR_MEDIAN * column.std:
                low, high = column.mean - 2 * column.std, column.mean + 2 * column.std
                guess = _unit_guess([party], column, Spread(low, middle, high))
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
    mapping = differing_words(present, column)
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
    if len(present) < 2 or not apart:
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
    """Refuse label words that seem to be other words for the same classes.

    They seem so if

    - a word looks like one that no party has beside it: another spelling, an abbreviation, a
      translation, or the label's own name; or if a party mixes two such notations;
    - the parties fall into groups that share no class, or one at most (`parties_apart`).

    Numbers, and words that some parties have besides the others', are classes: `class_warnings`.

    Raises:
        UsageError: if there are such words; it says what to type.
    """
    if all(word.isdecimal() for words in parties.values() for word in words):
        return
    mapping = differing_words(parties, label)
    replaced = {
        party: {mapping.get(word, word) for word in words} for party, words in parties.items()
    }
    if groups := parties_apart(replaced):  # what their words stand for is left to the user
        *larger, smallest = sorted(groups, key=len, reverse=True)
        others = set().union(*(replaced[party] for group in larger for party in group))
        own_words = set().union(*(replaced[party] for party in smallest)) - others
        mapping |= dict.fromkeys(sorted(own_words), "...")
    if not mapping:
        return
    raise UsageError(
        f"The label {label!r} is {_list_words(parties)}: say which words mean the same, as in"
        f" {_word_options(label, mapping)} (in the schema"
        f" {_in_schema({'label_also_written': mapping})}), or say --keep-label-words if they are"
        " different classes."
    )


def differing_class_warnings(parties: Mapping[str, Set[str]]) -> list[str]:
    """A warning about classes of arrays or pictures that may be the same in other words."""
    if not differing_words(parties) and not parties_apart(parties):
        return []
    return [
        f"the labels are {_list_words(parties)}: if words mean the same, use one word in all files."
    ]


def class_warnings(schema: Schema, parties: Parties) -> list[str]:
    """Warnings about classes that only some parties have."""
    classes = schema.classes
    if len(classes) < 3:
        return []
    return class_word_warnings(
        schema.label,
        {party: {classes[k] for k in rows.y.tolist()} for party, rows in parties.items()},
    )


def unused_number_warnings(schema: Schema, parties: Parties) -> list[str]:
    """A warning if classes are numbers from 0, and the first ones do not occur.

    A gap further up may be filled at another site, but labels that start at 1 do so everywhere.
    """
    if not schema.classes or schema.classes != tuple(map(str, range(len(schema.classes)))):
        return []
    first = min((int(rows.y.min()) for rows in parties.values() if len(rows.y)), default=0)
    if first == 0:
        return []
    below = "0" if first == 1 else f"0 to {first - 1}"
    return [
        f"no row has the {schema.label} {below}, and the classes are 0 to"
        f" {schema.classes[-1]}. If {below} is no class, say --kind '{schema.label}=words' at every"
        " site: then the labels that occur are the classes."
    ]


def described_class_warnings(descriptions: Mapping[str, Schema], common: Schema) -> list[str]:
    """The same as `class_warnings`, of parties that have described their tables.

    Numbers are left out: a description has all numbers up to the largest one.
    """
    if len(common.classes) < 3 or all(word.isdecimal() for word in common.classes):
        return []
    fold = fold_case if common.merge_case else str
    names = {fold(word): word for word in common.classes}
    return class_word_warnings(
        common.label,
        {
            party: {names.get(fold(word), word) for word in schema.classes}
            for party, schema in descriptions.items()
        },
    )


def class_word_warnings(label: str, parties: Mapping[str, Set[str]]) -> list[str]:
    """Warnings about the classes of several parties, three or more in all."""
    if len(parties) < 2:
        return []
    warnings = []
    for party, classes in parties.items():
        others = [them for name, them in parties.items() if name != party]
        own = sorted(classes - set().union(*others))
        if not own:
            continue
        absent = sorted(set.intersection(*map(set, others)) - classes)
        names = join_names([repr(word) for word in own], 6)
        if absent:
            lacks = join_names([repr(word) for word in absent], 6)
            warnings.append(
                f"only {party} has the label {names}, and it never has {lacks}, which all others"
                f" have: if they are the same, say so, as in --word '{label}:{own[0]}={absent[0]}'."
            )
        else:
            warnings.append(f"only {party} has the label {names}: is it a class of its own?")
    counts = Counter(word for classes in parties.values() for word in classes)
    usual = {word for word, count in counts.items() if 2 * count > len(parties)}
    rare = sorted(word for word, count in counts.items() if word not in usual and count > 1)
    if len(usual) == 2 and rare:
        places = [party for party, classes in parties.items() if classes & set(rare)]
        names = join_names([repr(word) for word in rare], 6)
        warnings.append(
            f"most parties have the labels {join_names(map(repr, sorted(usual)))} only, but"
            f" {join_names(places, 6)} also {names}: {len(usual | set(rare))} classes? If words"
            f" mean the same, say so, as in --word '{label}:{rare[0]}={sorted(usual)[0]}'."
        )
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


def duplicate_warnings(
    schema: Schema,
    parties: Parties,
    copies_stay_together: bool = True,
    shared_stay_together: bool = True,
) -> list[str]:
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
    return [*warnings, *_shared_row_warnings(schema, parties, shared_stay_together)]


def _first_copy(copies: Ints) -> tuple[int, int]:
    """The positions of the first row that is a copy of an earlier one: the earlier one, and it."""
    positions: dict[int, int] = {}
    for position, number in enumerate(copies.tolist()):
        if positions.setdefault(number, position) != position:
            return positions[number], position
    raise ValueError("there is no copy")


FEW_PAIRS = 0.05
"""Identical rows of two parties that chance may explain."""


def _pooled_contents(schema: Schema, parties: Parties) -> Ints | None:
    """The number of each row's content over all parties; None if rows are alike by chance.

    They are so if `FEW_PAIRS` pairs of identical rows were expected of independent columns: a
    coincidence would move rows of a party in its split. What the columns are like is estimated from
    different rows, so that a file that is there twice is noticed.
    """
    columns = np.stack(_row_values(schema, _pool(parties)))
    _, first, contents = np.unique(columns, axis=1, return_index=True, return_inverse=True)
    if len(parties) < 2:
        return None
    pairs = len(first) * (len(first) - 1)
    chances = [  # one more pair than there is, as few rows say little
        float(np.sum(counts * (counts - 1.0)) + 1) / (pairs + 1)
        for counts in (np.bincount(values) for values in columns[:, first])
    ]
    if comb(columns.shape[1], 2) * float(np.prod(chances)) >= FEW_PAIRS:
        return None
    return contents.ravel()


def number_shared_rows(schema: Schema, parties: Parties) -> Ints | None:
    """The number of each row's content over all parties, from 0 in the order of the first rows.

    Only rows that several parties have get one number. None if there are no such rows, or if rows
    are alike by chance (see `number_copies`).
    """
    contents = _pooled_contents(schema, parties)
    if contents is None:
        return None
    owner = np.repeat(np.arange(len(parties)), [len(rows.y) for rows in parties.values()])
    first_owner, last_owner = np.full((2, len(owner)), -1)
    first_owner[contents[::-1]] = owner[::-1]
    last_owner[contents] = owner
    is_shared = (first_owner != last_owner)[contents]
    is_shared &= np.bincount(contents)[contents] <= MOST_COPIES
    if not is_shared.any():
        return None
    own_numbers = len(owner) + np.arange(len(owner))
    return number_patients(np.where(is_shared, contents, own_numbers))


def _shared_row_warnings(schema: Schema, parties: Parties, stay_together: bool) -> list[str]:
    """Warnings about rows that two parties have in common."""
    numbers = _pooled_contents(schema, parties)
    if numbers is None:
        return []
    effect = (
        "a simulation keeps them in the same part of a split at both, which sites cannot"
        if stay_together
        else "one may train on what the other one is tested on"
    )
    owner: dict[int, str] = {}
    counts: dict[tuple[str, str], int] = {}
    ends = np.cumsum([len(rows.y) for rows in parties.values()])[:-1]
    for party, contents in zip(parties, np.split(numbers, ends), strict=True):
        for content in contents.tolist():
            if (first := owner.setdefault(content, party)) != party:
                counts[first, party] = counts.get((first, party), 0) + 1
    return [
        f"{_rows(count)} of {party} {'is' if count == 1 else 'are'} identical to rows of {first}:"
        f" the same people? If so, {effect}."
        for (first, party), count in counts.items()
    ]
