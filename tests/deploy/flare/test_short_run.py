"""One run between real sites beside the same in a loop: the short test that `make test` keeps,
where FLARE is installed.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from comity.runs.run_warnings import warning_texts

if TYPE_CHECKING:
    from real import Real


@pytest.fixture
def two_sites(tmp_path: Path) -> Iterator[Real]:
    from real import Real

    real = Real(tmp_path / "real", {"north": (30, 12), "south": (24, 12)})
    yield real
    real.close()


def test_real_sites_equal_loop(two_sites: Real, tmp_path: Path) -> None:
    """A server and two sites as processes of their own, mutual TLS on loopback; states at home;
    nothing is left running.
    """
    two_sites.mend()
    with two_sites.jobs() as jobs:
        two_sites.wait_for(jobs)
    order = two_sites.order("scaffold", tmp_path / "run", model="mlp2(width=16)")
    assert warning_texts(order.summary(), "during") == []
    two_sites.check_same("scaffold", tmp_path / "run", model="mlp2(width=16)")
    two_sites.check_idle()
    site = two_sites.site("north")
    written = [site, *(site / "kit").rglob("*"), *(site / "runs").rglob("*")]
    assert {"log.txt", "config.toml", "secret"} <= {path.name for path in site.rglob("*")}
    for path in written:  # what FLARE writes there, too, is for the site alone
        assert not path.lstat().st_mode & 0o077, path
