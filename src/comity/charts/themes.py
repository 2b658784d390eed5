"""Colours and fonts of charts: themes, and the common Vega configuration.

Colours of methods differ in lightness as well as in hue, so that colour-blind readers can tell them
apart (`tests/charts/test_colours.py`). Text is legible on the colours of a matrix.
"""

from __future__ import annotations

from typing import Any

Theme = dict[str, str]

LIGHT: Theme = {
    "@page": "#ffffff",
    "@text": "#1c2430",
    "@soft": "#5b6675",
    "@line": "#d5dbe3",
    "@grid": "#eceff3",
    "@grey": "#6d7683",
    "@good": "#00714f",
    "@bad": "#b8420b",
    "@low": "#f3f6fa",
    "@high": "#6ca6e0",
    "@less": "#ee9468",
    "@middle": "#f5f5f2",
    "@more": "#55b894",
    "@c0": "#0072b2",
    "@c1": "#d55e00",
    "@c2": "#0b4a33",
    "@c3": "#c2185b",
    "@c4": "#524400",
    "@c5": "#0a1f44",
    "@c6": "#4a1fd6",
    "@c7": "#a98a5c",
}
DARK: Theme = {
    "@page": "#151a21",
    "@text": "#e6eaf0",
    "@soft": "#a2adbb",
    "@line": "#39424e",
    "@grid": "#262d36",
    "@grey": "#98a2af",
    "@good": "#3fc79a",
    "@bad": "#f28a55",
    "@low": "#1d242d",
    "@high": "#2b66a5",
    "@less": "#9a4a1f",
    "@middle": "#2a2f36",
    "@more": "#0f6e50",
    "@c0": "#6cb4f0",
    "@c1": "#e8743b",
    "@c2": "#2fd08a",
    "@c3": "#ca1b43",
    "@c4": "#f5dc4a",
    "@c5": "#3273a8",
    "@c6": "#8a4dff",
    "@c7": "#ede3de",
}
EITHER: Theme = {
    "@page": "transparent",
    "@text": "currentColor",
    "@soft": "currentColor",
    "@line": "currentColor",
    "@grid": "currentColor",
    "@c0": "#2f7de1",
    "@c1": "#d9480f",
    "@c2": "#2b8a3e",
    "@c3": "#c2255c",
    "@c4": "#7048e8",
    "@c5": "#0c8599",
    "@c6": "#a16207",
    "@c7": "#868e96",
}
"""For pictures inside a document that is light or dark, such as a notebook. Text and axes have the
document's own colour. The colours of lines have contrast to white and to black.
"""


def apply_theme(spec: Any, theme: Theme) -> Any:
    """Return a specification with the colour names replaced by the theme's values."""
    if isinstance(spec, dict):
        return {key: apply_theme(value, theme) for key, value in spec.items()}
    if isinstance(spec, list | tuple):
        return [apply_theme(value, theme) for value in spec]
    return theme.get(spec, spec) if isinstance(spec, str) else spec


CONFIG: dict[str, Any] = {
    "background": "@page",
    "font": "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif",
    "view": {"stroke": None},
    "axis": {
        "labelColor": "@soft",
        "titleColor": "@soft",
        "titleFontWeight": "normal",
        "labelFontSize": 12,
        "titleFontSize": 12,
        "gridColor": "@grid",
        "domainColor": "@line",
        "tickColor": "@line",
        "labelLimit": 190,
        "titlePadding": 8,
    },
    "axisQuantitative": {"labelSeparation": 8},
    "legend": {
        "symbolOpacity": 1,
        "layout": {"bottom": {"direction": "vertical", "anchor": "start"}},
        "labelColor": "@text",
        "titleColor": "@soft",
        "titleFontWeight": "normal",
        "labelFontSize": 12,
        "titleFontSize": 12,
    },
    "text": {"color": "@text"},
    "title": {"color": "@text"},
    "line": {"strokeWidth": 2},
    "aria": True,
}
