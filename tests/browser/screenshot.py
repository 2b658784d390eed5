"""The README's picture: the top of a page, as wide as a browser's window and cut below who gains.

Usage: python tests/browser/screenshot.py demo/report.html docs/report.png
"""

from __future__ import annotations

import sys
from pathlib import Path

from browser import browser, opened

WIDTH = 1200
MOST = 200_000
"""Bytes that a README's picture may have."""
END = """() => {
    const last = document.querySelector(".group:not([hidden]) section[data-part=gains] figure");
    return Math.ceil(last.getBoundingClientRect().bottom + scrollY + 16);
}"""


def main(source: Path, target: Path) -> None:
    """Draw, cut, and reduce to a palette, which is as good for a page's few colours."""
    from PIL import Image

    with browser() as started, opened(started, source, WIDTH) as it:
        it.draw()
        it.settle()
        height = int(it.page.evaluate(END))
        it.page.screenshot(path=target, full_page=True, clip={"x": 0, "y": 0, "width": WIDTH, "height": height})
    with Image.open(target) as picture:
        small = picture.convert("RGB").quantize(256, dither=Image.Dither.NONE)
    small.save(target, optimize=True)
    size = target.stat().st_size
    print(f"{target}: {small.width} x {small.height}, {size / 1000:.0f} kB")
    if size > MOST:
        raise SystemExit(f"{target} has {size:,} bytes, more than {MOST:,}: choose a page with fewer charts.")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
