"""Figures by round, drawn with characters: dots of Braille on a terminal that has them, plain signs
elsewhere.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from rich.console import Console
from rich.text import Text

from comity.text import escape_terminal

Line = Mapping[int, float]
"""A figure by evaluated round, as a fraction."""

COLOURS = ("cyan", "red", "green", "yellow", "magenta", "blue", "white", "bright_red")
MARKS = "*o+x#@%&"
DOTS = (
    (0x01, 0x08),
    (0x02, 0x10),
    (0x04, 0x20),
    (0x40, 0x80),
)  # which bit of a Braille sign is the dot at row, column
STEPS = (1, 2, 5, 10, 20, 25)
LEAST = 5  # percentage points that the axis spans at least: a tremble must not look like a leap


def on(
    console: Console,
    lines: Mapping[str, Line],
    rounds: int = 0,
    width: int = 60,
    height: int = 10,
    title: str = "mean accuracy",
) -> list[Text]:
    """The curves as this console can show them; colours or, where there are none, signs tell
    several apart.
    """
    unable = not console.encoding.lower().startswith("utf") or os.environ.get("TERM") in (
        "linux",
        "dumb",
    )
    mute = console.color_system is None or console.no_color
    width = min(width, console.width - 14)
    plain = unable or (mute and len(lines) > 1)
    return draw(lines, rounds, width, height, plain, title) if width >= 16 else []


def draw(
    lines: Mapping[str, Line],
    rounds: int = 0,
    width: int = 60,
    height: int = 10,
    plain: bool = False,
    title: str = "mean accuracy",
) -> list[Text]:
    """The curves with their axes, about so wide and high, and a legend if there are several; the
    axis ends at `rounds` or later.

    A line of one point is no curve: without any curve there is nothing to draw.
    """
    known = {name: line for name, line in lines.items() if len(line) > 1}
    if not known:
        return []
    shown = dict(_best(known)) if len(known) > len(COLOURS) else known
    first = min(min(line) for line in shown.values())
    last = max(rounds, *(max(line) for line in shown.values()))
    values = [value for line in shown.values() for value in line.values()]
    low, high, step = scale(100 * min(values), 100 * max(values))
    parts = (high - low) // step
    height = next(
        h for k in range(parts) for h in (height - k, height + k) if (h - 1) % parts == 0
    )  # marks at equal distances
    canvas = Canvas(width, height, plain)
    for k, line in enumerate(shown.values()):
        points = [
            ((t - first) / (last - first), (high - 100 * line[t]) / (high - low))
            for t in sorted(line)
        ]
        canvas.polyline(points, k)
    ticks = {
        canvas.row((high - tick) / (high - low)): f"{tick}%" for tick in range(low, high + 1, step)
    }
    side, notch, corner, floor = "|++-" if plain else "│┤└─"
    made = [Text(title)]
    for row in range(height):
        made.append(
            Text(f"{ticks.get(row, ''):>5} {notch if row in ticks else side}").append_text(
                canvas.line(row)
            )
        )
    made.append(Text(f"{'':>5} {corner}{floor * width}"))
    made.append(Text(f"{'':>7}{_numbers(first, last, width)}  round"))
    if len(known) > 1:
        made += _legend(shown, width + 7, plain)
    if len(known) > len(shown):
        made.append(Text(f"{'':>7}the best {len(shown)} of {len(known)} at their ends"))
    return made


def scale(low: float, high: float) -> tuple[int, int, int]:
    """An axis for percentages from `low` to `high`: its ends, on round figures, and the step
    between its marks.
    """
    step = next(s for s in STEPS if max(high - low, LEAST) / s <= 4)
    bottom = math.floor(low / step) * step
    top = math.ceil(high / step) * step
    while top - bottom < LEAST:
        if top < 100:
            top += step
        else:
            bottom -= step
    return bottom, top, step


@dataclass
class Canvas:
    """A field of signs; each belongs to the curve that was drawn there last."""

    width: int
    height: int
    plain: bool
    _cells: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)
    """By row and column: which curve, and its dots."""

    def _fine(self) -> tuple[int, int]:
        """Dots of a sign, across and down."""
        return (1, 1) if self.plain else (2, 4)

    def _place(self, x: float, y: float) -> tuple[int, int]:
        """The dot at a place between 0 and 1 on each axis."""
        across, down = self._fine()
        return round(x * (self.width * across - 1)), round(y * (self.height * down - 1))

    def row(self, y: float) -> int:
        """The row of signs at a height between 0, the top, and 1."""
        return self._place(0, y)[1] // self._fine()[1]

    def polyline(self, points: Sequence[tuple[float, float]], curve: int) -> None:
        """Straight pieces from point to point."""
        places = [self._place(*point) for point in points]
        for (x, y), (to_x, to_y) in pairwise(places):
            steps = max(abs(to_x - x), abs(to_y - y), 1)
            for k in range(steps + 1):
                self._dot(
                    x + round(k * (to_x - x) / steps), y + round(k * (to_y - y) / steps), curve
                )

    def _dot(self, x: int, y: int, curve: int) -> None:
        across, down = self._fine()
        cell = y // down, x // across
        owner, dots = self._cells.get(cell, (curve, 0))
        self._cells[cell] = curve, DOTS[y % down][x % across] | (dots if owner == curve else 0)

    def line(self, row: int) -> Text:
        """A row of signs."""
        made = Text()
        for column in range(self.width):
            if (cell := self._cells.get((row, column))) is None:
                made.append(" ")
            else:
                curve, dots = cell
                made.append(MARKS[curve] if self.plain else chr(0x2800 + dots), COLOURS[curve])
        return made


def _best(lines: Mapping[str, Line]) -> Iterator[tuple[str, Line]]:
    """As many as can be told apart: those that end best, in their old order."""
    ranked = sorted(lines, key=lambda name: -lines[name][max(lines[name])])[: len(COLOURS)]
    return ((name, line) for name, line in lines.items() if name in ranked)


def _numbers(first: int, last: int, width: int) -> str:
    """The numbers below the axis: its ends and, between them, what lies in the middle."""
    text = list(f"{first}".ljust(width))
    middle = (first + last) // 2
    at = round((middle - first) / (last - first) * (width - 1)) - len(str(middle)) // 2
    for begin, number in ((at, middle), (width - len(str(last)), last)):
        if begin > len(str(first)) and (
            number == last or begin + len(str(number)) < width - len(str(last))
        ):
            text[begin : begin + len(str(number))] = str(number)
    return "".join(text)


def _legend(lines: Mapping[str, Line], width: int, plain: bool) -> list[Text]:
    """Which curve is whose, and where it ended; as many to a row as fit."""
    rows = [Text(" " * 7)]
    for k, (name, line) in enumerate(lines.items()):
        sign = MARKS[k] if plain else "━━"
        entry = Text(f"{sign} {escape_terminal(name)} {line[max(line)]:.1%}", COLOURS[k])
        if rows[-1].cell_len > 7 and rows[-1].cell_len + entry.cell_len > width:
            rows.append(Text(" " * 7))
        rows[-1].append_text(entry).append("   ")
    for row in rows:
        row.rstrip()
    return rows
