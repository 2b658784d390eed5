"""The examples in public docstrings give their printed results."""

from __future__ import annotations

import doctest
from importlib import import_module

import pytest

pytestmark = pytest.mark.quick

MODULES = [
    "comity",
    "comity.calls",
    "comity.metrics.custom_metrics",
    "comity.data.dataset",
    "comity.data.federation",
    "comity.data.library",
    "comity.runs.result",
    "comity.reading",
    "comity.studies.finished",
]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str) -> None:
    result = doctest.testmod(import_module(name))
    assert result.attempted
    assert not result.failed
