"""Opens pages in the installed Chromium, without a network, for tests and for screenshots."""

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
PRIVATE_METHODS = (
    "fedavg",
    "fedavg+dp(noise=1)",
    "fedavg+dp(noise=4,level=party)",
    "relay+ldp(noise=2)",
)
"""The methods of the comparison that has pages about privacy."""


def executable() -> str:
    """Return the path of Chromium."""
    path = next((program for name in NAMES if (program := shutil.which(name))), None)
    if path is None:
        raise SystemExit(f"No browser is installed: none of {', '.join(NAMES)} was found.")
    return path


@contextmanager
def browser() -> Iterator[Browser]:
    """Start a browser, and close it at the end."""
    from playwright.sync_api import sync_playwright

    sandbox = () if os.getuid() else ("--no-sandbox",)  # Chromium refuses to be root otherwise
    with sync_playwright() as playwright:
        instance = playwright.chromium.launch(executable_path=executable(), args=[*QUIET, *sandbox])
        yield instance
        instance.close()


@dataclass
class OpenPage:
    """An open page, the messages on its console, and the URLs that it requested."""

    page: Page
    console: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def draw(self) -> int:
        """Open folded sections, draw all charts that are not hidden, and return their number."""
        self.page.evaluate(
            "() => document.querySelectorAll('details.part').forEach(d => { d.open = true; })"
        )
        return int(self.page.evaluate("() => window.drawEverything()"))

    def settle(self) -> None:
        """Wait until all charts are drawn."""
        self.page.evaluate("() => window.drawEverything()")
        self.page.evaluate(
            "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
        )


Open = Callable[..., AbstractContextManager[OpenPage]]
"""The type of the fixture `look`."""


@contextmanager
def open_page(
    chromium: Browser,
    path: Path,
    width: int = 1440,
    scheme: str = "light",
    height: int = 900,
    at: str = "",
) -> Iterator[OpenPage]:
    """Open a file in a window of that size; `at` is a URL fragment."""
    context: Any = chromium.new_context(
        viewport={"width": width, "height": height},
        color_scheme="dark" if scheme == "dark" else "light",
        accept_downloads=True,
    )
    it = OpenPage(context.new_page())
    it.page.on("console", lambda m: it.console.append(f"{m.type}: {m.text}"))
    it.page.on("pageerror", lambda why: it.console.append(f"error: {why}"))
    it.page.on("request", lambda r: None if r.url.startswith(OWN) else it.requests.append(r.url))
    it.page.goto(path.resolve().as_uri() + at)
    try:
        yield it
    finally:
        context.close()
