"""Pages printed to PDF on A4 waste no sheets."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pypdf import PdfReader
from pypdf._page import PageObject

from browser import OpenPage, open_page

if TYPE_CHECKING:
    from playwright.sync_api import Browser

MARGIN = 12 / 25.4 * 72
"""The margin of a sheet, in points."""
LEAST = 1 / 3
"""The least share of a sheet that is used, except for the last one and the end of the answer."""
TYPICAL = 0.75
"""The least mean share."""
MOST_SHEETS = {"one": 8, "heart": 10, "five": 14, "half": 8}


def used_share(page: PageObject) -> float:
    """Return how far down the text of a sheet reaches, as a share of the room for it."""
    top, bottom = float(page.mediabox.top) - MARGIN, MARGIN
    lowest = top

    def visit(text: str, cm: list[float], tm: list[float], font: object, size: float) -> None:
        nonlocal lowest
        if text.strip():
            lowest = min(lowest, cm[1] * tm[4] + cm[3] * tm[5] + cm[5])

    page.extract_text(visitor_text=visit)
    return (top - lowest) / (top - bottom)


def sheet_shares(it: OpenPage) -> list[float]:
    """Return the used share of each sheet."""
    sides = dict.fromkeys(("top", "bottom", "left", "right"), "12mm")
    pdf = it.page.pdf(format="A4", margin=sides)
    return [used_share(page) for page in PdfReader(io.BytesIO(pdf)).pages]


@pytest.mark.parametrize("kind", MOST_SHEETS)
def test_reports_waste_no_sheets(kind: str, chromium: Browser, pages: dict[str, Path]) -> None:
    with open_page(chromium, pages[kind], 1400) as it:
        it.draw()
        ends_with_answer = it.page.locator("section[data-part=answer] .facts").count() > 0
        shares = sheet_shares(it)
    assert len(shares) <= MOST_SHEETS[kind], shares
    # The answer of a comparison has a sheet of its own.
    inner = shares[1:-1] if ends_with_answer else shares[:-1]
    assert min(inner) >= LEAST, shares
    assert sum(inner) / len(inner) >= TYPICAL, shares


@pytest.mark.parametrize("kind", ["advice", "profile"])
def test_pages_of_other_commands_waste_no_sheets(
    kind: str, chromium: Browser, other_pages: dict[str, Path]
) -> None:
    with open_page(chromium, other_pages[kind], 1400) as it:
        assert min(sheet_shares(it)[:-1], default=1.0) >= LEAST


def test_an_empty_sheet_is_found(chromium: Browser, tmp_path: Path) -> None:
    """The tests above can fail: a sheet with one line at its top is nearly empty."""
    page = tmp_path / "page.html"
    style = "break-after: page"
    page.write_text(
        f"<!doctype html><title>t</title><p style='{style}'>one line</p>"
        f"<p style='margin-top: 600px; {style}'>far below</p><p>end</p>",
        encoding="utf-8",
    )
    with open_page(chromium, page) as it:
        first, second, _ = sheet_shares(it)
    assert 0 < first < 0.1
    assert 0.5 < second < 0.75
