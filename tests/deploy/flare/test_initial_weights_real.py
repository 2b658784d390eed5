"""Initial weights that a researcher gives reach real sites, over NVIDIA FLARE."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from comity.errors import ComityError
from comity.models.referenced_weights import INITIAL_WEIGHTS
from comity.runs.folder import RunFolder

pytest.importorskip("nvflare")

from real_sites import SETTINGS, RealSites


@pytest.fixture
def real(tmp_path: Path) -> Iterator[RealSites]:
    real = RealSites(tmp_path / "real", {"north": (30, 12), "south": (24, 12)})
    real.restore()
    with real.jobs() as jobs:
        real.wait_for(jobs)
    yield real
    real.close()


def test_real_sites_take_signed_weights_if_their_policy_allows_them(
    real: RealSites, tmp_path: Path
) -> None:
    """SOLO's models never cross the wire, so they can start from the file only by way of the job
    and the first requests. The file has 4 MB, more than one block of FLARE's transport.
    """
    torch.manual_seed(0)
    weights = {"fc1.weight": torch.randn(16, 64) / 8, "unused": torch.randn(1_000_000)}
    save_file(weights, tmp_path / "start.safetensors")
    settings: dict[str, Any] = {
        "model": "mlp2(width=16)",
        "weights": str(tmp_path / "start.safetensors"),
    }
    refused = real.submit("solo", tmp_path / "refused", **settings)
    with pytest.raises(ComityError, match="north accepts no initial weights with a run"):
        refused.summary()
    for name in real.names:
        real.sites.change(name, {"initial_weights = 0": 'initial_weights = "5 MB"'})
    request = real.submit("solo", tmp_path / "run", **settings)
    summary = request.summary()
    assert summary["initial_weights"][0]["kept"] == ["fc1.weight"]
    pooled = real.sites.pooled("solo", tmp_path / "pooled", **SETTINGS | settings)
    assert (tmp_path / "run" / "metrics.csv").read_text() == (
        pooled.folder / "metrics.csv"
    ).read_text()
    sent = (tmp_path / "run" / INITIAL_WEIGHTS).read_bytes()
    ledger = RunFolder(tmp_path / "run").read_ledger()
    rows = {row.dst: row.bytes for row in ledger if row.call == "weights"}
    assert rows == dict.fromkeys(("north", "south"), len(sent))
    for name in ("north", "south"):
        assert (real.site(name) / "runs" / request.job.run / INITIAL_WEIGHTS).read_bytes() == sent
