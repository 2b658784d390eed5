"""Extends a run to more rounds. The result equals that of a run that was started with as many.

The last round of a run differs from the others only in its evaluation, which computes all metrics.
So the last checkpoint has the lengths of the tables before it, and an extended run begins by
evaluating that round again, as any other.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from comity.algorithms import compose
from comity.core.wrapper import chain
from comity.errors import UsageError
from comity.names import display_name
from comity.runs import config
from comity.runs.checkpoint import Manifest
from comity.runs.config import Experiment
from comity.runs.folder import RunFolder
from comity.runs.schedule import Schedule
from comity.runs.trust import check, code_of, mark_again


def extend(folder: Path, rounds: int, *, trust: bool = False) -> None:
    """Extend the run in a folder to `rounds` rounds. It can then be resumed as any other.

    Refuses, before anything is changed, fewer rounds than the run has, and methods whose first
    rounds depend on the number of rounds.
    """
    run_folder = RunFolder(folder)
    run_folder.check_begun()
    with run_folder.locked():
        before = run_folder.read_experiment()
        if rounds == before.rounds:
            return
        after = before.but(rounds=rounds)
        check(folder, run_folder.config.read_text(encoding="utf-8"), code_of(before), trust)
        run_folder.check()
        manifest = run_folder.checkpoints().load()
        if manifest:
            _check_open(folder, before, rounds, manifest)
        settings = config.write(after)
        mark_again(folder, run_folder.config.read_text(encoding="utf-8"), settings)
        _replace(run_folder, settings, before.rounds)


def _replace(run_folder: RunFolder, settings: str, rounds: int) -> None:
    """Replace the settings of a run and reopen its end. Its summary after `rounds` rounds is kept
    under another name.

    Each step leaves a folder with one run or the other, which can be resumed.
    """
    for path in (
        run_folder.summary,
        run_folder.measures,
        run_folder.path / "audit.json",
        run_folder.path / "audit.html",
    ):
        if path.exists():
            path.replace(path.with_name(f"{path.stem}-{rounds}-rounds{path.suffix}"))
    checkpoints = run_folder.checkpoints()
    if checkpoints.load():
        checkpoints.reopen_end()
    run_folder.replace_settings(settings)


def _check_open(folder: Path, before: Experiment, rounds: int, manifest: Manifest) -> None:
    """Refuse if a run with that many rounds would not have reached this checkpoint."""
    last = manifest.counters["schedule"]["rounds"]
    is_complete = manifest.round >= last
    completed = min(manifest.round, last)  # newcomers have a round after all others
    if rounds <= completed:
        raise UsageError(
            f"{folder} has {completed} rounds already, so it cannot become one of {rounds}: give"
            " more with --rounds."
        )
    advice = f"start a new run with --rounds {rounds} instead."
    reopened = manifest.counters if "exchanged" in manifest.counters else None
    ending = manifest.counters.get("ending", reopened)
    if is_complete and ending is None:
        raise UsageError(
            f"{_closed(folder, before)}, and there is no way back to before that: {advice}"
        )
    if is_complete and ending and _ended_by_patience(ending["schedule"], rounds, completed):
        raise UsageError(
            f"{folder} ended after round {completed} because it had got no better for"
            f" {before.patience} rounds (patience), as it would have with {rounds}: start a new run"
            " with another --patience instead."
        )
    if before.budget:
        raise UsageError(
            f"{folder} has a privacy budget ({before.budget}), by which noise and rounds were"
            f" planned: {advice}"
        )
    length_fields = manifest.counters.get("looked", ())
    cohort_depends_on_rounds = before.without and before.participation < 1
    if "rounds" in length_fields or ("cohort" in length_fields and cohort_depends_on_rounds):
        raise UsageError(
            f"{display_name(before.algorithm)} plans by the number of rounds, so that the first of"
            f" {rounds} are others than the first of {before.rounds}: {advice}"
        )


def _closed(folder: Path, before: Experiment) -> str:
    """Why a finished run cannot be reopened."""
    if before.newcomers:
        return f"The newcomers have joined in {folder}"
    if any(a.traits.finishes for a in chain(compose(before.algorithm, before.set))):
        return (
            f"{display_name(before.algorithm)} has changed its models after the last round of"
            f" {folder} (finish)"
        )
    return f"{folder} was ended by an earlier version of Comity"


def _ended_by_patience(saved: dict[str, Any], rounds: int, completed: int) -> bool:
    """Whether the last round would have been the last with any number of rounds."""
    schedule = Schedule(rounds, saved["patience"])
    schedule.load(saved | {"stopped": False})
    schedule.enter(completed)
    return schedule.ends_early
