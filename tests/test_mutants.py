"""The list of mutants fits the source: each changes one place, and names tests that exist.

`make mutants` tries them (benchmarks/mutants.py).
"""

from __future__ import annotations

import ast
import importlib
import shlex
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.quick

ROOT = Path(__file__).parents[1]


@pytest.fixture
def mutants(monkeypatch: pytest.MonkeyPatch) -> tuple[Any, ...]:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    listed: tuple[Any, ...] = importlib.import_module("mutant_list").MUTANTS
    return listed


def test_every_old_text_occurs_once(mutants: tuple[Any, ...]) -> None:
    counts = {
        mutant.breaks: (ROOT / "src" / mutant.file).read_text(encoding="utf-8").count(mutant.old)
        for mutant in mutants
    }
    wrong = {name: count for name, count in counts.items() if count != 1}
    assert not wrong, "change benchmarks/mutant_list.py together with the lines that it names"


def test_every_mutant_is_another_program(mutants: tuple[Any, ...]) -> None:
    for mutant in mutants:
        text = (ROOT / "src" / mutant.file).read_text(encoding="utf-8")
        changed = text.replace(mutant.old, mutant.new)
        assert ast.dump(ast.parse(changed)) != ast.dump(ast.parse(text)), mutant.breaks


def test_mutants_have_names_and_are_many(mutants: tuple[Any, ...]) -> None:
    assert len(mutants) >= 40
    for values in ([m.breaks for m in mutants], [(m.file, m.old, m.new) for m in mutants]):
        assert max(Counter(values).values()) == 1


def test_every_test_of_a_mutant_exists(mutants: tuple[Any, ...]) -> None:
    for mutant in mutants:
        for word in shlex.split(mutant.tests):
            file, _, test = word.partition("::")
            text = (ROOT / file).read_text(encoding="utf-8")
            assert not test or f"def {test.partition('[')[0]}(" in text, word
