"""One thread: these problems are small, and the processor is shared."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from comity.nets.loop import LoopNet

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _no_global_randomness():
    """A test's numbers come from keys and generators; nothing may disturb, or lean on, the global stream."""
    before = torch.random.get_rng_state()
    yield
    assert torch.equal(before, torch.random.get_rng_state())


@pytest.fixture
def replies(monkeypatch: pytest.MonkeyPatch) -> list[dict[int, Any]]:
    """The replies of each call as they came to the server."""
    seen: list[dict[int, Any]] = []
    deliver = LoopNet.deliver

    def listening(self: LoopNet, *args: Any) -> dict[int, tuple[Any, int]]:
        answers = deliver(self, *args)
        seen.append({i: reply for i, (reply, _) in answers.items()})
        return answers

    monkeypatch.setattr(LoopNet, "deliver", listening)
    return seen
