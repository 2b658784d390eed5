"""A run's folder as the report reads it. A missing or damaged file becomes a problem to show on the
page, never an exception.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from comity.core.participation import Absence
from comity.core.server import Note
from comity.data.split import Share, Split
from comity.measure.conventions import Line, curve, party_curves
from comity.measure.gain import Gain
from comity.metrics.evaluation import Answers
from comity.metrics.metrics import ACCURACY, Metric
from comity.names import OWN_MODELS
from comity.runs import config
from comity.runs.build import SimulatedRun
from comity.runs.config import Experiment
from comity.runs.environment import digest
from comity.runs.figures import mean
from comity.runs.folder import CONFIG, RunFolder
from comity.runs.run import reopen
from comity.runs.run_metric import metric_of
from comity.runs.summary import blocks
from comity.runs.tables import ABSENCES, LEDGER, METRICS, TIMING, RunTable, Timing
from comity.runs.trust import Untrusted, check, code_of
from comity.wire.ledger import Charge

BETWEEN_SITES = "flare"
"""The engine of runs whose parties are at separate sites."""
PARTS = ("train", "validation", "test")
T = TypeVar("T")


@dataclass
class Run:
    """A run's folder. Each file is read at its first use."""

    folder: Path
    method: str
    trust: bool = False
    """Whether the run may execute the Python files that its settings name, even if it is not the
    user's own run.
    """
    metric: Metric = ACCURACY
    """The metric by which the page shows the run."""
    gains: dict[Path, list[Gain]] = field(default_factory=dict, repr=False)
    """The parties' gains over other runs, by the folder of the other run: a cache."""
    problems: list[str] = field(default_factory=list)
    """What is wrong with the files, in a phrase each."""

    @cached_property
    def _files(self) -> RunFolder:
        return RunFolder(self.folder)

    def _read(self, path: Path, read: Callable[[], T], default: T) -> T:
        """Return what `read` returns, or the default if the file is missing or damaged.

        A missing or damaged file is added to `problems`.
        """
        if not path.exists():
            self._add_problem(f"{path.name} is missing")
            return default
        try:
            return read()
        except Exception:  # a damaged file can cause any error
            self._add_problem(f"{path.name} is damaged")
            return default

    def check_files(self) -> None:
        """Add to `problems` the files that differ from what the run wrote, even if readable."""
        for name in self._files.damaged():
            if name == CONFIG or any(problem.startswith(name) for problem in self.problems):
                continue
            if (self.folder / name).exists():
                self._add_problem(f"{name} is damaged: it is not what the run wrote")
            else:
                self._add_problem(f"{name} is missing")

    def _add_problem(self, phrase: str) -> None:
        if phrase not in self.problems:
            self.problems.append(phrase)

    @cached_property
    def experiment(self) -> Experiment | None:
        """The resolved configuration, if the run was started with it."""
        experiment: Experiment | None = self._read(
            self._files.config, lambda: config.read(self._files.config), None
        )
        expected = self.environment.get("config")
        if experiment and expected:
            actual = digest(self._files.config.read_text(encoding="utf-8"))
            if actual != expected:
                self._add_problem("config.toml and env.json do not agree")
                return None
        return experiment

    @property
    def seed(self) -> int:
        """The seed, by the configuration or, without one, by the name of the folder."""
        if self.experiment:
            return self.experiment.seed
        match = re.fullmatch(r"seed-(\d+)", self.folder.name)
        return int(match[1]) if match else 0

    @property
    def has_ended(self) -> bool:
        """Whether the run has ended. Its summary need not be readable."""
        return self._files.is_finished

    @cached_property
    def summary(self) -> dict[str, Any] | None:
        """The summary. None if the run has not ended or the summary is damaged."""
        return (
            self._read(self._files.summary, self._checked_summary, None) if self.has_ended else None
        )

    def _checked_summary(self) -> dict[str, Any]:
        """Return the summary with everything that the page uses.

        Raises an error if a value is missing, not finite, or of a wrong type.
        """
        defaults: dict[str, Any] = {
            "newcomers": {},
            "diverged": [],
            "classes": [],
            "too_few": [],
            "withheld": [],
            "failed_endings": {},
        }
        summary = defaults | self._files.salvage_summary()
        figures = [*summary["bytes"].values(), summary["seconds"]["total"]]
        figures += [
            newcomer[stage]
            for newcomer in summary["newcomers"].values()
            for stage in ("offered", "joined", "alone", "gain")
        ]
        for _, block in blocks(summary):
            figures += _without_none([block["mean"], *block["per_party"].values()])
        if not all(math.isfinite(figure) for figure in figures):
            raise ValueError("a figure is not finite")
        has_figures = _party_figures(summary["accuracy"]) or _party_figures(
            summary[summary["metric"]]
        )
        may_lack_figures = summary["withheld"] or self.between_sites
        if not (has_figures or may_lack_figures) or "total" not in summary["bytes"]:
            raise ValueError("figures are missing")
        texts = [
            *(summary[key] for key in ("diverged", "classes", "too_few", "withheld")),
            summary["failed_endings"].values(),
        ]
        for values in texts:
            ", ".join(values)  # raises TypeError if a value is not text
        return summary

    @cached_property
    def metrics(self) -> list[Note]:
        """Rows of metrics.csv."""
        return self._rows(METRICS)

    @cached_property
    def ledger(self) -> list[Charge]:
        """Rows of ledger.csv."""
        return self._rows(LEDGER)

    @cached_property
    def absences(self) -> list[Absence]:
        """Rows of absences.csv. The file exists only if some party was absent."""
        return self._rows(ABSENCES) if (self.folder / ABSENCES.name).exists() else []

    @property
    def all_evaluated(self) -> bool:
        """Whether all parties were evaluated after the last round."""
        return not (self.summary or {}).get("accuracy", {}).get("as_of")

    @cached_property
    def timing(self) -> list[Timing]:
        """Rows of timing.csv."""
        return self._rows(TIMING)

    def _rows(self, table: RunTable[T]) -> list[T]:
        """Return the rows of a table up to the first damaged one.

        While a run is under way, its last line may be incomplete.
        """

        def read() -> list[T]:
            content = table.salvage(self.folder)
            incomplete = content.open_end or not (content.rows or self._may_be_empty(table))
            if content.damaged or (self.has_ended and incomplete):
                self._add_problem(f"{table.name} is damaged")
            return content.rows

        return self._read(self.folder / table.name, read, [])

    def _may_be_empty(self, table: RunTable[T]) -> bool:
        """Whether an intact table of a finished run may have no rows."""
        if table is METRICS:
            return self.between_sites  # sites may withhold all figures
        # Models that each party trains alone send nothing.
        is_own_model = self.experiment is not None and self.experiment.algorithm in OWN_MODELS
        return table is LEDGER and is_own_model

    @property
    def figures(self) -> dict[str, Any]:
        """The summary's block of the page's metric; empty if the summary has none."""
        return (self.summary or {}).get(self.metric.name) or {}

    def _agrees(
        self, name: str, figure: float, expected_from: Callable[[dict[str, Any]], float | None]
    ) -> bool:
        """Whether a figure of a file agrees with the summary.

        A disagreement is a problem of the file: a file that was cut off can look complete.
        """
        expected = expected_from(self.summary) if self.summary is not None else None
        if expected is None or abs(figure - expected) < 1e-9:
            return True
        self._add_problem(f"{name} and summary.json do not agree")
        return False

    @cached_property
    def outcomes(self) -> dict[str, list[int]]:
        """For each party, 1 or 0 by test sample: whether it was classified correctly at the end.

        Empty if the run has not ended or `outcomes.csv` is damaged.
        """
        if not self.summary:
            return {}
        outcomes: dict[str, list[int]] = self._read(
            self._files.outcomes, self._checked_outcomes, {}
        )
        if not outcomes or not self.all_evaluated:  # without all parties, the mean is another one
            return outcomes
        accuracy = mean({party: statistics.fmean(right) for party, right in outcomes.items()})
        return outcomes if self._agrees("outcomes.csv", accuracy, _mean_accuracy) else {}

    def _checked_outcomes(self) -> dict[str, list[int]]:
        outcomes = self._files.salvage_outcomes()
        if not outcomes and not self.between_sites:  # a site policy may withhold them
            raise ValueError("outcomes.csv is empty")
        return outcomes

    @cached_property
    def answers(self) -> dict[str, Answers]:
        """For each party, the models' outputs on the test samples at the end.

        Empty if `outcomes` is.
        """
        if not self.outcomes:
            return {}
        return self._read(self._files.outcomes, self._files.salvage_answers, {})

    @cached_property
    def split(self) -> dict[str, Share]:
        """The samples of each party. Empty if the parties are at separate sites."""
        if self._files.parties.exists():
            return {}
        return self._read(self._files.split, lambda: Split.read(self._files.split).parties, {})

    @cached_property
    def amounts(self) -> dict[str, dict[str, int]]:
        """How many samples each party has in each part: by the split, or as the sites reported."""
        if self._files.parties.exists():
            return self._read(self._files.parties, self._reported_amounts, {})
        return {
            party: {part: len(getattr(share, part)) for part in PARTS}
            for party, share in self.split.items()
        }

    def _reported_amounts(self) -> dict[str, dict[str, int]]:
        return {
            party: {part: int(entry["said"][part]) for part in PARTS}
            for party, entry in self._files.read_parties().items()
        }

    @property
    def between_sites(self) -> bool:
        """Whether the parties were at separate sites. If so, neither data nor models are here."""
        return self.experiment is not None and self.experiment.engine == BETWEEN_SITES

    @cached_property
    def environment(self) -> dict[str, Any]:
        """Versions of the software, and the machine."""
        return self._read(self._files.environment, self._files.read_environment, {})

    @cached_property
    def measures(self) -> dict[str, Any] | None:
        """The result of `comity measure`; None if it was not run."""
        if not self._files.measures.exists():
            return None
        return self._read(self._files.measures, self._files.read_measures, None)

    @cached_property
    def curve(self) -> Line:
        """The mean of the metric over the parties' test sets, by round."""
        line = {
            t: value
            for t, value in curve(self.metrics, metric=self.metric.name).items()
            if math.isfinite(value)
        }
        if line:
            self._agrees("metrics.csv", line[max(line)], lambda summary: self.figures.get("mean"))
        return line

    @cached_property
    def parties(self) -> dict[str, Line]:
        """Each party's metric on its test set, by round, without newcomers: these join after the
        last round.
        """
        lines = party_curves(self.metrics, self.metric.name)
        last = max(self.curve, default=0)
        return {party: line for party, line in lines.items() if min(line) <= last}

    @cached_property
    def traffic(self) -> Line:
        """Cumulative bytes by the end of each round, without evaluation."""
        bytes_by_round: dict[int, float] = dict.fromkeys(self.curve, 0.0)
        for row in self.ledger:
            if row.kind != "eval":
                bytes_by_round[row.round] = bytes_by_round.get(row.round, 0.0) + row.bytes
        total = 0.0
        totals = {}
        for t in sorted(bytes_by_round):
            total += bytes_by_round[t]
            totals[t] = total
        if self.ledger:
            self._agrees("ledger.csv", total, lambda summary: float(summary["bytes"]["total"]))
        return totals

    @property
    def last_round(self) -> int:
        """The last round in the tables."""
        return max((row.round for row in self.timing), default=max(self.curve, default=0))

    @cached_property
    def job(self) -> SimulatedRun:
        """The run, opened again with its data."""
        return reopen(self.folder, trust=self.trust)

    @cached_property
    def chosen_metric(self) -> Metric | None:
        """The metric that the run chose. A user's metric may lack its function."""
        return metric_of(self._files, self.experiment, self.trust) if self.experiment else None

    @cached_property
    def closed(self) -> str | None:
        """The reason why the run cannot be opened; None if it can.

        It would execute files that are not known to be the user's own, or it lacks a function.
        """
        if self.experiment is None:
            return None
        text = self._files.config.read_text(encoding="utf-8")
        try:
            check(self.folder, text, code_of(self.experiment), self.trust)
        except Untrusted as why:
            return str(why)
        if self.chosen_metric and not self.chosen_metric.has_function:
            return (
                f"The metric {self.chosen_metric.name} is a function that was passed from Python"
                " and is not stored in the folder; gains need it, too."
            )
        return None


def _without_none(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _party_figures(block: dict[str, Any] | None) -> list[float]:
    """Return the parties' figures in a block of a summary."""
    return _without_none(block["per_party"].values()) if block else []


def _mean_accuracy(summary: dict[str, Any]) -> float | None:
    """Return the mean accuracy; None for regression, which has none."""
    accuracy: float | None = summary["accuracy"]["mean"]
    return accuracy
