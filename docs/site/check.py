"""Check a built site: every link inside it leads to a page and a place there, and nothing is loaded
from elsewhere.

python docs/site/check.py build/site
"""

from __future__ import annotations

import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADED = {
    "script": "src",
    "img": "src",
    "iframe": "src",
    "source": "src",
    "video": "src",
    "audio": "src",
    "embed": "src",
}
NOT_LOADED = {
    "canonical",
    "alternate",
    "prev",
    "next",
    "edit",
    "license",
    "author",
}  # kinds of <link> that only name a page
FROM_ELSEWHERE = re.compile(r"(?:url\(|@import)\s*[\"']?((?:https?:)?//[^\"')\s]+)")


class Page(HTMLParser):
    """What a page has: places to link to, links, and what a browser loads for it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.places: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value for name, value in attrs if value is not None}
        self.places |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if tag == "link" and "href" in given and not set(given.get("rel", "").split()) & NOT_LOADED:
            self.loaded.append(given["href"])
        if LOADED.get(tag) in given:
            self.loaded.append(given[LOADED[tag]])


def faults(site: Path) -> list[str]:
    """One line for each thing that is wrong."""
    site = site.resolve()
    pages = {path: Page(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}
    found = [] if pages else [f"{site.name}: no pages"]
    for path, page in pages.items():
        where = path.relative_to(site)
        for link in page.loaded:
            if urlsplit(link).netloc:
                found.append(f"{where}: loads {link}")
        if (
            path.name == "404.html"
        ):  # shown at any address, so its links begin at the site's root, wherever that is
            continue
        for link in [*page.links, *page.loaded]:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if target.is_dir():
                target = target / "index.html"
            if not target.is_file():
                found.append(f"{where}: {link} leads nowhere")
            elif (
                parts.fragment
                and target in pages
                and unquote(parts.fragment) not in pages[target].places
            ):
                found.append(f"{where}: there is no place {link}")
    for path in sorted(site.rglob("*.css")):
        for address in FROM_ELSEWHERE.findall(path.read_text(encoding="utf-8")):
            found.append(f"{path.relative_to(site)}: loads {address}")
    return found


def main() -> None:
    site = Path(sys.argv[1])
    found = faults(site)
    for line in found:
        print(line, file=sys.stderr)
    if found:
        sys.exit(1)
    print(
        f"{len(list(site.rglob('*.html')))} pages: all links lead somewhere, nothing is loaded from"
        " elsewhere"
    )


if __name__ == "__main__":
    main()
