"""Frozen parts of a network between sites: never sent, and what is trained equals a simulation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from in_process_sites import Sites, ended, same_as_planned
from small_encoder import FakeLibrary

from comity.models import encoders
from comity.runs.folder import RunFolder

SETTINGS: dict[str, Any] = {
    "model": "torchvision(name=small,freeze=true)",
    "rounds": 2,
    "cache": False,  # sites compute representations in every step
}


@pytest.fixture
def sites(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sites:
    monkeypatch.setattr(encoders, "_imported", lambda *names: FakeLibrary())
    return Sites(tmp_path, {"north": (47, 12), "east": (23, 9), "south": (34, 17)})


@pytest.mark.parametrize("method", ["fedavg", "fedproto"])
def test_sites_train_and_send_the_head_alone(method: str, sites: Sites) -> None:
    folder = sites.run(method, f"frozen{method}", **SETTINGS)
    (start,) = ended(folder)["initial_weights"]
    assert start["frozen"] == ["encoder.net.conv1.weight", "encoder.net.conv1.bias"]
    same_as_planned(sites, folder, method, **SETTINGS)
    if method == "fedavg":
        sent = {row.bytes for row in RunFolder(folder).read_ledger() if row.kind == "up"}
        assert sent == {4 * (4 * 10 + 10)}
