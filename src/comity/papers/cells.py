"""What a paper prints and what was measured for it, cell by cell of a table: every seed, its
course, and the end of it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from comity.core.release import UNITS
from comity.errors import ComityError, UsageError, unknown
from comity.measure import conventions, targets
from comity.measure.conventions import Line, last_tenth
from comity.papers import Column, MethodRow
from comity.papers.chosen import choices, told
from comity.papers.reproduce import Outcome, Run
from comity.privacy.account import read_epsilon
from comity.runs.folder import RunFolder

ROUNDING = 0.05


@dataclass(frozen=True)
class Figure:
    """What one run came to, by the measure of a column."""

    value: float
    """As the paper takes it."""
    rounds: int
    """How many rounds the run had."""
    bytes: int
    """All that crossed, but for evaluation."""
    seconds: float
    curve: Line = field(default_factory=dict)
    """What the measure looks at by evaluated round, in percent; empty where it is no matter of
    rounds.
    """
    loss: Line = field(default_factory=dict)
    """The parties' mean test loss by evaluated round."""
    tuned: bool = False
    """Whether the models were fine-tuned after the last round: then those of earlier ones are not
    what a party ends with.
    """

    @property
    def end(self) -> list[float]:
        """The evaluated rounds of the run's last tenth; of models that were tuned at the end, the
        last alone.
        """
        found = last_tenth(self.curve, self.rounds)
        return found[-1:] if self.tuned else found


@dataclass(frozen=True)
class Cell:
    """What the paper prints in a cell, and what was measured, by seed, or why nothing was."""

    column: Column
    row: MethodRow
    figures: Mapping[int, Figure] = field(default_factory=dict)
    why: str = ""

    @property
    def paper(self) -> tuple[float | None, float | None]:
        """The printed figure and its standard deviation."""
        return self.row.printed(self.column.name)

    @property
    def measured(self) -> list[float]:
        """By the paper's measure, a figure a seed."""
        return [figure.value for figure in self.figures.values()]

    @property
    def mean(self) -> float | None:
        """The mean over seeds."""
        return statistics.fmean(self.measured) if self.figures else None

    @property
    def std(self) -> float | None:
        """The standard deviation over seeds (population), where there are several."""
        return statistics.pstdev(self.measured) if len(self.figures) > 1 else None

    @property
    def difference(self) -> float | None:
        """Measured less printed."""
        printed = self.paper[0]
        return None if self.mean is None or printed is None else self.mean - printed

    @property
    def within(self) -> bool | None:
        """Whether the difference is at most two of the paper's standard deviations, where it gives
        one.

        Printed figures are rounded, and so may be off by half of their last digit; a printed
        deviation of 0.0, too.
        """
        std = self.paper[1]
        return (
            None
            if std is None or self.difference is None
            else abs(self.difference) <= 2 * std + ROUNDING
        )

    @property
    def ends(self) -> dict[int, float]:
        """The mean over each run's last tenth, by seed, where the measure is a matter of rounds."""
        return {
            seed: statistics.fmean(figure.end)
            for seed, figure in self.figures.items()
            if figure.end
        }

    @property
    def swing(self) -> float | None:
        """How far a run moves from evaluation to evaluation in its last tenth: standard deviation,
        mean over seeds.
        """
        each = [
            statistics.stdev(figure.end) for figure in self.figures.values() if len(figure.end) > 1
        ]
        return statistics.fmean(each) if each else None

    @property
    def judged(self) -> dict[int, float]:
        """What claims are judged by, by seed: where the paper takes the last round, the mean over
        the last tenth instead.
        """
        if self.column.measure.partition(":")[0] in LAST_ROUND and len(self.ends) == len(
            self.figures
        ):
            return self.ends
        return {seed: figure.value for seed, figure in self.figures.items()}


def collect(
    runs: Sequence[Run],
    done: Mapping[tuple[str, str], Sequence[Outcome]],
    columns: Sequence[Column],
    rows: Sequence[MethodRow],
) -> list[Cell]:
    """The table's cells, column by column; rows with `best_of` have the runs that were chosen for
    them.
    """
    done = {**done, **choices(rows, done)}
    why = {(run.name, run.row.name): run.why for run in runs}
    cells = []
    for column in columns:
        mine = {row.name: done.get((column.runs, row.name), []) for row in rows}
        printed = {
            row.name: mine[row.name] for row in rows if row.printed(column.name)[0] is not None
        }
        for row in rows:
            try:
                found = {
                    one.summary["seed"]: _figure(column.measure, one, printed)
                    for one in mine[row.name]
                }
            except ComityError as problem:
                cells.append(Cell(column, row, why=str(problem)))
                continue
            reason = told(row, mine[row.name]) if row.best_of else why[column.runs, row.name]
            if None in found.values():
                cells.append(
                    Cell(
                        column,
                        row,
                        why=reason or NONE.get(column.measure.partition(":")[0], "never reached"),
                    )
                )
            else:
                cells.append(
                    Cell(
                        column,
                        row,
                        {seed: one for seed, one in found.items() if one is not None},
                        reason,
                    )
                )
    return cells


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
LAST_ROUND = ("mean", "weighted", "global", "party")
"""Measures that papers take in the last round alone."""
AGAINST_OTHERS = ("rounds_to_lowest",)
"""Measures that depend on what the column's other rows came to."""
NONE = {"epsilon": "infinite", "epsilon_server": "infinite"}
"""What is said where a run has no such figure; if not this, that it was never reached."""
LESS_IS_BETTER = (
    *(
        "std",
        "rounds_to_lowest",
        "seconds_per_round",
        "minutes_per_round",
        "mbytes",
        "mdl",
        "best_round",
    ),
    *NONE,
)


