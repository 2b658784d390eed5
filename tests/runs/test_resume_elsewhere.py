"""A run that was stopped goes on elsewhere, to the same bytes: with fewer or more workers, or on
another engine. `comity resume RUN --engine E --workers N`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from interruptions import Interrupt
from matrix import ragged, run, tables

from comity.errors import UsageError
from comity.runs import checkpoint
from comity.runs.folder import RunFolder
from comity.runs.relocate import relocate
from comity.runs.run import reopen, resume_in
from comity.runs.server_run import Quiet

PLACES: list[tuple[dict[str, Any], str | None, int | None]] = [
    ({"engine": "process", "workers": 3}, None, 2),
    ({"engine": "process", "workers": 2}, "loop", None),
    ({"engine": "loop"}, "process", 2),
]


@pytest.fixture(autouse=True)
def _every_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint after each round."""
    monkeypatch.setattr(checkpoint, "EVERY_SECONDS", 0.0)


def stopped(text: str, folder: Path, **settings: Any) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(text, folder, rounds=3, progress=Interrupt(during=3), **settings)


def test_goes_on_elsewhere(tmp_path: Path) -> None:
    run("scaffold", tmp_path / "straight", rounds=3)
    for k, (before, engine, workers) in enumerate(PLACES):
        folder = tmp_path / f"{k}"
        stopped("scaffold", folder, **before)
        relocate(folder, engine, workers)
        after = RunFolder(folder).read_experiment()
        assert (after.engine, after.workers) == (engine or "process", workers)
        resume_in(reopen(folder, ragged()), folder, Quiet())
        assert tables(folder) == tables(tmp_path / "straight")
        RunFolder(folder).check()


@pytest.mark.parametrize(
    ("settings", "engine", "workers", "words"),
    [
        ({"engine": "stacked", "workers": 1}, None, 2, "started with engine=stacked"),
        ({"engine": "loop"}, "stacked", None, "choose one of loop, process, ray"),
        ({"engine": "loop"}, None, 2, "one party after another"),
        ({"engine": "process", "workers": 2, "partial_sums": True}, None, 1, "partial sums"),
    ],
)
def test_other_bits_are_refused(
    settings: dict[str, Any], engine: str | None, workers: int | None, words: str, tmp_path: Path
) -> None:
    stopped("fedavg", tmp_path, **settings)
    before = (tmp_path / "config.toml").read_bytes()
    with pytest.raises(UsageError, match=words):
        relocate(tmp_path, engine, workers)
    assert (tmp_path / "config.toml").read_bytes() == before


def test_a_finished_run_is_refused(tmp_path: Path) -> None:
    run("fedavg", tmp_path, rounds=1)
    with pytest.raises(UsageError, match="is finished"):
        relocate(tmp_path, "process", None)
