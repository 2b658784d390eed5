"""Make the relative links and pictures of README.md absolute, for the description on PyPI.

    python scripts/absolute_links.py https://github.com/OWNER/comity v0.1.0

PyPI shows README.md on a page of its own, where relative links lead nowhere. The release workflow
runs this before it builds, in its own checkout: the file in the repository keeps relative links.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"
FENCED = re.compile(r"(^```.*?^```$)", flags=re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?P<picture>!?)\[(?P<text>[^\]]*)\]\((?P<target>[^)\s]+)\)")


def absolute(text: str, address: str, tag: str) -> str:
    """Return a Markdown text in which the links to files lead to these files in a repository.

    Examples:
        >>> absolute("[a](docs/a.md#b) ![c](c.png) [d](#d)", "https://host/x", "v1")
        '[a](https://host/x/blob/v1/docs/a.md#b) ![c](https://host/x/raw/v1/c.png) [d](#d)'
    """

    def link(match: re.Match[str]) -> str:
        target = match["target"]
        if re.match(r"[a-z]+:|#", target):  # a link to another site, or within the page
            return match[0]
        kind = "raw" if match["picture"] else "blob"
        return f"{match['picture']}[{match['text']}]({address.rstrip('/')}/{kind}/{tag}/{target})"

    parts = FENCED.split(text)
    return "".join(part if part.startswith("```") else LINK.sub(link, part) for part in parts)


def main() -> None:
    """Rewrite README.md."""
    parser = argparse.ArgumentParser(description="Make README.md's links absolute.")
    parser.add_argument("address", help="the public repository, https://...")
    parser.add_argument("tag", help="the tag whose files the links lead to")
    arguments = parser.parse_args()
    text = README.read_text(encoding="utf-8")
    README.write_text(absolute(text, arguments.address, arguments.tag), encoding="utf-8")


if __name__ == "__main__":
    main()
