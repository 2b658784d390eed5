"""The report in a browser: charts, controls, accessibility, printing, and no network requests."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from browser import KINDS, Open, OpenPage, open_page

if TYPE_CHECKING:
    from playwright.sync_api import Browser

SECTIONS = ["answer", "methods", "curves", "gains", "data", "space", "wire", "again"]
METHODS = ["solo", "fedavg", "fedavg+dbe", "fed-sps", "adcol"]
VISIBLE_CHARTS = '[...document.querySelectorAll(".chart")].filter(c => !c.closest("[hidden]"))'
TRUNCATED_CHARTS = (
    VISIBLE_CHARTS
    + """.filter(chart => {
    const edge = chart.querySelector("svg").getBoundingClientRect();
    return [...chart.querySelectorAll("text")].filter(text => getComputedStyle(text).opacity !== "0").some(text => {
        const box = text.getBoundingClientRect();
        return box.right > edge.right + 1 || box.left < edge.left - 1 || box.top < edge.top - 2 || box.bottom > edge.bottom + 2;
    });
}).map(chart => chart.id)"""
)


def mark_count(it: OpenPage, chart: str, mark: str = "line") -> int:
    """How many lines (or other marks) a chart shows."""
    shapes = f"[...e.querySelectorAll('.mark-{mark}.role-mark > *')]"
    count_marks = f"e => {shapes}.filter(p => p.getAttribute('d') && p.getBBox().width).length"
    return int(it.page.locator(f"[id^=chart-][id$={chart}]").first.evaluate(count_marks))


@pytest.mark.parametrize("kind", KINDS)
def test_every_chart_is_drawn(kind: str, look: Open) -> None:
    with look(kind) as it:
        marks = "c => c.querySelectorAll('.role-mark > *').length"
        counts = it.page.evaluate(f"{VISIBLE_CHARTS}.map(c => [c.id, ({marks})(c)])")
        assert len(counts) >= 4
        assert [name for name, many in counts if not many] == []
        if kind == "five":
            kinds = {re.sub(r"^chart-\d+-", "", name) for name, _ in counts}
            assert {"accuracy-by-round", "accuracy-by-bytes", "gains-fedavg", "helps-fedavg", "classes", "sizes", "distances",
                    "space-solo-after", "overlap-fed-sps", "discriminator", "offsets-fedavg-dbe", "bytes",
                    "bytes-by-round", "bytes-by-party"} <= kinds  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_charts_are_drawn_when_they_come_into_view(
    kind: str, chromium: Browser, pages: dict[str, Path]
) -> None:
    with open_page(chromium, pages[kind]) as it:
        first = it.page.locator(".group:not([hidden]) .chart").first
        first.scroll_into_view_if_needed()
        first.locator("svg").first.wait_for(timeout=10_000)
        it.page.locator(".group:not([hidden]) details.part > summary").first.click()
        last = it.page.locator(".group:not([hidden]) .chart").last
        last.scroll_into_view_if_needed()
        last.locator("svg").first.wait_for(timeout=10_000)
        assert not it.console


@pytest.mark.parametrize("kind", KINDS)
def test_every_section_exists(kind: str, look: Open) -> None:
    with look(kind) as it:
        ids = it.page.evaluate(
            '[...document.querySelectorAll(".group:not([hidden]) section")].map(s => s.id)'
        )
        assert [name.split("/")[-1] for name in ids] == SECTIONS
        links = it.page.evaluate(
            '[...document.querySelectorAll(".group:not([hidden]) nav a")].map(a =>'
            ' a.getAttribute("href"))'
        )
        assert links == [f"#{name}" for name in ids]
        words = it.page.evaluate(
            '[...document.querySelectorAll(".group:not([hidden]) section")].map(s =>'
            " s.innerText.length)"
        )
        assert min(words) > 40


def test_unfinished_run_is_named(look: Open) -> None:
    with look("half") as it:
        assert "is not finished" in it.page.inner_text("#answer")


def test_boxes_show_and_hide_methods(look: Open) -> None:
    with look("five") as it:
        boxes = it.page.locator(".methods input")
        assert [boxes.nth(k).get_attribute("value") for k in range(boxes.count())] == METHODS
        before = [
            mark_count(it, "accuracy-by-round"),
            mark_count(it, "accuracy-by-bytes"),
            mark_count(it, "bytes-by-party", "symbol"),
        ]
        assert before == [5, 4, 12]
        it.page.locator(".methods input[value=fedavg]").uncheck()
        it.settle()
        after = [
            mark_count(it, "accuracy-by-round"),
            mark_count(it, "accuracy-by-bytes"),
            mark_count(it, "bytes-by-party", "symbol"),
        ]
        assert after == [4, 3, 9]
        own = it.page.locator("figure:has([id$=gains-fedavg]), figure:has([id$=helps-fedavg])")
        assert [own.nth(k).is_visible() for k in range(own.count())] == [
            False,
            False,
        ], "charts of that method alone stay"
        it.page.locator("#theme").click()  # a chart that is drawn again keeps the selection
        it.settle()
        assert mark_count(it, "accuracy-by-round") == 4
        for name in METHODS:
            it.page.locator(f".methods input[value='{name}']").uncheck()
        it.settle()
        assert mark_count(it, "accuracy-by-round") == 0
        for name in METHODS:
            it.page.locator(f".methods input[value='{name}']").check()
        it.settle()
        assert mark_count(it, "accuracy-by-round") == 5
        it.page.evaluate("() => window.drawEverything()")
        assert mark_count(it, "gains-fedavg", "symbol") > 0


def test_boxes_of_one_chart(look: Open) -> None:
    with look("five") as it:
        it.page.get_by_label("each party's line").check()
        it.settle()
        assert mark_count(it, "accuracy-by-round") == 5 + 5 * 3
        it.page.get_by_label("each party's line").uncheck()
        it.settle()
        assert mark_count(it, "accuracy-by-round") == 5
        axis = "e => e.querySelector('.role-axis[aria-label^=X]').getAttribute('aria-label')"
        for name in ("accuracy-by-bytes", "bytes-by-party"):
            figure = it.page.locator(f"figure:has([id$={name}])")
            chart = figure.locator(".chart")
            assert "log scale" in chart.evaluate(axis)
            figure.get_by_label("logarithmic").uncheck()
            it.settle()
            assert "linear scale" in chart.evaluate(axis)
            figure.get_by_label("logarithmic").check()
            it.settle()
            assert "log scale" in chart.evaluate(axis)


def test_theme_button(look: Open) -> None:
    ground = "() => getComputedStyle(document.body).backgroundColor"
    inside = "e => e.querySelector('.role-axis-label text').getAttribute('fill')"
    for scheme, other in (("light", "dark"), ("dark", "light")):
        with look("five", scheme=scheme) as it:
            chart = it.page.locator(".chart").first
            assert it.page.evaluate("document.documentElement.dataset.theme") == scheme
            before = it.page.evaluate(ground), chart.evaluate(inside)
            it.page.locator("#theme").click()
            it.settle()
            assert it.page.evaluate("document.documentElement.dataset.theme") == other
            after = it.page.evaluate(ground), chart.evaluate(inside)
            assert before[0] != after[0]
            assert before[1] != after[1]
            it.page.locator("#theme").click()
            it.settle()
            assert (it.page.evaluate(ground), chart.evaluate(inside)) == before


def test_selection_of_groups(look: Open) -> None:
    widths = f"{VISIBLE_CHARTS}.map(c => Math.round(c.querySelector('svg')?.getBoundingClientRect().width ?? 0))"
    with look("groups") as it:
        visible_groups = (
            "() => [...document.querySelectorAll('.group')].filter(g => g.offsetParent !=="
            " null).map(g => g.id)"
        )
        assert it.page.evaluate(visible_groups) == ["setting=a"]
        before = it.page.evaluate(widths)
        assert min(before) > 300
        it.page.select_option("#group", "setting=b")
        assert it.page.evaluate(visible_groups) == ["setting=b"]
        it.draw()
        assert min(it.page.evaluate(widths)) > 300
        it.page.locator("#theme").click()  # while the first group's charts are hidden
        it.page.select_option("#group", "setting=a")
        it.settle()
        assert it.page.evaluate(widths) == before


def test_downloads(look: Open, tmp_path: Path) -> None:
    """Every CSV has the columns and values of the page; a chart is saved as SVG."""
    with look("five") as it:
        content = json.loads(it.page.evaluate("document.getElementById('comity').textContent"))
    names = list(content["data"])
    for some in (
        names[k : k + 8] for k in range(0, len(names), 8)
    ):  # Chromium allows a page ten at once
        with look("five") as it:
            for name in some:
                with it.page.expect_download() as waiting:
                    it.page.get_by_role("button", name=f"Download {name}.csv", exact=True).click()
                assert waiting.value.suggested_filename == f"{name}.csv"
                waiting.value.save_as(tmp_path / "it.csv")
                with (tmp_path / "it.csv").open(encoding="utf-8", newline="") as file:
                    heads, *rows = csv.reader(file)
                assert heads == list(content["data"][name])
                columns = map(unpack, content["data"][name].values())
                assert rows == [list(map(js_text, row)) for row in zip(*columns, strict=True)]
    with look("five") as it:
        with it.page.expect_download() as waiting:
            it.page.get_by_role("button", name="Accuracy by round: as svg").click()
        waiting.value.save_as(tmp_path / "it.svg")
        assert (tmp_path / "it.svg").read_text(encoding="utf-8").startswith("<svg")
        with it.page.expect_download() as waiting:
            it.page.get_by_role("button", name="Accuracy by round: its data as csv").click()
        assert waiting.value.suggested_filename == "curves.csv"


def unpack(column: Any) -> list[Any]:
    return (
        [None if k < 0 else column["words"][k] for k in column["at"]]
        if isinstance(column, dict)
        else list(column)
    )


def js_text(value: Any) -> str:
    """A value as JavaScript prints it."""
    if value is None or isinstance(value, str):
        return value or ""
    whole = float(value).is_integer()
    text = str(int(value)) if whole else repr(float(value))
    return re.sub(r"e([+-])0+", r"e\1", text)


def test_keyboard_reaches_every_control(look: Open) -> None:
    with look("five") as it:
        page = it.page
        reached: list[str] = []
        page.evaluate("() => document.activeElement.blur()")
        for _ in range(250):
            page.keyboard.press("Tab")
            what = page.evaluate("""() => {
                    const e = document.activeElement;
                    if (e === document.body) return null;
                    e.dataset.reached = "yes";
                    return e.matches(":focus-visible") && getComputedStyle(e).outlineStyle !== "none" ? "seen" : e.outerHTML;
                }""")
            if what is None:
                break
            reached.append(what)
        assert set(reached) == {"seen"}, "an element with the focus is not highlighted"
        unreached = page.evaluate(
            """() => [...document.querySelectorAll("a[href], button, input, select, summary, .scroll, pre")]
                .filter(e => e.offsetParent !== null && !e.closest("details:not([open]) > :not(summary)") && !e.dataset.reached)
                .map(e => e.outerHTML.slice(0, 100))"""
        )
        assert unreached == []
        box = page.locator(".methods input").first
        box.focus()
        page.keyboard.press("Space")
        it.settle()
        assert mark_count(it, "accuracy-by-round") == 4
        page.locator("#theme").focus()
        page.keyboard.press("Enter")
        assert page.evaluate("document.documentElement.dataset.theme") == "dark"
        it.settle()


@pytest.mark.parametrize("width", [1440, 400])
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_overflows(kind: str, width: int, look: Open) -> None:
    with look(kind, width) as it:
        for how in ("document.documentElement", "document.body"):
            assert it.page.evaluate(f"{how}.scrollWidth") <= width
        wide = f"{VISIBLE_CHARTS}.filter(c => c.scrollWidth > c.clientWidth + 1).map(c => c.id)"
        assert it.page.evaluate(wide) == [], "a chart is wider than its place"
        assert it.page.evaluate(TRUNCATED_CHARTS) == [], "a text is cut off"
        it.page.set_viewport_size(
            {"width": 1840 - width, "height": 900}
        )  # 400 and 1440 change places
        it.settle()
        assert it.page.evaluate(TRUNCATED_CHARTS) == [], (
            "a text is cut off after the window changed its size"
        )


@pytest.mark.parametrize("kind", KINDS)
def test_every_chart_and_control_has_a_label(kind: str, look: Open) -> None:
    with look(kind) as it:
        labels = it.page.evaluate(
            '[...document.querySelectorAll(".chart")].map(c => [c.getAttribute("role"),'
            " c.ariaLabel])"
        )
        assert all(
            role in ("img", "graphics-document") and len(label) > 20 for role, label in labels
        )
        assert it.page.evaluate("[...document.images].filter(i => !i.alt).length") == 0
        assert (
            it.page.evaluate(
                "[...document.images].filter(i => !i.complete || !i.naturalWidth).length"
            )
            == 0
        )
        controls = "[...document.querySelectorAll('button, input, select')]"
        unnamed = (
            f"{controls}.filter(e => !(e.ariaLabel || e.textContent || e.labels?.length)).map(e =>"
            " e.outerHTML)"
        )
        assert it.page.evaluate(unnamed) == []
        ids = it.page.evaluate(
            "[...document.querySelectorAll('body [id]:not(svg *)')].map(e => e.id)"
        )
        assert len(ids) == len(set(ids))


CONTRAST = (Path(__file__).parent / "contrast.js").read_text(encoding="utf-8")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("kind", KINDS)
def test_contrast(kind: str, scheme: str, look: Open) -> None:
    """Every text has a contrast ratio of at least 4.5 (WCAG 2, AA)."""
    with look(kind, scheme=scheme) as it:
        it.page.evaluate(
            "() => document.querySelectorAll('details').forEach(d => { d.open = true; })"
        )
        contrast = it.page.evaluate(CONTRAST)
        assert contrast["texts"] > 100
        assert [f"{text}: {ratio:.2f}" for text, ratio in contrast["low"]] == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_printed_page(scheme: str, chromium: Browser, pages: dict[str, Path]) -> None:
    """The printed page has all charts, even if none was drawn before, and fits the sheet."""
    with open_page(chromium, pages["five"], scheme=scheme, height=300) as it:
        early = len(it.page.pdf())
        it.draw()
        late = len(it.page.pdf())
        assert early > 0.95 * late
        it.page.emulate_media(media="print")
        it.page.evaluate(
            "() => { document.body.style.width = '720px'; }"
        )  # a sheet is narrower than the window
        right = "e => e.getBoundingClientRect().right"
        out = (
            f"{VISIBLE_CHARTS}.filter(c => ({right})(c.querySelector('svg')) >"
            f" ({right})(c.closest('figure'))).map(c => c.id)"
        )
        assert it.page.evaluate(out) == []
        assert (
            it.page.locator("header, nav, .tools, .more, .methods input")
            .locator("visible=true")
            .count()
            == 0
        )
        assert it.page.locator(".methods label").locator("visible=true").count() == 5, (
            "the legend of the charts is missing"
        )
        assert it.page.evaluate("document.documentElement.dataset.theme") == scheme
        assert not it.console
