"""The critical-difference diagram of Demšar (2006): mean ranks on a line, and bars that join what
is not clearly different.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from comity.charts.chart import Data, VegaSpec
from comity.charts.encodings import tooltip

ROW_HEIGHT = 17
BAR_DISTANCE = 0.4
"""The distance of two bars, in rows."""
COLUMNS = ("part", "method", "rank", "to_rank", "row", "to_row")


def critical_difference_diagram(
    ranks: Mapping[str, float], alike: Sequence[Sequence[str]], difference: float
) -> tuple[Data, VegaSpec]:
    """Return the data and the specification of the diagram.

    The better half of the methods is named at the left, the others at the right.

    Args:
        ranks: The mean rank of each method, the best (lowest) first.
        alike: Sets of methods that are not clearly different. A bar joins each.
        difference: The critical difference, drawn as a ruler above the line of ranks.
    """
    names = list(ranks)
    half = math.ceil(len(names) / 2)
    left, right = names[:half], names[: half - 1 : -1]
    first_row = BAR_DISTANCE * len(alike) + 0.7
    rows: list[dict[str, Any]] = []
    for side, edge in ((left, 1.0), (right, float(len(names)))):
        for k, name in enumerate(side):
            row, rank = first_row + k, ranks[name]
            place = {"part": "method", "method": name}
            rows.append(place | {"rank": rank, "to_rank": rank, "row": 0.0, "to_row": row})
            rows.append(place | {"rank": rank, "to_rank": edge, "row": row, "to_row": row})
    for k, group in enumerate(alike):
        row = BAR_DISTANCE * (k + 1)
        rows.append(_level("alike", ranks[group[0]], ranks[group[-1]], row, ", ".join(group)))
    rows.append(_level("line", 1.0, float(len(names)), 0.0))
    for rank in range(1, len(names) + 1):
        rows.append(_level("tick", float(rank), float(rank), -0.25) | {"to_row": 0.0})
    rows.append(_level("ruler", 1.0, 1.0 + difference, -1.6))
    last_row = first_row + half - 0.5
    spec: VegaSpec = {
        "height": round(ROW_HEIGHT * (last_row + 2.4)),
        # the names at both sides are part of the width, however long they are
        "autosize": {"type": "fit-x", "contains": "padding"},
        "resolve": {"axis": {"y": "independent"}},
        "layer": [
            *_segments(last_row, first_row, names, left, right, ranks),
            {
                "transform": [{"filter": "datum.part == 'tick'"}],
                "mark": {"type": "text", "dy": -7, "fontSize": 10},
                "encoding": {
                    "x": _x(len(names)),
                    "y": _y(last_row),
                    "text": {"field": "rank", "type": "quantitative", "format": "d"},
                },
            },
            {
                "transform": [
                    {"filter": "datum.part == 'ruler'"},
                    {"calculate": f"'CD = {difference:.2f}'", "as": "text"},
                ],
                "mark": {"type": "text", "dy": -7, "fontSize": 10, "align": "left"},
                "encoding": {"x": _x(len(names)), "y": _y(last_row), "text": {"field": "text"}},
            },
        ],
    }
    return Data.of("critical-difference", rows, COLUMNS), spec


def _level(part: str, start: float, end: float, row: float, method: str = "") -> dict[str, Any]:
    """Return a horizontal segment."""
    return {
        "part": part,
        "method": method,
        "rank": start,
        "to_rank": end,
        "row": row,
        "to_row": row,
    }


def _segments(
    last_row: float,
    first_row: float,
    names: Sequence[str],
    left: Sequence[str],
    right: Sequence[str],
    ranks: Mapping[str, float],
) -> list[VegaSpec]:
    """Return the layers of lines. The first two have an axis with the methods' names."""

    def layer(part: str, width: float, axis: VegaSpec | None = None) -> VegaSpec:
        return {
            "transform": [{"filter": f"datum.part == '{part}'"}],
            "mark": {"type": "rule", "strokeWidth": width, "color": "@text", "strokeCap": "round"},
            "encoding": {
                "x": _x(len(names)),
                "x2": {"field": "to_rank"},
                "y": _y(last_row, axis),
                "y2": {"field": "to_row"},
                "tooltip": [tooltip("method", "method"), tooltip("rank", "mean rank", ".2f")],
            },
        }

    def names_axis(side: Sequence[str], orient: str) -> VegaSpec:
        texts = json.dumps([f"{name}  {ranks[name]:.2f}" for name in side])
        return {
            "orient": orient,
            "values": [first_row + k for k in range(len(side))],
            "labelExpr": f"{texts}[round(datum.value - {first_row})]",
            "labelOverlap": False,
            "domain": False,
            "ticks": False,
            "grid": False,
            "title": None,
        }

    return [
        layer("method", 1, names_axis(left, "left")),
        layer("line", 1, names_axis(right, "right")),
        layer("alike", 4),
        layer("ruler", 1.5),
        layer("tick", 1),
    ]


def _x(methods: int) -> VegaSpec:
    return {
        "field": "rank",
        "type": "quantitative",
        "title": None,
        "axis": None,
        "scale": {"domain": [1, methods], "nice": False, "zero": False},
    }


def _y(last_row: float, axis: VegaSpec | None = None) -> VegaSpec:
    return {
        "field": "row",
        "type": "quantitative",
        "title": None,
        "axis": axis,
        "scale": {"domain": [-2.4, last_row], "reverse": True, "nice": False, "zero": False},
    }
