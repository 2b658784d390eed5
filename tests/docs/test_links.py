"""Links in the Markdown files lead to files and headings that exist, and every page has its place
in the site's navigation.

This needs nothing but the files; `make docs` builds the site and looks through its pages, too.
"""

from __future__ import annotations

import ast
import importlib.util
import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.quick

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
FILES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])
FENCED = re.compile(r"^ *```.*?^ *```", flags=re.MULTILINE | re.DOTALL)


def prose(page: Path) -> str:
    """A page without its fenced code, where nothing is a link or a heading."""
    return FENCED.sub("", page.read_text(encoding="utf-8"))


def links(page: Path) -> list[str]:
    """Where a page leads: links and pictures, not what code says."""
    return re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`\n]*`", "`", prose(page)))


def anchors(page: Path) -> set[str]:
    """The names that code hosts and the site give to a page's headings."""
    found: set[str] = set()
    for heading in re.findall(r"^#+ +(.+?) *$", prose(page), flags=re.MULTILINE):
        name = plain = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        k = 0
        while name in found:
            k += 1
            name = f"{plain}-{k}"
        found.add(name)
    return found


def faults(page: Path) -> list[str]:
    """The links of a page that lead nowhere."""
    found = []
    for link in links(page):
        target, _, place = link.partition("#")
        if re.match(r"[a-z]+:", link):  # another site's
            continue
        path = (page.parent / target).resolve() if target else page
        if (
            not path.is_relative_to(ROOT)
            or not path.is_file()
            or (place and place not in anchors(path))
        ):
            found.append(link)
    return found


def in_the_site() -> set[str]:
    """What of the project lies in the site besides docs/, as its hook says (which needs mkdocs to
    be imported).
    """
    code = ast.parse((DOCS / "site" / "pages.py").read_text(encoding="utf-8"))
    named = {
        node.targets[0].id: node.value
        for node in code.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    return {*ast.literal_eval(named["PAGES"]), *ast.literal_eval(named["FILES"])}


@pytest.mark.parametrize("page", FILES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_what_is_in_the_site(page: Path) -> None:
    """Else `make docs` ends with a warning, which is an error there."""
    targets = [link.partition("#")[0] for link in links(page) if not re.match(r"[a-z]+:", link)]
    named = {
        str((page.parent / target).resolve().relative_to(ROOT)) for target in targets if target
    }
    assert not {name for name in named if not name.startswith("docs/")} - in_the_site()


@pytest.mark.parametrize("page", FILES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    assert not faults(page)


def test_links_to_nowhere_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("test_links.ROOT", tmp_path)
    (tmp_path / "other.md").write_text(
        "# A heading: with `code`, twice\n\n## Same\n\n## Same\n", encoding="utf-8"
    )
    page = tmp_path / "page.md"
    good = (
        "[a](other.md) [b](other.md#a-heading-with-code-twice) [c](other.md#same-1)"
        " [d](https://a.org/x) `[e](nowhere.md)`"
    )
    page.write_text(f"# Here\n\n{good} [f](#here)\n\n```\n[g](nowhere.md)\n```\n", encoding="utf-8")
    assert not faults(page)
    bad = ["nowhere.md", "other.md#nowhere", "other.md#same-2", "#there", "../outside.md"]
    page.write_text("# Here\n\n" + " ".join(f"[x]({link})" for link in bad), encoding="utf-8")
    assert faults(page) == bad


def test_every_page_has_its_place_in_the_site() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").split("\nnav:")[1]
    named = re.findall(r": (\S+\.md)$", navigation, flags=re.MULTILINE)
    top = {
        "index.md",
        "contributing.md",
        "changelog.md",
    }  # made of the files at the top of the project
    assert set(named) == top | {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")}
    assert len(named) == len(set(named))


def test_a_built_site_is_looked_through(tmp_path: Path) -> None:
    described = importlib.util.spec_from_file_location("check", DOCS / "site" / "check.py")
    assert described
    assert described.loader
    check = importlib.util.module_from_spec(described)
    described.loader.exec_module(check)
    (tmp_path / "b.html").write_text('<h1 id="here">B</h1>', encoding="utf-8")
    (tmp_path / "a.css").write_text("a { background: url(a.png) }", encoding="utf-8")
    page = tmp_path / "a.html"
    page.write_text(
        '<a href="b.html#here"><a href="https://example.org"><link rel="stylesheet" href="a.css">',
        encoding="utf-8",
    )
    assert check.faults(tmp_path) == []
    page.write_text(
        '<a href="c.html"><a href="b.html#there"><script src="https://example.org/x.js">',
        encoding="utf-8",
    )
    (tmp_path / "a.css").write_text("@import 'https://example.org/font.css';", encoding="utf-8")
    assert check.faults(tmp_path) == [
        "a.html: loads https://example.org/x.js",
        "a.html: c.html leads nowhere",
        "a.html: there is no place b.html#there",
        "a.css: loads https://example.org/font.css",
    ]
