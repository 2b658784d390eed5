"""A paper's table again: every row and column that can be run here, and what came out beside what was printed."""

from __future__ import annotations

import csv
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from comity import algorithms
from comity.data.files import Missing
from comity.errors import ComityError, Refusal, unknown
from comity.experiments.build import Job, Progress, prepare
from comity.experiments.config import Experiment, experiment
from comity.experiments.folder import RunFolder
from comity.measure import conventions, targets
from comity.papers import Claim, Column, MethodRow, Scale, Table
from comity.spec import parse, split
from comity.studies.compare import folder_name
from comity.studies.side_by_side import Cost, Planned, run_all, settled, shared
from comity.track import Trackers

ABSENT = "not yet implemented"
ROUNDING = 0.05


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


@dataclass(frozen=True)
class Cell:
    """What the paper prints, and what was measured for each seed, or why nothing was."""

    column: Column
    row: MethodRow
    measured: tuple[float, ...] = ()
    why: str = ""

    @property
    def paper(self) -> tuple[float | None, float | None]:
        """The printed figure and its standard deviation."""
        return self.row.printed(self.column.name)

    @property
    def mean(self) -> float | None:
        """The mean over seeds."""
        return statistics.fmean(self.measured) if self.measured else None

    @property
    def std(self) -> float | None:
        """The standard deviation over seeds (population), where there are several."""
        return statistics.pstdev(self.measured) if len(self.measured) > 1 else None

    @property
    def difference(self) -> float | None:
        """Measured less printed."""
        printed = self.paper[0]
        return None if self.mean is None or printed is None else self.mean - printed

    @property
    def within(self) -> bool | None:
        """Whether the difference is at most two of the paper's standard deviations, where it gives one.

        A printed 0.0 is anything below its rounding.
        """
        std = self.paper[1]
        return None if std is None or self.difference is None else abs(self.difference) <= 2 * (std or ROUNDING)


@dataclass(frozen=True)
class Verdict:
    """What became of a claim: in which columns it was put to the test, and where it held."""

    claim: str
    margins: dict[str, float] = field(default_factory=dict)
    """Better less worse, by column."""
    sure: dict[str, bool] = field(default_factory=dict)
    """Whether that is more than both rows' standard deviations over seeds together, where there are several seeds."""

    def __str__(self) -> str:
        if not self.margins:
            return f"{self.claim}: not put to the test"
        held = [name for name, margin in self.margins.items() if margin > 0]
        word = "holds" if len(held) == len(self.margins) else "does not hold" if not held else f"holds in {', '.join(held)} only"
        unsure = " (within the seeds' spread)"
        shown = ", ".join(
            f"{name} {margin:+.2f}{'' if self.sure.get(name, True) else unsure}" for name, margin in self.margins.items()
        )
        return f"{self.claim}: {word} ({shown})"


def implemented(algorithm: str) -> bool:
    """Whether Comity has all parts of a method."""
    known = {row["name"] for row in algorithms.catalogue()}
    return all(parse(part).name in known for part in split(algorithm, "+"))


federation_for = shared()
"""The data of an experiment; rows on the same data share them."""


def plan_runs(
    table: Table,
    scale: Scale,
    seeds: Sequence[int],
    columns: Sequence[Column],
    rows: Sequence[MethodRow],
    changes: dict[str, Any],
) -> list[Run]:
    """All runs that the columns and rows ask for; `changes` are a user's own settings, which come last."""
    made = []
    for name in dict.fromkeys(column.runs for column in columns):
        for row in rows:
            if not implemented(row.algorithm):
                made.append(Run(name, row, why=ABSENT))
                continue
            settings = table.run_settings(name, row, scale) | changes
            made.append(_checked(Run(name, row, tuple(experiment(settings | {"seed": seed}) for seed in seeds))))
    return made


def _checked(run: Run) -> Run:
    """The run, or why it cannot be."""
    try:
        prepare(run.experiments[0], federation_for(run.experiments[0]))
    except Missing as why:
        return Run(run.name, run.row, why=f"no data: {why.name}")
    except Refusal as why:
        return Run(run.name, run.row, why=str(why))
    return run


def jobs(runs: Sequence[Run]) -> Iterator[tuple[Run, Job]]:
    """The first seed's job of all runs that can be."""
    for run in runs:
        if not run.why:
            yield run, prepare(run.experiments[0], federation_for(run.experiments[0]))


