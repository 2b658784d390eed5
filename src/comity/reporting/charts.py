"""Pieces of Vega-Lite specifications that several charts share. Colours are named, as in "@bad": a
theme says what they are.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from typing import Any

from comity.reporting.blocks import Checkbox, VegaSpec
from comity.reporting.gather import Group

SHOWN = "shown"
"""The parameter that holds the methods whose boxes are ticked."""
MANY = 8
"""Colours for methods, and shapes, that a reader can tell apart."""
PARTIES = 60
"""Parties in a chart that has a line for each: more do not fit."""
HALF = 500
"""Points that a chart of half the page's width has beside its frame."""
SHAPES = [
    "circle",
    "square",
    "triangle-up",
    "diamond",
    "cross",
    "triangle-down",
    "triangle-right",
    "triangle-left",
]
SIZES = " : ".join(f"{{0}} >= {scale} ? format({{0}} / {scale}, '{{1}}') + ' {unit}'" for scale, unit in
                   (("1e9", "GB"), ("1e6", "MB"), ("1e3", "kB"))) + " : format({0}, '{1}') + ' B'"  # fmt: skip


def colour_of(group: Group) -> dict[str, str]:
    """Every method's colour, the same wherever on the page the method stands: training alone is
    grey.
    """
    chosen = _colours(group.page or [group])
    return {m.name: "@grey" if m.alone else f"@c{chosen[m.name]}" for m in group.methods}


def _colours(groups: Sequence[Group]) -> dict[str, int]:
    """A colour for each name; if there are not enough for a page, those that never meet in a group
    are the first to share one.
    """
    found: dict[str, int] = {}
    for name in dict.fromkeys(m.name for group in groups for m in group.others):
        met = {found.get(m.name) for group in groups if name in group.names for m in group.others}
        used = list(found.values())
        found[name] = min(
            range(MANY), key=lambda colour: (colour in met, used.count(colour), colour)
        )
    return found


def by_method(group: Group, legend: bool = False, only: Sequence[str] | None = None) -> VegaSpec:
    """Colour by method, the same on the whole page, though `only` some are there.

    The page's own boxes are the legend; a file needs one inside.
    """
    colours = {m: colour for m, colour in colour_of(group).items() if only is None or m in only}
    how: VegaSpec = {"domain": list(colours), "range": list(colours.values())}
    return {
        "field": "method",
        "type": "nominal",
        "scale": how,
        "legend": {"title": None} if legend else None,
    }


def shown(methods: Sequence[str]) -> VegaSpec:
    """The parameter of charts that follow the page's boxes."""
    return {"name": SHOWN, "value": list(methods)}


SIZED: VegaSpec = {"calculate": SIZES.format("datum.bytes", ".3~r"), "as": "sent"}
"""Bytes in words, for `tip("sent", ...)`."""
ONLY_SHOWN: VegaSpec = {"filter": f"indexof({SHOWN}, datum.method) >= 0"}


def quantity(field: str, title: str | None, **more: Any) -> VegaSpec:
    """An axis of numbers."""
    return {"field": field, "type": "quantitative", "title": title, **more}


def fraction(field: str, title: str | None, over: Sequence[float] = (), **more: Any) -> VegaSpec:
    """An axis of fractions, shown in percent, that need not begin at zero.

    Charts that are to be compared are given the same values to stretch `over`, so that their axes
    are the same.
    """
    how: VegaSpec = {"zero": False, "nice": True} | (
        {"domain": [min(over), max(over)]} if over else {}
    )
    return quantity(field, title, axis={"format": ".0%"}, scale=how, **more)


def capital(title: str) -> str:
    """A title as one begins a line."""
    return title[:1].upper() + title[1:]


def whole_rounds(rounds: Iterable[int]) -> VegaSpec:
    """The axis of rounds: there are no halves, which Vega would find between few of them."""
    first, last = min(found := set(rounds)), max(found)
    few = {"values": list(range(first, last + 1))} if last - first <= 10 else {}
    return quantity("round", "round", axis={"format": "d", **few})


