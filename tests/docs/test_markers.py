"""The tables of quick, slow and long tests in tests/conftest.py name tests that exist."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]


def table(name: str) -> tuple[str, ...]:
    described = importlib.util.spec_from_file_location("marking", TESTS / "conftest.py")
    assert described
    assert described.loader
    module = importlib.util.module_from_spec(described)
    described.loader.exec_module(module)
    found: tuple[str, ...] = getattr(module, name)
    return found


@pytest.mark.parametrize("entry", [*table("QUICK"), *table("SLOW"), *table("LONG")])
def test_there_are_such_tests(entry: str) -> None:
    file, _, name = entry.partition("::")
    assert (TESTS / file).exists(), f"tests/{file} is gone: change tests/conftest.py"
    if name:
        text = (TESTS / file).read_text(encoding="utf-8")
        assert re.search(rf"def {re.escape(name.partition('[')[0])}", text), (
            f"{entry} is gone: change tests/conftest.py"
        )