def settings_of(runs: Sequence[Run]) -> list[str]:
    """What each run's settings are: once what all its rows share, and a row's own where it differs."""
    told = []
    for name in dict.fromkeys(run.name for run in runs):
        rows = {
            run.row.name: run.experiments[0].model_dump(exclude_unset=True, exclude={"algorithm", "seed"})
            for run in runs
            if run.name == name and not run.why
        }
        if not rows:
            continue
        first, *others = rows.values()
        shared = {k: v for k, v in first.items() if all(other.get(k) == v for other in others)}
        told.append(f"{name}: {_list(shared)}")
        told += [
            f"{name}, {row}: {_list(own)}"
            for row, mine in rows.items()
            if (own := {k: v for k, v in mine.items() if k not in shared and v})
        ]
    return told


def _list(settings: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in settings.items())


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
        RunFolder(one.folder).read_environment().get("code", "an unknown commit") for some in done.values() for one in some
    )
    return " and ".join(found)


@dataclass(frozen=True)
class Outcome:
    """A finished run of one row and seed."""

    folder: Path
    summary: dict[str, Any]


def execute(
    runs: Sequence[Run], out: Path, progress: Callable[[str], Progress], track: Trackers | None = None, at_once: int = 1
) -> dict[tuple[str, str], list[Outcome]]:
    """Run what is not finished yet, seed after seed so that all rows of a seed share its data, or several `at_once`."""
    costs = {(run.name, run.row.name): Cost.of(job) for run, job in jobs(runs)} if at_once > 1 else {}
    several = len({run.name for run in runs}) > 1
    planned: list[tuple[tuple[str, str], Planned]] = []
    able = [run for run in runs if not run.why]
    for k in range(max((len(run.experiments) for run in able), default=0)):
        for run in able:
            one = settled(run.experiments[k], at_once)
            title = f"{run.name} " * several + f"{run.row.name} seed {one.seed}"
            which = (run.name, run.row.name)
            planned.append((which, Planned(title, one, run.folder(out, one.seed), costs.get(which, Cost()))))
    done: dict[tuple[str, str], list[Outcome]] = {}
    with closing(run_all([run for _, run in planned], federation_for, progress, track, jobs=at_once)) as summaries:
        for (which, made), summary in zip(planned, summaries, strict=True):
            done.setdefault(which, []).append(Outcome(made.folder, summary))
    return done


def collect(
    runs: Sequence[Run], done: dict[tuple[str, str], list[Outcome]], columns: Sequence[Column], rows: Sequence[MethodRow]
) -> list[Cell]:
    """The table's cells, column by column."""
    why = {(run.name, run.row.name): run.why for run in runs}
    cells = []
    for column in columns:
        mine = {row.name: done.get((column.runs, row.name), []) for row in rows}
        printed = {row.name: mine[row.name] for row in rows if row.printed(column.name)[0] is not None}
        for row in rows:
            try:
                values = [_figure(column.measure, one, printed) for one in mine[row.name]]
            except ComityError as problem:
                cells.append(Cell(column, row, why=str(problem)))
                continue
            reason = why[column.runs, row.name]
            if None in values:
                cells.append(Cell(column, row, why=reason or "never reached"))
            else:
                cells.append(Cell(column, row, tuple(v for v in values if v is not None), reason))
    return cells


def verdicts(table: Table, cells: Sequence[Cell]) -> list[Verdict]:
    """Each claim of the paper against what was measured."""
    by = {(cell.column.name, cell.row.name): cell for cell in cells}
    made = []
    for text in table.claims:
        better, worse, only = Claim(text).parts
        verdict = Verdict(text)
        for column in dict.fromkeys(cell.column.name for cell in cells if only in ("", cell.column.name)):
            one = by.get((column, better))
            two = by.get((column, worse))
            if one and two and one.mean is not None and two.mean is not None:
                verdict.margins[column] = one.mean - two.mean
                if one.std is not None and two.std is not None:
                    verdict.sure[column] = abs(one.mean - two.mean) > one.std + two.std
        made.append(verdict)
    return made


# Figures of a run, by the names that tables use. All accuracies are in percent.

CONVENTIONS = {
    "mean": "mean_last",
    "weighted": "weighted_last",
    "global": "global_last",
    "best_mean": "mean_best",
    "best_weighted": "weighted_best",
    "best_global": "global_best",
    "last10_mean": "mean_last10",
    "best_party": "P_b",
    "worst_party": "P_w",
    "std": "P_std",
}


