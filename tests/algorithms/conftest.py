"""One thread: these problems are small, and the processor is shared."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from comity.base.call import PartyResult
from comity.engines.loop import LoopEngine

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _no_global_randomness():
    """A test's numbers come from keys and generators; nothing may disturb, or lean on, the global
    stream.
    """
    before = torch.random.get_rng_state()
    yield
    assert torch.equal(before, torch.random.get_rng_state())


@pytest.fixture
def replies(monkeypatch: pytest.MonkeyPatch) -> list[dict[int, Any]]:
    """The replies of each call as they came to the server."""
    seen: list[dict[int, Any]] = []
    function = LoopEngine.run

    def listening(self: LoopEngine, *args: Any) -> Iterator[tuple[int, PartyResult]]:
        seen.append({})
        for i, answer in function(self, *args):
            seen[-1][i] = answer.reply
            yield i, answer

    monkeypatch.setattr(LoopEngine, "run", listening)
    return seen
