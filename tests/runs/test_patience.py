"""Runs that end early when they stop improving: at the round that the rule gives, and otherwise as
if that number of rounds had been set.
"""

from __future__ import annotations

import csv
import json
import multiprocessing
import os
import signal
import sys
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from interruptions import Interrupt, Kill, Watch
from matrix import TUNED, tables, weights

import comity
from comity import cli
from comity.core import Params
from comity.runs import checkpoint
from comity.runs.schedule import Schedule
from comity.runs.server_run import Quiet

MANY = 25
LATE: dict[str, Any] = {"newcomers": 1, "join_epochs": 1}
Outcome = tuple[dict[str, bytes], dict[str, Params], dict[str, Any]]


def go(text: str, out: Path, fed: comity.Federation | None = None, **more: Any) -> comity.Result:
    usual: dict[str, Any] = {
        "model": "mlp2(width=12)",
        "rounds": MANY,
        "lr": 0.02,
        "engine": "loop",
        "patience": 2,
    }
    return comity.run(text, fed or parties(), out=out, **(usual | more))


@cache
def parties(validation: float = 0.3) -> comity.Federation:
    """Four parties that learn for some rounds and then get no better."""
    return comity.load("digits").partition(
        "dirichlet(alpha=1)|keep(samples=60)", 4, seed=1, validation=validation
    )


@cache
def straight(text: str, more: tuple[tuple[str, Any], ...] = ()) -> Outcome:
    """The run without interruption."""
    with TemporaryDirectory() as folder:
        return outcome(go(text, Path(folder) / "run", **dict(more)))


def outcome(result: comity.Result) -> Outcome:
    summary = {k: v for k, v in result.summary.items() if k != "seconds"}
    return tables(result.folder), weights(result), summary


def assert_same(first: Outcome, second: Outcome) -> None:
    assert first[0] == second[0]
    assert first[2] == second[2]
    for party, theta in first[1].items():
        assert all(torch.equal(value, second[1][party][name]) for name, value in theta.items())


def right_by_round(result: comity.Result, split: str) -> dict[int, int]:
    """The number of correct samples of all parties at each evaluated round."""
    sizes = {
        name: len(getattr(party, split)) for name, party in result.job.federation.parties.items()
    }
    correct: dict[int, int] = {}
    for row in result.metrics:
        if row.metric == "accuracy" and row.split == split and row.party in sizes:
            correct[row.round] = correct.get(row.round, 0) + round(row.value * sizes[row.party])
    return correct


def expected_last_round(right: dict[int, int], patience: int, rounds: int = MANY) -> int:
    """The rule step by step: no improvement for `patience` rounds, and then one more round."""
    for t in range(1, rounds):
        best = max(right[k] for k in range(t + 1))
        first = min(k for k in range(t + 1) if right[k] == best)
        if t - first >= patience:
            return t + 1
    return rounds


# --- the rule


def ends(accuracies: list[float], patience: int | None, rounds: int) -> int:
    """When a course with these accuracies (of round 0, 1, ...) ends."""
    schedule, t = Schedule(rounds, patience), -1
    while t < schedule.rounds:
        t += 1
        schedule.enter(t)
        schedule.record(t, accuracies[t])
    return t


@pytest.mark.parametrize(
    ("accuracies", "patience", "last"),
    [
        ([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7], 1, 6),  # always better: all rounds
        (
            [0.5, 0.5, 0.9, 0.9, 0.9, 0.9, 0.9],
            1,
            2,
        ),  # an equal accuracy is no improvement; one more round, whatever its accuracy
        (
            [0.5, 0.4, 0.6, 0.5, 0.6, 0.9, 0.9],
            2,
            5,
        ),  # best in round 2, not in 3 and 4, so 5 is the last
        ([0.5, 0.4, 0.6, 0.5, 0.7, 0.6, 0.6], 2, 6),
        ([0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0], 3, 4),  # an accuracy of 0 counts like any other
        ([0.9, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1], 5, 6),
        ([0.9, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1], 6, 6),
        ([0.9, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1], 100, 6),
        ([0.9, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1], None, 6),
    ],
)
def test_the_rule_by_hand(accuracies: list[float], patience: int | None, last: int) -> None:
    assert ends(accuracies, patience, 6) == last


