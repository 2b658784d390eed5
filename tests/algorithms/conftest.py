"""One torch thread: these problems are small, and tests run in parallel."""

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
    """A test's numbers come from keys and generators; the global random stream must stay unused."""
    before = torch.random.get_rng_state()
    yield
    assert torch.equal(before, torch.random.get_rng_state())


@pytest.fixture
def replies(monkeypatch: pytest.MonkeyPatch) -> list[dict[int, Any]]:
    """The replies that the server receives, by call and party."""
    replies_by_call: list[dict[int, Any]] = []
    function = LoopEngine.run

    def listening(self: LoopEngine, *args: Any) -> Iterator[tuple[int, PartyResult]]:
        replies_by_call.append({})
        for i, answer in function(self, *args):
            replies_by_call[-1][i] = answer.reply
            yield i, answer

    monkeypatch.setattr(LoopEngine, "run", listening)
    return replies_by_call
