"""Fixtures of the tests of reports: pages are small, and without Vega's megabyte of code by
default.
"""

from __future__ import annotations

import pytest
import torch

from comity.reporting import page
from comity.reporting.sections import space

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def small_pages(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write pages without Vega, unless the test has `library`; draw maps of a few samples."""
    monkeypatch.setattr(space, "SAMPLES", 24)
    if "library" not in request.fixturenames:
        monkeypatch.setattr(page, "library", lambda: "/* Vega */")


@pytest.fixture
def library() -> str:
    """Vega's code; pages of a test with this fixture contain it."""
    return page.library()
