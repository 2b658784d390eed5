"""A run that goes on for more rounds than it was begun with; its files are those of a run that was
asked for as many at first.

The last round of a run differs from the others in its evaluation alone, which is by all metrics. So
the last checkpoint knows what the tables were before that, and a longer run begins by evaluating
that round again, as any other.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from comity.algorithms import compose
from comity.core.wrapper import chain
from comity.errors import UsageError
from comity.runs import config
from comity.runs.checkpoint import Manifest, write_atomically
from comity.runs.config import Experiment
from comity.runs.environment import digest
from comity.runs.folder import RunFolder
from comity.runs.schedule import Schedule
from comity.runs.trust import check, code_of, mark_again
from comity.names import display_name


def ask_for(folder: Path, rounds: int, *, trust: bool = False) -> None:
    """Let the run in a folder be one of so many rounds; to go on with it is then the same as with
    any other.

    What cannot be is refused before anything is changed: fewer rounds than there are, and whatever
    would have come out otherwise if the run had been asked for as many from the start.
    """
    begun = RunFolder(folder)
    begun.check_begun()
    with begun.locked():
        before = begun.read_experiment()
        if rounds == before.rounds:
            return
        after = before.but(rounds=rounds)
        check(folder, begun.config.read_text(encoding="utf-8"), code_of(before), trust)
        begun.check()
        manifest = begun.checkpoints().load()
        if manifest:
            _check_open(folder, before, rounds, manifest)
        settings = config.write(after)
        mark_again(folder, begun.config.read_text(encoding="utf-8"), settings)
        _replace(begun, settings, before.rounds)


def _replace(begun: RunFolder, settings: str, rounds: int) -> None:
    """Give a run other settings and open its end; its summary of so many `rounds` is kept beside
    it.

    Each step leaves a folder that holds the one run or the other, and that can be gone on with.
    """
    told = begun.read_environment()
    new = {name: value for name, value in told.items() if name != "config_before"} | {
        "config": digest(settings)
    }
    begun.write_environment(
        new | {"config_before": digest(begun.config.read_text(encoding="utf-8"))}
    )
    for path in (
        begun.summary,
        begun.measures,
        begun.path / "audit.json",
        begun.path / "audit.html",
    ):
        if path.exists():
            path.replace(path.with_name(f"{path.stem}-{rounds}-rounds{path.suffix}"))
    checkpoints = begun.checkpoints()
    if checkpoints.load():
        checkpoints.reopen_end()
    write_atomically(begun.config, settings)
    begun.write_environment(new)


def _check_open(folder: Path, before: Experiment, rounds: int, manifest: Manifest) -> None:
    """Refuse if a run that had been asked for so many rounds would not have come by this
    checkpoint.
    """
    last = manifest.counters["schedule"]["rounds"]
    over = manifest.round >= last
    done = min(manifest.round, last)  # newcomers have a round after all others
    if rounds <= done:
        raise UsageError(
            f"{folder} has {done} rounds already, so it cannot become one of {rounds}: give more"
            " with --rounds."
        )
    new = f"start a new run with --rounds {rounds} instead."
    opened = manifest.counters if "exchanged" in manifest.counters else None
    ending = manifest.counters.get("ending", opened)
    if over and ending is None:
        raise UsageError(
            f"{_closed(folder, before)}, and there is no way back to before that: {new}"
        )
    if over and ending and _ended_by_patience(ending["schedule"], rounds, done):
        raise UsageError(
            f"{folder} ended after round {done} because it had got no better for {before.patience}"
            f" rounds (patience), as it would have with {rounds}: start a new run with another"
            " --patience instead."
        )
    if before.budget:
        raise UsageError(
            f"{folder} has a privacy budget ({before.budget}), by which noise and rounds were"
            f" planned: {new}"
        )
    looked = manifest.counters.get("looked", ())
    if "rounds" in looked or ("cohort" in looked and before.without and before.participation < 1):
        raise UsageError(
            f"{display_name(before.algorithm)} plans by the number of rounds, so that the first of"
            f" {rounds} are others than the first of {before.rounds}: {new}"
        )


def _closed(folder: Path, before: Experiment) -> str:
    """Why a run that has ended cannot be opened again."""
    if before.newcomers:
        return f"The newcomers have joined in {folder}"
    if any(a.traits.finishes for a in chain(compose(before.algorithm, before.set))):
        return (
            f"{display_name(before.algorithm)} has fine-tuned its models after the last round of"
            f" {folder}"
        )
    return f"{folder} was ended by an earlier version of Comity"


def _ended_by_patience(saved: dict[str, Any], rounds: int, done: int) -> bool:
    """Whether the last round was to be the last whatever was asked for."""
    schedule = Schedule(rounds, saved["patience"])
    schedule.load(saved | {"stopped": False})
    schedule.enter(done)
    return schedule.stopped