@settings(deadline=None, max_examples=150, derandomize=True)
@given(st.lists(st.integers(0, 4), min_size=4, max_size=20), st.integers(1, 6))
def test_the_implementation_follows_the_rule(right: list[int], patience: int) -> None:
    rounds = len(right) - 1
    assert ends([r / 4 for r in right], patience, rounds) == expected_last_round(
        dict(enumerate(right)), patience, rounds
    )


@settings(deadline=None, max_examples=100, derandomize=True)
@given(st.lists(st.integers(0, 4), min_size=4, max_size=20), st.integers(1, 6), st.integers(1, 5))
def test_rounds_without_evaluation_are_not_counted(
    right: list[int], patience: int, eval_every: int
) -> None:
    """It ends one round after an evaluation when the best one was `patience` rounds ago."""
    rounds = len(right) - 1
    schedule, t = Schedule(rounds, patience), -1
    while t < schedule.rounds:
        t += 1
        schedule.enter(t)
        if t % eval_every == 0:
            schedule.record(t, right[t] / 4)
    last = rounds
    for j in range(0, rounds, eval_every):
        best = max(right[0 : j + 1 : eval_every])
        if j - eval_every * right[0 : j + 1 : eval_every].index(best) >= patience:
            last = j + 1
            break
    assert t == last


@settings(deadline=None, max_examples=100, derandomize=True)
@given(st.lists(st.integers(0, 4), min_size=4, max_size=20), st.integers(1, 6), st.data())
def test_early_stopping_resumes_from_its_saved_state(
    right: list[int], patience: int, data: st.DataObject
) -> None:
    """Through JSON, after any round."""
    rounds = len(right) - 1
    stop = data.draw(st.integers(0, rounds))
    schedule, t = Schedule(rounds, patience), -1
    while t < schedule.rounds:
        t += 1
        schedule.enter(t)
        schedule.record(t, right[t] / 4)
        if t == stop:
            saved = json.loads(json.dumps(schedule.dump()))
            schedule = Schedule(rounds, patience)
            schedule.load(saved)
    assert t == expected_last_round(dict(enumerate(right)), patience, rounds)


# --- runs


@pytest.mark.parametrize("patience", [1, 2, 4])
@pytest.mark.parametrize("text", ["fedavg", "solo"])
def test_a_run_ends_where_its_validation_says(text: str, patience: int, tmp_path: Path) -> None:
    result = go(text, tmp_path, patience=patience)
    last = result.summary["rounds"]
    right = right_by_round(result, "validation")
    assert sorted(right) == list(range(last + 1))  # every round is evaluated, the last one too
    assert expected_last_round(right | dict.fromkeys(range(last + 1, MANY), 0), patience) == last
    assert 1 < last < MANY  # otherwise the test would show nothing
    assert max(row.round for row in result.ledger) == last
    assert (tmp_path / "outcomes.csv").exists()
    assert f"patience = {patience}\n" in (tmp_path / "config.toml").read_text()
    assert f"rounds = {MANY}\n" in (tmp_path / "config.toml").read_text()  # the requested number


def test_without_validation_the_test_part_decides(tmp_path: Path) -> None:
    result = go("fedavg", tmp_path, parties(0.0), patience=1)
    right, last = right_by_round(result, "test"), result.summary["rounds"]
    assert not right_by_round(result, "validation")
    assert expected_last_round(right | dict.fromkeys(range(last + 1, MANY), 0), 1) == last < MANY


def test_the_validation_part_decides_where_there_is_one(tmp_path: Path) -> None:
    """The test part does not: with it some of these runs would end at another round."""
    differs = 0
    for seed in range(4):
        whole = go("fedavg", tmp_path / f"whole-{seed}", patience=None, rounds=12, seed=seed)
        by = {
            split: expected_last_round(right_by_round(whole, split), 1, 12)
            for split in ("validation", "test")
        }
        result = go("fedavg", tmp_path / f"early-{seed}", patience=1, rounds=12, seed=seed)
        assert result.summary["rounds"] == by["validation"]
        differs += by["validation"] != by["test"]
    assert differs


