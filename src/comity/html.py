"""Tables, sentences and curves as HTML for notebooks, in light and dark themes.

`view` renders an object. Folders register how their objects look: an object of a lower folder can
so be shown with what only a higher folder knows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import singledispatch
from html import escape

COLOURS = ("#2f7de1", "#d9480f", "#2b8a3e", "#c2255c", "#7048e8", "#0c8599", "#a16207", "#868e96")
"""Colours of curves. Each has contrast to white and to black."""
DASHES = ("", "7 3", "2 2", "9 3 2 3")
"""Dash patterns of curves, for more curves than colours."""
WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT = 460, 190, 46, 34, 10, 12
CELL = "padding:2px 7px;text-align:{};border:0;background:transparent;white-space:nowrap"
Line = Mapping[int, float]


@singledispatch
def view(value: object) -> str:
    """Return an object as HTML. Without a registered view, that is its text."""
    return page(repr(value))


def page(title: str, *parts: str) -> str:
    """Return a title with parts below it."""
    return (
        '<div style="font-size:90%"><div'
        f' style="font-weight:bold">{escape(title)}</div>{"".join(parts)}</div>'
    )


def sentences(texts: Iterable[str]) -> str:
    """Return sentences below each other, in a fainter colour."""
    return "".join(f'<div style="opacity:.8;max-width:60em">{escape(text)}</div>' for text in texts)


def table(
    heads: Sequence[str],
    rows: Iterable[Sequence[str]],
    words: int = 1,
    shade: Callable[[int, int], float] | None = None,
    folded: Collection[int] = (),
) -> str:
    """Return a table.

    Args:
        heads: the heads of the columns
        rows: the rows of cells
        words: how many columns at the left hold words instead of figures
        shade: returns the opacity of a cell's background, from 0 to 1, by row and column
        folded: columns whose text may wrap
    """

    def cell(k: int, text: str, tag: str, opacity: float = 0.0) -> str:
        style = CELL.format("left" if k < words else "right")
        style += f";background:rgba(47,125,225,{opacity:.2f})" if opacity else ""
        style += ";white-space:normal" if k in folded else ""
        return f'<{tag} style="{style}">{escape(text)}</{tag}>'

    head = "".join(cell(k, text, "th") for k, text in enumerate(heads))
    body = "".join(
        "<tr>"
        + "".join(cell(k, text, "td", shade(r, k) if shade else 0.0) for k, text in enumerate(row))
        + "</tr>"
        for r, row in enumerate(rows)
    )
    return (
        '<table style="border-collapse:collapse;margin:4px 0"><thead style="border-bottom:1px'
        f' solid currentColor"><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
    )


def curves(lines: Mapping[str, Line], title: str) -> str:
    """Return a chart of fractions by round, in percent, with a legend of the final values.

    Values that are not finite are left out. Without any value, the result is empty.
    """
    finite = {
        name: {t: v for t, v in line.items() if math.isfinite(v)} for name, line in lines.items()
    }
    finite = {name: line for name, line in finite.items() if line}
    if not finite:
        return ""
    values = [value for line in finite.values() for value in line.values()]
    last = max(1, *(max(line) for line in finite.values()))
    step = _grid_step(max(values) - min(*values, max(values) - 0.01))
    low, high = math.floor(min(values) / step) * step, math.ceil(max(values) / step - 1e-9) * step
    high = high if high > low else low + step

    def x(t: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * t / last

    def y(value: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (high - value) / (high - low)

    shapes = []
    for k in range(round((high - low) / step) + 1):
        height = y(low + k * step)
        shapes.append(
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{height:.1f}" y2="{height:.1f}"'
            ' stroke="currentColor" opacity=".15"/>'
        )
        shapes.append(_text(LEFT - 6, height + 4, f"{100 * (low + k * step):g}%", "end"))
    for t in sorted({0, last // 2, last}):
        shapes.append(_text(x(t), HEIGHT - BOTTOM + 16, str(t), "middle"))
    shapes.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 3, "round", "middle"))
    legend = []
    for k, (name, line) in enumerate(finite.items()):
        colour, dash = COLOURS[k % len(COLOURS)], DASHES[k // len(COLOURS) % len(DASHES)]
        points = " ".join(f"{x(t):.1f},{y(line[t]):.1f}" for t in sorted(line))
        style = f'fill="none" stroke="{colour}" stroke-width="2" stroke-dasharray="{dash}"'
        dot = (
            f'<circle cx="{x(max(line)):.1f}" cy="{y(line[max(line)]):.1f}" r="2.5"'
            f' fill="{colour}"/>'
        )
        shapes.append(
            f"<g><title>{escape(name)}</title><polyline points={points!r} {style}/>{dot}</g>"
        )
        swatch = (
            '<svg width="22" height="8" style="vertical-align:middle"><line x2="22" y1="4" y2="4"'
            f" {style}/></svg>"
        )
        legend.append(
            f'<span style="margin-right:14px">{swatch} {escape(name)}'
            f" {100 * line[max(line)]:.1f}%</span>"
        )
    label = f"{title} by round: " + ", ".join(
        f"{name} ends at {100 * line[max(line)]:.1f}%" for name, line in finite.items()
    )
    return (
        f'<div style="margin-top:4px">{escape(title)} by round</div><svg role="img"'
        f' aria-label="{escape(label)}" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}"'
        f' height="{HEIGHT}" style="max-width:100%" font-size="11"'
        f' fill="currentColor">{"".join(shapes)}</svg><div>{"".join(legend)}</div>'
    )


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" opacity=".8">{escape(text)}</text>'
    )


def _grid_step(span: float) -> float:
    """Return the distance of grid lines: a round number that divides a span into at most six."""
    return next(
        (step for step in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0) if span / step <= 6),
        10 ** math.ceil(math.log10(span)),
    )


def shorten(names: Sequence[str], most: int = 12) -> tuple[list[str], int]:
    """Return the first and the last of many names, and how many are left out between them."""
    if len(names) <= most:
        return list(names), 0
    return [*names[: most // 2], *names[-(most // 2) :]], len(names) - most // 2 * 2
