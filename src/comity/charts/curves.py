"""Lines by round: their Vega-Lite layers, and curves that notebooks and the terminal draw."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from comity.charts.chart import Chart, Data, VegaSpec
from comity.charts.encodings import legend, percent_axis, round_axis, tooltip
from comity.text import escape_terminal

FEW = 12
"""Lines of up to this many points show them: a line of one point would be invisible."""
COLOURS = 8
"""How many colours of lines a theme has."""
DASHES = ([1, 0], [7, 3], [2, 2], [9, 3, 2, 3])
"""Dash patterns of lines, for more lines than colours."""
WIDTH, HEIGHT = 400, 150
"""Pixels between the axes of a chart of curves."""
STEPS = (1, 2, 5, 10, 20, 25)
"""Distances of ticks in percentage points."""
MIN_SPAN = 5
"""The least percentage points of a vertical axis: small fluctuations must not look large."""
MOST_TITLES = 100
"""The most points of a chart of curves that have a title each, so that notebooks stay small."""
Line = Mapping[int, float]
"""A figure by evaluated round, as a fraction."""


def line_layers(
    encoding: VegaSpec,
    tips: Sequence[VegaSpec],
    fewest: int,
    band: tuple[str, str] | None = None,
    transform: Sequence[VegaSpec] = (),
) -> list[VegaSpec]:
    """Return the Vega-Lite layers of lines: a band, the lines, and the points with tooltips.

    Only the points have tooltips: a line would show the figures of its first point everywhere.
    Lines of many points show one only below the pointer. The points have a selection of
    their own, without `nearest`: with it, Vega-Lite's tooltips show "undefined" for text fields.

    Args:
        encoding: the channels `x`, `y` and `color`, and `strokeDash` if it distinguishes lines
        tips: the lines of the tooltips
        fewest: the number of points of the shortest line
        band: the columns of the lower and upper end of a band around each line
        transform: Vega-Lite transforms of the rows
    """
    undashed = {channel: value for channel, value in encoding.items() if channel != "strokeDash"}
    layers: list[VegaSpec] = []
    if band is not None:
        low, high = band
        ends = {"y": {**encoding["y"], "field": low}, "y2": {"field": high}}
        layers.append({"mark": {"type": "area", "opacity": 0.15}, "encoding": {**undashed, **ends}})
    name = {"description": {"field": encoding["color"]["field"]}}
    layers.append({"mark": {"type": "line"}, "encoding": {**encoding, **name}})
    if fewest <= FEW:
        dot = {"type": "point", "filled": True, "size": 25, "opacity": 1, "aria": False}
        layers.append({"mark": dot, "encoding": undashed})
    near = {"type": "point", "on": "pointerover", "clear": "pointerout"}
    only_near = {"condition": {"param": "near", "empty": False, "value": 1}, "value": 0}
    layers.append(
        {
            "params": [{"name": "near", "select": near}],
            "mark": {"type": "point", "filled": True, "size": 140},
            "encoding": {**undashed, "tooltip": list(tips), "opacity": only_near},
        }
    )
    return [{"transform": list(transform), **layer} for layer in layers]


@dataclass(frozen=True)
class Curves:
    """Fractions by round, one line per name: what a notebook or the terminal draws."""

    title: str
    """What the fractions are, as in `mean accuracy`."""
    lines: Mapping[str, Line]
    rounds: int = 0
    """The least end of the horizontal axis."""

    def finite_lines(self) -> dict[str, dict[int, float]]:
        """Return the lines with their finite values in the order of rounds.

        Lines without such a value are left out.
        """
        finite = {
            name: {t: line[t] for t in sorted(line) if math.isfinite(line[t])}
            for name, line in self.lines.items()
        }
        return {name: line for name, line in finite.items() if line}


def curves_chart(curves: Curves) -> Chart | None:
    """Return the chart of curves, with a legend of their last values; None without any value."""
    lines = curves.finite_lines()
    if not lines:
        return None
    last = {name: f"{line[max(line)]:.1%}" for name, line in lines.items()}
    labels = {name: f"{escape_terminal(name)} {last[name]}" for name in lines}
    rows: list[dict[str, Any]] = [
        {
            "curve": labels[name],
            "round": t,
            "value": value,
            "about": f"{escape_terminal(name)}, round {t}: {value:.1%}",
        }
        for name, line in lines.items()
        for t, value in line.items()
    ]
    data = Data.of("curves", rows, ("curve", "round", "value", "about"))
    names = list(labels.values())
    key: VegaSpec = {"field": "curve", "type": "nominal", "legend": _legend(names)}
    colours = [f"@c{k % COLOURS}" for k in range(len(names))]
    dashes = [DASHES[k // COLOURS % len(DASHES)] for k in range(len(names))]
    span = [0, max(curves.rounds, 1, *data.columns["round"])]
    encoding: VegaSpec = {
        "x": {**round_axis(span), "scale": {"domain": span}},
        "y": _percents(data.columns["value"]),
        "color": {**key, "scale": {"domain": names, "range": colours}},
        "strokeDash": {**key, "scale": {"domain": names, "range": dashes}},
    }
    layers = line_layers(encoding, [tooltip("about", "value")], min(map(len, lines.values())))
    if len(rows) <= MOST_TITLES:
        layers[-1]["encoding"]["description"] = {"field": "about"}
    else:
        layers.pop()
    ends = ", ".join(f"{escape_terminal(name)} ends at {last[name]}" for name in lines)
    title = f"{curves.title} by round"
    spec: VegaSpec = {"width": WIDTH, "height": HEIGHT, "layer": layers}
    return Chart("curves", title, f"{title}: {ends}.", data, spec)


def _legend(names: Sequence[str]) -> VegaSpec:
    """Return the legend of lines below a chart, with as many whole names in a row as fit."""
    name_width = 6 * max(map(len, names)) + 36
    columns = max(1, min(4, WIDTH // name_width))
    return legend("bottom", columns) | {"symbolType": "stroke", "labelLimit": 0}


def percent_scale(values: Sequence[float]) -> tuple[int, int, int]:
    """Return the ends and the tick distance of an axis for fractions, in whole percentages."""
    low, high = 100 * min(values), 100 * max(values)
    span = max(high - low, MIN_SPAN)
    step = next((s for s in STEPS if span / s <= 4), 10 ** math.ceil(math.log10(span / 4)))
    bottom = math.floor(low / step) * step
    top = math.ceil(high / step) * step
    while top - bottom < MIN_SPAN:
        if top < 100:
            top += step
        else:
            bottom -= step
    return bottom, top, step


def _percents(values: Sequence[float]) -> VegaSpec:
    """Return the vertical axis of fractions, which ends at ticks."""
    bottom, top, step = percent_scale(values)
    ticks = [k / 100 for k in range(bottom, top + 1, step)]
    axis = percent_axis("value", None, ticks)
    axis["axis"]["values"] = ticks
    axis["scale"]["nice"] = False
    return axis
