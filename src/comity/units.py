"""Bytes, seconds and percentages as text, the same on the terminal and in the report."""

from __future__ import annotations

import re
import statistics
from collections.abc import Sequence

SCALES = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}


def parse_size(text: str) -> int | None:
    """Return the bytes of a text such as `10 GB` or `1.5mb`; None if it is not a size with a unit.

    Examples:
        >>> parse_size("10 GB"), parse_size("1.5mb"), parse_size("10")
        (10000000000, 1500000, None)
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?) *([KMGT]?B)", text.strip().upper())
    return int(float(match[1]) * SCALES[match[2]]) if match else None


def size(count: float) -> str:
    """Return a number of bytes as text, as in `1.23 MB` (1 MB = 10^6 bytes)."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= scale:
            number = count / scale
            return f"{number:.3g} {unit}" if number < 999 else f"{number:.0f} {unit}"
    return f"{count:.0f} B"


def duration(seconds: float) -> str:
    """Return a number of seconds as text, as in `4.2 s`, `12 min` or `2.5 h`."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes / 60:.1f} h"


def points(fraction: float) -> str:
    """Return a difference of fractions in percentage points, as in `1 point` or `2.5 points`.

    Examples:
        >>> points(0.01), points(0.025)
        ('1 point', '2.5 points')
    """
    count = f"{100 * fraction:.3g}"
    return f"{count} point" if count == "1" else f"{count} points"


def deviation(values: Sequence[float]) -> float:
    """Return the sample standard deviation of values, as over seeds; 0 of a single value.

    Examples:
        >>> deviation([1.0, 2.0, 3.0])
        1.0
        >>> deviation([1.0])
        0.0
    """
    return statistics.stdev(values) if len(values) > 1 else 0.0


def spread(figures: Sequence[float]) -> str:
    """Return fractions as text: their mean in percent, and their sample standard deviation if they
    are several.
    """
    mean = f"{statistics.fmean(figures):.1%}"
    if len(figures) == 1:
        return mean
    return f"{mean} ± {100 * deviation(figures):.1f}"
