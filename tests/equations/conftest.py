"""One thread: these problems are small, and the processor is shared."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from comity.engines.loop import LoopNet

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
    deliver, arrived = LoopNet.deliver, LoopNet.arrived

    def listening(self: LoopNet, *args: Any) -> dict[int, tuple[Any, int]]:
        seen.append({})
        return deliver(self, *args)

    def heard(self: LoopNet, i: int, answer: tuple[Any, int]) -> tuple[Any, int]:
        seen[-1][i] = answer[0]
        return arrived(self, i, answer)

    monkeypatch.setattr(LoopNet, "deliver", listening)
    monkeypatch.setattr(LoopNet, "arrived", heard)
    return seen
