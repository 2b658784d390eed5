"""Deployments on this machine. Without COMITY_SITES=1 (`make test-sites` sets it), all tests except
the short one are skipped; without NVIDIA FLARE, all tests.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from deployment import Deployment

HERE = Path(__file__).parent
SITES = ("north", "south", "east")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    is_installed = find_spec("nvflare") is not None
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.sites)
            if not is_installed:
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
def shared_deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    from deployment import Deployment

    deployment = Deployment(tmp_path_factory.mktemp("sites"), SITES)
    yield deployment
    deployment.close()


@pytest.fixture
def deployment(shared_deployment: Deployment) -> Deployment:
    """A server and three sites, all running, without earlier requests. It is created once, and
    processes that an earlier test ended are started again.
    """
    shared_deployment.restore()
    return shared_deployment
