"""Pages for users: their commands work without any downloaded data, and their examples are what they say."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from comity import cli, papers
from comity.data import catalogue

DOCS = Path(__file__).parents[2] / "docs"


def text(page: str) -> str:
    return (DOCS / f"{page}.md").read_text(encoding="utf-8")


def blocks(page: str, kind: str) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", text(page), flags=re.DOTALL)


@pytest.mark.parametrize("page", ["compare", "data", "reproduce"])
def test_commands_work(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COMITY_DATA", raising=False)
    lines = [line for block in blocks(page, "sh") for line in block.splitlines()]
    assert lines
    for line in lines:
        monkeypatch.setattr("sys.argv", shlex.split(line, comments=True))
        cli.main()  # what is wrong ends in SystemExit


def test_the_example_of_an_experiment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (example,) = blocks("reproduce", "toml")
    path = tmp_path / "mine.toml"
    path.write_text(example, encoding="utf-8")
    assert papers.table(str(path)).rows[0].printed("avg") == (80.2, 0.5)
    monkeypatch.setattr("sys.argv", ["comity", "reproduce", str(path), "--scale", "smoke", "--out", str(tmp_path / "out")])
    cli.main()
    assert "| AVG | ADCOL | 80.20 ± 0.50 |" in (tmp_path / "out" / "table.md").read_text(encoding="utf-8")


def test_every_dataset_is_on_the_page() -> None:
    assert {str(row["name"]) for row in catalogue()} <= set(re.findall(r"`([\w-]+)`", text("data")))


def test_links_between_pages_lead_somewhere() -> None:
    for page in DOCS.rglob("*.md"):
        for target in re.findall(r"\]\(([^)#:]+?)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
