"""The reliability curve: the observed frequency of class 1 against its predicted probability, with
intervals.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from comity.charts.chart import Data, VegaSpec
from comity.charts.encodings import (
    KEEP_SHOWN,
    SHAPES,
    legend,
    quantitative,
    shown_methods_param,
    tooltip,
)

COLUMNS = ("method", "predicted", "observed", "low", "high", "samples")


def reliability_curve(
    name: str, rows: Sequence[Mapping[str, Any]], methods: Sequence[str], colour: VegaSpec
) -> tuple[Data, VegaSpec]:
    """Return the data and the specification of a reliability curve.

    Args:
        name: The name of the data.
        rows: A row for each method and bin, with the values of `COLUMNS`.
        methods: The methods whose boxes the page has.
        colour: The colour by method.
    """
    scale = {"domain": [0, 1], "nice": False}
    axis = {"format": ".0%", "tickCount": 6}
    x = quantitative("predicted", "predicted probability", scale=scale, axis=axis)
    y = quantitative("observed", "observed frequency", scale=scale, axis=axis)
    diagonal: VegaSpec = {
        "mark": {"type": "rule", "strokeDash": [5, 4], "color": "@soft"},
        "encoding": {"x": {"datum": 0}, "y": {"datum": 0}, "x2": {"datum": 1}, "y2": {"datum": 1}},
    }
    intervals: VegaSpec = {
        "mark": {"type": "rule", "opacity": 0.6},
        "encoding": {
            "x": x,
            "y": {**y, "field": "low"},
            "y2": {"field": "high"},
            "color": colour,
        },
    }
    label = {"description": {"field": "method"}}
    lines: VegaSpec = {
        "mark": {"type": "line", "strokeWidth": 1.2, "opacity": 0.7},
        "encoding": {"x": x, "y": y, "color": colour, **label},
    }
    tips = [
        tooltip("method", "method"),
        tooltip("predicted", "predicted", ".1%"),
        tooltip("observed", "observed", ".1%"),
        tooltip("low", "95% interval from", ".1%"),
        tooltip("high", "to", ".1%"),
        tooltip("samples", "samples", "d"),
    ]
    # Models that are trained alone have the same colour.
    names = colour["scale"]["domain"]
    shapes = {"domain": names, "range": [SHAPES[k % len(SHAPES)] for k in range(len(names))]}
    points: VegaSpec = {
        "mark": {"type": "point", "filled": True, "size": 50, "opacity": 1},
        "encoding": {
            "x": x,
            "y": y,
            "color": colour,
            "shape": {**colour, "scale": shapes, "legend": legend("bottom", 3)},
            "tooltip": tips,
        },
    }
    spec: VegaSpec = {
        "height": 300,
        "params": [shown_methods_param(methods)],
        "transform": [KEEP_SHOWN],
        "layer": [diagonal, intervals, lines, points],
    }
    return Data.of(name, rows, COLUMNS), spec
