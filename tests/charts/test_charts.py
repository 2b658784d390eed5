"""One description of a chart has the same lines wherever it is drawn: on the page, in a notebook
and in files.
"""

from __future__ import annotations

import math
import re
from xml.etree import ElementTree

import pytest

from comity.charts.chart import Chart, Data, VegaSpec
from comity.charts.curves import COLOURS, FEW, MOST_TITLES, Curves, curves_chart, line_layers
from comity.charts.encodings import percent_axis, round_axis, tooltip
from comity.charts.render import KINDS, complete, picture, svg_with_titles
from comity.charts.themes import EITHER, LIGHT

SVG = "{http://www.w3.org/2000/svg}"
BEGINNING = {"pdf": b"%PDF-", "svg": b"<svg ", "png": b"\x89PNG\r\n\x1a\n"}


def chart_of(lines: dict[str, dict[int, float]], rounds: int = 0) -> Chart:
    chart = curves_chart(Curves("Test accuracy", lines, rounds))
    assert chart is not None
    return chart


def drawing(chart: Chart) -> ElementTree.Element:
    return ElementTree.fromstring(svg_with_titles(complete(chart, EITHER)))


def titled(root: ElementTree.Element, kind: str) -> dict[str, ElementTree.Element]:
    """The marks of a kind by their titles."""
    return {
        title.text or "": mark
        for group in root.iter(f"{SVG}g")
        if f"mark-{kind} role-mark" in group.get("class", "")
        for mark in group
        if (title := mark.find(f"{SVG}title")) is not None
    }


def corners(line: ElementTree.Element) -> list[tuple[float, float]]:
    points = re.findall(r"[ML]([\d.]+),([\d.]+)", line.get("d", ""))
    return [(float(x), float(y)) for x, y in points]


def texts(root: ElementTree.Element) -> list[str]:
    return [node.text or "" for node in root.iter(f"{SVG}text")]


def test_a_line_goes_through_its_values() -> None:
    root = drawing(chart_of({"a": {0: 0.0, 2: 1.0, 4: 0.5}}))
    (line,) = titled(root, "line").values()
    (x0, y0), (x2, y2), (x4, y4) = corners(line)
    assert x2 - x0 == pytest.approx(x4 - x2)
    assert y0 > y4 > y2, "higher values are further up"
    assert y4 == pytest.approx((y0 + y2) / 2)


def test_a_legend_has_the_last_values_and_titles_have_all() -> None:
    root = drawing(chart_of({"solo": {1: 0.25, 0: 0.1}, "fedavg": {0: 0.1, 1: 0.8}}))
    assert {"solo 25.0%", "fedavg 80.0%", "round"} <= set(texts(root))
    assert set(titled(root, "line")) == {"solo 25.0%", "fedavg 80.0%"}
    assert set(titled(root, "symbol")) == {
        "solo, round 0: 10.0%",
        "solo, round 1: 25.0%",
        "fedavg, round 0: 10.0%",
        "fedavg, round 1: 80.0%",
    }


def test_the_description_has_the_last_values() -> None:
    chart = chart_of({"solo": {0: 0.1, 3: 0.25}})
    assert chart.alt == "Test accuracy by round: solo ends at 25.0%."


def test_values_that_are_not_finite_are_left_out() -> None:
    root = drawing(chart_of({"a": {0: 0.1, 1: math.nan, 2: 0.5}, "b": {0: math.inf}}))
    assert list(titled(root, "line")) == ["a 50.0%"]
    assert curves_chart(Curves("x", {})) is None
    assert curves_chart(Curves("x", {"a": {0: math.nan}})) is None


@pytest.mark.parametrize("line", [{0: 0.5}, {3: 0.0}, {0: 1.0, 1: 1.0}, {0: 0.831, 9: 0.834}])
def test_the_axis_has_different_percentages(line: dict[int, float]) -> None:
    root = drawing(chart_of({"a": line}))
    ticks = [text for text in texts(root) if re.fullmatch(r"\d+%", text)]
    assert len(ticks) == len(set(ticks)) >= 2
    assert len(titled(root, "symbol")) == len(line), "one evaluation is a point"