def _figure(measure: str, one: Outcome, column: dict[str, list[Outcome]]) -> float | None:
    """One figure of a run, or None if it never came to it; `column` holds all runs that have a printed figure in the column."""
    name, _, argument = measure.partition(":")
    if name in CONVENTIONS:
        return _percent(name, conventions.of_run(one.folder)[CONVENTIONS[name]])
    if name == "party":
        per: dict[str, float | None] = one.summary["accuracy"]["per_party"]
        if argument not in per:
            raise unknown("party called", argument, per)
        return _percent(argument, per[argument])
    if name == "rounds_to_lowest":
        return _rounds_to_lowest(one, column, argument)
    if name == "mdl":
        from comity.measure.study import description_length

        return description_length(one.folder, argument, trust=True)  # its code has just run: the run is this reproduction's
    if name not in FIGURES:
        raise Refusal(f"{measure} cannot be measured yet.")
    return FIGURES[name](one.summary)


def _percent(name: str, value: float | None) -> float:
    if value is None:
        raise Refusal(f"this method has no {name} accuracy.")
    return 100.0 * value


def _seconds(summary: dict[str, Any]) -> float:
    return float(summary["seconds"]["train"]) / max(1, int(summary["rounds"]))


def _newcomers(summary: dict[str, Any]) -> float:
    late = [new["joined"] for new in summary["newcomers"].values()]
    return _percent("newcomers'", statistics.fmean(late) if late else None)


FIGURES: dict[str, Callable[[dict[str, Any]], float]] = {
    "unfinished_mean": lambda summary: _percent("unfinished", summary["accuracy"]["unfinished"]),
    "auc_mean": lambda summary: _percent("AUC instead of", (summary["auc"] or {}).get("mean")),
    "newcomers_mean": _newcomers,
    "best_round": lambda summary: float(summary["accuracy"]["best_on_test"]["round"]),
    "mbytes": lambda summary: float(summary["bytes"]["total"]) / 1e6,
    "seconds_per_round": _seconds,
    "minutes_per_round": lambda summary: _seconds(summary) / 60,
}


def _rounds_to_lowest(one: Outcome, column: dict[str, list[Outcome]], party: str) -> float | None:
    """The first round that reaches the lowest accuracy that any of the column's methods ends with (ADCOL, Table 2)."""

    def line(outcome: Outcome) -> conventions.Line:
        rows = RunFolder(outcome.folder).read_metrics()
        return conventions.party_curves(rows)[party] if party else conventions.curve(rows)

    seed = one.summary["seed"]
    lines = {name: line(o) for name, outcomes in column.items() for o in outcomes if o.summary["seed"] == seed}
    lines = lines or {"": line(one)}
    t = targets.rounds_to_target(line(one), targets.common_target(lines))
    return None if t is None else float(t)


# The table for people and for programs.

HEADS = ("column", "method", "paper", "measured", "difference", "within 2 std")


def lines(cells: Sequence[Cell]) -> list[list[str]]:
    """The cells as text: one line each, columns one below the other."""

    def number(value: float | None, std: float | None = None, sign: str = "") -> str:
        return "" if value is None else f"{value:{sign}.2f}" + ("" if std is None else f" ± {std:.2f}")

    made = []
    for cell in cells:
        measured = number(cell.mean, cell.std) or cell.why
        within = {True: "yes", False: "no", None: ""}[cell.within]
        made.append([cell.column.title, cell.row.title, number(*cell.paper), measured, number(cell.difference, sign="+"), within])
    return made


def markdown(cells: Sequence[Cell]) -> str:
    """The table in Markdown."""
    rows = [HEADS, ("---",) * len(HEADS), *lines(cells)]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows) + "\n"


def write_csv(path: Path, cells: Sequence[Cell]) -> None:
    """The table for programs: numbers in full, every seed."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("column", "row", "algorithm", "paper", "paper_std", "measured", "measured_std", "seeds", "note"))
        for cell in cells:
            each = " ".join(f"{v:.6g}" for v in cell.measured)
            which = cell.column.name, cell.row.name, cell.row.algorithm
            writer.writerow((*which, *cell.paper, cell.mean, cell.std, each, cell.why))