@pytest.mark.sweep("all-", "newcomers-scaffold+dbe")
@pytest.mark.parametrize(
    "text", ["fedavg", "scaffold+dbe", "fedper", "fedbabu", TUNED], ids=lambda t: Path(t).name
)
@pytest.mark.parametrize(
    "more", [{}, LATE, {"participation": 0.5}], ids=["all", "newcomers", "half"]
)
def test_an_early_stop_equals_a_run_of_that_many_rounds(
    text: str, more: dict[str, Any], tmp_path: Path
) -> None:
    """Rows, bytes and weights are equal, also those after the last round (tuning, newcomers)."""
    early = go(text, tmp_path / "early", **more)
    last = early.summary["rounds"]
    assert last < MANY
    fixed_length = go(text, tmp_path / "fixed", rounds=last, **more, patience=None)
    assert_same(outcome(early), outcome(fixed_length))


def test_finish_and_newcomers_follow_an_early_stop(tmp_path: Path) -> None:
    result = go(TUNED, tmp_path, **LATE)
    last = result.summary["rounds"]
    assert last < MANY
    assert result.summary["accuracy"]["unfinished"] is not None
    assert {m.round for m in result.metrics if m.split == "test-unfinished"} == {last}
    assert set(result.summary["newcomers"]) == {"p3"}
    assert {m.round for m in result.metrics if m.split.startswith("test-") and m.party == "p3"} == {
        last + 1
    }
    assert {m.round for m in result.metrics if m.metric.startswith("auc")} == {last}


def test_endless_patience_changes_nothing(tmp_path: Path) -> None:
    without_patience, with_patience = (
        outcome(go("fedavg", tmp_path / str(p), rounds=6, patience=p)) for p in (None, 6)
    )
    assert_same(without_patience, with_patience)
    assert without_patience[2]["rounds"] == 6


@pytest.mark.parametrize("text", ["fedavg", "fedbabu", "scaffold+dbe"])
def test_engines_end_alike(text: str, tmp_path: Path) -> None:
    process = go(text, tmp_path, engine="process", workers=2, **LATE)
    assert_same(outcome(process), straight(text, tuple(LATE.items())))


# --- stopped and resumed


@pytest.fixture
def every_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "EVERY_SECONDS", 0.0)


@pytest.mark.usefixtures("every_round")
@pytest.mark.parametrize("text", ["fedavg", TUNED], ids=["fedavg", "tuned"])
@pytest.mark.parametrize("before_the_end", [-1, 0, 1, 2, 3])
def test_stopped_around_the_end(text: str, before_the_end: int, tmp_path: Path) -> None:
    """In the rounds of waiting, in the last one, and when the newcomers join (one after it)."""
    theirs = straight(text, tuple(LATE.items()))
    during = theirs[2]["rounds"] - before_the_end
    with pytest.raises(KeyboardInterrupt):
        go(text, tmp_path, progress=Interrupt(during=during), **LATE)
    watch = Watch()
    assert_same(outcome(go(text, tmp_path, resume=True, progress=watch, **LATE)), theirs)
    assert watch.first == during - 1


@pytest.mark.usefixtures("every_round")
def test_stopped_at_every_round_one_after_the_other(tmp_path: Path) -> None:
    """Resumed again and again; the state of early stopping is never lost."""
    theirs = straight("fedavg")
    for t in range(1, theirs[2]["rounds"] + 1):
        with pytest.raises(KeyboardInterrupt):
            go("fedavg", tmp_path, progress=Stop(t), resume=True)
    assert_same(outcome(go("fedavg", tmp_path, resume=True)), theirs)


class Stop(Quiet):
    """Stops a run when a round is over."""

    def __init__(self, after: int) -> None:
        self.after = after

    def round(self, t: int, accuracy: float | None, ledger: Any) -> None:
        if t == self.after:
            raise KeyboardInterrupt