def test_the_axis_reaches_the_last_round_to_come() -> None:
    (line,) = titled(drawing(chart_of({"a": {0: 0.1, 5: 0.9}}, rounds=10)), "line").values()
    (begin, _), (end, _) = corners(line)
    (whole,) = titled(drawing(chart_of({"a": {0: 0.1, 5: 0.9}})), "line").values()
    assert end - begin == pytest.approx((corners(whole)[1][0] - corners(whole)[0][0]) / 2)


def test_more_lines_than_colours_differ_in_their_dashes() -> None:
    names = [f"m{k}" for k in range(2 * COLOURS)]
    lines = titled(drawing(chart_of({name: {0: 0.1, 1: 0.5} for name in names})), "line")
    looks = {(line.get("stroke"), line.get("stroke-dasharray")) for line in lines.values()}
    assert len(looks) == len(names)


def test_many_points_have_no_titles_of_their_own() -> None:
    line = {t: t / MOST_TITLES for t in range(MOST_TITLES + 1)}
    root = drawing(chart_of({"a": line}))
    assert len(titled(root, "line")) == 1
    assert not titled(root, "symbol")


@pytest.mark.parametrize(
    "name",
    ["</svg><script>alert(1)</script>", "two\nlines", "\x1b[2J", "lone \ud800", "方法 & <b>", "@c0", ""],
)  # fmt: skip
def test_names_are_text(name: str) -> None:
    root = drawing(chart_of({name: {0: 0.1, 1: 0.5}, "b": {0: 0.2, 1: 0.3}}))
    assert not list(root.iter(f"{SVG}script"))
    assert len(titled(root, "line")) == 2
    if name.isprintable():
        assert f"{name} 50.0%" in titled(root, "line")


def test_data_are_not_taken_for_colours() -> None:
    data = Data("x", {"name": ["@bad"]})
    spec: VegaSpec = {"mark": {"type": "bar", "color": "@bad"}}
    whole = complete(Chart("x", "x", "x", data, spec), LIGHT, width=7)
    assert whole["data"] == {"values": [{"name": "@bad"}]}
    assert whole["mark"]["color"] == LIGHT["@bad"]
    assert whole["width"] == 7


@pytest.mark.parametrize("kind", KINDS)
def test_pictures_are_of_their_kind(kind: str) -> None:
    chart = chart_of({"a": {0: 0.1, 1: 0.5}})
    assert picture(complete(chart, LIGHT), kind).startswith(BEGINNING[kind])


def layers_of(fewest: int, **more: object) -> list[VegaSpec]:
    encoding = {
        "x": round_axis([0, 9]),
        "y": percent_axis("value", None),
        "color": {"field": "method", "type": "nominal"},
        "strokeDash": {"field": "direction", "type": "nominal"},
    }
    return line_layers(encoding, [tooltip("method", "method")], fewest, **more)  # type: ignore[arg-type]


def test_only_points_have_tooltips_and_only_lines_are_dashed() -> None:
    layers = layers_of(3, band=("low", "high"), transform=[{"filter": "true"}])
    assert [layer["mark"]["type"] for layer in layers] == ["area", "line", "point", "point"]
    assert ["tooltip" in layer["encoding"] for layer in layers] == [False, False, False, True]
    assert ["strokeDash" in layer["encoding"] for layer in layers] == [False, True, False, False]
    assert all(layer["transform"] == [{"filter": "true"}] for layer in layers)
    assert layers[0]["encoding"]["y"]["field"] == "low"


def test_lines_with_many_points_show_them_below_the_pointer_only() -> None:
    assert len(layers_of(FEW)) == 3
    line, near = layers_of(FEW + 1)
    assert line["mark"]["type"] == "line"
    assert near["encoding"]["opacity"]["value"] == 0
