"""A page in Chromium, for tests and for pictures: whichever is installed, and without any network."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
QUIET = (
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)
OWN = ("file:", "data:", "blob:")
KINDS = ("one", "five", "half", "groups", "heart", "sensors", "amounts")
"""The pages that tests open."""


def executable() -> str:
    """Where Chromium is."""
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    if found is None:
        raise SystemExit(f"No browser is installed: none of {', '.join(NAMES)} was found.")
    return found


@contextmanager
def browser() -> Iterator[Browser]:
    """A browser that is closed in the end."""
    from playwright.sync_api import sync_playwright

    sandbox = () if os.getuid() else ("--no-sandbox",)  # Chromium refuses to be root otherwise
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=executable(), args=[*QUIET, *sandbox])
        yield started
        started.close()


@dataclass
class Opened:
    """A page that has been opened, what it said on its console, and whom it asked for something."""

    page: Page
    said: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    def draw(self) -> int:
        """Open what is folded and draw all charts that are not hidden; returns how many there are."""
        self.page.evaluate(
            "() => document.querySelectorAll('details.part').forEach(d => { d.open = true; })"
        )
        return int(self.page.evaluate("() => window.drawEverything()"))

    def settle(self) -> None:
        """Wait until what was begun is drawn."""
        self.page.evaluate("() => window.drawEverything()")
        self.page.evaluate(
            "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
        )


Open = Callable[..., AbstractContextManager[Opened]]
"""What the fixture `look` gives."""


@contextmanager
def opened(
    started: Browser,
    path: Path,
    width: int = 1440,
    scheme: str = "light",
    height: int = 900,
    at: str = "",
) -> Iterator[Opened]:
    """A file in a window of that width, `at` an address in it."""
    context: Any = started.new_context(
        viewport={"width": width, "height": height},
        color_scheme="dark" if scheme == "dark" else "light",
        accept_downloads=True,
    )
    it = Opened(context.new_page())
    it.page.on("console", lambda m: it.said.append(f"{m.type}: {m.text}"))
    it.page.on("pageerror", lambda why: it.said.append(f"error: {why}"))
    it.page.on("request", lambda r: None if r.url.startswith(OWN) else it.asked.append(r.url))
    it.page.goto(path.resolve().as_uri() + at)
    try:
        yield it
    finally:
        context.close()
