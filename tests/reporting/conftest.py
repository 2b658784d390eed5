"""Vega's code is a megabyte, the same in every page: tests that do not look at it go without."""

from __future__ import annotations

import pytest
import torch

from comity.reporting import page
from comity.reporting.sections import space

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def light(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages without the library, and maps of a few samples."""
    monkeypatch.setattr(space, "SAMPLES", 24)
    if "library" not in request.fixturenames:
        monkeypatch.setattr(page, "library", lambda: "/* Vega */")


@pytest.fixture
def library() -> str:
    """Pages of this test have the library, which is this."""
    return page.library()
