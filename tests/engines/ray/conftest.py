"""A Ray cluster with two nodes on this machine. Without COMITY_RAY=1 (`make test-ray` sets it), all
tests except the short one are skipped.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if os.environ.get("COMITY_RAY") != "1":
        for item in items:
            if HERE in item.path.parents and item.path.name != "test_short.py":
                item.add_marker(pytest.mark.skip(reason="needs a Ray cluster: make test-ray"))


@pytest.fixture(scope="session")
def two_nodes() -> Iterator[Any]:
    """A cluster of two nodes with one CPU each, at RAY_ADDRESS, that only this machine can reach."""
    from comity.engines.ray_cluster import ADDRESS, LOCAL

    os.environ.update(LOCAL)
    from ray.cluster_utils import Cluster

    with TemporaryDirectory(prefix="t-", ignore_cleanup_errors=True) as folder:
        os.environ["RAY_TMPDIR"] = folder
        cluster = Cluster(
            initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False}
        )
        cluster.add_node(num_cpus=1)
        os.environ[ADDRESS] = cluster.address
        yield cluster
        cluster.shutdown()
    for name in (ADDRESS, "RAY_TMPDIR", *LOCAL):
        del os.environ[name]
