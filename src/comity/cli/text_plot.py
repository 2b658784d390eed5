"""Line charts made of characters: Braille dots if the terminal has them, otherwise ASCII marks."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from rich.console import Console
from rich.text import Text

from comity.charts.curves import Curves, Line, percent_scale
from comity.text import escape_terminal

COLOURS = ("cyan", "red", "green", "yellow", "magenta", "blue", "white", "bright_red")
MARKS = "*o+x#@%&"
DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""The bits of a Braille character, by the row and column of its dot."""


def plot_for(console: Console, curves: Curves, width: int = 60, height: int = 10) -> list[Text]:
    """Return a chart that the console can show; without colours, marks tell curves apart."""
    is_utf = console.encoding.lower().startswith("utf")
    has_braille = is_utf and os.environ.get("TERM") not in ("linux", "dumb")
    has_colours = console.color_system is not None and not console.no_color
    width = min(width, console.width - 14)
    plain = not has_braille or (not has_colours and len(curves.lines) > 1)
    return draw(curves, width, height, plain) if width >= 16 else []


def draw(curves: Curves, width: int = 60, height: int = 10, plain: bool = False) -> list[Text]:
    """Return a chart as lines of text; empty if there is no curve.

    Args:
        curves: the curves; those with a single point are left out
        width: characters of the horizontal axis
        height: approximate number of lines of the vertical axis
        plain: use ASCII marks instead of Braille dots
    """
    all_lines = {name: line for name, line in curves.finite_lines().items() if len(line) > 1}
    if not all_lines:
        return []
    lines = dict(_best(all_lines)) if len(all_lines) > len(COLOURS) else all_lines
    first = min(min(line) for line in lines.values())
    last = max(curves.rounds, *(max(line) for line in lines.values()))
    values = [value for line in lines.values() for value in line.values()]
    low, high, step = percent_scale(values)
    parts = (high - low) // step
    # the nearest height with ticks at equal distances
    height = next(h for k in range(parts) for h in (height - k, height + k) if (h - 1) % parts == 0)
    canvas = Canvas(width, height, plain)
    for k, line in enumerate(lines.values()):
        points = [
            ((t - first) / (last - first), (high - 100 * line[t]) / (high - low))
            for t in sorted(line)
        ]
        canvas.polyline(points, k)
    ticks = {
        canvas.row((high - tick) / (high - low)): f"{tick}%" for tick in range(low, high + 1, step)
    }
    side, notch, corner, floor = "|++-" if plain else "│┤└─"
    chart = [Text(curves.title)]
    for row in range(height):
        axis = Text(f"{ticks.get(row, ''):>5} {notch if row in ticks else side}")
        chart.append(axis.append_text(canvas.line(row)))
    chart.append(Text(f"{'':>5} {corner}{floor * width}"))
    chart.append(Text(f"{'':>7}{_numbers(first, last, width)}  round"))
    if len(all_lines) > 1:
        chart += _legend(lines, width + 7, plain)
    if len(all_lines) > len(lines):
        chart.append(Text(f"{'':>7}the best {len(lines)} of {len(all_lines)} by their last value"))
    return chart


@dataclass
class Canvas:
    """A grid of characters; each belongs to the curve that was drawn there last."""

    width: int
    height: int
    plain: bool
    _cells: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)
    """The curve and its dots, by row and column."""

    def _resolution(self) -> tuple[int, int]:
        """Return the number of dots of a character, horizontally and vertically."""
        return (1, 1) if self.plain else (2, 4)

    def _position(self, x: float, y: float) -> tuple[int, int]:
        """Return the dot at coordinates between 0 and 1."""
        across, down = self._resolution()
        return round(x * (self.width * across - 1)), round(y * (self.height * down - 1))

    def row(self, y: float) -> int:
        """Return the row of characters at a height between 0 (top) and 1."""
        return self._position(0, y)[1] // self._resolution()[1]

    def polyline(self, points: Sequence[tuple[float, float]], curve: int) -> None:
        """Draw straight segments from point to point."""
        positions = [self._position(*point) for point in points]
        for (x, y), (to_x, to_y) in pairwise(positions):
            steps = max(abs(to_x - x), abs(to_y - y), 1)
            for k in range(steps + 1):
                self._dot(
                    x + round(k * (to_x - x) / steps), y + round(k * (to_y - y) / steps), curve
                )

    def _dot(self, x: int, y: int, curve: int) -> None:
        across, down = self._resolution()
        cell = y // down, x // across
        owner, dots = self._cells.get(cell, (curve, 0))
        self._cells[cell] = curve, DOTS[y % down][x % across] | (dots if owner == curve else 0)

    def line(self, row: int) -> Text:
        """Return a row of characters."""
        text = Text()
        for column in range(self.width):
            if (cell := self._cells.get((row, column))) is None:
                text.append(" ")
            else:
                curve, dots = cell
                text.append(MARKS[curve] if self.plain else chr(0x2800 + dots), COLOURS[curve])
        return text


def _best(lines: Mapping[str, Line]) -> Iterator[tuple[str, Line]]:
    """Yield the curves with the best last values, as many as there are colours, in their order."""
    ranked = sorted(lines, key=lambda name: -lines[name][max(lines[name])])[: len(COLOURS)]
    return ((name, line) for name, line in lines.items() if name in ranked)


def _numbers(first: int, last: int, width: int) -> str:
    """Return the numbers below the horizontal axis: its ends and its middle."""
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
    """Return the names of the curves and their last values, as many in a row as fit."""
    rows = [Text(" " * 7)]
    for k, (name, line) in enumerate(lines.items()):
        mark = MARKS[k] if plain else "━━"
        entry = Text(f"{mark} {escape_terminal(name)} {line[max(line)]:.1%}", COLOURS[k])
        if rows[-1].cell_len > 7 and rows[-1].cell_len + entry.cell_len > width:
            rows.append(Text(" " * 7))
        rows[-1].append_text(entry).append("   ")
    for row in rows:
        row.rstrip()
    return rows
