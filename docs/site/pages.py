"""A hook for mkdocs: the files at the top of the project become pages of the site, and links to and
from them are kept.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "CHANGELOG.md": "project/changelog.md",
    "SECURITY.md": "project/security.md",
    "CODE_OF_CONDUCT.md": "project/code-of-conduct.md",
}
FILES = (
    "examples/first-steps.ipynb",
    "examples/hospital_tables.py",
    "examples/sensors.py",
    "examples/writers.py",
    "examples/text_lora.py",
    "examples/public_encoder.py",
    "examples/peer_to_peer.py",
    "examples/private.py",
    "examples/at_sites.py",
    "LICENSE",
)
"""What pages link to and is no page: it lies in the site as it is."""
LINK = re.compile(r"(?<=\]\()([^)\s#:]+)(?=[)#])")


def moved(target: str, at: str) -> str:
    """A link's target, seen from the file `at` in the project, as a link between pages of the site."""
    name = posixpath.normpath(
        posixpath.join(posixpath.dirname(at), target)
    )  # from the top of the project
    if name not in (*PAGES, *FILES) and not name.startswith("docs/"):
        return target  # mkdocs complains about what it cannot find
    new = PAGES.get(name, name.removeprefix("docs/"))
    here = PAGES.get(at, at.removeprefix("docs/"))
    return posixpath.relpath(new, posixpath.dirname(here) or ".")


def linked(text: str, at: str) -> str:
    """A page's text with its links moved; what stands in fenced code is left alone."""
    parts = re.split(r"(^```.*?^```)", text, flags=re.MULTILINE | re.DOTALL)
    return "".join(
        p if p.startswith("```") else LINK.sub(lambda m: moved(m[1], at), p) for p in parts
    )


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that lie outside docs/."""
    for source, page in PAGES.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=linked(text, source)))
    for name in FILES:
        files.append(File.generated(config, name, abs_src_path=str(ROOT / name)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Pages in docs/ may link to those at the top."""
    return (
        markdown
        if page.file.src_uri in PAGES.values()
        else linked(markdown, f"docs/{page.file.src_uri}")
    )
