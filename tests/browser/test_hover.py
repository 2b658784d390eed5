"""A pointer rests on every mark of every chart, and what the tooltip says is true: of that mark,
and of the runs' files.
"""

from __future__ import annotations

import json
import math
import re
import statistics
from pathlib import Path
from typing import Any

import pytest

from browser import KINDS, Open, Opened

HOVER = (Path(__file__).parent / "hover.js").read_text(encoding="utf-8")
EMPTY = re.compile(r"undefined|null|NaN|Infinity|\[object", re.IGNORECASE)
SILENT = {"line", "area"}
"""Marks that need not answer: their points do."""
REFERENCES = {"discriminator"}
"""Charts with a line to compare with that the caption explains."""


def content(it: Opened) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(
        it.page.evaluate("document.getElementById('comity').textContent")
    )
    return found


def tips(part: Any) -> dict[str, str]:
    """Titles of a chart's tooltips, and the columns that they are about."""
    if isinstance(part, list):
        return {title: field for one in part for title, field in tips(one).items()}
    if not isinstance(part, dict):
        return {}
    found = {one["title"]: one["field"] for one in part.get("tooltip", ()) if isinstance(one, dict)}
    return found | {title: field for one in part.values() for title, field in tips(one).items()}


def agrees(shown: str, value: Any) -> bool:
    """Whether a text is that value, up to the digits that it has."""
    if isinstance(value, str):
        return shown == value
    plain = shown.replace("−", "-").replace(",", "").replace("+", "")
    told = re.fullmatch(r"(-?\d*\.?\d+(?:e-?\d+)?)(%?)", plain)
    if told is None:
        return False
    digits = re.sub(r"e.*", "", told[1])
    step = 10.0 ** -len(digits.partition(".")[2]) * (10.0 ** int(told[1].partition("e")[2] or 0))
    hundredth = 0.01 if told[2] else 1.0
    near = 0.51 * step * hundredth
    if "." not in digits and "%" not in told[2]:  # thousands that a format of few digits rounds off
        near = max(near, 5e-4 * abs(float(value)))
    return math.isclose(float(told[1]) * hundredth, float(value), abs_tol=near, rel_tol=1e-9)


def sized(shown: str, count: float) -> bool:
    """Whether a text such as 5.79 MB is that many bytes."""
    number, unit = shown.split(" ")
    return math.isclose(
        float(number) * {"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9}[unit], count, rel_tol=6e-3
    )


def check(chart: dict[str, Any], mark: dict[str, Any]) -> None:
    """One tooltip: each line is about the mark's own row."""
    known = tips(chart["spec"])
    where = f"{chart['name']}: {mark['text']!r}"
    assert not EMPTY.search(mark["text"]), where
    assert mark["lines"], where
    for title, shown in mark["lines"]:
        assert shown, where
        field = known[title]
        for row in mark["data"]:
            if field == "sent":
                assert sized(shown, row["bytes"]), where
            else:
                assert row[field] is not None, where
                assert agrees(shown, row[field]), f"{where}: {title} is {row[field]}"


@pytest.mark.parametrize("kind", KINDS)
def test_every_mark_says_what_it_shows(kind: str, look: Open) -> None:
    with look(kind, 1440, height=1400) as it:
        for box in it.page.get_by_label("each party's line").all():
            box.check() if box.is_visible() else None
        it.settle()
        page = content(it)
        named = re.compile(r"method|party|helper|class")
        for name, chart in page["charts"].items():
            if it.page.evaluate(
                "id => Boolean(document.getElementById(id).closest('[hidden]'))", name
            ):
                continue
            marks = it.page.evaluate(HOVER, name)
            told = [mark for mark in marks if mark["reached"] and mark["lines"]]
            assert told, f"{chart['name']} says nothing"
            assert all(mark["reached"] for mark in marks), chart["name"]
            for mark in marks:
                if mark["lines"]:
                    check(chart, mark)
                    assert any(named.search(title) for title, _ in mark["lines"]), mark["text"]
                else:
                    reference = mark["kind"] == "rule" and chart["name"] in REFERENCES
                    assert mark["kind"] in SILENT or reference, (
                        f"{chart['name']}: a {mark['kind']} says nothing"
                    )


@pytest.mark.parametrize("kind", ["five", "heart", "sensors", "amounts"])
def test_the_last_round_is_the_summarys(kind: str, look: Open, pages: dict[str, Path]) -> None:
    """What the pointer hears of the last round, and of each party, is what summary.json has."""
    folder = pages[kind].parent
    told: dict[str, list[dict[str, Any]]] = {}
    for path in sorted(folder.rglob("summary.json")):
        told.setdefault(path.parent.parent.name, []).append(
            json.loads(path.read_text(encoding="utf-8"))
        )
    with look(kind, height=1400) as it:
        charts = content(it)["charts"]
        metric = next(iter(told.values()))[0]["metric"]
        (curve,) = (name for name, chart in charts.items() if chart["name"] == f"{metric}-by-round")
        heard = [
            dict(mark["lines"]) for mark in it.page.evaluate(HOVER, curve) if mark.get("lines")
        ]
        last = max(int(lines["round"]) for lines in heard)
        ends = {lines["method"]: lines for lines in heard if int(lines["round"]) == last}
        assert ends
        title = next(
            title for title, field in tips(charts[curve]["spec"]).items() if field == metric
        )
        for method, lines in ends.items():
            means = [summary[metric]["mean"] for summary in told[method]]
            assert agrees(lines[title], statistics.fmean(means)), (method, lines)
            if len(means) > 1:
                assert agrees(lines["± over seeds"], statistics.pstdev(means))
        (gains,) = (name for name, chart in charts.items() if chart["name"] == "gains-fedavg")
        own = [dict(mark["lines"]) for mark in it.page.evaluate(HOVER, gains) if mark.get("lines")]
        for lines in own:
            party, _, seed = (
                lines["party"].removesuffix(")").partition(" (seed ")
            )  # other samples under another seed
            runs = [
                summary for summary in told["fedavg"] if not seed or summary["seed"] == int(seed)
            ]
            figures = [summary[metric]["per_party"][party] for summary in runs]
            assert agrees(lines["fedavg"], statistics.fmean(figures)), lines


@pytest.mark.parametrize("kind", ["five", "heart"])
def test_a_real_mouse(kind: str, look: Open) -> None:
    """The same by the machine's own pointer: the first point of the accuracy charts, and a cell's
    figure.
    """
    with look(kind, height=1000) as it:
        for ending in ("-by-round", "-by-bytes", "distances"):
            chart = it.page.locator(f"[id^=chart-][id$={ending}]").first
            chart.scroll_into_view_if_needed()
            mark = chart.locator(".mark-symbol.role-mark > path, .mark-text.role-mark > text").last
            box = mark.bounding_box()
            assert box is not None
            it.page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
            it.page.locator("#vg-tooltip-element.visible").wait_for(timeout=3000)
            said = it.page.inner_text("#vg-tooltip-element")
            assert not EMPTY.search(said)
            assert re.search(r"method|party", said), said
            it.page.mouse.move(2, 2)
