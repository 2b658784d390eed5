"""Pieces of Vega-Lite specifications that several charts share. Colours are named, as in "@bad": a theme says what they are."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Any

from comity.report.blocks import VegaSpec
from comity.report.gather import Group

SHOWN = "shown"
"""The parameter that holds the methods whose boxes are ticked."""
MANY = 8
"""Colours for methods, and shapes, that a reader can tell apart."""
PARTIES = 60
"""Parties in a chart that has a line for each: more do not fit."""
SHAPES = ["circle", "square", "triangle-up", "diamond", "cross", "triangle-down", "triangle-right", "triangle-left"]
BYTES = (
    "datum.value >= 1e9 ? format(datum.value / 1e9, '~g') + ' GB' : "
    "datum.value >= 1e6 ? format(datum.value / 1e6, '~g') + ' MB' : "
    "datum.value >= 1e3 ? format(datum.value / 1e3, '~g') + ' kB' : format(datum.value, '~g') + ' B'"
)


def colour_of(group: Group) -> dict[str, str]:
    """Every method's colour: training alone is grey."""
    others = [m.name for m in group.others]
    return {m.name: "@grey" if m.alone else f"@c{others.index(m.name) % MANY}" for m in group.methods}


def by_method(group: Group, legend: bool = False, only: Sequence[str] | None = None) -> VegaSpec:
    """Colour by method, the same on the whole page, though `only` some are there.

    The page's own boxes are the legend; a file needs one inside.
    """
    colours = {m: colour for m, colour in colour_of(group).items() if only is None or m in only}
    how: VegaSpec = {"domain": list(colours), "range": list(colours.values())}
    return {"field": "method", "type": "nominal", "scale": how, "legend": {"title": None} if legend else None}


def shown(methods: Sequence[str]) -> VegaSpec:
    """The parameter of charts that follow the page's boxes."""
    return {"name": SHOWN, "value": list(methods)}


ONLY_SHOWN: VegaSpec = {"filter": f"indexof({SHOWN}, datum.method) >= 0"}


def quantity(field: str, title: str | None, **more: Any) -> VegaSpec:
    """An axis of numbers."""
    return {"field": field, "type": "quantitative", "title": title, **more}


def fraction(field: str, title: str | None, **more: Any) -> VegaSpec:
    """An axis of fractions, shown in percent, that need not begin at zero."""
    return quantity(field, title, axis={"format": ".0%"}, scale={"zero": False, "nice": True}, **more)


def capital(title: str) -> str:
    """A title as one begins a line."""
    return title[:1].upper() + title[1:]


def whole_rounds() -> VegaSpec:
    """The axis of rounds: there are no halves."""
    return quantity("round", "round", axis={"format": "d", "tickMinStep": 1})


def count_of_bytes(field: str, title: str | None, settled: Sequence[float] = ()) -> VegaSpec:
    """An axis of bytes; with `settled` values it is logarithmic, and theirs, whatever is shown: such an axis cannot be empty."""
    how: VegaSpec = {"type": "log", "domain": [min(settled), max(settled)], "nice": True} if settled else {"type": "linear"}
    axis = {"labelExpr": BYTES, "tickCount": 6, "labelOverlap": "greedy", "labelSeparation": 10}
    return quantity(field, title, axis=axis, scale=how)


def word(field: str, title: str | None, order: Sequence[str] | None = None) -> VegaSpec:
    """An axis of names, in the given order, or in that in which they come."""
    return {"field": field, "type": "nominal", "title": title, "sort": None if order is None else list(order)}


def tip(field: str, title: str, form: str | None = None) -> VegaSpec:
    """A line of what is said where the pointer rests."""
    kind = "nominal" if form is None else "quantitative"
    return {"field": field, "title": title, "type": kind} | ({"format": form} if form else {})


def legend(where: str, columns: int, title: str | None = None) -> VegaSpec:
    """A legend above or below a chart; on a narrow screen the page halves its columns."""
    return {"title": title, "orient": where, "columns": columns}


def tall(rows: int, each: int = 20) -> int:
    """The height of a chart with so many rows."""
    return each * max(rows, 1) + 10


def first_of(count: int, most: int = PARTIES) -> str:
    """What is said of a chart that shows the first parties only."""
    return f" The first {most} of {count} parties." if count > most else ""


def unused(name: str, used: Container[str]) -> str:
    """The name, with a number after it if it is taken: a user's method may call its diagnostics what it likes."""
    free = name
    count = 1
    while free in used:
        count += 1
        free = f"{name}-{count}"
    return free


def heat(across: VegaSpec, down: VegaSpec, value: VegaSpec, tips: list[VegaSpec]) -> VegaSpec:
    """A matrix of colours, with figures in it where there is room for them; both axes name their words in `sort`."""
    wide = len(across["sort"])
    high = len(down["sort"])
    flat = sum(len(word) for word in across["sort"]) < 60
    numbers: VegaSpec = {
        "mark": {"type": "text", "fontSize": 11},
        "encoding": {
            "text": {"field": value["field"], "type": "quantitative", "format": value.get("format", ".2f")},
        },
    }
    colour = {k: v for k, v in value.items() if k != "format"}
    cells: VegaSpec = {"mark": {"type": "rect", "stroke": "@page"}, "encoding": {"color": colour, "tooltip": tips}}
    return {
        "height": tall(high, 26 if high <= 12 else 16),
        "encoding": {"x": {**across, "axis": {"labelAngle": 0 if flat else -40}}, "y": down},
        "layer": [cells, numbers] if wide <= 10 else [cells],
    }
