"""The cells of a paper's table: the printed and the measured figures, with all seeds and their
curves over the rounds.
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
from comity.measure.seeds import interval_over_seeds
from comity.papers import Column, MethodRow
from comity.papers.best_of import choose_runs, describe_choice
from comity.papers.reproduce import Run, RunOutcome
from comity.privacy.account import INFINITE, read_epsilon
from comity.runs.folder import RunFolder
from comity.studies.method_summary import steps_of_party

ROUNDING = 0.05
"""How far a printed figure may be from its unrounded value."""


@dataclass(frozen=True)
class Figure:
    """The figure of one run, by the measure of a column."""

    value: float
    """The value, in the convention of the paper."""
    rounds: int
    """The number of rounds of the run."""
    bytes: int
    """All bytes except those of evaluation."""
    seconds: float
    curve: Line = field(default_factory=dict)
    """The measured accuracy by evaluated round, in percent; empty for measures of the whole run."""
    loss: Line = field(default_factory=dict)
    """The parties' mean test loss by evaluated round."""
    tuned: bool = False
    """Whether the models were fine-tuned after the last round. Then the curve before that has the
    figures of other models.
    """
    steps: float | None = None
    """The gradient evaluations of a party, mean over parties; None if they were not counted."""
    server_steps: float | None = None
    """The gradient evaluations at the server."""

    @property
    def end(self) -> list[float]:
        """The values in the last tenth of the run; for fine-tuned models, the last one only."""
        values = last_tenth(self.curve, self.rounds)
        return values[-1:] if self.tuned else values


def half_width(values: Sequence[float]) -> float | None:
    """Return half of the 95% interval of the mean over seeds; None with too few seeds."""
    interval = interval_over_seeds(values)
    return (interval[1] - interval[0]) / 2 if interval else None


@dataclass(frozen=True)
class Cell:
    """A cell: the printed figure and the measured figures by seed, or why there are none."""

    column: Column
    row: MethodRow
    figures: Mapping[int, Figure] = field(default_factory=dict)
    why: str = ""

    @property
    def paper(self) -> tuple[float | None, float | None]:
        """The printed figure and its standard deviation."""
        return self.row.printed(self.column.name)

    @property
    def values(self) -> list[float]:
        """The measured values, one per seed."""
        return [figure.value for figure in self.figures.values()]

    @property
    def mean(self) -> float | None:
        """The mean over seeds."""
        return statistics.fmean(self.values) if self.figures else None

    @property
    def std(self) -> float | None:
        """The sample standard deviation over seeds; None for one seed."""
        return statistics.stdev(self.values) if len(self.figures) > 1 else None

    @property
    def difference(self) -> float | None:
        """Measured minus printed."""
        printed = self.paper[0]
        return None if self.mean is None or printed is None else self.mean - printed

    @property
    def agrees(self) -> bool | None:
        """Whether the measured mean agrees with the printed figure.

        The difference may be as large as two printed standard deviations and half of our 95%
        interval over seeds, added in quadrature, and `ROUNDING`. Where one of the two spreads is
        missing, only the other one counts. None without any spread or without a printed figure.
        """
        half, std = half_width(self.values), self.paper[1]
        if self.difference is None or (half is None and std is None):
            return None
        return abs(self.difference) <= math.hypot(half or 0, 2 * (std or 0)) + ROUNDING

    @property
    def ends(self) -> dict[int, float]:
        """The mean over the last tenth of each run, by seed, where the measure has a curve."""
        return {
            seed: statistics.fmean(figure.end)
            for seed, figure in self.figures.items()
            if figure.end
        }

    @property
    def swing(self) -> float | None:
        """The standard deviation of the values in a run's last tenth, mean over seeds."""
        deviations = [
            statistics.stdev(figure.end) for figure in self.figures.values() if len(figure.end) > 1
        ]
        return statistics.fmean(deviations) if deviations else None

    @property
    def steps(self) -> tuple[float, float] | None:
        """A party's and the server's gradient evaluations, mean over the seeds that counted them.

        None if no run counted them.
        """
        counts = [
            (figure.steps, figure.server_steps or 0.0)
            for figure in self.figures.values()
            if figure.steps is not None
        ]
        if not counts:
            return None
        of_party, of_server = zip(*counts, strict=True)
        return statistics.fmean(of_party), statistics.fmean(of_server)

    @property
    def compared(self) -> dict[int, float]:
        """The values that claims are tested on, by seed.

        Where the paper takes the last round, this is the mean over the last tenth instead.
        """
        is_last_round = self.column.measure.partition(":")[0] in LAST_ROUND
        if is_last_round and len(self.ends) == len(self.figures):
            return self.ends
        return {seed: figure.value for seed, figure in self.figures.items()}