def _figure(measure: str, one: Outcome, column: Mapping[str, Sequence[Outcome]]) -> Figure | None:
    """What a run came to, or None if it never came to it; `column` holds all runs that have a
    printed figure in the column.
    """
    value = _value(measure, one, column)
    if value is None:
        return None
    rows = RunFolder(one.folder).read_metrics()
    return Figure(
        value,
        one.summary["rounds"],
        one.summary["bytes"]["total"],
        one.summary["seconds"]["total"],
        {t: 100 * share for t, share in _curve(measure, one).items() if t},
        {t: loss for t, loss in conventions.curve(rows, metric="loss").items() if t},
        one.summary["accuracy"].get("unfinished") is not None,
    )


def _value(measure: str, one: Outcome, column: Mapping[str, Sequence[Outcome]]) -> float | None:
    """The figure as the paper takes it."""
    name, _, argument = measure.partition(":")
    if name in CONVENTIONS:
        return _percent(name, conventions.run_figures(one.folder)[CONVENTIONS[name]])
    if name == "party":
        per: dict[str, float | None] = one.summary["accuracy"]["per_party"]
        for party in argument.split(","):
            if party not in per:
                raise unknown("party called", party, per)
        return statistics.fmean(_percent(party, per[party]) for party in argument.split(","))
    if name == "rounds_to_lowest":
        return _rounds_to_lowest(one, column, argument)
    if name == "mdl":
        from comity.measure.study import description_length

        return description_length(
            one.folder, argument, trust=True
        )  # its code has just run: the run is this reproduction's
    if name in NONE:
        privacy = one.summary["privacy"]
        trusted = (
            privacy["trusted_server"] if name == "epsilon_server" else None
        )  # what holds whoever reads holds then, too
        return _epsilon(trusted or privacy, argument)
    if name not in FIGURES:
        raise UsageError(f"{measure} cannot be measured yet.")
    return FIGURES[name](one.summary)


def _curve(measure: str, one: Outcome) -> Line:
    """Of which curve a measure takes a point, or several; empty if it is of none."""
    name, _, argument = measure.partition(":")
    rows = RunFolder(one.folder).read_metrics()
    if name == "party":
        each = conventions.party_curves(rows)
        return conventions.mean_curve([each[party] for party in argument.split(",")])
    whom = name.rpartition("_")[2]
    if name not in CONVENTIONS or whom not in conventions.WHOM:
        return {}
    sizes = {party: len(right) for party, right in RunFolder(one.folder).read_outcomes().items()}
    return conventions.curve(rows, whom, sizes)


def _percent(name: str, value: float | None) -> float:
    if value is None:
        raise UsageError(f"this method has no {name} accuracy.")
    return 100.0 * value


def _seconds(summary: dict[str, Any]) -> float:
    return float(summary["seconds"]["train"]) / max(1, int(summary["rounds"]))


def _newcomers(summary: dict[str, Any]) -> float:
    late = [new["joined"] for new in summary["newcomers"].values()]
    return _percent("newcomers'", statistics.fmean(late) if late else None)


def weaker(unit: str, than: str) -> bool:
    """Whether protecting a unit leaves another unprotected."""
    order = list(UNITS)
    return order.index(unit) < order.index(than)  # type: ignore[arg-type]


def _epsilon(account: Mapping[str, Any], unit: str) -> float | None:
    """What is guaranteed a `unit` (a row, a record; unless told, whatever is protected) of the
    party with least; None if nothing.

    A party's epsilon holds for each of its records, and a record's for the row that it makes, but
    not the other way round.
    """
    found = read_epsilon(account["epsilon"])
    return None if math.isinf(found) or (unit and weaker(account["unit"], unit)) else found


FIGURES: dict[str, Callable[[dict[str, Any]], float | None]] = {
    "unfinished_mean": lambda summary: _percent("unfinished", summary["accuracy"]["unfinished"]),
    "auc_mean": lambda summary: _percent("AUC instead of", (summary["auc"] or {}).get("mean")),
    "newcomers_mean": _newcomers,
    "best_round": lambda summary: float(summary["accuracy"]["best_on_test"]["round"]),
    "mbytes": lambda summary: float(summary["bytes"]["total"]) / 1e6,
    "seconds_per_round": _seconds,
    "minutes_per_round": lambda summary: _seconds(summary) / 60,
}


def _rounds_to_lowest(
    one: Outcome, column: Mapping[str, Sequence[Outcome]], party: str
) -> float | None:
    """The first round that reaches the lowest accuracy that any of the column's methods ends with
    (ADCOL, Table 2).
    """

    def line(outcome: Outcome) -> Line:
        rows = RunFolder(outcome.folder).read_metrics()
        return conventions.party_curves(rows)[party] if party else conventions.curve(rows)

    seed = one.summary["seed"]
    lines = {
        name: line(o)
        for name, outcomes in column.items()
        for o in outcomes
        if o.summary["seed"] == seed
    }
    lines = lines or {"": line(one)}
    t = targets.rounds_to_target(line(one), targets.common_target(lines))
    return None if t is None else float(t)
