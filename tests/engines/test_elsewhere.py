"""A server that has no data: what comes out between sites is, byte for byte, what comes out of a loop that has all of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from elsewhere import Sites
from matrix import STEEP, TABLES, compositions

from comity.core.ledger import Charge
from comity.experiments.folder import RunFolder
from comity.sites import afterwards
from comity.sites.server import FAILURE

SIZES = {"north": (47, 12), "east": (23, 9), "south": (34, 17)}
MODEL = "fedbn-cnn(scale=0.06)"


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Sites:
    return Sites(tmp_path_factory.mktemp("sites"), SIZES)


def usual(method: str) -> dict[str, Any]:
    return {"model": MODEL, "rounds": 2, "lr": 0.02 if method.startswith(STEEP) else 0.1, "test": "official"}


def same(one: Path, other: Path) -> None:
    for name in TABLES:
        assert (one / name).read_text() == (other / name).read_text(), name


@pytest.mark.parametrize("method", compositions())
def test_all_methods_with_a_server_that_has_no_data(
    method: str, sites: Sites, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(afterwards, "export", lambda *_: [])  # it takes seconds, and has a test of its own
    monkeypatch.setattr(afterwards, "report", lambda *_, **__: None)
    settings = usual(method)
    name = "".join(c for c in method if c.isalnum())
    between = sites.run(method, f"all{name}", **settings)
    assert not (between / FAILURE).exists(), (between / FAILURE).read_text()
    pooled = sites.pooled(method, tmp_path / "pooled", **settings)
    same(between, pooled.folder)
    assert not list((between / "checkpoints").glob("party-*"))  # states stay at home
    for site in sites.names:
        own = RunFolder(sites.site(site) / "runs" / f"all{name}")
        assert [row for row in own.read_metrics() if row.party != site] == []
        server = [row for row in RunFolder(between).read_ledger() if site in (row.src, row.dst) and row.kind != "setup"]
        ours = own.read_ledger()
        assert [row for row in ours if row.kind != "peer"] == [row for row in server if row.kind != "peer"]
        assert parcels(ours, site) == parcels(server, site)


def parcels(rows: list[Charge], site: str) -> list[tuple[Any, ...]]:
    """The parcels of a site; one that leaves is charged there under its own work, and at the server under its recipient's."""
    return sorted((r.round, r.work if r.dst == site else "", r.src, r.dst, r.bytes) for r in rows if r.kind == "peer")
