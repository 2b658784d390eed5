"""A paper's table again: every row and column that can be run here, run or taken as it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from comity import algorithms
from comity.data.files import DatasetNotFound
from comity.errors import UsageError
from comity.papers import Column, MethodRow, Scale, Table
from comity.runs.build import SimulatedRun, prepare
from comity.runs.config import Experiment, experiment
from comity.runs.folder import RunFolder
from comity.runs.server_run import Progress
from comity.spec import parse, split
from comity.studies.compare import folder_name
from comity.studies.parallel import Cost, Planned, cached_federations, run_all, with_one_worker
from comity.track import Trackers

ABSENT = "not yet implemented"


@dataclass(frozen=True)
class Run:
    """One row of a table on one run's data: an experiment for each seed, or why there is none."""

    name: str
    row: MethodRow
    experiments: tuple[Experiment, ...] = ()
    why: str = ""

    def folder(self, out: Path, seed: int) -> Path:
        """Where one seed's run goes."""
        return out / self.name / folder_name(self.row.name) / f"seed-{seed}"


def implemented(algorithm: str) -> bool:
    """Whether Comity has all parts of a method."""
    known = algorithms.names()
    return all(parse(part).name in known for part in split(algorithm, "+"))


federation_for = cached_federations()
"""The data of an experiment; rows on the same data share them."""


def plan_runs(
    table: Table,
    scale: Scale,
    seeds: Sequence[int],
    columns: Sequence[Column],
    rows: Sequence[MethodRow],
    changes: dict[str, Any],
) -> list[Run]:
    """All runs that the columns and rows ask for; `changes` are a user's own settings, which come
    last.
    """
    made = []
    for name in dict.fromkeys(column.runs for column in columns):
        for row in rows:
            if row.best_of:  # its candidates are run
                continue
            if not implemented(row.algorithm):
                made.append(Run(name, row, why=ABSENT))
                continue
            settings = table.run_settings(name, row, scale) | changes
            made.append(
                _checked(
                    Run(name, row, tuple(experiment(settings | {"seed": seed}) for seed in seeds))
                )
            )
    _check_choices(rows, made)
    return made


def _check_choices(rows: Sequence[MethodRow], runs: Sequence[Run]) -> None:
    """Refuse beforehand what could not be chosen in the end."""
    unseen = {run.row.name for run in runs if not run.why and not run.experiments[0].validation}
    for row in rows:
        if unseen.intersection(row.best_of):
            raise UsageError(
                f"The row {row.name} is chosen on validation samples, so validation must be more"
                " than 0."
            )


def _checked(run: Run) -> Run:
    """The run, or why it cannot be."""
    try:
        prepare(run.experiments[0], federation_for(run.experiments[0]))
    except DatasetNotFound as why:
        return Run(run.name, run.row, why=f"no data: {why.name}")
    except UsageError as why:
        return Run(run.name, run.row, why=str(why))
    return run


def jobs(runs: Sequence[Run]) -> Iterator[tuple[Run, SimulatedRun]]:
    """The first seed's job of all runs that can be."""
    for run in runs:
        if not run.why:
            yield run, prepare(run.experiments[0], federation_for(run.experiments[0]))


def settings_by_row(
    table: Table, scale: Scale, runs: Sequence[Run], changes: dict[str, Any]
) -> dict[str, dict[str, dict[str, Any]]]:
    """What the runs that can be were asked for, by their names and by row."""
    made: dict[str, dict[str, dict[str, Any]]] = {}
    for run in runs:
        if not run.why:
            made.setdefault(run.name, {})[run.row.name] = (
                table.run_settings(run.name, run.row, scale) | changes
            )
    return made


@dataclass(frozen=True)
class Spent:
    """What a reproduction took."""

    seconds: float
    memory: int


def spent(done: dict[tuple[str, str], list[Outcome]]) -> Spent:
    """The time of all its runs, and the most memory that one of them took."""
    every = [one for some in done.values() for one in some]
    peak = 0
    for one in every:
        peak = max([peak, *(row.memory for row in RunFolder(one.folder).read_timing())])
    return Spent(sum(one.summary["seconds"]["total"] for one in every), peak)


def code_of(done: dict[tuple[str, str], list[Outcome]]) -> str:
    """The code that the runs were made with."""
    found = dict.fromkeys(
        RunFolder(one.folder).read_environment().get("code", "an unknown commit")
        for some in done.values()
        for one in some
    )
    return " and ".join(found)


@dataclass(frozen=True)
class Outcome:
    """A finished run of one row and seed."""

    folder: Path
    summary: dict[str, Any]


def execute(
    runs: Sequence[Run],
    out: Path,
    progress: Callable[[str], Progress],
    track: Trackers | None = None,
    at_once: int = 1,
) -> dict[tuple[str, str], list[Outcome]]:
    """Run what is not finished yet, seed after seed so that all rows of a seed share its data, or
    several `at_once`.
    """
    costs = (
        {(run.name, run.row.name): Cost.of(job) for run, job in jobs(runs)} if at_once > 1 else {}
    )
    several = len({run.name for run in runs}) > 1
    planned: list[tuple[tuple[str, str], Planned]] = []
    able = [run for run in runs if not run.why]
    for k in range(max((len(run.experiments) for run in able), default=0)):
        for run in able:
            one = with_one_worker(run.experiments[k], at_once)
            title = f"{run.name} " * several + f"{run.row.name} seed {one.seed}"
            which = (run.name, run.row.name)
            planned.append(
                (which, Planned(title, one, run.folder(out, one.seed), costs.get(which, Cost())))
            )
    done: dict[tuple[str, str], list[Outcome]] = {}
    with closing(
        run_all([run for _, run in planned], federation_for, progress, track, jobs=at_once)
    ) as summaries:
        for (which, made), summary in zip(planned, summaries, strict=True):
            done.setdefault(which, []).append(Outcome(made.folder, summary))
    return done
