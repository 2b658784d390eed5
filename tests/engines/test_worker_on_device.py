"""A worker whose parties are on another device, as on a GPU: messages, sealed messages and replies
cross to and from the CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_device import FakeDeviceTensor, fake_device, small_federation
from matrix import STEEP, tables

import comity
from comity.core.runner import SUMMED
from comity.engines.engine import Engine
from comity.engines.ray_cluster import Actor
from comity.engines.site import Site
from comity.engines.site_store import SiteStore
from comity.engines.workers import WorkerReply, WorkerRequest, WorkersEngine, always_open
from comity.runs.build import SimulatedRun
from comity.runs.run_warnings import warning_texts
from comity.wire.bundles import pack, unpack
from comity.wire.sealing import KEY, RUN


class OneActor(WorkersEngine):
    """The Ray engine's actor without Ray; messages are bytes, as on a cluster."""

    def __init__(self, job: SimulatedRun) -> None:
        super().__init__({p.id: len(p.data.train) for p in job.parties}, 1)
        self._actor = Actor()
        self._actor._on_gpu = True
        self._actor._sites = SiteStore(job.algorithm, job.parties, job.root)
        self._actor.take_secret(bytes(KEY + RUN))

    def _exchange(
        self, requests: Mapping[int, WorkerRequest], is_open: Callable[[int], bool] = always_open
    ) -> Iterator[tuple[int, WorkerReply]]:
        for w, ask in requests.items():
            for header, *bundles in self._actor.handle(*pack(ask)):
                message = unpack(header, *bundles)
                assert "error" not in message, message
                yield w, message

    def _notify(self, asks: Any) -> None:
        for ask in asks.values():
            list(self._actor.handle(*pack(ask)))


def on_one_actor(job: SimulatedRun) -> Engine:
    return OneActor(job)


def run_small(text: str, folder: Path, **where: Any) -> comity.Result:
    lr = 0.02 if text.startswith(STEEP) else 0.1
    settings: dict[str, Any] = {
        "model": "mlp2(width=8)",
        "rounds": 2,
        "newcomers": 1,
        "engine": "loop",
        "lr": lr,
    }
    return comity.run(text, small_federation(), out=folder, **settings | where)


@pytest.mark.sweep("scaffold", "relay")
@pytest.mark.parametrize("text", ["scaffold", "fedavg+dbe", "fed-sps(attack_steps=2)", "relay"])
def test_methods_whose_server_is_on_the_cpu(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tables equal those of the loop engine, and the parties' data are on the fake device."""
    cpu_run = run_small(text, tmp_path / "here")
    on_device: list[bool] = []
    end = Site.end

    def end_and_check(site: Site, running: Any) -> Any:
        on_device.append(isinstance(site.party.data.train.x, FakeDeviceTensor))
        return end(site, running)

    monkeypatch.setattr(Site, "end", end_and_check)
    monkeypatch.setattr(SimulatedRun, "engine", on_one_actor)
    with fake_device(monkeypatch):
        monkeypatch.setattr(SimulatedRun, "device", torch.device("cpu"))
        device_run = run_small(text, tmp_path / "there")
    assert tables(device_run.folder) == tables(cpu_run.folder)
    assert on_device
    assert all(on_device)


def test_partial_sums_leave_the_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Partial sums of one worker equal the loop engine's means to the bit."""
    cpu_run = run_small("scaffold", tmp_path / "here")
    monkeypatch.setattr(SimulatedRun, "engine", on_one_actor)
    with fake_device(monkeypatch):
        monkeypatch.setattr(SimulatedRun, "device", torch.device("cpu"))
        device_run = run_small(
            "scaffold", tmp_path / "there", engine="process", workers=1, partial_sums=True
        )
    assert tables(device_run.folder) == tables(cpu_run.folder)
    assert SUMMED in warning_texts(device_run.summary, "during")
