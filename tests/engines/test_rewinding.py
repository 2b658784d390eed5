"""A worker is lost with what its parties kept: everybody goes back to the last checkpoint, and the
bytes are the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from matrix import run, tables

from comity.engines.loop import LoopEngine
from comity.errors import WorkerLost
from comity.runs.loop import REWINDS
from comity.runs.run_warnings import warning_texts

SETTINGS = {"rounds": 5, "model": "mlp2(width=6)"}


def losing(monkeypatch: pytest.MonkeyPatch, *rounds: int) -> list[int]:
    """Have a worker be lost in the midst of these rounds, each once; the rounds that were entered."""
    left, entered = list(rounds), []
    function = LoopEngine.run

    def lost(engine: LoopEngine, call: Any, messages: Any, sealed_messages: Any) -> Iterator[Any]:
        entered.append(call.round)
        for k, answered in enumerate(function(engine, call, messages, sealed_messages)):
            if k == 2 and call.round in left:
                left.remove(call.round)
                raise WorkerLost("A worker was lost (by a test); the run can be resumed.")
            yield answered

    monkeypatch.setattr(LoopEngine, "run", lost)
    return entered


@pytest.mark.parametrize(
    ("seconds", "again"), [("0", [4, 5]), ("3600", [1, 2, 3, 4, 5])], ids=["saved", "never saved"]
)
@pytest.mark.parametrize("text", ["scaffold", "fedper"])
def test_all_go_back(
    text: str, seconds: str, again: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMITY_CHECKPOINT_SECONDS", seconds)
    right = run(text, tmp_path / "right", **SETTINGS)
    entered = losing(monkeypatch, 4)
    with pytest.warns(
        UserWarning,
        match=r"A worker was lost \(by a test\): the run went on from its last checkpoint",
    ):
        result = run(text, tmp_path / "lost", **SETTINGS)
    assert entered == [1, 2, 3, 4, *again]
    assert tables(result.folder) == tables(right.folder)
    assert result.summary["accuracy"] == right.summary["accuracy"]
    assert warning_texts(result.summary, "during") == [
        "A worker was lost (by a test): the run went on from its last checkpoint."
    ]


def test_a_run_that_loses_workers_again_and_again_is_left_to_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMITY_CHECKPOINT_SECONDS", "0")
    entered = losing(monkeypatch, *[3] * (REWINDS + 1))
    with pytest.raises(WorkerLost, match="the run can be resumed"):
        run("scaffold", tmp_path, **SETTINGS)
    assert entered.count(3) == REWINDS + 1
