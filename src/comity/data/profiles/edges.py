"""The bins of histograms, which all parties share.

No bin begins at a value of a party. All edges come from one fixed grid of round numbers (1, 2 and 5
times a power of ten). A party only says between which two numbers of the grid most of its values
lie, and whoever asks for a histogram can choose only two numbers of that grid.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from math import ceil, floor

import numpy as np
from numpy.typing import NDArray

from comity.base.samples import Ints

Values = NDArray[np.float64]
Range = tuple[float, float]
"""Two numbers of the grid, the lower one first."""

_POSITIVE = [float(f"{digit}e{power}") for power in range(-6, 10) for digit in (1, 2, 5)]
GRID: tuple[float, ...] = (*(-value for value in reversed(_POSITIVE)), 0.0, *_POSITIVE)
TAIL = 0.05
"""Fraction of a party's values that may lie on each side of its range."""
BINS = 20
"""Number of bins of equal width in a range, about."""
REACH = 1000
"""Beyond the range, bins reach this many times as far."""
CODES = (-9999.0, -999.0, -99.0, -9.0, 999.0, 9999.0, 99999.0)
"""Numbers that often stand for missing values. Outside of the range each has a bin of its own."""


def own_range(values: Values, patients: Ints | None, records: int) -> Range | None:
    """The numbers of the grid between which most of a party's values lie.

    Fewer than `records` records (or patients), or than 5 % of them, lie below the lower number, and
    as few above the higher one. None if there are fewer than twice as many values as `records`.

    Args:
        values: the values of a column, without missing ones
        patients: the patient of each value, if the data name patients
        records: the minimum group size
    """

    def size(mask: NDArray[np.bool_]) -> int:
        return int(mask.sum()) if patients is None else len(np.unique(patients[mask]))

    total = size(np.ones(len(values), np.bool_))
    if not total or total < 2 * records:
        return None
    enough = max(records, 1, ceil(TAIL * total))
    low = max((edge for edge in GRID if size(values < edge) < enough), default=GRID[0])
    high = min((edge for edge in GRID if size(values > edge) < enough), default=GRID[-1])
    return (low, high) if low < high else (low, _next(low))


def constant_range(mean: float, std: float) -> Range:
    """The range of a column by the constants of a schema: mean ± 3 standard deviations."""
    low = max((edge for edge in GRID if edge <= mean - 3 * std), default=GRID[0])
    high = min((edge for edge in GRID if edge >= mean + 3 * std), default=GRID[-1])
    return (low, high) if low < high else (low, _next(low))


def _next(edge: float) -> float:
    """The next number of the grid."""
    return GRID[min(GRID.index(edge) + 1, len(GRID) - 1)]


def common_ranges(parties: Iterable[Mapping[str, Range | None]]) -> dict[str, Range]:
    """The range of each column that fits most parties: the median of the lower numbers, and the
    median of the higher ones.
    """
    by_column: dict[str, list[Range]] = {}
    for ranges in parties:
        for name, limits in ranges.items():
            if limits is not None:
                by_column.setdefault(name, []).append(limits)
    common = {}
    for name, limits_of in by_column.items():
        lows, highs = sorted(low for low, _ in limits_of), sorted(high for _, high in limits_of)
        low, high = lows[(len(lows) - 1) // 2], highs[len(highs) // 2]
        common[name] = (low, high)
    return common


def is_range(low: object, high: object) -> bool:
    """Whether two values are a range: two numbers of the grid, the lower one first."""
    return low in GRID and high in GRID and float(low) < float(high)


def bin_edges(limits: Range | None) -> tuple[float, ...]:
    """The edges of a column's bins; below the first and above the last edge is one bin more.

    In the range, bins have equal widths. Outside of it, and near 0, they follow the grid, so that a
    party that uses another unit can be seen. Without a range, all bins follow the grid.
    """
    if limits is None:
        return GRID
    low, high = limits
    step = GRID[bisect_left(GRID, (high - low) / BINS)]
    inner = [round(k * step, 9) for k in range(floor(low / step), ceil(high / step) + 1)]
    furthest = REACH * max(abs(low), abs(high))
    outer = [
        edge
        for edge in GRID
        if (edge < inner[0] or edge > inner[-1] or abs(edge) < step)
        and abs(edge) <= furthest
        and (not edge or abs(edge) >= step / 20)
    ]
    codes = [
        edge for code in CODES if not inner[0] <= code <= inner[-1] for edge in (code, code + 1)
    ]
    return tuple(sorted({*inner, *outer, *codes}))
