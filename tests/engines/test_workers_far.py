"""A worker whose parties are on a device of their own, as on a GPU: letters and parcels come, and
replies leave, on the CPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from far_device import Far, far_device, few
from matrix import STEEP, tables

import comity
from comity.core.runner import SUMMED
from comity.engines.engine import Engine
from comity.engines.ray_cluster import Actor
from comity.engines.site import Site
from comity.engines.site_store import SiteStore
from comity.engines.workers import WorkerReply, WorkersEngine
from comity.runs.build import SimulatedRun
from comity.runs.run_warnings import warning_texts
from comity.wire.bundles import pack, unpack
from comity.wire.sealing import KEY, RUN


class OneActor(WorkersEngine):
    """An actor of Ray's engine without Ray: what passes between the two are bytes, as there."""

    def __init__(self, job: SimulatedRun) -> None:
        super().__init__({p.id: len(p.data.train) for p in job.parties}, 1)
        self._actor = Actor()
        self._actor._on_gpu = True
        self._actor._sites = SiteStore(job.algorithm, job.parties, job.root)
        self._actor.take_secret(bytes(KEY + RUN))

    def _exchange(self, asks: Any) -> Iterator[tuple[int, WorkerReply]]:
        for w, ask in asks.items():
            for header, *bundles in self._actor.handle(*pack(ask)):
                message = unpack(header, *bundles)
                assert "error" not in message, message
                yield w, message

    def _notify(self, asks: Any) -> None:
        for ask in asks.values():
            list(self._actor.handle(*pack(ask)))


def on_one_actor(job: SimulatedRun) -> Engine:
    return OneActor(job)


def go(text: str, folder: Path, **where: Any) -> comity.Result:
    lr = 0.02 if text.startswith(STEEP) else 0.1
    settings: dict[str, Any] = {
        "model": "mlp2(width=8)",
        "rounds": 2,
        "newcomers": 1,
        "engine": "loop",
        "lr": lr,
    }
    return comity.run(text, few(), out=folder, **settings | where)


@pytest.mark.sweep("scaffold", "relay")
@pytest.mark.parametrize("text", ["scaffold", "fedavg+dbe", "fed-sps(attack_steps=2)", "relay"])
def test_methods_whose_server_is_on_the_cpu(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is the same arithmetic as in a loop here; and whatever parties work with is far."""
    here = go(text, tmp_path / "here")
    seen: list[bool] = []
    end = Site.end

    def ended(site: Site, running: Any) -> Any:
        seen.append(isinstance(site.party.data.train.x, Far))
        return end(site, running)

    monkeypatch.setattr(Site, "end", ended)
    monkeypatch.setattr(SimulatedRun, "engine", on_one_actor)
    with far_device(monkeypatch):
        monkeypatch.setattr(SimulatedRun, "device", torch.device("cpu"))
        there = go(text, tmp_path / "there")
    assert tables(there.folder) == tables(here.folder)
    assert seen
    assert all(seen)


def test_a_worker_adds_up_there_and_its_sum_leaves_on_the_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Partial sums; that of one worker has the bits of a loop."""
    here = go("scaffold", tmp_path / "here")
    monkeypatch.setattr(SimulatedRun, "engine", on_one_actor)
    with far_device(monkeypatch):
        monkeypatch.setattr(SimulatedRun, "device", torch.device("cpu"))
        there = go("scaffold", tmp_path / "there", engine="process", workers=1, partial_sums=True)
    assert tables(there.folder) == tables(here.folder)
    assert SUMMED in warning_texts(there.summary, "during")
