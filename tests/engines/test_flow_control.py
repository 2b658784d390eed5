"""Engines with workers keep few files and little memory for replies that the server has not used
yet, whatever the number of parties.
"""

from __future__ import annotations

import os
import resource
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from matrix import tables

import comity
from comity.base.call import CallId, Message, PartyResult
from comity.core.runner import in_order
from comity.engines import workers
from comity.engines.loop import Sequential
from comity.engines.process import ProcessEngine
from comity.engines.workers import Window
from comity.wire.channel import SENT_BYTES, SENT_FILES, SPARE

PARTIES = 60
SETTINGS: dict[str, Any] = {"model": "mlp2(width=6)", "rounds": 2, "batch": 10, "lr": 0.1}


@pytest.fixture(autouse=True)
def _each_reply_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each reply in a message of its own, as with slow parties or large models."""
    monkeypatch.setattr(workers, "FLUSH_SECONDS", 0.0)


def run(method: str, out: Path, **settings: Any) -> comity.Result:
    draw = torch.Generator().manual_seed(1)

    def samples(count: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.randn(count, 8, generator=draw), torch.arange(count) % 3

    data = {f"p{i}": (samples(6), samples(6)) for i in range(PARTIES)}
    federation = comity.Federation.from_arrays(data, validation=0.0, classes=3)
    return comity.run(method, federation, out=out, **(SETTINGS | settings))


@pytest.mark.parametrize("method", ["fedavg", "q-ffl", "fedfomo"])
def test_many_slow_parties_need_few_descriptors(method: str, tmp_path: Path) -> None:
    """The servers of `fedfomo` and `q-ffl` keep all replies, that of `fedavg` none."""
    run(method, tmp_path / "loop", engine="loop")
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    open_now = len(list(Path("/proc/self/fd").iterdir()))
    # Two workers, each with files in both directions; then what one party opens, such as tables.
    most = open_now + 4 * (SENT_FILES + SPARE) + 10
    assert most < open_now + PARTIES
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, before[1]))
    try:
        run(method, tmp_path / "process", engine="process", workers=2)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert tables(tmp_path / "process") == tables(tmp_path / "loop")


def memory_files(process_id: int) -> int:
    """The bytes of a process' memory files for messages, which it maps."""
    sizes: dict[int, int] = {}
    for entry in Path(f"/proc/{process_id}/fd").iterdir():
        try:
            if os.readlink(entry).startswith("/memfd:comity"):
                status = entry.stat()
                sizes[status.st_ino] = status.st_size
        except FileNotFoundError:
            continue
    return sum(sizes.values())


@pytest.mark.parametrize("method", ["fedavg", "q-ffl"])
def test_shared_memory_is_bounded(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two workers' files together, with a model of 4 MB: 240 MB of replies in a round."""
    receive = ProcessEngine._receive
    sizes = []

    def receive_and_weigh(engine: ProcessEngine, w: int) -> Any:
        reply = receive(engine, w)
        sizes.append(sum(memory_files(process.pid or 0) for process in engine._processes))
        return reply

    monkeypatch.setattr(ProcessEngine, "_receive", receive_and_weigh)
    run(method, tmp_path / "run", engine="process", workers=2, rounds=1, model="mlp2(width=1000)")
    assert 4_000_000 < max(sizes) < 2 * (SENT_BYTES + 2 * SPARE * 4_000_000)


class SlowFirst(Sequential):
    """Replies of 1 MB. That of party 0 waits until the file `gate` is there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def run(
        self, sites: Any, call: CallId, messages: Any, inboxes: Any
    ) -> Iterator[tuple[int, PartyResult]]:
        for i in messages:
            while i == 0 and not (self.folder / "gate").exists():
                time.sleep(0.01)
            assert sites[i]
            (self.folder / f"ran-{i}").touch()
            yield i, PartyResult(torch.zeros(250_000), 1, False)

    def count(self) -> int:
        """How many parties have run."""
        return len(list(self.folder.glob("ran-*")))

    def open_gate(self) -> None:
        """Wait until no further party runs."""
        before = -1
        while not before == self.count() > 0:
            before = self.count()
            time.sleep(1)
        (self.folder / "gate").touch()


def test_a_worker_that_is_ahead_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a window of 8 MB: while party 0 trains, the other worker stops."""
    monkeypatch.setattr(workers, "WINDOW_BYTES", 8_000_000)
    job = run("fedavg", tmp_path / "run", engine="loop", rounds=1).job
    slow_first = SlowFirst(tmp_path)
    engine = ProcessEngine(job.algorithm, job.parties, job.root, slow_first, 2)
    ahead: list[int] = []

    def wait_and_open() -> None:
        slow_first.open_gate()
        ahead.append(slow_first.count())

    thread = threading.Thread(target=wait_and_open)
    try:
        messages = {i: Message(None, None) for i in range(PARTIES)}
        results = in_order(messages, engine.run(CallId("local", 0, 1, 0), messages, {}))
        thread.start()
        assert [i for i, _ in results] == list(range(PARTIES))
    finally:
        engine.close()
        thread.join()
    assert 8 <= ahead[0] < PARTIES / 2


def test_the_worker_with_the_next_party_may_always_send(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "WINDOW_BYTES", 10)
    window = Window({0: {"messages": {0: 0, 1: 0}}, 1: {"messages": {2: 0, 3: 0}}}, range(4))
    assert window.is_open(0)
    assert window.is_open(1)
    window.add(1, [3], 11)
    assert window.is_open(0)
    assert not window.is_open(1)
    window.add(0, [0, 1], 11)  # now party 2 of worker 1 is due
    assert window.is_open(1)
    window.add(1, [2], 11)
    assert window.is_open(0)
    assert window.is_open(1)
