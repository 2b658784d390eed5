"""A run with secure aggregation between real sites, over NVIDIA FLARE."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from comity.base.record import leaves
from comity.deploy.secure_server import EXPERIMENTAL
from comity.deploy.secure_site import MASKED, PEERS
from comity.runs.checkpoint import Checkpoints
from comity.runs.folder import CHECKPOINTS, RunFolder
from comity.runs.run_warnings import warning_texts

pytest.importorskip("nvflare")

from real_sites import SETTINGS, RealSites

MODEL: dict[str, Any] = {"model": "mlp2(width=16)"}
"""Without BatchNorm, which would enlarge differences by rounding in the next round."""


@pytest.fixture
def real(tmp_path: Path) -> Iterator[RealSites]:
    real = RealSites(tmp_path / "real")
    real.restore()
    yield real
    real.close()


def server_tensors(folder: Path) -> list[torch.Tensor]:
    checkpoints = Checkpoints(folder / CHECKPOINTS)
    assert checkpoints.load()
    return [leaf for leaf in leaves(checkpoints.server_state()) if isinstance(leaf, torch.Tensor)]


def test_the_mean_is_that_of_a_loop(real: RealSites, tmp_path: Path) -> None:
    """The keys in the startup kits sign, and the server's models are those of a loop without secure
    aggregation, up to rounding.
    """
    with real.jobs() as jobs:
        real.wait_for(jobs)
    order = real.submit("scaffold", tmp_path / "run", secure_aggregation=True, **MODEL)
    summary = order.summary()
    assert warning_texts(summary, "during") == [EXPERIMENTAL]
    assert summary["discarded"] == []
    assert summary["absent"] == {}
    pooled = real.sites.pooled("scaffold", tmp_path / "pooled", **SETTINGS | MODEL)
    ours, loop = server_tensors(tmp_path / "run"), server_tensors(pooled.folder)
    for one, other in zip(ours, loop, strict=True):
        assert (one - other).abs().max() <= 1e-5
    server_rows = real.run_of(tmp_path / "run").read_ledger()
    for name in real.names:
        folder = real.site(name) / "runs" / order.job.run
        assert (folder / PEERS).exists()
        assert len(list((real.site(name) / MASKED).iterdir())) == SETTINGS["rounds"]
        own = [row for row in RunFolder(folder).read_ledger() if row.call == "local"]
        rows = [row for row in server_rows if name in (row.src, row.dst) and row.call == "local"]
        assert sorted(own) == sorted(rows)
    real.check_idle()
