"""The tooltip of every mark of every chart agrees with the mark's data and with the runs' files."""

from __future__ import annotations

import json
import math
import re
import statistics
from pathlib import Path
from typing import Any

import pytest

from browser import KINDS, Open, OpenPage
from comity.units import deviation

HOVER = (Path(__file__).parent / "hover.js").read_text(encoding="utf-8")
EMPTY = re.compile(r"undefined|null|NaN|Infinity|\[object", re.IGNORECASE)
SILENT = {"line", "area"}
"""Marks without tooltips: their points have them."""
REFERENCES = {"discriminator"}
"""Charts with a reference line, which the caption explains."""


def content(it: OpenPage) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(
        it.page.evaluate("document.getElementById('comity').textContent")
    )
    return value


def tips(part: Any) -> dict[str, str]:
    """The columns of a chart's tooltips, by title."""
    if isinstance(part, list):
        return {title: field for item in part for title, field in tips(item).items()}
    if not isinstance(part, dict):
        return {}
    fields = {
        item["title"]: item["field"] for item in part.get("tooltip", ()) if isinstance(item, dict)
    }
    return fields | {title: field for item in part.values() for title, field in tips(item).items()}


def agrees(text: str, value: Any) -> bool:
    """Whether a text is that value, rounded to its digits."""
    if isinstance(value, str):
        return text == value
    plain = text.replace("−", "-").replace(",", "").replace("+", "")
    match = re.fullmatch(r"(-?\d*\.?\d+(?:e-?\d+)?)(%?)", plain)
    if match is None:
        return False
    digits = re.sub(r"e.*", "", match[1])
    step = 10.0 ** -len(digits.partition(".")[2]) * (10.0 ** int(match[1].partition("e")[2] or 0))
    hundredth = 0.01 if match[2] else 1.0
    near = 0.51 * step * hundredth
    if "." not in digits and "%" not in match[2]:  # large numbers are rounded to few digits
        near = max(near, 5e-4 * abs(float(value)))
    return math.isclose(float(match[1]) * hundredth, float(value), abs_tol=near, rel_tol=1e-9)


def is_size(text: str, count: float) -> bool:
    """Whether a text such as 5.79 MB is that many bytes."""
    number, unit = text.split(" ")
    return math.isclose(
        float(number) * {"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9}[unit], count, rel_tol=6e-3
    )


def check(chart: dict[str, Any], mark: dict[str, Any]) -> None:
    """Check that each line of a tooltip agrees with the mark's row."""
    fields = tips(chart["spec"])
    where = f"{chart['name']}: {mark['text']!r}"
    assert not EMPTY.search(mark["text"]), where
    assert mark["lines"], where
    for title, text in mark["lines"]:
        assert text, where
        field = fields[title]
        for row in mark["data"]:
            if field == "sent":
                assert is_size(text, row["bytes"]), where
            else:
                assert row[field] is not None, where
                assert agrees(text, row[field]), f"{where}: {title} is {row[field]}"


@pytest.mark.parametrize("kind", KINDS)
def test_tooltip_of_every_mark_matches_its_data(kind: str, look: Open) -> None:
    with look(kind, 1440, height=1400) as it:
        for box in it.page.get_by_label("each party's line").all():
            box.check() if box.is_visible() else None
        it.settle()
        page = content(it)
        names = re.compile(r"method|party|helper|class")
        for name, chart in page["charts"].items():
            if it.page.evaluate(
                "id => Boolean(document.getElementById(id).closest('[hidden]'))", name
            ):
                continue
            marks = it.page.evaluate(HOVER, name)
            answering = [mark for mark in marks if mark["reached"] and mark["lines"]]
            assert answering, f"{chart['name']} says nothing"
            assert all(mark["reached"] for mark in marks), chart["name"]
            for mark in marks:
                if mark["lines"]:
                    check(chart, mark)
                    assert any(names.search(title) for title, _ in mark["lines"]), mark["text"]
                else:
                    reference = mark["kind"] == "rule" and chart["name"] in REFERENCES
                    assert mark["kind"] in SILENT or reference, (
                        f"{chart['name']}: a {mark['kind']} says nothing"
                    )


@pytest.mark.parametrize("kind", ["five", "heart", "sensors", "amounts"])
def test_tooltips_of_the_last_round_match_the_summary(
    kind: str, look: Open, pages: dict[str, Path]
) -> None:
    """Tooltips of the last round and of each party agree with summary.json."""
    folder = pages[kind].parent
    summaries: dict[str, list[dict[str, Any]]] = {}
    for path in sorted(folder.rglob("summary.json")):
        summaries.setdefault(path.parent.parent.name, []).append(
            json.loads(path.read_text(encoding="utf-8"))
        )
    with look(kind, height=1400) as it:
        charts = content(it)["charts"]
        metric = next(iter(summaries.values()))[0]["metric"]
        (curve,) = (name for name, chart in charts.items() if chart["name"] == f"{metric}-by-round")
        tooltips = [
            dict(mark["lines"]) for mark in it.page.evaluate(HOVER, curve) if mark.get("lines")
        ]
        last = max(int(lines["round"]) for lines in tooltips)
        ends = {lines["method"]: lines for lines in tooltips if int(lines["round"]) == last}
        assert ends
        title = next(
            title for title, field in tips(charts[curve]["spec"]).items() if field == metric
        )
        for method, lines in ends.items():
            means = [summary[metric]["mean"] for summary in summaries[method]]
            assert agrees(lines[title], statistics.fmean(means)), (method, lines)
            if len(means) > 1:
                assert agrees(lines["± over seeds"], deviation(means))
        (gains,) = (name for name, chart in charts.items() if chart["name"] == "gains-fedavg")
        own = [dict(mark["lines"]) for mark in it.page.evaluate(HOVER, gains) if mark.get("lines")]
        for lines in own:
            party, _, seed = (
                lines["party"].removesuffix(")").partition(" (seed ")
            )  # other samples under another seed
            runs = [
                summary
                for summary in summaries["fedavg"]
                if not seed or summary["seed"] == int(seed)
            ]
            figures = [summary[metric]["per_party"][party] for summary in runs]
            assert agrees(lines["fedavg"], statistics.fmean(figures)), lines


@pytest.mark.parametrize("kind", ["five", "heart"])
def test_tooltips_with_the_mouse(kind: str, look: Open) -> None:
    """Move the mouse to the last point of the accuracy charts, and to a cell."""
    with look(kind, height=1000) as it:
        for ending in ("-by-round", "-by-bytes", "distances"):
            chart = it.page.locator(f"[id^=chart-][id$={ending}]").first
            chart.scroll_into_view_if_needed()
            mark = chart.locator(".mark-symbol.role-mark > path, .mark-text.role-mark > text").last
            box = mark.bounding_box()
            assert box is not None
            it.page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
            it.page.locator("#vg-tooltip-element.visible").wait_for(timeout=3000)
            text = it.page.inner_text("#vg-tooltip-element")
            assert not EMPTY.search(text)
            assert re.search(r"method|party", text), text
            it.page.mouse.move(2, 2)
