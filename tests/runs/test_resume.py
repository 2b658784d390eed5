"""A run that was stopped at any time and resumed is, bit for bit, the run that was not stopped."""

from __future__ import annotations

import json
import math
import multiprocessing
import signal
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from interruptions import Interrupt, Kill, Watch
from matrix import GOSSIP, VARIANTS, run, short, tables, weights
from torch import nn

import comity
from comity.core import Params
from comity.runs import checkpoint
from comity.runs.folder import RunFolder
from comity.safe_files import write_atomically

ROUNDS = 4
Outcome = tuple[dict[str, bytes], dict[str, Params], dict[str, Any]]


class InterruptAfter(Watch):
    """Stops a run when a round's rows are written; checkpoints are written up to `saved` only."""

    def __init__(self, after: int, saved: int, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.after, self.saved, self.monkeypatch = after, saved, monkeypatch

    def round(self, t: int, accuracy: float | None, ledger: Any) -> None:
        if t == self.saved:
            self.monkeypatch.setattr(checkpoint, "EVERY_SECONDS", math.inf)
        if t == self.after:
            raise KeyboardInterrupt


@pytest.fixture
def every_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint after each round."""
    monkeypatch.setattr(checkpoint, "EVERY_SECONDS", 0.0)


@cache
def straight(text: str, settings: tuple[tuple[str, Any], ...] = ()) -> Outcome:
    """The run without interruption."""
    with TemporaryDirectory() as folder:
        return outcome(run(text, Path(folder) / "run", **{"rounds": ROUNDS} | dict(settings)))


def outcome(result: comity.Result) -> Outcome:
    summary = {k: v for k, v in result.summary.items() if k != "seconds"}
    return tables(result.folder), weights(result), summary


def assert_resumes(text: str, folder: Path, expected_first: int, **settings: Any) -> None:
    """Resume, assert that the run did not start again, and compare everything."""
    watch = Watch()
    result = run(text, folder, resume=True, progress=watch, **{"rounds": ROUNDS} | settings)
    assert watch.first == expected_first
    theirs = straight(text, tuple(settings.items()))
    ours = outcome(result)
    for name, blob in theirs[0].items():
        assert ours[0][name] == blob, f"{name} differs"
    for party, theta in theirs[1].items():
        assert theta.keys() == ours[1][party].keys()
        for name, value in theta.items():
            assert torch.equal(ours[1][party][name], value), f"{name} of {party} differs"
    assert ours[2] == theirs[2], "summary.json differs"


def manifest(folder: Path) -> int:
    """The round of the last checkpoint."""
    return int(json.loads((folder / "checkpoints" / "manifest.json").read_text())["round"])


@pytest.mark.usefixtures("every_round")
def test_stopped_in_the_middle_of_a_round(text: str, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(text, tmp_path, rounds=3, progress=Interrupt(during=2, answers=2))
    assert manifest(tmp_path) == 1
    assert not (tmp_path / "summary.json").exists()
    assert_resumes(text, tmp_path, expected_first=1, rounds=3)


@pytest.mark.sweep("fedavg", "relay-p2p")
@pytest.mark.usefixtures("every_round")
def test_rows_after_the_checkpoint_are_removed(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tables have rounds 2 and 3, the checkpoint only round 1: the resumed run writes them again."""
    with pytest.raises(KeyboardInterrupt):
        run(
            text,
            tmp_path,
            rounds=ROUNDS,
            progress=InterruptAfter(after=3, saved=1, monkeypatch=monkeypatch),
        )
    assert manifest(tmp_path) == 1
    assert max(row.round for row in RunFolder(tmp_path).read_metrics()) == 3
    assert max(row.round for row in RunFolder(tmp_path).read_ledger()) == 3
    assert_resumes(text, tmp_path, expected_first=1)


@pytest.mark.sweep("scaffold+dbe", "adcol")
@pytest.mark.usefixtures("every_round")
def test_stopped_with_half_the_parties_a_round(text: str, tmp_path: Path) -> None:
    """A party that has not been sampled since the last checkpoint has its state in an older file."""
    with pytest.raises(KeyboardInterrupt):
        run(text, tmp_path, rounds=ROUNDS, participation=0.5, progress=Interrupt(during=3))
    assert_resumes(text, tmp_path, expected_first=2, participation=0.5)


@pytest.mark.long
@pytest.mark.usefixtures("every_round")
@pytest.mark.parametrize("text", VARIANTS)
def test_stopped_under_a_methods_variants(text: str, tmp_path: Path) -> None:
    """Past discriminators, averaged parts and a D of another size are states, too; a cohort stops
    in its second phase.
    """
    with pytest.raises(KeyboardInterrupt):
        run(
            text, tmp_path, rounds=ROUNDS, progress=Interrupt(during=3, answers=3), **VARIANTS[text]
        )
    assert manifest(tmp_path) == 2
    assert_resumes(text, tmp_path, expected_first=2, **VARIANTS[text])


@pytest.mark.sweep("adcol", "gossip.py")
@pytest.mark.usefixtures("every_round")
@pytest.mark.parametrize(
    "text", ["fedavg", "scaffold+dbe", "adcol", "centralized", GOSSIP], ids=short
)
def test_stopped_on_processes(text: str, tmp_path: Path) -> None:
    places = {"engine": "process", "workers": 2}
    with pytest.raises(KeyboardInterrupt):
        run(text, tmp_path, rounds=ROUNDS, progress=Interrupt(during=3), **places)
    assert manifest(tmp_path) == 2
    assert_resumes(text, tmp_path, expected_first=2, **places)


@pytest.mark.sweep("fedufo-3", "scaffold-2")
@pytest.mark.usefixtures("every_round")
@pytest.mark.parametrize(("text", "after"), [("fedufo", 1), ("fedufo", 3), ("scaffold", 2)])
def test_parties_stay_with_their_workers(text: str, after: int, tmp_path: Path) -> None:
    """Parties of one worker are trained in one batch, which changes rounding. A lost reply leaves a
    party without a saved state.
    """
    absent_file = tmp_path / "lost.csv"
    absent_file.write_text("party,round,call,how\nsouth,1,,lost\nnorth,2,,lost\n")
    places = {
        "engine": "stacked",
        "workers": 2,
        "model": "mlp2(width=8)",
        "participation": 0.7,
        "absent": str(absent_file),
    }
    whole = run(text, tmp_path / "whole", rounds=ROUNDS, **places)
    stopped_folder = tmp_path / "stopped"
    with pytest.raises(KeyboardInterrupt):
        run(text, stopped_folder, rounds=ROUNDS, progress=Interrupt(during=after + 1), **places)
    result = run(text, stopped_folder, rounds=ROUNDS, resume=True, **places)
    assert worker_by_party(stopped_folder) == worker_by_party(whole.folder)
    assert tables(stopped_folder) == tables(whole.folder)
    for party, theta in weights(whole).items():
        for name, value in theta.items():
            assert torch.equal(weights(result)[party][name], value), f"{name} of {party} differs"


def worker_by_party(folder: Path) -> dict[str, int]:
    """The worker of each party when the last checkpoint was written."""
    workers: dict[str, int] = json.loads((folder / "checkpoints" / "manifest.json").read_text())[
        "counters"
    ]["homes"]
    assert len(set(workers.values())) == 2
    return workers


@pytest.mark.usefixtures("every_round")
@pytest.mark.parametrize("text", ["scaffold+dbe", "adcol"])
def test_stopped_twice(text: str, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(text, tmp_path, rounds=ROUNDS, progress=Interrupt(during=2))
    again = Interrupt(during=4)
    with pytest.raises(KeyboardInterrupt):
        run(text, tmp_path, rounds=ROUNDS, progress=again, resume=True)
    assert again.first == 1
    assert_resumes(text, tmp_path, expected_first=3)


@pytest.mark.parametrize("during", [0, 2])
@pytest.mark.parametrize("text", ["fedavg+dbe", "centralized"])
def test_stopped_before_the_first_checkpoint(
    text: str, during: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run begins again."""
    monkeypatch.setattr(checkpoint, "EVERY_SECONDS", math.inf)
    with pytest.raises(KeyboardInterrupt):
        run(text, tmp_path, rounds=ROUNDS, progress=Interrupt(during=during))
    assert not (tmp_path / "checkpoints" / "manifest.json").exists()
    assert_resumes(text, tmp_path, expected_first=0)


@pytest.mark.usefixtures("every_round")
@pytest.mark.parametrize("text", ["fedavg+dbe", "solo"])
def test_stopped_between_the_start_and_round_1(text: str, tmp_path: Path) -> None:
    """DBE's exchange before round 1 is neither made nor charged twice."""
    with pytest.raises(KeyboardInterrupt):
        run(text, tmp_path, rounds=ROUNDS, progress=Interrupt(during=1))
    assert manifest(tmp_path) == 0
    assert_resumes(text, tmp_path, expected_first=0)


@pytest.mark.usefixtures("every_round")
@pytest.mark.parametrize("text", ["scaffold+dbe", "fedper", "adcol"])
def test_stopped_between_new_states_and_the_manifest(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """States of round 3 lie beside those of round 2 when the manifest still names round 2."""
    write = write_atomically

    def interrupted_write(path: Path, content: str) -> None:
        if path.name == checkpoint.MANIFEST and json.loads(content)["round"] == 3:
            raise KeyboardInterrupt
        write(path, content)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "write_atomically", interrupted_write)
        with pytest.raises(KeyboardInterrupt):
            run(text, tmp_path, rounds=ROUNDS)
    assert manifest(tmp_path) == 2
    assert list((tmp_path / "checkpoints").glob("*-3.safetensors"))
    assert_resumes(text, tmp_path, expected_first=2)


@pytest.mark.usefixtures("every_round")
@pytest.mark.parametrize(
    "settings", [{}, {"engine": "process", "workers": 2}], ids=["loop", "process"]
)
def test_killed(settings: dict[str, Any], tmp_path: Path) -> None:
    fork = multiprocessing.get_context("fork")
    victim = fork.Process(
        target=run,
        args=("scaffold+dbe", tmp_path),
        kwargs={"rounds": ROUNDS, "progress": Kill(), **settings},
    )
    victim.start()
    victim.join(60)
    assert victim.exitcode == -signal.SIGKILL
    assert_resumes("scaffold+dbe", tmp_path, expected_first=2, **settings)


@pytest.mark.usefixtures("every_round")
@pytest.mark.parametrize("text", ["fedavg", "scaffold+dbe"])
def test_a_finished_run_stays_as_it_is(text: str, tmp_path: Path) -> None:
    run(text, tmp_path, rounds=ROUNDS)
    assert_resumes(text, tmp_path, expected_first=ROUNDS)


@pytest.mark.usefixtures("every_round")
def test_evaluations_further_apart(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run("scaffold", tmp_path, rounds=ROUNDS, eval_every=3, progress=Interrupt(during=3))
    assert_resumes("scaffold", tmp_path, expected_first=2, eval_every=3)


@pytest.mark.usefixtures("every_round")
@pytest.mark.parametrize("text", ["fedavg", "fedbn"])
def test_with_a_users_modules(text: str, tmp_path: Path) -> None:
    """The user passes them again, and they continue from the checkpoint, not from the weights that
    the objects have.
    """
    pair = (
        nn.Sequential(nn.Flatten(), nn.Linear(64, 9), nn.BatchNorm1d(9), nn.ReLU()),
        nn.Linear(9, 10),
    )
    with pytest.raises(KeyboardInterrupt):
        run(text, tmp_path, rounds=ROUNDS, model=pair, progress=Interrupt(during=3))
    assert_resumes(text, tmp_path, expected_first=2, model=pair)


# --- what may not be resumed


@pytest.fixture
def stopped_run(tmp_path: Path, every_round: None) -> Path:
    """A run that was stopped in round 3."""
    with pytest.raises(KeyboardInterrupt):
        run("fedavg+dbe", tmp_path, rounds=ROUNDS, progress=Interrupt(during=3))
    return tmp_path


def test_a_run_is_not_overwritten_silently(stopped_run: Path) -> None:
    before = tables_now(stopped_run)
    with pytest.raises(comity.UsageError, match="already holds a run"):
        run("fedavg+dbe", stopped_run, rounds=ROUNDS)
    assert tables_now(stopped_run) == before


def tables_now(folder: Path) -> list[bytes]:
    return [(folder / name).read_bytes() for name in ("metrics.csv", "ledger.csv")]


@pytest.mark.parametrize("what", ["manifest", "party", "server", "metrics", "data"])
def test_damage_is_noticed(stopped_run: Path, what: str) -> None:
    """A flipped byte, a missing file, a shorter table or other data give one sentence instead of
    wrong numbers.
    """
    folder = stopped_run / "checkpoints"
    match what:
        case "manifest":
            (folder / "manifest.json").write_text("{")
        case "party":
            path = next(folder.glob("party-1-*.safetensors"))
            blob = bytearray(path.read_bytes())
            blob[-1] ^= 1
            path.write_bytes(bytes(blob))
        case "server":
            next(folder.glob("server-*.safetensors")).unlink()
        case "metrics":
            (stopped_run / "metrics.csv").write_text("round,party,split,metric,value\n")
        case "data":
            env = json.loads((stopped_run / "env.json").read_text())
            (stopped_run / "env.json").write_text(json.dumps(env | {"fingerprint": "other"}))
    with pytest.raises(comity.ComityError):
        run("fedavg+dbe", stopped_run, rounds=ROUNDS, resume=True)


@pytest.mark.parametrize("settings", [{"lr": 0.5}, {"rounds": 9}, {"seed": 7}])
def test_a_resumed_run_keeps_its_settings_or_refuses(
    stopped_run: Path, settings: dict[str, Any]
) -> None:
    """Resuming with other settings is either refused or has no effect; it never mixes two
    experiments.
    """
    try:
        result = run("fedavg+dbe", stopped_run, resume=True, **({"rounds": ROUNDS} | settings))
    except comity.UsageError:
        return
    assert outcome(result)[0] == straight("fedavg+dbe")[0]
