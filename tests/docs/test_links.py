"""Links in the Markdown files lead to files and headings that exist, and every page is in the
site's navigation.

These tests only read the files; `make docs` builds the site and checks its pages, too.
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
    """The text of a page without fenced code, which has no links or headings."""
    return FENCED.sub("", page.read_text(encoding="utf-8"))


def links(page: Path) -> list[str]:
    """The targets of a page's links and pictures, without those in code."""
    return re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`\n]*`", "`", prose(page)))


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as code hosts and the site name them."""
    names: set[str] = set()
    for heading in re.findall(r"^#+ +(.+?) *$", prose(page), flags=re.MULTILINE):
        name = plain = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        k = 0
        while name in names:
            k += 1
            name = f"{plain}-{k}"
        names.add(name)
    return names


def faults(page: Path) -> list[str]:
    """The broken links of a page."""
    broken = []
    for link in links(page):
        target, _, place = link.partition("#")
        if re.match(r"[a-z]+:", link):  # a link to another site
            continue
        path = (page.parent / target).resolve() if target else page
        if (
            not path.is_relative_to(ROOT)
            or not path.is_file()
            or (place and place not in anchors(path))
        ):
            broken.append(link)
    return broken


def site_files() -> set[str]:
    """The files outside docs/ that the site includes, read from its hook, which cannot be imported
    without mkdocs.
    """
    code = ast.parse((DOCS / "site" / "pages.py").read_text(encoding="utf-8"))
    assigned = {
        node.targets[0].id: node.value
        for node in code.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    return {*ast.literal_eval(assigned["PAGES"]), *ast.literal_eval(assigned["FILES"])}


@pytest.mark.parametrize("page", FILES, ids=lambda page: str(page.relative_to(ROOT)))
def test_linked_files_are_in_the_site(page: Path) -> None:
    """Other links make `make docs` fail with a warning."""
    targets = [link.partition("#")[0] for link in links(page) if not re.match(r"[a-z]+:", link)]
    targets_in_project = {
        str((page.parent / target).resolve().relative_to(ROOT)) for target in targets if target
    }
    assert not {name for name in targets_in_project if not name.startswith("docs/")} - site_files()


@pytest.mark.parametrize("page", FILES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_have_targets(page: Path) -> None:
    assert not faults(page)


def test_broken_links_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_every_page_is_in_the_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").split("\nnav:")[1]
    listed = re.findall(r": (\S+\.md)$", navigation, flags=re.MULTILINE)
    top = {
        "index.md",
        "project/contributing.md",
        "project/changelog.md",
        "project/code-of-conduct.md",
        "project/security.md",
    }  # made from files at the top of the project
    assert set(listed) == top | {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")}
    assert len(listed) == len(set(listed))


def test_check_of_a_built_site(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("check", DOCS / "site" / "check.py")
    assert spec
    assert spec.loader
    check = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(check)
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