@pytest.mark.parametrize("saved", [0, 1, 3])
def test_with_an_older_checkpoint(
    saved: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its tables the run has ended; the checkpoint is some rounds older."""
    theirs = straight("fedavg")

    class Save(Stop):
        def round(self, t: int, accuracy: float | None, ledger: Any) -> None:
            if t == saved:
                monkeypatch.setattr(checkpoint, "EVERY_SECONDS", float("inf"))
            super().round(t, accuracy, ledger)

    monkeypatch.setattr(checkpoint, "EVERY_SECONDS", 0.0)
    with pytest.raises(KeyboardInterrupt):
        go("fedavg", tmp_path, progress=Save(theirs[2]["rounds"] - 1))
    assert json.loads((tmp_path / "checkpoints" / "manifest.json").read_text())["round"] == saved
    assert_same(outcome(go("fedavg", tmp_path, resume=True)), theirs)


@pytest.mark.usefixtures("every_round")
@pytest.mark.parametrize("more", [{}, {"engine": "process", "workers": 2}], ids=["loop", "process"])
def test_killed(more: dict[str, Any], tmp_path: Path) -> None:
    """The process is killed after round 2."""
    fork = multiprocessing.get_context("fork")
    victim = fork.Process(
        target=go, args=("scaffold+dbe", tmp_path), kwargs={"progress": Kill(), **LATE, **more}
    )
    victim.start()
    victim.join(60)
    assert victim.exitcode == -signal.SIGKILL
    assert not (tmp_path / "summary.json").exists()
    result = go("scaffold+dbe", tmp_path, resume=True, **LATE, **more)
    assert result.summary["rounds"] > 2
    assert_same(outcome(result), straight("scaffold+dbe", tuple(LATE.items())))


@pytest.mark.usefixtures("every_round")
def test_a_finished_run_stays_as_it_is(tmp_path: Path) -> None:
    go("fedavg", tmp_path)
    assert_same(outcome(go("fedavg", tmp_path, resume=True)), straight("fedavg"))
    with pytest.raises(comity.UsageError, match="other settings"):
        go("fedavg", tmp_path, resume=True, patience=3)


# --- on the command line


def command(monkeypatch: pytest.MonkeyPatch, *args: object) -> int:
    monkeypatch.setattr(sys, "argv", ["comity", *map(str, args)])
    try:
        cli.main()
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def test_compare_lets_each_method_end_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    few = (
        "--partition",
        "iid|keep(samples=30)",
        "--parties",
        "3",
        "--model",
        "linear",
        "--engine",
        "loop",
        "--rounds",
        "40",
    )
    code = command(
        monkeypatch, "compare", "fedavg", *few, "--patience", "2", "--out", tmp_path / "all"
    )
    assert code == 0, capsys.readouterr().err
    rounds = {
        m: json.loads((tmp_path / "all" / m / "seed-0" / "summary.json").read_text())["rounds"]
        for m in ("solo", "fedavg")
    }
    assert max(rounds.values()) < 40
    run = ("run", "fedavg", *few, "--patience", "2", "--out", tmp_path / "one")
    assert command(monkeypatch, *run) == 0
    run_metrics, compare_metrics = (
        folder / "metrics.csv"
        for folder in (tmp_path / "one", tmp_path / "all" / "fedavg" / "seed-0")
    )
    assert run_metrics.read_bytes() == compare_metrics.read_bytes()
    assert command(monkeypatch, "resume", tmp_path / "one") == 0


# --- what a run took


@pytest.mark.parametrize("more", [{}, {"engine": "process", "workers": 2}], ids=["loop", "process"])
def test_timing_tells_the_memory_of_each_round(more: dict[str, Any], tmp_path: Path) -> None:
    result = go("fedavg", tmp_path, **more)
    with (tmp_path / "timing.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [int(row["round"]) for row in rows] == list(range(result.summary["rounds"] + 1))
    memory = [int(row["memory"]) for row in rows]
    assert memory == sorted(memory)  # the most so far
    with Path("/proc/self/statm").open() as file:
        own_memory = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    assert memory[-1] > 0.5 * own_memory
    assert memory[-1] < 40 * own_memory


# --- what was wrong once


def test_a_run_that_gets_better_at_every_evaluation_goes_on() -> None:
    schedule = Schedule(30, 2)
    for t in range(31):
        schedule.enter(t)
        assert schedule.rounds == 30
        if t % 5 == 0:
            schedule.record(t, t / 30)


def test_evaluations_further_apart_than_patience(tmp_path: Path) -> None:
    result = go("fedavg", tmp_path, eval_every=5, patience=2)
    assert result.summary["rounds"] > 5  # it was evaluated at least once
