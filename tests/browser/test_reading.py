"""The report in a browser: labels, sorting of tables, URLs, small screens and printing."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from browser import KINDS, Open, OpenPage, open_page

if TYPE_CHECKING:
    from playwright.sync_api import Browser

LABELS = (Path(__file__).parent / "labels.js").read_text(encoding="utf-8")
SETTING = "() => document.querySelector('.group:not([hidden])').id"


@pytest.mark.parametrize("width", [1400, 400])
@pytest.mark.parametrize("kind", KINDS)
def test_labels_neither_overlap_nor_are_truncated(kind: str, width: int, look: Open) -> None:
    with look(kind, width) as it:
        labels = it.page.evaluate(LABELS)
        assert labels["texts"] > 30
        assert labels["wrong"] == []


# Tables.


def column(it: OpenPage, table: str, k: int) -> list[str]:
    cells = (
        f"[...document.querySelectorAll('table[data-name={table}] tbody tr')].map(r =>"
        f" r.cells[{k}].textContent)"
    )
    return list(it.page.evaluate(cells))


@pytest.mark.parametrize("k", [0, 1, -1])
def test_tables_sort_by_any_column(k: int, look: Open) -> None:
    with look("five") as it:
        heads = it.page.locator("table[data-name=ranking] th")
        k = k % heads.count()
        head = heads.nth(k)
        before = column(it, "ranking", k)
        assert head.get_attribute("aria-sort") == "none"
        figures = "figure" in str(head.get_attribute("class"))

        def key(cell: str) -> tuple[float, str]:
            number = re.match(r"[\d.]+", cell)
            return (float(number[0]), "") if figures and number else (0.0, cell)

        head.get_by_role("button").click()
        assert head.get_attribute("aria-sort") == ("descending" if figures else "ascending")
        assert column(it, "ranking", k) == sorted(before, key=key, reverse=figures)
        head.get_by_role("button").press("Enter")
        assert head.get_attribute("aria-sort") == ("ascending" if figures else "descending")
        assert column(it, "ranking", k) == sorted(before, key=key, reverse=not figures)
        head.get_by_role("button").press("Space")
        assert head.get_attribute("aria-sort") == "none"
        assert column(it, "ranking", k) == before, "the first order does not come back"
        heads.nth(1).get_by_role("button").click()
        heads.nth(0).get_by_role("button").click()
        assert heads.nth(1).get_attribute("aria-sort") == "none", "sorted by two columns"


def test_cells_are_sorted_by_value(
    chromium: Browser, pages: dict[str, Path], tmp_path: Path
) -> None:
    """Bytes and times are sorted by their units, fractions of parties by value; `never` is more
    than any number, and empty cells come last.
    """
    values = {
        "bytes": ["90 B", "8.03 kB", "16 kB", "1.2 MB", "3 GB", ""],
        "time": ["0.1 s", "3.9 s", "59.9 s", "2 min", "1.5 h", ""],
        "gained": ["0/6", "1/12", "2/12", "3/6", "6/6", ""],
        "figure": ["-1.5%", "+0.2%", "9.9% ± 0.1", "10.0% ± 3", "100.0%", "diverged"],
        "rounds": ["2", "10", "1,000", "1,234,567", "never", ""],
        "difference": ["-12", "equal", "+3", "+1,000", "+1,001", ""],
    }
    heads = "".join(f"<th class='figure' scope='col'>{name}</th>" for name in values)
    places = [3, 5, 0, 4, 1, 2]  # mixed
    body = "".join(
        "<tr>" + "".join(f"<td>{cells[k]}</td>" for cells in values.values()) + "</tr>"
        for k in places
    )
    table = f"<table data-name=mixed><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>"
    source = pages["one"].read_text(encoding="utf-8")
    (tmp_path / "mixed.html").write_text(
        source.replace('<main id="main">', f'<main id="main">{table}', 1), encoding="utf-8"
    )
    with open_page(chromium, tmp_path / "mixed.html") as it:
        for k, (name, cells) in enumerate(values.items()):
            button = it.page.locator("table[data-name=mixed] th").nth(k).get_by_role("button")
            button.click()
            assert column(it, "mixed", k) == [*reversed(cells[:-1]), cells[-1]], name
            button.click()
            assert column(it, "mixed", k) == cells, name


# URLs.


def test_url_opens_the_same_setting_and_part(chromium: Browser, pages: dict[str, Path]) -> None:
    with open_page(chromium, pages["groups"], at="#setting=b/space") as it:
        it.page.wait_for_timeout(200)
        assert it.page.evaluate(SETTING) == "setting=b"
        assert it.page.locator("#group").input_value() == "setting=b"
        part = it.page.locator("[id='setting=b/space']")
        assert part.locator("details").get_attribute("open") is not None, (
            "the folded part does not open"
        )
        top = part.bounding_box()
        assert top is not None
        assert -5 <= top["y"] < 450, "the part is not in view"
        assert not it.console
    with open_page(chromium, pages["groups"], at="#no-such-place") as it:
        assert it.page.evaluate(SETTING) == "setting=a"


def test_setting_is_in_the_url_and_in_the_history(look: Open) -> None:
    with look("groups") as it:
        assert it.page.evaluate(SETTING) == "setting=a"
        it.page.select_option("#group", "setting=b")
        assert it.page.evaluate("location.hash") == "#setting=b"
        it.page.locator(".group:not([hidden]) nav a", has_text="What crossed the wire").click()
        assert it.page.evaluate("location.hash") == "#setting=b/wire"
        it.settle()
        it.page.select_option("#group", "setting=a")
        assert it.page.evaluate("location.hash") == "#setting=a/wire", (
            "the part changes with the setting"
        )
        assert it.page.evaluate(SETTING) == "setting=a"
        it.page.go_back()
        assert it.page.evaluate(SETTING) == "setting=b"
        assert it.page.locator("#group").input_value() == "setting=b"
        it.page.go_back()
        it.page.go_back()
        assert it.page.evaluate("location.hash") == ""
        assert it.page.evaluate(SETTING) == "setting=a"


def test_a_method_keeps_its_colour_from_setting_to_setting(look: Open) -> None:
    """Both settings have SOLO; methods of one setting have their own colours."""
    colour = "l => [l.textContent.trim(), l.querySelector('.swatch').style.background]"
    colours = (
        "[...document.querySelectorAll('.group')].map(g => [...g.querySelectorAll('.methods"
        f" label')].map({colour}))"
    )
    with look("groups") as it:
        a, b = (dict(some) for some in it.page.evaluate(colours))
    assert a["solo"] == b["solo"]
    assert len({*a.values(), *b.values()}) == len(a | b)


# Small screens.


@pytest.mark.parametrize("kind", ["five", "heart", "groups"])
def test_main_columns_are_visible_on_a_phone(kind: str, look: Open) -> None:
    with look(kind, 400) as it:
        table = it.page.locator(".group:not([hidden]) table[data-name=ranking]")
        heads = table.locator("th:visible").all_inner_texts()
        assert heads[0] == "method"
        over = "over own model" if kind == "heart" else "over SOLO"
        assert heads[2:] == [over, "gained", "hurt"]
        for cell in table.locator("th:visible, tbody tr:first-child td:visible").all():
            box = cell.bounding_box()
            assert box is not None
            assert box["x"] >= 0
            assert box["x"] + box["width"] <= 400
        more = table.locator("xpath=../following-sibling::button").first
        assert more.get_attribute("aria-expanded") == "false"
        more.click()
        assert "sent" in table.locator("th:visible").all_inner_texts(), (
            "the button does not show the other columns"
        )
        scroll = table.locator("xpath=..")
        scroll.evaluate("e => { e.scrollLeft = 200; }")
        first = table.locator("tbody td").first.bounding_box()
        assert first is not None
        assert 0 <= first["x"] < 30, "the name of the row scrolls away"
        more.click()
        assert "sent" not in table.locator("th:visible").all_inner_texts()


@pytest.mark.parametrize(("width", "height"), [(1400, 900), (400, 800)])
def test_legend_stays_visible(width: int, height: int, look: Open) -> None:
    with look("five", width, height=height) as it:
        it.page.locator("[id^=chart-][id$=bytes-by-party]").scroll_into_view_if_needed()
        it.page.wait_for_timeout(500)
        box = it.page.locator(".methods").bounding_box()
        assert box is not None
        assert 0 <= box["y"] < 80
        assert box["height"] < 50, "the legend is too high"
        under = "([x, y]) => document.elementFromPoint(x, y).closest('.methods') !== null"
        assert it.page.evaluate(under, [box["x"] + 20, box["y"] + box["height"] / 2]), (
            "the legend is covered"
        )
        it.page.locator(".methods input[value=adcol]").uncheck()
        it.settle()
        assert it.page.locator("figure:has([id$=discriminator])").count() == 1


# Folded parts.


@pytest.mark.parametrize("kind", ["five", "groups"])
def test_maps_are_folded_at_first(kind: str, chromium: Browser, pages: dict[str, Path]) -> None:
    with open_page(chromium, pages[kind]) as it:
        here = it.page.locator(".group:not([hidden])")
        assert here.locator("[data-part=answer] .facts").first.is_visible()
        assert here.locator("[data-part=gains] .chart").first.is_visible()
        for part in ("space", "again"):
            inside = here.locator(f"[data-part={part}] .blocks")
            assert not inside.is_visible()
            here.locator(f"nav a[href$={part}]").click()
            inside.wait_for(state="visible", timeout=3000)
        if kind == "five":
            here.locator("[data-part=space] .chart svg").first.wait_for(timeout=10_000)
        assert not it.console


def test_folded_parts_are_printed(chromium: Browser, pages: dict[str, Path]) -> None:
    with open_page(chromium, pages["five"]) as it:
        it.page.evaluate("() => dispatchEvent(new Event('beforeprint'))")
        it.page.locator("[data-part=space] .chart svg").first.wait_for(timeout=20_000)
        assert it.page.locator("details:not([open])").count() == 0
        it.page.evaluate("() => dispatchEvent(new Event('afterprint'))")
        assert it.page.locator("details[open]").count() == 0, (
            "parts are not folded again after printing"
        )
        it.settle()


# The first screen.

ANSWER_HEIGHT = "() => document.querySelector('section[data-part=answer]').getBoundingClientRect()"
A4 = (186, 273)
"""The part of a page in millimetres inside margins of 12."""
PIXELS = 96 / 25.4


def test_the_answer_fits_one_screen(chromium: Browser, pages: dict[str, Path]) -> None:
    with open_page(chromium, pages["heart"], 1400, height=900) as it:
        assert it.page.evaluate(ANSWER_HEIGHT)["bottom"] <= 900
        shown = it.page.locator("section[data-part=answer] dt").all_inner_texts()
        assert shown[0] == "Does collaborating help?"
        assert shown[-1] == "What to do next?"


def test_the_answer_fits_one_printed_page(chromium: Browser, pages: dict[str, Path]) -> None:
    width, height = (round(side * PIXELS) for side in A4)
    with open_page(chromium, pages["heart"], width) as it:
        it.page.emulate_media(media="print")
        assert it.page.evaluate(ANSWER_HEIGHT)["bottom"] <= height
        after = "() => getComputedStyle(document.querySelector('[data-part=answer]')).breakAfter"
        assert it.page.evaluate(after) == "page"
        assert not it.page.locator(".methods input").first.is_visible()