def collect(
    runs: Sequence[Run],
    finished: Mapping[tuple[str, str], Sequence[RunOutcome]],
    columns: Sequence[Column],
    rows: Sequence[MethodRow],
) -> list[Cell]:
    """Return the cells of the table, column by column.

    Rows with `best_of` have the runs that are best on validation samples.
    """
    outcomes = {**finished, **choose_runs(rows, finished)}
    why = {(run.name, run.row.name): run.why for run in runs}
    cells = []
    for column in columns:
        by_row = {row.name: outcomes.get((column.runs, row.name), []) for row in rows}
        printed = {
            row.name: by_row[row.name] for row in rows if row.printed(column.name)[0] is not None
        }
        for row in rows:
            try:
                figures = {
                    outcome.summary["seed"]: _figure(column.measure, outcome, printed)
                    for outcome in by_row[row.name]
                }
            except ComityError as problem:
                cells.append(Cell(column, row, why=str(problem)))
                continue
            reason = (
                describe_choice(row, by_row[row.name])
                if row.best_of
                else why[column.runs, row.name]
            )
            defined = {seed: figure for seed, figure in figures.items() if figure is not None}
            if len(defined) < len(figures):
                name = column.measure.partition(":")[0]
                cells.append(Cell(column, row, why=reason or NONE.get(name, "never reached")))
            else:
                cells.append(Cell(column, row, defined, reason))
    return cells


# Measures by the names in the tables' files. All accuracies are in percent.

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
ACCURACIES = (
    *(name for name in CONVENTIONS if name != "std"),
    "party",
    "unfinished_mean",
    "auc_mean",
    "newcomers_mean",
)
"""Measures in percent."""
LAST_ROUND = ("mean", "weighted", "global", "party")
"""Measures that papers take in the last round."""
AGAINST_OTHERS = ("rounds_to_lowest",)
"""Measures that depend on the other rows of the column."""
NONE = {"epsilon": INFINITE, "epsilon_server": INFINITE}
"""The text for a run without such a figure; for other measures it is "never reached"."""
LESS_IS_BETTER = (
    "std",
    "rounds_to_lowest",
    "seconds_per_round",
    "minutes_per_round",
    "mbytes",
    "steps",
    "server_steps",
    "mdl",
    "best_round",
    *NONE,
)


def _figure(
    measure: str, outcome: RunOutcome, column: Mapping[str, Sequence[RunOutcome]]
) -> Figure | None:
    """Return the figure of a run; None if it has none.

    `column` has all runs with a printed figure in the column.
    """
    value = _value(measure, outcome, column)
    if value is None:
        return None
    rows = RunFolder(outcome.folder).read_metrics()
    return Figure(
        value,
        outcome.summary["rounds"],
        outcome.summary["bytes"]["total"],
        outcome.summary["seconds"]["total"],
        {t: 100 * share for t, share in _curve(measure, outcome).items() if t},
        {t: loss for t, loss in conventions.curve(rows, metric="loss").items() if t},
        outcome.summary["accuracy"].get("unfinished") is not None,
        steps_of_party(outcome.summary),
        float(outcome.summary["server_steps"]) if "server_steps" in outcome.summary else None,
    )