def count_of_bytes(field: str, title: str | None, settled: Sequence[float] = ()) -> VegaSpec:
    """An axis of bytes; with `settled` values it is logarithmic, and theirs, whatever is shown:
    such an axis cannot be empty.
    """
    reach = [0.8 * min(settled), 1.25 * max(settled)] if settled else []
    how: VegaSpec = (
        {"type": "log", "domain": reach, "nice": False} if settled else {"type": "linear"}
    )
    axis = {
        "labelExpr": SIZES.format("datum.value", "~g"),
        "tickCount": 6,
        "labelSeparation": 10,
        "labelBound": 5,
    }
    return quantity(field, title, axis=axis, scale=how)


def logarithmic(*paths: tuple[str | int, ...]) -> Checkbox:
    """A box for an axis of bytes that several layers have."""
    return Checkbox(
        "logarithmic",
        tuple(((*path, "scale", "type"), "log", "linear") for path in paths),
        ticked=True,
    )


def word(field: str, title: str | None, order: Sequence[str] | None = None) -> VegaSpec:
    """An axis of names, in the given order, or in that in which they come."""
    return {
        "field": field,
        "type": "nominal",
        "title": title,
        "sort": None if order is None else list(order),
    }


def tip(field: str, title: str, form: str | None = None) -> VegaSpec:
    """A line of what is said where the pointer rests."""
    kind = "nominal" if form is None else "quantitative"
    return {"field": field, "title": title, "type": kind} | ({"format": form} if form else {})


def line_of_points(encoding: VegaSpec, tips: list[VegaSpec], size: int) -> list[VegaSpec]:
    """A line, and its points, which alone answer the pointer: a line would tell its first point's
    figures all along.
    """
    return [
        {"mark": {"type": "line"}, "encoding": encoding},
        {
            "mark": {"type": "point", "filled": True, "size": size, "opacity": 1},
            "encoding": (
                {k: v for k, v in encoding.items() if k != "strokeDash"} | {"tooltip": tips}
            ),
        },
    ]


def legend(where: str, columns: int, title: str | None = None) -> VegaSpec:
    """A legend above or below a chart; on a narrow screen the page halves its columns."""
    return {"title": title, "orient": where, "columns": columns}


def legend_of(names: Sequence[str], title: str, most: int) -> VegaSpec:
    """A legend below a chart of half the page's width, with as many names in a row as there is room
    for.
    """
    return legend("bottom", max(2, min(most, HALF // (7 * max(map(len, names)) + 26))), title)


def tall(rows: int, each: int = 20) -> int:
    """The height of a chart with so many rows."""
    return each * max(rows, 1) + 10


def first_of(count: int, most: int = PARTIES) -> str:
    """What is said of a chart that shows the first parties only."""
    return f" The first {most} of {count} parties." if count > most else ""


def unused(name: str, used: Container[str]) -> str:
    """The name, with a number after it if it is taken: a user's method may call its diagnostics
    what it likes.
    """
    free = name
    count = 1
    while free in used:
        count += 1
        free = f"{name}-{count}"
    return free


def heat(across: VegaSpec, down: VegaSpec, value: VegaSpec, tips: list[VegaSpec]) -> VegaSpec:
    """A matrix of colours, with figures in it where there is room for them; both axes name their
    words in `sort`.
    """
    wide = len(across["sort"])
    high = len(down["sort"])
    flat = sum(len(word) for word in across["sort"]) < 60
    numbers: VegaSpec = {
        "mark": {"type": "text", "fontSize": 11},
        "encoding": {
            "text": {
                "field": value["field"],
                "type": "quantitative",
                "format": value.get("format", ".2f"),
            },
        },
    }
    written = wide <= 10
    colour = {k: v for k, v in value.items() if k != "format"} | (
        {"legend": None} if written else {}
    )
    cells: VegaSpec = {"mark": {"type": "rect", "stroke": "@page"}, "encoding": {"color": colour}}
    return {
        "height": tall(high, 26 if high <= 12 else 16),
        "encoding": {
            "x": {**across, "axis": {"labelAngle": 0 if flat else -40}},
            "y": down,
            "tooltip": tips,
        },
        "layer": [cells, numbers] if written else [cells],
    }
