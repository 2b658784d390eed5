"""Runs come to an end: also if newcomers exceed the budget, and if the main process is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from harness import ENV, OWN, SMALL, succeed

import comity
from comity.errors import ComityError
from comity.runs.folder import RunFolder

PRIVATE: dict[str, Any] = {
    "parties": 4,
    "rounds": 3,
    "batch": 64,
    "model": "mlp2(width=16)",
    "newcomers": 1,
    "engine": "loop",
}


def test_a_run_whose_newcomers_exceed_the_budget_ends(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="does not suffice for the warm-up of p3"):
        result = comity.run("fedavg+dp", out=tmp_path / "run", budget="epsilon=3", **PRIVATE)
    summary = result.summary
    assert summary["rounds"] == 3
    assert [entry["round"] for entry in summary["discarded"]] == [4]
    assert "warm_up in round 4 would take p3 beyond it" in summary["discarded"][0]["why"]
    assert summary["newcomers"] == {}
    folder = RunFolder(tmp_path / "run")
    assert [row.round for row in folder.read_timing()] == [0, 1, 2, 3, 4]
    assert {row.party for row in folder.read_privacy() if row.mechanism != "none"} == {
        "p0",
        "p1",
        "p2",
    }
    stages = {row.split for row in folder.read_metrics() if row.party == "p3"}
    assert not {stage for stage in stages if stage.endswith("joined")}
    before = (tmp_path / "run" / "metrics.csv").read_bytes()
    succeed("resume", tmp_path / "run")
    assert (tmp_path / "run" / "metrics.csv").read_bytes() == before


def test_newcomers_within_the_budget_join(tmp_path: Path) -> None:
    result = comity.run(
        "fedavg+dp", out=tmp_path / "run", budget="epsilon=3", join_epochs=1, **PRIVATE
    )
    assert result.summary["discarded"] == []
    assert result.summary["newcomers"].keys() == {"p3"}


ENDLESS = """@on_party
    async def local(self, mine, m, party, key):
        import os, pathlib, time
        pathlib.Path(os.environ["WORKERS"], str(os.getpid())).touch()
        end = time.monotonic() + 60
        while time.monotonic() < end:
            pass
        return await super().local(mine, m, party, key)"""
"""A call that takes a minute and looks at nothing meanwhile."""


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def wait_until(condition: Any, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_workers_end_with_the_main_process_and_so_does_the_lock(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(OWN.format(ENDLESS), encoding="utf-8")
    pids = tmp_path / "pids"
    pids.mkdir()
    command = [sys.executable, "-m", "comity.cli", "run", "./mine.py", *SMALL[:-2]]
    command += ["--engine", "process", "--workers", "2", "--out", "out"]
    with (tmp_path / "said").open("w") as said:
        main = subprocess.Popen(
            command, env=ENV | {"WORKERS": str(pids)}, cwd=tmp_path, stdout=said, stderr=said
        )
        try:
            assert wait_until(lambda: len(list(pids.iterdir())) == 2, 60), (
                tmp_path / "said"
            ).read_text()
            workers = [int(path.name) for path in pids.iterdir()]
            folder = RunFolder(tmp_path / "out")
            assert folder.is_locked()
            with pytest.raises(ComityError, match="Another process is running"), folder.locked():
                pass
        finally:
            os.kill(main.pid, signal.SIGKILL)
            main.wait()
        try:
            with folder.locked():  # at once, whether or not the workers are gone
                pass
            assert wait_until(lambda: not any(map(is_running, workers)), 2)
        finally:
            for worker in workers:
                if is_running(worker):
                    os.kill(worker, signal.SIGKILL)


def test_a_forked_process_does_not_hold_the_lock(tmp_path: Path) -> None:
    """On systems where it outlives its parent for a while, too."""
    folder = RunFolder(tmp_path)
    with folder.locked():
        child = os.fork()
        if child == 0:
            time.sleep(30)
            os._exit(0)
        assert folder.is_locked()
    try:
        assert not folder.is_locked()
        with folder.locked():
            assert folder.is_locked()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_without_a_signal_a_worker_looks_for_its_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on other systems than Linux."""
    from comity.engines import process

    monkeypatch.setattr(process, "signal_at_end_of_parent", lambda number: None)
    monkeypatch.setattr(process, "WATCH_SECONDS", 0.05)
    reading, writing = os.pipe()
    server = os.fork()
    if server == 0:
        end_with_server = process._EndWithServer()
        if os.fork() == 0:
            end_with_server.begin()
            os.write(writing, f"{os.getpid()}\n".encode())
            time.sleep(30)
        time.sleep(30)
        os._exit(0)
    worker = int(os.read(reading, 20))
    assert is_running(worker)
    os.kill(server, signal.SIGKILL)
    os.waitpid(server, 0)
    try:
        assert wait_until(lambda: not is_running(worker), 2)
    finally:
        if is_running(worker):
            os.kill(worker, signal.SIGKILL)
        os.close(reading)
        os.close(writing)
