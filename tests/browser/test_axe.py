"""axe-core finds no serious violation of accessibility rules on any kind of page."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from browser import PRIVATE_METHODS, OpenPage, open_page

if TYPE_CHECKING:
    from playwright.sync_api import Browser

AXE = next(iter(sorted(Path(sys.prefix, "share", "axe-core").glob("*.js"))), None)
"""Where `prepare.sh` puts the library."""
REPORTS = ("one", "half", "groups", "five", "heart")
OTHER = ("advice", "tune", "paper", "profile")
PRIVATE = ("report", "audit", PRIVATE_METHODS[0], PRIVATE_METHODS[-1])
WIDTHS = pytest.mark.parametrize("width", [1400, 400])
GRAVE = ("serious", "critical")
RUN = """async () => {
    const { violations } = await axe.run(document, { resultTypes: ["violations"] });
    return violations.flatMap(v => v.nodes.map(n =>
        [v.id, v.impact, n.target.join(" "), n.html.slice(0, 120)]));
}"""
TIMEOUT = 120_000

pytestmark = pytest.mark.skipif(
    AXE is None, reason="axe-core is not installed: sh tests/browser/prepare.sh .venv/bin"
)


def grave_violations(it: OpenPage) -> list[list[str]]:
    """Return rule, impact, selector and element of each serious or critical violation."""
    assert AXE is not None
    it.page.set_default_timeout(TIMEOUT)
    it.page.evaluate("() => document.querySelectorAll('details').forEach(d => { d.open = true; })")
    it.page.evaluate("() => window.drawEverything?.()")
    it.page.add_script_tag(content=AXE.read_text(encoding="utf-8"))
    return [found for found in it.page.evaluate(RUN) if found[1] in GRAVE]


def check_light_and_dark(chromium: Browser, path: Path, width: int) -> None:
    for scheme in ("light", "dark"):
        with open_page(chromium, path, width, scheme) as it:
            assert grave_violations(it) == [], scheme


@WIDTHS
@pytest.mark.parametrize("kind", REPORTS)
def test_reports(kind: str, width: int, chromium: Browser, pages: dict[str, Path]) -> None:
    check_light_and_dark(chromium, pages[kind], width)


@WIDTHS
@pytest.mark.parametrize("kind", OTHER)
def test_pages_of_other_commands(
    kind: str, width: int, chromium: Browser, other_pages: dict[str, Path]
) -> None:
    check_light_and_dark(chromium, other_pages[kind], width)


@WIDTHS
@pytest.mark.parametrize("kind", PRIVATE)
def test_pages_about_privacy(
    kind: str, width: int, chromium: Browser, privacy_pages: dict[str, Path]
) -> None:
    check_light_and_dark(chromium, privacy_pages[kind], width)


def test_a_violation_is_found(chromium: Browser, tmp_path: Path) -> None:
    """The tests above can fail: an unnamed control and pale text are found."""
    page = tmp_path / "bad.html"
    page.write_text(
        "<!doctype html><html lang=en><title>Bad</title><main><h1>Bad</h1><input>"
        "<p style='color:#ccc;background:#fff'>pale</p></main>",
        encoding="utf-8",
    )
    with open_page(chromium, page) as it:
        assert {found[0] for found in grave_violations(it)} >= {"label", "color-contrast"}
