"""The reference: generated pages are current, and the other pages have every column and message."""

from __future__ import annotations

import importlib.util
import re
import shlex
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from harness import comity as run_command

import comity
from comity.runs.tables import TABLES, RunTable

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs" / "reference"


def load_generator() -> ModuleType:
    path = ROOT / "docs" / "site" / "reference.py"
    spec = importlib.util.spec_from_file_location("reference_pages", path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# Here and not in a fixture: it imports all commands, and the command line is built once for all
# tests (conftest.py).
GENERATOR = load_generator()


@pytest.mark.parametrize("name", ["cli.md", "settings.md", "method-cards.md"])
def test_generated_pages_are_current(name: str) -> None:
    written = (REFERENCE / name).read_text(encoding="utf-8")
    assert written == GENERATOR.PAGES[name](), "run: python docs/site/reference.py"


def names_below(heading: str) -> set[str]:
    """The names in the first column of the table below a heading of run-folder.md."""
    text = (REFERENCE / "run-folder.md").read_text(encoding="utf-8")
    section = text.split(f"## {heading}\n")[1].split("\n## ")[0]
    first = re.findall(r"^\| (.*?) \|", section, flags=re.MULTILINE)
    return {name for cell in first for name in re.findall(r"`([\w.]+)`", cell)}


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_every_column_is_explained(table: RunTable[Any]) -> None:
    assert names_below(table.name) == set(table.columns)


def test_every_file_and_key_of_a_run_is_explained(tmp_path: Path) -> None:
    result = comity.run(
        "fedavg",
        comity.load("digits").partition("iid|keep(samples=20)", parties=3, seed=0),
        rounds=1,
        model="linear",
        out=tmp_path / "run",
    )
    files = {path.name for path in (tmp_path / "run").iterdir() if path.is_file()}
    explained = names_below("Files")
    assert files - {".lock"} <= explained
    header = (tmp_path / "run" / "outcomes.csv").read_text(encoding="utf-8").splitlines()[0]
    assert set(header.split(",")) | {"score"} == names_below("outcomes.csv")
    metrics = {name for name, value in result.summary.items() if _is_metric(value)}
    missing = set(result.summary) - metrics - names_below("summary.json")
    assert not missing - {"classes", "crc"}, missing


def _is_metric(value: object) -> bool:
    return isinstance(value, dict) and "per_party" in value


def examples() -> list[tuple[str, str]]:
    """The commands of errors.md with their messages."""
    text = (REFERENCE / "errors.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```console\n(.*?)```", text, flags=re.DOTALL)
    return [
        (command, message)
        for block in blocks
        for command, message in re.findall(r"^\$ comity (.*)\n(comity: .*)$", block, re.MULTILINE)
    ]


@pytest.mark.parametrize(("command", "message"), examples(), ids=lambda text: text[:40])
def test_messages_are_those_of_the_page(
    command: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run_command(*shlex.split(command))
    assert result.code != 0
    assert message in result.err
