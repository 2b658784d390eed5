"""A run that was extended is, byte for byte, the run that had that many rounds from the start."""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from matrix import run, tables

import comity
from comity.runs import checkpoint, extend
from comity.runs.folder import RunFolder
from comity.runs.server_run import Quiet

SMALL = {"model": "mlp2(width=8)", "lr": 0.05}
METHOD_SETTINGS: dict[str, dict[str, Any]] = {
    "fedavg": {},
    "scaffold": {"participation": 0.5},
    "fedavg+dbe": {"eval_every": 2},
    "adcol(hidden=8)": {},
    "fed-sps": {},
    "solo": {"opt_state": "keep", "optimizer": "adam", "metric": "balanced_accuracy"},
    "fedprox": {"patience": 5, "absent": "random(offline=0.2,lost=0.2)", "eval_every": 3},
    "fedufo(uad=false)": {},
}


def same(longer_one: comity.Result, straight: comity.Result) -> None:
    """Everything but the time it took is equal."""
    assert tables(longer_one.folder) == tables(straight.folder)
    for name in ("absences.csv", "config.toml"):
        contents = [
            path.read_bytes() if (path := result.folder / name).exists() else None
            for result in (longer_one, straight)
        ]
        assert contents[0] == contents[1], name
    ours, theirs = (
        {k: v for k, v in r.summary.items() if k != "seconds"} for r in (longer_one, straight)
    )
    assert ours == theirs
    RunFolder(longer_one.folder).check()


def extend_run(text: str, folder: Path, rounds: int, **settings: Any) -> comity.Result:
    extend.extend(folder, rounds)
    return run(text, folder, rounds=rounds, resume=True, **settings)


@pytest.mark.sweep("fedavg+dbe", "fed-sps", "solo")
@pytest.mark.parametrize("text", METHOD_SETTINGS)
def test_a_finished_run_is_extended(text: str, tmp_path: Path) -> None:
    settings = SMALL | METHOD_SETTINGS[text]
    straight = run(text, tmp_path / "straight", rounds=5, **settings)
    shorter = run(text, tmp_path / "longer", rounds=3, **settings)
    before = shorter.summary
    result = extend_run(text, tmp_path / "longer", 5, **settings)
    same(result, straight)
    assert [row.round for row in RunFolder(result.folder).read_timing()] == list(
        range(straight.summary["rounds"] + 1)
    )
    saved_summary = json.loads((tmp_path / "longer" / "summary-3-rounds.json").read_text())
    assert saved_summary == before


@pytest.mark.parametrize(
    "settings",
    [{"engine": "process", "workers": 2}, {"engine": "stacked"}],
    ids=["process", "stacked"],
)
def test_on_other_engines(settings: dict[str, Any], tmp_path: Path) -> None:
    settings = SMALL | settings
    straight = run("scaffold", tmp_path / "straight", rounds=4, **settings)
    run("scaffold", tmp_path / "longer", rounds=2, **settings)
    same(extend_run("scaffold", tmp_path / "longer", 4, **settings), straight)


class StopAfter(Quiet):
    """Ends a run after a round, as Ctrl-C does."""

    def __init__(self, after: int) -> None:
        self.after = after

    def round(self, t: int, figure: float | None, ledger: Any) -> None:
        if t == self.after:
            raise KeyboardInterrupt


