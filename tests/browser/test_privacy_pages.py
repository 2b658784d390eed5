"""The report's table of privacy guarantees, disclosure pages and audit pages in a browser."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from browser import PRIVATE_METHODS as METHODS
from browser import OpenPage, open_page

if TYPE_CHECKING:
    from playwright.sync_api import Browser

OUTSIDE = """() => [...document.querySelectorAll("main table td, main table th")].filter(c => c.offsetParent).filter(c => {
    const box = c.getBoundingClientRect(), around = c.closest(".scroll")?.getBoundingClientRect();
    return box.right > innerWidth + 1 || (around && box.right > around.right + 1);
}).map(c => c.textContent.slice(0, 40))"""
"""Cells that end outside the window, or outside their scroll area."""
BROKEN = """() => {
    const wrong = [], range = document.createRange();
    for (const cell of document.querySelectorAll("main td")) {
        const text = cell.firstChild;
        if (!text || text.nodeType !== Node.TEXT_NODE) continue;
        for (const word of text.data.matchAll(/[^\\s,;()]+/g)) {
            range.setStart(text, word.index); range.setEnd(text, word.index + word[0].length);
            if (new Set([...range.getClientRects()].map(r => Math.round(r.top))).size > 1) wrong.push(word[0]);
        }
    }
    return wrong;
}"""
"""Words that are broken over two lines."""


@contextmanager
def open_checked(
    chromium: Browser, path: Path, width: int, scheme: str = "light"
) -> Iterator[OpenPage]:
    """Open a page; it must make no requests and print nothing on the console."""
    with open_page(chromium, path, width, scheme) as it:
        yield it
        assert not it.requests
        assert not it.console


def cells(it: OpenPage, k: int) -> list[str]:
    rows = (
        "[...document.querySelectorAll('table[data-name=privacy] tbody tr')].map(r =>"
        f" r.cells[{k}].textContent)"
    )
    return list(it.page.evaluate(rows))


def test_table_of_privacy_guarantees(chromium: Browser, privacy_pages: dict[str, Path]) -> None:
    with open_checked(chromium, privacy_pages["report"], 1440) as it:
        it.draw()
        table = it.page.locator("table[data-name=privacy]")
        assert table.is_visible()
        heads = table.locator("th").all_inner_texts()
        assert heads == [
            "method",
            "epsilon",
            "protected",
            "from whom",
            "delta",
            "left without noise",
        ]
        protected = {
            (method, whom): text
            for method, whom, text in zip(cells(it, 0), cells(it, 3), cells(it, 2), strict=True)
        }
        assert protected["fedavg+dp(noise=1)", "everybody else"] == "a training record"
        assert protected["fedavg+dp(noise=4,level=party)", "everybody else"] == "nothing"
        assert (
            protected["fedavg+dp(noise=4,level=party)", "other parties, if the server is trusted"]
            == "all that a party has"
        )
        assert protected["relay+ldp(noise=2)", "everybody else"].startswith("a row")
        # Sorted by value, not by text: infinite is the largest.
        head = table.locator("th").nth(1).get_by_role("button")
        head.click()
        epsilons = [float("inf") if text == "infinite" else float(text) for text in cells(it, 1)]
        assert epsilons == sorted(epsilons, reverse=True)
        assert epsilons[0] == float("inf")
        head.hover()
        assert "underline" in head.evaluate("e => getComputedStyle(e).textDecorationLine")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_epsilon_is_visible_on_a_phone(
    scheme: str, chromium: Browser, privacy_pages: dict[str, Path]
) -> None:
    with open_checked(chromium, privacy_pages["report"], 390, scheme) as it:
        it.draw()
        table = it.page.locator("table[data-name=privacy]")
        table.scroll_into_view_if_needed()
        box = table.locator("tbody tr").first.locator("td").nth(1).bounding_box()
        assert box
        assert box["x"] + box["width"] <= 390


@pytest.mark.parametrize("width", [1440, 1000, 390])
@pytest.mark.parametrize("method", METHODS)
def test_disclosure_fits_any_window(
    method: str, width: int, chromium: Browser, privacy_pages: dict[str, Path]
) -> None:
    with open_checked(chromium, privacy_pages[method], width) as it:
        assert it.page.evaluate(OUTSIDE) == []
        assert [word for word in it.page.evaluate(BROKEN) if "-" not in word] == []
        assert it.page.evaluate("() => document.documentElement.scrollWidth <= innerWidth")
        parts = it.page.locator("h2").all_inner_texts()
        assert parts[:3] == ["What is not protected", "What left", "What that guarantees"]
        on_a_phone = it.page.locator("#left td").first.evaluate(
            "e => getComputedStyle(e, '::before').content"
        )
        assert ("What left" in on_a_phone) == (
            width < 800
        )  # cells name their column where there is no table head


def test_disclosure_names_the_noise(chromium: Browser, privacy_pages: dict[str, Path]) -> None:
    with open_checked(chromium, privacy_pages["relay+ldp(noise=2)"], 1440) as it:
        text = it.page.inner_text("main")
        assert (
            "One noise for Upload.means, Upload.counts, Upload.obs, Upload.seen together, counted"
            " once" in text
        )
        assert "Rows are protected, not records" in text
    with open_checked(chromium, privacy_pages["fedavg"], 1440) as it:
        first = it.page.locator("p.warning").first
        assert "No noise hides these" in first.inner_text()
        assert first.is_visible()


@pytest.mark.parametrize("width", [1440, 1280])
def test_no_column_of_an_audit_is_cut_off(
    width: int, chromium: Browser, privacy_pages: dict[str, Path]
) -> None:
    with open_checked(chromium, privacy_pages["audit"], width) as it:
        assert it.page.evaluate(OUTSIDE) == []
        for method in METHODS:
            assert it.page.get_by_role("heading", name=method, exact=True).count() == 1


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_an_audit_on_a_phone_scrolls_its_table_and_nothing_else(
    scheme: str, chromium: Browser, privacy_pages: dict[str, Path]
) -> None:
    with open_checked(chromium, privacy_pages["audit"], 390, scheme) as it:
        assert it.page.evaluate("() => document.documentElement.scrollWidth <= innerWidth")
        assert it.page.evaluate(
            "() => { const t = document.querySelector('.scroll'); t.scrollLeft = 1e4; return"
            " t.scrollLeft > 0; }"
        )
