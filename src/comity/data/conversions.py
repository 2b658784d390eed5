"""Units of numbers: common conversions, and groups of parties that may have different units."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from statistics import median
from typing import NamedTuple


class Spread(NamedTuple):
    """The 5th, 50th and 95th percentile of a party's numbers, or estimates of them."""

    low: float
    middle: float
    high: float


def common_spread(spreads: Sequence[Spread]) -> Spread:
    """The range of all parties' percentiles, and the median of their medians."""
    return Spread(
        min(spread.low for spread in spreads),
        median(spread.middle for spread in spreads),
        max(spread.high for spread in spreads),
    )


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


class Guess(NamedTuple):
    """A conversion that would explain a difference: unit = other_unit * factor + offset."""

    other_unit: str
    unit: str
    factor: float
    offset: float


def _conversions_of(column: str) -> Iterator[Guess]:
    """The common conversions of a column, in both directions."""
    for conversion in CONVERSIONS:
        if re.search(conversion.columns, column, re.IGNORECASE):
            _, other_unit, unit, factor, offset = conversion
            yield Guess(other_unit, unit, factor, offset)
            yield Guess(unit, other_unit, 1 / factor, -offset / factor)


def find_conversion(column: str, spread: Spread) -> Guess | None:
    """A common conversion of a column that moves its median between the two other numbers."""
    for guess in _conversions_of(column):
        if spread.low <= spread.middle * guess.factor + guess.offset <= spread.high:
            return guess
    return None


def ratio_text(ratio: float) -> str:
    """What a ratio of medians may come from; "" if it is small and of no common conversion."""
    ratio = max(ratio, 1 / ratio)
    for conversion in CONVERSIONS:
        factor = max(conversion.factor, 1 / conversion.factor)
        if not conversion.offset and factor > 2 and abs(ratio / factor - 1) < NEAR:
            return (
                f"about {ratio:.3g} times, as between {conversion.other_unit} and {conversion.unit}"
            )
    return f"about {ratio:.3g} times" if ratio >= MUCH else ""


def round_median(value: float) -> float:
    """A positive median, rounded to a power of two.

    Examples:
        >>> round_median(120.5), round_median(6.7), round_median(0.9)
        (128.0, 8.0, 1.0)
    """
    return float(2.0 ** round(math.log2(value)))


LEAST_COARSE_RATIO = 4.0
"""Ratio of rounded medians from which on a common conversion of the column may explain it; from
`MUCH` on, the units may differ in any case. Medians that are rounded to powers of two hide less."""


def rounded_medians_differ(column: str, lower: float, upper: float) -> bool:
    """Whether two rounded medians are so far apart that their units may differ."""
    ratio = upper / lower
    if ratio >= MUCH or ratio < LEAST_COARSE_RATIO:
        return ratio >= MUCH
    return any(
        upper / 2 <= lower * guess.factor + guess.offset <= upper * 2
        for guess in _conversions_of(column)
        if guess.factor > 1 or guess.offset
    )


LEAST_RATIO = 1.5
"""Ratio of neighbouring medians from which on two parties may have different units."""
CLEAR_GAP = 3.0
"""How many times as large as gaps within groups the gaps between them are, on a log scale."""


def unit_groups(column: str, parties: Mapping[str, Spread]) -> list[list[str]]:
    """Groups of parties that may have different units, from small to large medians.

    The medians are sorted. They are divided where a gap between two neighbours is much larger than
    the others, and where the numbers below and above it hardly overlap: no median of one side is
    between the percentiles of the other side. If a common conversion of the column explains the
    gap, one of the two sides suffices. Parties whose median is not positive are left out.

    Args:
        column: the name of the column.
        parties: the percentiles of each party.

    Examples:
        >>> mmol, mg = Spread(4, 6.5, 9), Spread(80, 120, 160)
        >>> unit_groups("glucose", {"a": mg, "b": mmol, "c": mg, "d": mmol, "e": mg})
        [['b', 'd'], ['a', 'c', 'e']]
    """
    names = sorted((n for n in parties if parties[n].middle > 0), key=lambda n: parties[n].middle)
    gaps = [math.log(parties[b].middle / parties[a].middle) for a, b in pairwise(names)]
    by_size = sorted(range(len(gaps)), key=lambda k: -gaps[k])
    cuts = by_size if len(names) == 2 else []
    for count in range(1, len(gaps)):
        least, largest_within = gaps[by_size[count - 1]], gaps[by_size[count]]
        if least >= max(math.log(LEAST_RATIO), CLEAR_GAP * largest_within):
            cuts = sorted(by_size[:count])
    edges = [0, *(place + 1 for place in cuts), len(names)]
    groups = [names[start:end] for start, end in pairwise(edges)]
    merged = groups[:1]
    for group in groups[1:]:
        if _are_apart(column, [parties[n] for n in merged[-1]], [parties[n] for n in group]):
            merged.append(group)
        else:
            merged[-1] = merged[-1] + group
    order = list(parties)
    return [sorted(group, key=order.index) for group in merged]


def _are_apart(column: str, lower: Sequence[Spread], upper: Sequence[Spread]) -> bool:
    """Whether the numbers of two groups of parties hardly overlap."""
    below, above = common_spread(lower), common_spread(upper)
    is_below = below.high < min(spread.middle for spread in upper)
    is_above = above.low > max(spread.middle for spread in lower)
    is_explained = any(
        abs((below.middle * guess.factor + guess.offset) / above.middle - 1) < NEAR
        for guess in _conversions_of(column)
    )
    return (is_below or is_above) if is_explained else (is_below and is_above)