@pytest.mark.parametrize("rounds", [4, 6])
@pytest.mark.parametrize("text", ["fedavg", "fedbabu(finetune_epochs=1)"])
def test_a_stopped_run_is_extended_or_shortened(
    text: str, rounds: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also for a method whose parties fine-tune after the last round, which was not reached."""
    monkeypatch.setattr(checkpoint, "EVERY_SECONDS", 0.0)
    straight = run(text, tmp_path / "straight", rounds=rounds, **SMALL)
    with pytest.raises(KeyboardInterrupt):
        run(text, tmp_path / "longer", rounds=5, progress=StopAfter(2), **SMALL)
    same(extend_run(text, tmp_path / "longer", rounds, **SMALL), straight)


def test_stopped_before_the_first_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    straight = run("fedavg", tmp_path / "straight", rounds=4, **SMALL)
    monkeypatch.setattr(checkpoint, "EVERY_SECONDS", math.inf)
    with pytest.raises(KeyboardInterrupt):
        run("fedavg", tmp_path / "longer", rounds=3, progress=StopAfter(1), **SMALL)
    same(extend_run("fedavg", tmp_path / "longer", 4, **SMALL), straight)


def test_a_run_is_extended_twice(tmp_path: Path) -> None:
    straight = run("scaffold", tmp_path / "straight", rounds=4, **SMALL)
    run("scaffold", tmp_path / "longer", rounds=2, **SMALL)
    extend_run("scaffold", tmp_path / "longer", 3, **SMALL)
    same(extend_run("scaffold", tmp_path / "longer", 4, **SMALL), straight)


STEPS = (
    9  # the number of files that an extension replaces or renames; the last steps fail if it grows
)


def _killed_at(step: int, folder: Path) -> None:
    """Extend the run, and die before the n-th file is replaced."""
    steps_left = [step]
    replace = os.replace

    def counting_replace(*args: Any, **options: Any) -> None:
        if steps_left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        steps_left[0] -= 1
        replace(*args, **options)

    os.replace = counting_replace
    extend_run("fedavg", folder, 4, **SMALL)


@pytest.mark.parametrize("step", range(STEPS))
def test_killed_while_extending(step: int, tmp_path: Path) -> None:
    """The folder has either complete run, and extending it again gives the longer one."""
    straight = run("fedavg", tmp_path / "straight", rounds=4, **SMALL)
    shorter = run("fedavg", tmp_path / "longer", rounds=2, **SMALL)
    (tmp_path / "longer" / "measures.json").write_text("{}")
    before = tables(shorter.folder)
    victim = multiprocessing.get_context("fork").Process(
        target=_killed_at, args=(step, tmp_path / "longer")
    )
    victim.start()
    victim.join(60)
    assert victim.exitcode == -signal.SIGKILL
    run_folder = RunFolder(tmp_path / "longer")
    run_folder.check()
    rounds_found = run_folder.read_experiment().rounds
    again = run("fedavg", tmp_path / "longer", rounds=rounds_found, resume=True, **SMALL)
    if rounds_found == 2:
        assert tables(again.folder) == before
        again = extend_run("fedavg", tmp_path / "longer", 4, **SMALL)
    same(again, straight)


# --- what cannot go on


def assert_refused(
    text: str, folder: Path, first: int, rounds: int, words: str, **settings: Any
) -> None:
    run(text, folder, rounds=first, **SMALL | settings)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(comity.UsageError, match=words):
        extend.extend(folder, rounds)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_fewer_rounds_than_done(tmp_path: Path) -> None:
    assert_refused("fedavg", tmp_path, 3, 2, "has 3 rounds already")


def test_after_finish(tmp_path: Path) -> None:
    assert_refused(
        "fedbabu(finetune_epochs=1)", tmp_path, 1, 2, "has changed its models after the last"
    )


def test_after_newcomers_have_joined(tmp_path: Path) -> None:
    assert_refused("fedavg", tmp_path, 1, 2, "newcomers have joined", newcomers=1, join_epochs=1)


def test_after_patience_has_ended_it(tmp_path: Path) -> None:
    assert_refused("fedavg", tmp_path, 9, 20, "no better", patience=1, lr=1e-6)


def test_a_method_that_plans_by_the_number_of_rounds(tmp_path: Path) -> None:
    assert_refused("fedufo", tmp_path, 2, 4, "number of rounds", lr=0.01)


def test_damage_is_noticed_first(tmp_path: Path) -> None:
    run("fedavg", tmp_path, rounds=1, **SMALL)
    with (tmp_path / "metrics.csv").open("a") as file:
        file.write("1,server,test,accuracy,1.0\n")
    with pytest.raises(comity.ComityError, match="damaged"):
        extend.extend(tmp_path, 2)
