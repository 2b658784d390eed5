"""Run the experiments of a paper's table; finished runs are used as they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from comity import algorithms
from comity.data.files import DatasetNotFound
from comity.errors import UsageError
from comity.papers import Column, MethodRow, PaperTable, Scale
from comity.plugins import is_code
from comity.runs.build import SimulatedRun, prepare
from comity.runs.config import Experiment, experiment
from comity.runs.folder import RunFolder
from comity.runs.server_run import Progress
from comity.safe_files import path_inside
from comity.spec import parse, split
from comity.studies.compare import folder_name
from comity.studies.parallel import Cost, PlannedRun, cached_federations, run_all, with_one_worker
from comity.track import Trackers

ABSENT = "not yet implemented"


@dataclass(frozen=True)
class Run:
    """One row of a table on one run's data: an experiment for each seed, or why it cannot run."""

    name: str
    row: MethodRow
    experiments: tuple[Experiment, ...] = ()
    why: str = ""

    def folder(self, out: Path, seed: int) -> Path:
        """Return the folder of the run of one seed."""
        names = (*PurePath(self.name).parts, folder_name(self.row.name), f"seed-{seed}")
        return path_inside(out, *names)


def implemented(algorithm: str) -> bool:
    """Return whether there are all parts of a method, in Comity or in a file of the user."""
    names = algorithms.names()
    parts = [parse(part).name for part in split(algorithm, "+")]
    return all(part in names or is_code(part) for part in parts)


federation_for = cached_federations()
"""Returns the data of an experiment, which rows on the same data share."""


def plan_runs(
    table: PaperTable,
    scale: Scale,
    seeds: Sequence[int],
    columns: Sequence[Column],
    rows: Sequence[MethodRow],
    changes: dict[str, Any],
) -> list[Run]:
    """Return the runs that the columns and rows need.

    `changes` are settings of the user, which override those of the table.
    """
    runs = []
    for name in dict.fromkeys(column.runs for column in columns):
        for row in rows:
            if row.best_of:  # only its candidates are run
                continue
            if not implemented(row.algorithm):
                runs.append(Run(name, row, why=ABSENT))
                continue
            settings = table.run_settings(name, row, scale) | changes
            experiments = tuple(experiment(settings | {"seed": seed}) for seed in seeds)
            runs.append(_check(Run(name, row, experiments)))
    _check_choices(rows, runs)
    return runs


def _check_choices(rows: Sequence[MethodRow], runs: Sequence[Run]) -> None:
    """Raise UsageError if a row is the best of runs without validation samples."""
    not_validated = {
        run.row.name for run in runs if not run.why and not run.experiments[0].validation
    }
    for row in rows:
        if not_validated.intersection(row.best_of):
            raise UsageError(
                f"The row {row.name} is chosen on validation samples, so validation must be more"
                " than 0."
            )


def _check(run: Run) -> Run:
    """Return the run, or one with the reason why it cannot run."""
    try:
        prepare(run.experiments[0], federation_for(run.experiments[0]))
    except DatasetNotFound as why:
        return Run(run.name, run.row, why=f"no data: {why.name}")
    except UsageError as why:
        return Run(run.name, run.row, why=str(why))
    return run


def prepare_first_seeds(runs: Sequence[Run]) -> Iterator[tuple[Run, SimulatedRun]]:
    """Yield each run that can run, with the prepared run of its first seed."""
    for run in runs:
        if not run.why:
            yield run, prepare(run.experiments[0], federation_for(run.experiments[0]))


def settings_by_row(
    table: PaperTable, scale: Scale, runs: Sequence[Run], changes: dict[str, Any]
) -> dict[str, dict[str, dict[str, Any]]]:
    """Return the settings of the runs that can run, by the names of run and row."""
    settings: dict[str, dict[str, dict[str, Any]]] = {}
    for run in runs:
        if not run.why:
            settings.setdefault(run.name, {})[run.row.name] = (
                table.run_settings(run.name, run.row, scale) | changes
            )
    return settings


@dataclass(frozen=True)
class Resources:
    """The time and memory of a reproduction."""

    seconds: float
    memory: int


def measure_resources(finished: dict[tuple[str, str], list[RunOutcome]]) -> Resources:
    """Return the total time of all runs, and the peak memory of the largest."""
    outcomes = [outcome for of_row in finished.values() for outcome in of_row]
    peak = 0
    for outcome in outcomes:
        peak = max([peak, *(row.memory for row in RunFolder(outcome.folder).read_timing())])
    return Resources(sum(outcome.summary["seconds"]["total"] for outcome in outcomes), peak)


def code_of(finished: dict[tuple[str, str], list[RunOutcome]]) -> str:
    """Return the commits that the runs were made with."""
    return " and ".join(_of_environments(finished, "code", "an unknown commit"))


def processors_of(finished: dict[tuple[str, str], list[RunOutcome]]) -> str:
    """Return the processors that the runs were made on."""
    return " and ".join(_of_environments(finished, "processor", "an unknown processor"))


def _of_environments(
    finished: dict[tuple[str, str], list[RunOutcome]], name: str, default: str
) -> list[str]:
    """Return the different values that the environments of the runs have for a name."""
    return list(
        dict.fromkeys(
            str(RunFolder(outcome.folder).read_environment().get(name, default))
            for of_row in finished.values()
            for outcome in of_row
        )
    )


@dataclass(frozen=True)
class RunOutcome:
    """A finished run of one row and seed."""

    folder: Path
    summary: dict[str, Any]


def execute(
    runs: Sequence[Run],
    out: Path,
    progress: Callable[[str], Progress],
    track: Trackers | None = None,
    at_once: int = 1,
) -> dict[tuple[str, str], list[RunOutcome]]:
    """Run all runs that are not finished, and return the outcomes by the names of run and row.

    All rows of a seed run one after the other, as they share its data; `at_once` is the number of
    parallel runs.
    """
    costs = (
        {(run.name, run.row.name): Cost.of(job) for run, job in prepare_first_seeds(runs)}
        if at_once > 1
        else {}
    )
    several = len({run.name for run in runs}) > 1
    planned_runs: list[tuple[tuple[str, str], PlannedRun]] = []
    runnable = [run for run in runs if not run.why]
    for k in range(max((len(run.experiments) for run in runnable), default=0)):
        for run in runnable:
            of_seed = with_one_worker(run.experiments[k], at_once)
            title = f"{run.name} " * several + f"{run.row.name} seed {of_seed.seed}"
            which = (run.name, run.row.name)
            folder = run.folder(out, of_seed.seed)
            planned_runs.append(
                (which, PlannedRun(title, of_seed, folder, costs.get(which, Cost())))
            )
    finished: dict[tuple[str, str], list[RunOutcome]] = {}
    with closing(
        run_all([run for _, run in planned_runs], federation_for, progress, track, jobs=at_once)
    ) as summaries:
        for (which, plan), summary in zip(planned_runs, summaries, strict=True):
            finished.setdefault(which, []).append(RunOutcome(plan.folder, summary))
    return finished
