"""One run between real sites equals the same run on the loop engine: the short test of deployments
in `make test`, where FLARE is installed.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from comity.runs.run_warnings import warning_texts

if TYPE_CHECKING:
    from real_sites import RealSites


@pytest.fixture
def two_sites(tmp_path: Path) -> Iterator[RealSites]:
    from real_sites import RealSites

    deployment = RealSites(tmp_path / "real", {"north": (30, 12), "south": (24, 12)})
    yield deployment
    deployment.close()


def test_real_sites_equal_loop(two_sites: RealSites, tmp_path: Path) -> None:
    """A server and two sites are separate processes with mutual TLS on loopback; no process
    remains.
    """
    two_sites.restore()
    with two_sites.jobs() as jobs:
        two_sites.wait_for(jobs)
    request = two_sites.submit("scaffold", tmp_path / "run", model="mlp2(width=16)")
    assert warning_texts(request.summary(), "during") == []
    two_sites.check_same("scaffold", tmp_path / "run", model="mlp2(width=16)")
    two_sites.check_idle()
    site = two_sites.site("north")
    paths = [site, *(site / "kit").rglob("*"), *(site / "runs").rglob("*")]
    assert {"log.txt", "config.toml", "secret"} <= {path.name for path in site.rglob("*")}
    for path in paths:  # also files that FLARE writes are readable only by the site's owner
        assert not path.lstat().st_mode & 0o077, path
