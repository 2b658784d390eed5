"""Deployments on this machine. Without COMITY_SITES=1 (`make test-sites` sets it) all but the short
test is skipped, and without NVIDIA FLARE that, too.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from deployed import Deployed

HERE = Path(__file__).parent
SITES = ("north", "south", "east")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    there = find_spec("nvflare") is not None
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.sites)
            if not there:
                item.add_marker(
                    pytest.mark.skip(reason="needs NVIDIA FLARE: pip install comity[sites]")
                )
            elif os.environ.get("COMITY_SITES") != "1" and item.path.name != "test_short_run.py":
                item.add_marker(
                    pytest.mark.skip(
                        reason="starts a server and sites, for minutes: make test-sites"
                    )
                )


@pytest.fixture(scope="session")
def one_place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployed]:
    from deployed import Deployed

    place = Deployed(tmp_path_factory.mktemp("sites"), SITES)
    yield place
    place.close()


@pytest.fixture
def place(one_place: Deployed) -> Deployed:
    """A server and three sites, all running, with nothing done yet: made once, and mended where a
    test before left it broken.
    """
    one_place.mend()
    return one_place
