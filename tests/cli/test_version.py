"""comity --version."""

from __future__ import annotations

import re
from importlib.metadata import version

import pytest
from harness import process, works

pytestmark = pytest.mark.quick


def test_it_says_the_version_and_in_a_checkout_the_commit() -> None:
    said = works("--version").out
    assert re.fullmatch(
        rf"comity {re.escape(version('comity'))}( \(commit [0-9a-f]{{7,}}(-dirty)?\))?\n", said
    )


def test_as_a_process_of_its_own() -> None:
    ended = process("--version")
    assert (ended.code, ended.err) == (0, "")
    assert ended.out == works("--version").out