def _value(
    measure: str, outcome: RunOutcome, column: Mapping[str, Sequence[RunOutcome]]
) -> float | None:
    """Return the value of a measure, in the convention of the paper."""
    name, _, argument = measure.partition(":")
    if name in CONVENTIONS:
        return _percent(name, conventions.run_figures(outcome.folder)[CONVENTIONS[name]])
    if name == "party":
        per_party: dict[str, float | None] = outcome.summary["accuracy"]["per_party"]
        for party in argument.split(","):
            if party not in per_party:
                raise unknown("party called", party, per_party)
        return statistics.fmean(_percent(party, per_party[party]) for party in argument.split(","))
    if name == "rounds_to_lowest":
        return _rounds_to_lowest(outcome, column, argument)
    if name == "mdl":
        from comity.measure.study import description_length

        # The run belongs to this reproduction, which has run its code already.
        return description_length(outcome.folder, argument, trust=True)
    if name in NONE:
        privacy = outcome.summary["privacy"]
        # A guarantee against everybody holds with a trusted server, too.
        trusted = privacy["trusted_server"] if name == "epsilon_server" else None
        return _epsilon(trusted or privacy, argument)
    if name not in FIGURES:
        raise UsageError(f"{measure} cannot be measured yet.")
    return FIGURES[name](outcome.summary)


def _curve(measure: str, outcome: RunOutcome) -> Line:
    """Return the curve that a measure is taken from; empty if there is none."""
    name, _, argument = measure.partition(":")
    rows = RunFolder(outcome.folder).read_metrics()
    if name == "party":
        curves = conventions.party_curves(rows)
        return conventions.mean_curve([curves[party] for party in argument.split(",")])
    whom = name.rpartition("_")[2]
    if name not in CONVENTIONS or whom not in conventions.WHOM:
        return {}
    sizes = {
        party: len(right) for party, right in RunFolder(outcome.folder).read_outcomes().items()
    }
    return conventions.curve(rows, whom, sizes)


def _percent(name: str, value: float | None) -> float:
    if value is None:
        raise UsageError(f"this method has no {name} accuracy.")
    return 100.0 * value


def _seconds(summary: dict[str, Any]) -> float:
    return float(summary["seconds"]["train"]) / max(1, int(summary["rounds"]))


def _newcomers(summary: dict[str, Any]) -> float:
    accuracies = [new["joined"] for new in summary["newcomers"].values()]
    return _percent("newcomers'", statistics.fmean(accuracies) if accuracies else None)


def is_weaker(unit: str, than: str) -> bool:
    """Return whether the protection of `unit` does not protect the unit `than`."""
    order = list(UNITS)
    return order.index(unit) < order.index(than)  # type: ignore[arg-type]


def _epsilon(account: Mapping[str, Any], unit: str) -> float | None:
    """Return the epsilon of a `unit` at the party with the weakest guarantee; None without any.

    The default unit is the one that is protected. The epsilon of a party holds for each of its
    records, and that of a record for its row, but not the other way round.
    """
    epsilon = read_epsilon(account["epsilon"])
    if math.isinf(epsilon) or (unit and is_weaker(account["unit"], unit)):
        return None
    return epsilon


FIGURES: dict[str, Callable[[dict[str, Any]], float | None]] = {
    "unfinished_mean": lambda summary: _percent("unfinished", summary["accuracy"]["unfinished"]),
    "auc_mean": lambda summary: _percent("AUC instead of", (summary["auc"] or {}).get("mean")),
    "newcomers_mean": _newcomers,
    "best_round": lambda summary: float(summary["accuracy"]["best_on_test"]["round"]),
    "mbytes": lambda summary: float(summary["bytes"]["total"]) / 1e6,
    "steps": steps_of_party,
    "server_steps": lambda summary: float(summary["server_steps"]),
    "seconds_per_round": _seconds,
    "minutes_per_round": lambda summary: _seconds(summary) / 60,
}


def _rounds_to_lowest(
    outcome: RunOutcome, column: Mapping[str, Sequence[RunOutcome]], party: str
) -> float | None:
    """Return the first round that reaches the lowest final accuracy of the column's methods (ADCOL,
    Table 2).
    """

    def line(outcome: RunOutcome) -> Line:
        rows = RunFolder(outcome.folder).read_metrics()
        return conventions.party_curves(rows)[party] if party else conventions.curve(rows)

    seed = outcome.summary["seed"]
    lines = {
        name: line(o)
        for name, outcomes in column.items()
        for o in outcomes
        if o.summary["seed"] == seed
    }
    lines = lines or {"": line(outcome)}
    t = targets.rounds_to_target(line(outcome), targets.common_target(lines))
    return None if t is None else float(t)
