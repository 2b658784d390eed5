"""What goes wrong on a Ray cluster, without one: an actor that does not start, workers that hang,
a folder that machines do not share.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from comity.engines import workers
from comity.engines.ray_cluster import Cluster, silent_seconds
from comity.engines.ray_engine import RayEngine
from comity.engines.workers import Worker, WorkersEngine
from comity.errors import ComityError, UsageError, WorkerLost

# Not "ray", which is also the name of a folder of tests.
pytest.importorskip("ray.exceptions", reason="needs Ray: pip install comity[ray]")
ray = import_module("ray")


class Remote:
    """A method of an actor that can be called from anywhere."""

    def options(self, **settings: Any) -> Remote:
        return self

    def remote(self, *args: Any) -> object:
        return object()


class FakeActor:
    introduce = handle = Remote()


def test_actor_that_does_not_start_counts_as_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """So the run returns to its last checkpoint, as after any other loss."""

    def get(references: Any, timeout: float) -> Any:
        raise ray.exceptions.ActorUnschedulableError("the node is gone")

    monkeypatch.setattr(ray, "get", get)
    with pytest.raises(WorkerLost, match=r"could not start.*; the run can be resumed"):
        Cluster.__new__(Cluster)._wait_for([FakeActor()])


def test_workers_that_hang_count_as_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    timeouts = []

    def wait(streams: Any, num_returns: int, timeout: float) -> Any:
        timeouts.append(timeout)
        return [], streams

    monkeypatch.setattr(ray, "wait", wait)
    monkeypatch.setattr(ray, "put", lambda value: value)
    engine = RayEngine.__new__(RayEngine)
    engine._notifications, engine._silent_seconds = [], 7.0
    engine._cluster = Cluster.__new__(Cluster)
    engine._cluster.actors = [FakeActor()]
    with pytest.raises(WorkerLost, match="no reply within 7 seconds"):
        list(engine._exchange({0: {"do": "save"}}))
    assert timeouts == [7.0]


def test_limit_of_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COMITY_WORKER_SECONDS", raising=False)
    assert silent_seconds() is None
    monkeypatch.setenv("COMITY_WORKER_SECONDS", "3600")
    assert silent_seconds() == 3600
    for wrong in ("0", "-1", "soon", "nan", "inf"):
        monkeypatch.setenv("COMITY_WORKER_SECONDS", wrong)
        with pytest.raises(UsageError, match=r"COMITY_WORKER_SECONDS must be .* above 0"):
            silent_seconds()


class OtherDisk(WorkersEngine):
    """Its worker has written a state to a folder of the same name on another disk."""

    def _exchange(
        self,
        requests: Mapping[int, Any],
        is_open: Callable[[int], bool] = workers.always_open,
    ) -> Iterator[tuple[int, Any]]:
        yield 0, {"saved": [(0, "party-0-1.safetensors", 10, 0)], "last": True}

    def _notify(self, requests: Mapping[int, Any]) -> None:
        pass

    def close(self) -> None:
        pass


def test_folder_must_be_shared(tmp_path: Path) -> None:
    with pytest.raises(ComityError, match="on a disk that all machines share"):
        OtherDisk({0: 1}, 1).save(tmp_path, 1)

    class Sites:
        def save(self, folder: Path, t: int) -> Any:
            (folder / "party-0-1.safetensors").write_bytes(b"")

    sites: Any = Sites()
    request = {"do": "save", "folder": str(tmp_path / "missing"), "round": 1}
    worker = Worker(sites, None, None)  # type: ignore[arg-type]
    with pytest.raises(ComityError, match="on a disk that all machines share"):
        list(worker.handle(request))
