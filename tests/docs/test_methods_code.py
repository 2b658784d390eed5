"""docs/project/methods-code.md quotes the methods' source, and its earlier code is that of the commit."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[2] / "docs" / "site" / "methods_code.py"


@pytest.fixture(scope="module")
def methods_code() -> ModuleType:
    spec = importlib.util.spec_from_file_location("methods_code", SCRIPT)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["methods_code"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_the_page_quotes_the_source(methods_code: ModuleType) -> None:
    text = methods_code.PAGE.read_text(encoding="utf-8")
    assert text == methods_code.page(), "run: python docs/site/methods_code.py"


def test_quoted_lines_are_lines_of_the_source(methods_code: ModuleType) -> None:
    for method in methods_code.METHODS:
        source = (methods_code.ROOT / methods_code.FOLDER / method.file).read_text(encoding="utf-8")
        lines = {line.strip() for line in source.splitlines()}
        quoted = methods_code.read_now(method).code.splitlines()
        assert len(quoted) > 3
        assert {line.strip() for line in quoted} <= lines


def test_the_earlier_code_is_that_of_the_commit(methods_code: ModuleType) -> None:
    arguments = ["git", "cat-file", "-e", f"{methods_code.COMMIT}^{{commit}}"]
    if subprocess.run(arguments, cwd=SCRIPT.parent, capture_output=True, check=False).returncode:
        pytest.skip("this checkout lacks the earlier commit")
    expected = {
        method.title: asdict(methods_code.read_before(method)) for method in methods_code.METHODS
    }
    assert json.loads(methods_code.BEFORE.read_text(encoding="utf-8")) == expected


def test_counts_of_a_small_class(methods_code: ModuleType) -> None:
    text = '''"""Docstring."""
class Small:
    mu: float = option(1.0, "an option is no member")
    traits = Traits()

    def round(self, s):  # a comment
        """Docstring."""
        return s
'''
    source = methods_code.Source.of(text, ("Small",), ("Small.round",))
    assert (source.lines, source.members) == (8, 2)
    assert source.tokens == 28
    assert source.code.startswith("def round(self, s):")
