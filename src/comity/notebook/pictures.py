"""Charts as pictures in notebooks: SVG without scripts, in the notebook's own colours."""

from __future__ import annotations

from html import escape

from comity.charts.chart import Chart
from comity.charts.curves import Curves, curves_chart
from comity.charts.render import complete, svg_with_titles
from comity.charts.themes import CONFIG, EITHER

FAINT = {
    "labelOpacity": 0.8,
    "titleOpacity": 0.8,
    "gridOpacity": 0.15,
    "domainOpacity": 0.3,
    "tickOpacity": 0.3,
    "labelFontSize": 11,
    "titleFontSize": 11,
}
"""Axes that stand behind the data, in the notebook's colour."""


def show_chart(chart: Chart) -> str:
    """Return a chart as HTML: its title, and its picture with the chart's description."""
    config = CONFIG | {"axis": CONFIG["axis"] | FAINT}
    picture = svg_with_titles(complete(chart, EITHER, config))
    return (
        f'<div style="margin-top:4px">{escape(chart.title)}</div><div role="img"'
        f' aria-label="{escape(chart.caption)}">{picture}</div>'
    )


def show_curves(curves: Curves) -> str:
    """Return a chart of curves as HTML; empty without any value."""
    chart = curves_chart(curves)
    return "" if chart is None else show_chart(chart)
