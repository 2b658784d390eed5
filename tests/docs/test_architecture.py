"""The tables of the page on architecture agree with the code."""

from __future__ import annotations

import importlib.util
import re
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "concepts" / "architecture.md").read_text(encoding="utf-8")


def table(heading: str) -> list[list[str]]:
    """The rows of the table below a heading, without its head."""
    section = PAGE.split(f"## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")][2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def benchmark(name: str) -> ModuleType:
    """A script of `benchmarks/` as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "benchmarks" / f"{name}.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def limits() -> dict[str, float]:
    """The limits of the page, by their description."""
    rows = table("Limits on the size of the code")
    return {name: float(limit.replace(",", "")) for name, limit in rows}


@pytest.mark.quick
def test_layers_are_those_of_the_import_linter() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    (contract,) = [
        contract
        for contract in project["tool"]["importlinter"]["contracts"]
        if contract["type"] == "layers"
    ]
    declared = [sorted(layer.split(" | ")) for layer in contract["layers"]]
    documented: list[str] = []
    for cell, _ in table("Layers"):
        documented += [re.sub(r"(/|\.py)$", "", name) for name in re.findall(r"`([^`]+)`", cell)]
    assert documented == [name for layer in declared for name in layer]


def test_counts_are_within_their_limits() -> None:
    counts = benchmark("counts").counts(ROOT / "src" / "comity")
    names = {
        "tokens per line of code": "tokens a line",
        "bare participles as names, such as `found`": "participles as names",
        "names of the old vocabulary": "old names",
        "members of `Algorithm`": "author members",
        "folders in an import cycle, imports at the top of files": (
            "folders in a cycle, imports at the top"
        ),
        "folders in an import cycle, all imports (the two conveniences above included)": (
            "folders in a cycle, all imports"
        ),
        "modules in the largest import cycle, all imports": "modules in a cycle, all imports",
    }
    exceeded = {
        name: counts[count]
        for name, count in names.items()
        if float(counts[count]) > limits()[name]
    }
    assert not exceeded
    assert {name for name in limits() if "`loop`" not in name} == set(names)


def test_functions_of_a_round_are_within_their_limits(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["walk.py"])
    benchmark("walk").main()
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    figures = {(words[0], words[1]): [int(n) for n in words[2:]] for words in lines[1:4]}
    functions, modules, _ = figures["loop", "round"]
    calls = figures["loop", "run"][2]
    assert functions <= limits()["functions that a round enters on `loop`"]
    assert modules <= limits()["modules that a round enters on `loop`"]
    assert calls <= limits()["function calls of a run of one round on `loop`"]
