"""Messages between processes: few memory files and little shared memory, whatever the number of
messages and whatever the receiver keeps.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from comity.wire import channel as channels
from comity.wire.channel import Channel

MESSAGES = 40


@contextmanager
def sending(channel: Channel, size: int, most_files: list[int]) -> Iterator[threading.Thread]:
    """Send MESSAGES messages in a thread. `most_files` gets the largest number of files in use."""

    def send() -> None:
        for k in range(MESSAGES):
            channel.send({"x": torch.full((size,), float(k))})
            most_files[0] = max(most_files[0], len(channel._in_use))

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    yield thread
    thread.join(30)
    assert not thread.is_alive()


@pytest.mark.parametrize("keeps", [True, False])
def test_few_files_are_in_use(keeps: bool) -> None:
    """A receiver that keeps all messages has them in its own memory; one that keeps none returns
    files while it waits.
    """
    here, there = Channel.pair()
    most_files = [0]
    kept = []
    with sending(there, 1000, most_files) as thread:
        for k in range(MESSAGES):
            here.return_files()
            x = here.receive()["x"]
            assert x.data_ptr() % channels.ALIGN == 0
            assert torch.equal(x, torch.full((1000,), float(k)))
            if keeps:
                kept.append(x)
            del x
        here.return_files()
        thread.join(30)
    assert 0 < most_files[0] <= channels.SENT_FILES
    assert len(here._mapped) <= channels.SENT_FILES + channels.SPARE
    for k, x in enumerate(kept):  # no file was written to while it was read
        assert torch.equal(x, torch.full((1000,), float(k)))
    here.close()
    there.close()


def test_large_messages_are_bounded_by_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages larger than the bound are sent all the same, one beside the one that is kept."""
    monkeypatch.setattr(channels, "SENT_BYTES", 100_000)
    monkeypatch.setattr(channels, "KEPT_BYTES", 50_000)
    here, there = Channel.pair()
    most_files = [0]
    kept = []
    with sending(there, 50_000, most_files):
        for _ in range(MESSAGES):
            here.return_files()
            kept.append(here.receive()["x"])
    assert most_files[0] == 2
    assert [float(x[-1]) for x in kept] == [float(k) for k in range(MESSAGES)]
    here.close()
    there.close()


def test_a_request_that_comes_while_an_end_waits_is_kept() -> None:
    """A sender that waits for files keeps other messages for its next `receive`."""
    here, there = Channel.pair()
    tensors = []
    for _ in range(channels.KEPT_FILES):
        there.send({"x": torch.ones(1000)})
        tensors.append(here.receive()["x"])
    here.send({"do": "next"})
    tensors.clear()
    here.return_files()
    for _ in range(channels.SENT_FILES):
        there.send({"x": torch.ones(1000)})
    assert there.receive() == {"do": "next"}
    here.close()
    there.close()
