"""A worker is lost with the states of its parties: the run resumes from its last checkpoint and
writes the same bytes.
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


def lose_workers(monkeypatch: pytest.MonkeyPatch, *rounds: int) -> list[int]:
    """Lose a worker in the middle of each of these rounds, once. Returns the rounds that begin."""
    remaining, entered_rounds = list(rounds), []
    function = LoopEngine.run

    def run_and_lose(
        engine: LoopEngine, call: Any, messages: Any, sealed_messages: Any
    ) -> Iterator[Any]:
        entered_rounds.append(call.round)
        for k, reply in enumerate(function(engine, call, messages, sealed_messages)):
            if k == 2 and call.round in remaining:
                remaining.remove(call.round)
                raise WorkerLost("A worker was lost (by a test); the run can be resumed.")
            yield reply

    monkeypatch.setattr(LoopEngine, "run", run_and_lose)
    return entered_rounds


@pytest.mark.parametrize(
    ("seconds", "repeated_rounds"),
    [("0", [4, 5]), ("3600", [1, 2, 3, 4, 5])],
    ids=["saved", "never saved"],
)
@pytest.mark.parametrize("text", ["scaffold", "fedper"])
def test_run_resumes_from_its_last_checkpoint(
    text: str,
    seconds: str,
    repeated_rounds: list[int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COMITY_CHECKPOINT_SECONDS", seconds)
    expected = run(text, tmp_path / "right", **SETTINGS)
    entered_rounds = lose_workers(monkeypatch, 4)
    with pytest.warns(
        UserWarning,
        match=r"A worker was lost \(by a test\): the run went on from its last checkpoint",
    ):
        result = run(text, tmp_path / "lost", **SETTINGS)
    assert entered_rounds == [1, 2, 3, 4, *repeated_rounds]
    assert tables(result.folder) == tables(expected.folder)
    assert result.summary["accuracy"] == expected.summary["accuracy"]
    assert warning_texts(result.summary, "during") == [
        "A worker was lost (by a test): the run went on from its last checkpoint."
    ]


def test_run_that_keeps_losing_workers_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMITY_CHECKPOINT_SECONDS", "0")
    entered_rounds = lose_workers(monkeypatch, *[3] * (REWINDS + 1))
    with pytest.raises(WorkerLost, match="the run can be resumed"):
        run("scaffold", tmp_path, **SETTINGS)
    assert entered_rounds.count(3) == REWINDS + 1
