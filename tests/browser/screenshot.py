"""Takes the README's picture of a report: the answers, the curves, and the gains by the first
methods.

Of a page with several settings the last one is shown. Parts between these are left out.

Usage: python tests/browser/screenshot.py demo/report.html docs/images/report.png
"""

from __future__ import annotations

import sys
from pathlib import Path

from browser import browser, open_page

WIDTH = 1200
MOST = 400_000
"""Largest size of the picture in bytes."""
LAST = (
    "() => { const all = document.querySelectorAll('.group'); if (all.length > 1) location.hash ="
    " all[all.length - 1].id; }"
)
LEFT_OUT = (
    "section[data-part=answer] .blocks > :not(.facts), section[data-part=gains] .blocks >"
    " :not(figure), section[data-part=methods], .together"
)
END = """() => {
    const last = [...document.querySelectorAll(".group:not([hidden]) section[data-part=gains] figure")].slice(0, 2).at(-1);
    return Math.ceil(last.getBoundingClientRect().bottom + scrollY + 16);
}"""


def main(source: Path, target: Path) -> None:
    """Write a screenshot of the page `source` to `target`."""
    with browser() as chromium, open_page(chromium, source, WIDTH) as it:
        it.page.evaluate(LAST)
        it.page.add_style_tag(
            content=(
                f"{LEFT_OUT} {{ display: none !important; }} html {{ scroll-behavior: auto"
                " !important; }"
            )
        )
        it.page.wait_for_timeout(500)
        it.draw()
        it.settle()
        it.page.evaluate("() => scrollTo(0, 0)")
        height = int(it.page.evaluate(END))
        it.page.screenshot(
            path=target, full_page=True, clip={"x": 0, "y": 0, "width": WIDTH, "height": height}
        )
    size = target.stat().st_size
    print(f"{target}: {WIDTH} x {height}, {size / 1000:.0f} kB")
    if size > MOST:
        raise SystemExit(
            f"{target} has {size:,} bytes, more than {MOST:,}: choose a page with fewer charts."
        )


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
