"""Bytes and seconds as plain text for people; tables on the terminal and in the report use the same
words.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence


def size(count: float) -> str:
    """A number of bytes, as in `1.23 MB`; MB = 10^6 bytes."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= scale:
            return (
                f"{count / scale:.3g} {unit}"
                if count < 999 * scale
                else f"{count / scale:.0f} {unit}"
            )
    return f"{count:.0f} B"


def duration(seconds: float) -> str:
    """A time, as in `4.2 s`, `12 min` or `2.5 h`."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes / 60:.1f} h"


def spread(figures: Sequence[float]) -> str:
    """Shares of several seeds in percent: their mean, with the standard deviation if they are
    several.
    """
    return f"{statistics.fmean(figures):.1%}" + (
        f" ± {100 * statistics.pstdev(figures):.1f}" if len(figures) > 1 else ""
    )
