"""Complete specifications, and their pictures as svg, pdf and png.

vl-convert contains Vega-Lite and draws without a browser and without a network.
"""

from __future__ import annotations

import copy
from typing import Any
from xml.etree import ElementTree

from comity.charts.chart import Chart, VegaSpec
from comity.charts.themes import CONFIG, LIGHT, Theme, apply_theme

KINDS = ("pdf", "svg", "png")
SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"
SVG = "http://www.w3.org/2000/svg"


def complete(
    chart: Chart, theme: Theme = LIGHT, config: VegaSpec = CONFIG, **frame: Any
) -> VegaSpec:
    """Return a chart's specification with its data, its colours and its size.

    Args:
        chart: the chart
        theme: the values of the colour names
        config: the Vega configuration
        frame: top-level properties, such as `width`, that hold unless the chart has its own
    """
    spec = apply_theme(
        {"$schema": SCHEMA, **frame, **copy.deepcopy(chart.spec), "config": config}, theme
    )
    return {**spec, "description": chart.caption, "data": {"values": chart.data.rows()}}


def picture(spec: VegaSpec, kind: str) -> bytes:
    """Return a complete specification as a picture of one of the `KINDS`."""
    import vl_convert

    if kind == "svg":
        return vl_convert.vegalite_to_svg(spec).encode()
    if kind == "pdf":
        return vl_convert.vegalite_to_pdf(spec)
    return vl_convert.vegalite_to_png(spec, ppi=300)


def svg_with_titles(spec: VegaSpec) -> str:
    """Return a complete specification as SVG whose lines and points have titles.

    A browser shows a title below the pointer without any script. The titles replace Vega's
    attributes for screen readers, so the SVG belongs inside an element that describes it.
    """
    root = ElementTree.fromstring(picture(spec, "svg"))
    for parent in root.iter():
        for child in list(parent):
            label = child.get("aria-label")
            if child.get("display") == "none":
                parent.remove(child)
            elif label and "role-mark" in parent.get("class", ""):
                ElementTree.SubElement(child, f"{{{SVG}}}title").text = label
            for name in ("role", "aria-label", "aria-roledescription", "aria-hidden"):
                child.attrib.pop(name, None)
    root.set("style", "max-width:100%;height:auto")
    ElementTree.register_namespace("", SVG)
    return ElementTree.tostring(root, encoding="unicode")
