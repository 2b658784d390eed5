"""Parts of Vega-Lite specifications that several charts share."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from comity.charts.chart import Checkbox, VegaSpec

SHOWN_METHODS = "shown"
"""The name of the Vega parameter that holds the methods whose boxes are ticked."""
HALF_WIDTH = 500
"""Pixels for the content of a chart of half the page's width, without its frame."""
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
SIZE_EXPRESSION = (
    "{0} >= 1e9 ? format({0} / 1e9, '{1}') + ' GB'"
    " : {0} >= 1e6 ? format({0} / 1e6, '{1}') + ' MB'"
    " : {0} >= 1e3 ? format({0} / 1e3, '{1}') + ' kB'"
    " : format({0}, '{1}') + ' B'"
)
"""A Vega expression that writes bytes with a unit: {0} is the value, {1} the number format."""


def shown_methods_param(methods: Sequence[str]) -> VegaSpec:
    """Return the parameter of charts that follow the page's boxes."""
    return {"name": SHOWN_METHODS, "value": list(methods)}


BYTES_AS_TEXT: VegaSpec = {"calculate": SIZE_EXPRESSION.format("datum.bytes", ".3~r"), "as": "sent"}
"""A transform that adds the field `sent`, the bytes with a unit, for tooltips."""
KEEP_SHOWN: VegaSpec = {"filter": f"indexof({SHOWN_METHODS}, datum.method) >= 0"}
"""A transform that keeps the rows of methods whose boxes are ticked."""


def quantitative(field: str, title: str | None, **more: Any) -> VegaSpec:
    """Return the encoding of a number."""
    return {"field": field, "type": "quantitative", "title": title, **more}


def percent_axis(
    field: str, title: str | None, over: Sequence[float] = (), **more: Any
) -> VegaSpec:
    """Return an axis of fractions, shown in percent, which need not begin at zero.

    With values to stretch `over`, the axis covers exactly their range. Charts to be compared get
    the same values.
    """
    scale: VegaSpec = {"zero": False, "nice": True}
    if over:
        scale["domain"] = [min(over), max(over)]
    return quantitative(field, title, axis={"format": ".0%"}, scale=scale, **more)


def round_axis(rounds: Iterable[int]) -> VegaSpec:
    """Return an axis of rounds, without the fractions that Vega puts between few integers."""
    distinct = set(rounds)
    first, last = min(distinct), max(distinct)
    ticks = {"values": list(range(first, last + 1))} if last - first <= 10 else {}
    return quantitative("round", "round", axis={"format": "d", **ticks})


def bytes_axis(field: str, title: str | None, over: Sequence[float] = ()) -> VegaSpec:
    """Return an axis of bytes.

    With values to stretch `over`, the axis is logarithmic and covers their range, whichever of
    them the chart shows: a logarithmic axis without values fails.
    """
    scale: VegaSpec = {"type": "linear"}
    axis = dict(LINEAR_BYTES)
    if over:
        ends = 0.8 * min(over), 1.25 * max(over)
        scale = {"type": "log", "domain": list(ends), "nice": False}
        axis["values"] = log_ticks(*ends)
    return quantitative(field, title, axis=axis, scale=scale)


LINEAR_BYTES: VegaSpec = {
    "labelExpr": SIZE_EXPRESSION.format("datum.value", "~g"),
    "tickCount": 6,
    "labelSeparation": 10,
    "labelBound": 5,
}
"""A linear axis of bytes."""
WIDE = 2.0
"""The number of decades from which on only powers of ten are labelled."""
MOST_TICKS = 7


def log_ticks(low: float, high: float) -> list[float]:
    """Return regular ticks of a logarithmic axis: powers of ten (each, or every second, ...) or,
    if the axis spans few of them, also their multiples by 2 and 5.

    Examples:
        >>> log_ticks(80, 2e5)
        [100.0, 1000.0, 10000.0, 100000.0]
        >>> log_ticks(15, 400)
        [20.0, 50.0, 100.0, 200.0]
    """
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    factors = (1,) if math.log10(high / low) >= WIDE else (1, 2, 5)
    step = max(1, math.ceil((last - first) / MOST_TICKS))
    exponents = range(first - first % step, last + 1, step)
    ticks = [factor * 10.0**exponent for exponent in exponents for factor in factors]
    return [tick for tick in ticks if low <= tick <= high]


def log_checkbox(axis: VegaSpec, *paths: tuple[str | int, ...]) -> Checkbox:
    """Return a checkbox that makes the axes of bytes at these paths logarithmic.

    `axis` is the encoding with a logarithmic axis.
    """
    scales = [((*path, "scale", "type"), "log", "linear") for path in paths]
    axes = [((*path, "axis"), axis["axis"], LINEAR_BYTES) for path in paths]
    return Checkbox("logarithmic", (*scales, *axes), ticked=True)


def nominal(field: str, title: str | None, order: Sequence[str] | None = None) -> VegaSpec:
    """Return the encoding of names, in the given order or that of the data."""
    return {
        "field": field,
        "type": "nominal",
        "title": title,
        "sort": None if order is None else list(order),
    }


def tooltip(field: str, title: str, number_format: str | None = None) -> VegaSpec:
    """Return a line of a tooltip: a number with a format, or text."""
    if number_format is None:
        return {"field": field, "title": title, "type": "nominal"}
    return {"field": field, "title": title, "type": "quantitative", "format": number_format}


def legend(orient: str, columns: int, title: str | None = None) -> VegaSpec:
    """Return a legend above or below a chart. On a narrow screen the page halves its columns."""
    return {"title": title, "orient": orient, "columns": columns}


def fitting_legend(names: Sequence[str], title: str, most: int) -> VegaSpec:
    """Return a legend below a chart of half the page's width, with as many names in a row as fit,
    between 2 and `most`.
    """
    name_width = 7 * max(map(len, names)) + 26
    return legend("bottom", max(2, min(most, HALF_WIDTH // name_width)), title)


def rows_height(rows: int, row_height: int = 20) -> int:
    """Return the height of a chart with that many rows."""
    return row_height * max(rows, 1) + 10


def diverging(field: str, most: float) -> VegaSpec:
    """A value whose colour says how far it is below or above 0, from -most to most."""
    scale = {
        "domain": [-most, 0, most],
        "range": ["@less", "@middle", "@more"],
        "interpolate": "rgb",
    }
    return quantitative(field, field, format="+.1f", scale=scale)


def heatmap(across: VegaSpec, down: VegaSpec, value: VegaSpec, tips: list[VegaSpec]) -> VegaSpec:
    """Return a matrix of colours, with figures in its cells if there is room for them.

    Both axes list their names in `sort`.
    """
    columns, rows = len(across["sort"]), len(down["sort"])
    labels_fit = sum(len(name) for name in across["sort"]) < 60
    figures_fit = columns <= 10
    colour = {k: v for k, v in value.items() if k != "format"}
    if figures_fit:
        colour["legend"] = None
    cells: VegaSpec = {"mark": {"type": "rect", "stroke": "@page"}, "encoding": {"color": colour}}
    figures: VegaSpec = {
        "mark": {"type": "text", "fontSize": 11},
        "encoding": {
            "text": {
                "field": value["field"],
                "type": "quantitative",
                "format": value.get("format", ".2f"),
            },
        },
    }
    return {
        "height": rows_height(rows, 26 if rows <= 12 else 16),
        "encoding": {
            "x": {**across, "axis": {"labelAngle": 0 if labels_fit else -40}},
            "y": down,
            "tooltip": tips,
        },
        "layer": [cells, figures] if figures_fit else [cells],
    }
