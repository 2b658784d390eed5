"""Runs between real sites: what comes out is, byte for byte, what comes out of a loop that has all data in one place."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from comity.core.ledger import Charge
from comity.experiments.folder import RunFolder

if TYPE_CHECKING:
    from real import Real

SETTINGS: dict[str, dict[str, Any]] = {"fedufo": {"lr": 0.02}}  # with larger steps it runs away on so few samples


@pytest.fixture(scope="module")
def one_real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Real]:
    from real import Real

    real = Real(tmp_path_factory.mktemp("real"))
    yield real
    real.close()


@pytest.fixture
def real(one_real: Real) -> Real:
    """A server and three sites, all running and connected."""
    one_real.mend()
    with one_real.jobs() as jobs:
        one_real.wait_for(jobs)
    return one_real


@pytest.mark.parametrize("method", ["fedavg", "scaffold", "adcol", "fedavg+dbe", "fedufo", "fed-sps", "relay"])
def test_the_same_as_in_one_place(method: str, real: Real, tmp_path: Path) -> None:
    settings = SETTINGS.get(method, {})
    order = real.order(method, tmp_path / "run", **settings)
    assert order.summary()["remarks"] == []
    real.check_same(method, tmp_path / "run", **settings)
    server = real.run_of(tmp_path / "run")
    assert server.ended
    assert not list((server.path / "checkpoints").glob("party-*"))  # states stay at home
    charged = [row for row in server.read_ledger() if row.kind != "setup"]
    for name in real.names:
        ours = RunFolder(real.site(name) / "runs" / order.ordered.run).read_ledger()
        assert rows_of(name, ours) == rows_of(name, charged)


def rows_of(site: str, ledger: list[Charge]) -> list[Charge]:
    """A site's rows in order. A parcel that leaves it is charged there under its own work, at the server under its recipient's."""
    rows = [row for row in ledger if site in (row.src, row.dst)]
    return sorted(row._replace(work="") if row.kind == "peer" and row.src == site else row for row in rows)
