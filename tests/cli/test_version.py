"""`comity --version`."""

from __future__ import annotations

import re
from importlib.metadata import version

import pytest
from harness import process, succeed

pytestmark = pytest.mark.quick


def test_version_and_commit() -> None:
    output = succeed("--version").out
    assert re.fullmatch(
        rf"comity {re.escape(version('comity'))}( \(commit [0-9a-f]{{7,}}(-dirty)?\))?\n", output
    )


def test_version_of_a_real_process() -> None:
    result = process("--version")
    assert (result.code, result.err) == (0, "")
    assert result.out == succeed("--version").out
