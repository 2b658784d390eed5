"""One run's folder as the page reads it: what is missing or damaged becomes a sentence, never an
exception.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from comity.core.participation import Absence
from comity.core.server import Note
from comity.data.split import Share, Split
from comity.measure.conventions import Line, curve, party_curves
from comity.measure.figures import mean
from comity.measure.gain import Gain
from comity.measure.summary import blocks
from comity.metrics.evaluation import Answers
from comity.metrics.metrics import ACCURACY, Metric
from comity.runs import config
from comity.runs.build import SimulatedRun
from comity.runs.config import Experiment
from comity.runs.environment import digest
from comity.runs.folder import CONFIG, RunFolder
from comity.runs.run import reopen
from comity.runs.run_metric import metric_of
from comity.runs.tables import ABSENCES, LEDGER, METRICS, TIMING, Table, Timing
from comity.runs.trust import Untrusted, check, code_of
from comity.wire.ledger import Charge

BETWEEN_SITES = "flare"
"""The engine of runs between sites."""
PARTS = ("train", "validation", "test")
T = TypeVar("T")


@dataclass
class Run:
    """One run's folder; its files are read when they are asked for, and once."""

    folder: Path
    method: str
    trust: bool = False
    """Whether files that its settings name may run, whoever made it."""
    metric: Metric = ACCURACY
    """What it is shown by."""
    gains: dict[Path, list[Gain]] = field(default_factory=dict, repr=False)
    """Its parties' gains over other runs, once they were worked out."""
    problems: list[str] = field(default_factory=list)

    @cached_property
    def _files(self) -> RunFolder:
        return RunFolder(self.folder)

    def _try(self, path: Path, reading: Callable[[], T], otherwise: T) -> T:
        """What a file says. If it is missing or makes no sense, the page says so and goes without
        it.
        """
        if not path.exists():
            self._complain(f"{path.name} is missing")
            return otherwise
        try:
            return reading()
        except Exception:  # whatever it is that cannot be understood
            self._complain(f"{path.name} is damaged")
            return otherwise

    def check_files(self) -> None:
        """Complain of files that are not what the run wrote, even if what they say makes sense."""
        for name in self._files.damaged():
            if name != CONFIG and not any(problem.startswith(name) for problem in self.problems):
                lost = not (self.folder / name).exists()
                self._complain(
                    f"{name} is missing"
                    if lost
                    else f"{name} is damaged: it is not what the run wrote"
                )

    def _complain(self, sentence: str) -> None:
        if sentence not in self.problems:
            self.problems.append(sentence)

    @cached_property
    def experiment(self) -> Experiment | None:
        """The resolved configuration, if it is still the one that the run was started with."""
        found: Experiment | None = self._try(
            self._files.config, lambda: config.read(self._files.config), None
        )
        started = self.environment.get("config")
        if found and started and started != digest(self._files.config.read_text(encoding="utf-8")):
            self._complain("config.toml and env.json do not agree")
            return None
        return found

    @property
    def seed(self) -> int:
        """The run's seed; its folder may be called after it."""
        named = re.fullmatch(r"seed-(\d+)", self.folder.name)
        return self.experiment.seed if self.experiment else int(named[1]) if named else 0

    @property
    def ended(self) -> bool:
        """Whether it came to its end, be its summary readable or not."""
        return self._files.ended

    @cached_property
    def summary(self) -> dict[str, Any] | None:
        """The summary; None while the run is not finished."""
        return self._try(self._files.summary, self._checked_summary, None) if self.ended else None

    def _checked_summary(self) -> dict[str, Any]:
        """A summary that has all that the page takes from it."""
        absent: dict[str, Any] = {
            "newcomers": {},
            "diverged": [],
            "classes": [],
            "cautions": [],
            "too_few": [],
        }
        absent |= {"withheld": [], "failed_endings": {}}
        found = absent | self._files.salvage_summary()
        figures = [*found["bytes"].values(), found["seconds"]["total"]]
        heard = _figures(found["accuracy"]) or _figures(found[found["metric"]])
        figures += [
            new[stage]
            for new in found["newcomers"].values()
            for stage in ("offered", "joined", "alone", "gain")
        ]
        for _, block in blocks(found):
            figures += [
                figure
                for figure in (block["mean"], *block["per_party"].values())
                if figure is not None
            ]
        may_lack_figures = found["withheld"] or self.between_sites
        if not (heard or may_lack_figures) or "total" not in found["bytes"]:
            raise ValueError
        if not all(math.isfinite(figure) for figure in figures):
            raise ValueError
        ", ".join(
            [*found["diverged"], *found["classes"], *found["cautions"], *found["too_few"]]
        )  # fails if these are no texts
        ", ".join([*found["withheld"], *found["failed_endings"].values()])
        return found

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
        """Rows of absences.csv, which is there only if somebody was not heard."""
        return self._rows(ABSENCES) if (self.folder / ABSENCES.name).exists() else []

    @property
    def all_heard(self) -> bool:
        """Whether everybody was heard at the end."""
        return not (self.summary or {}).get("accuracy", {}).get("as_of")

    @cached_property
    def timing(self) -> list[Timing]:
        """Rows of timing.csv."""
        return self._rows(TIMING)

    def _rows(self, table: Table[T]) -> list[T]:
        """A table's rows up to the first that makes no sense. While a run goes on, the last line
        may be half written.
        """

        def reading() -> list[T]:
            found = table.salvage(self.folder)
            may_be_empty = table is METRICS and self.between_sites  # sites may withhold all figures
            incomplete = found.open_end or not (found.rows or may_be_empty)
            if found.damaged or (self.ended and incomplete):
                self._complain(f"{table.name} is damaged")
            return found.rows

        return self._try(self.folder / table.name, reading, [])

    @property
    def figures(self) -> dict[str, Any]:
        """The finished run's figures by what it is shown by, as its summary tells them; nothing if
        there are none.
        """
        return (self.summary or {}).get(self.metric.name) or {}

    def _check(
        self, name: str, found: float, told: Callable[[dict[str, Any]], float | None]
    ) -> bool:
        """Whether a file's figure is the finished run's: one that was cut short can look whole."""
        if self.summary is None or (true := told(self.summary)) is None or abs(found - true) < 1e-9:
            return True
        self._complain(f"{name} and summary.json do not agree")
        return False

    @cached_property
    def outcomes(self) -> dict[str, list[int]]:
        """Which test samples were right after the last round, by party."""
        found: dict[str, list[int]] = (
            self._try(self._files.outcomes, self._checked_outcomes, {}) if self.summary else {}
        )
        shares = {party: statistics.fmean(right) for party, right in found.items()}
        if found and not self.all_heard:  # those who were not heard have no outcomes
            return found
        return found if not found or self._check("outcomes.csv", mean(shares), _mean) else {}

    def _checked_outcomes(self) -> dict[str, list[int]]:
        found = self._files.salvage_outcomes()
        if (
            not found and not self.between_sites
        ):  # sites keep them, unless their law lets them leave
            raise ValueError
        return found

    @cached_property
    def answers(self) -> dict[str, Answers]:
        """What models said of the test samples after the last round, by party, if outcomes.csv can
        be trusted.
        """
        return (
            self._try(self._files.outcomes, self._files.salvage_answers, {})
            if self.outcomes
            else {}
        )

    @cached_property
    def split(self) -> dict[str, Share]:
        """Which samples each party has, if they are here."""
        if self._files.parties.exists():  # they are at sites
            return {}
        return self._try(self._files.split, lambda: Split.read(self._files.split).parties, {})

    @cached_property
    def amounts(self) -> dict[str, dict[str, int]]:
        """How many samples each party has in each part, by the split or, if they are at sites, by
        what these said.
        """
        if self._files.parties.exists():
            return self._try(self._files.parties, self._told_amounts, {})
        return {
            party: {part: len(getattr(share, part)) for part in PARTS}
            for party, share in self.split.items()
        }

    def _told_amounts(self) -> dict[str, dict[str, int]]:
        return {
            party: {part: int(one["said"][part]) for part in PARTS}
            for party, one in self._files.read_parties().items()
        }

    @property
    def between_sites(self) -> bool:
        """Whether parties were at sites of their own: then neither data nor models can be opened
        here.
        """
        return self.experiment is not None and self.experiment.engine == BETWEEN_SITES

    @cached_property
    def environment(self) -> dict[str, Any]:
        """Versions and machine."""
        return self._try(self._files.environment, self._files.read_environment, {})

    @cached_property
    def measures(self) -> dict[str, Any] | None:
        """What `comity measure` found, if it was asked."""
        return (
            self._try(self._files.measures, self._files.read_measures, None)
            if self._files.measures.exists()
            else None
        )

    @cached_property
    def curve(self) -> Line:
        """The mean over parties on their test samples, by round."""
        line = {
            t: value
            for t, value in curve(self.metrics, metric=self.metric.name).items()
            if math.isfinite(value)
        }
        if line:
            self._check("metrics.csv", line[max(line)], lambda summary: self.figures.get("mean"))
        return line

    @cached_property
    def parties(self) -> dict[str, Line]:
        """Each party's figures on its test samples, by round; newcomers, who join after the last,
        are left out.
        """
        lines = party_curves(self.metrics, self.metric.name)
        last = max(self.curve, default=0)
        return {party: line for party, line in lines.items() if min(line) <= last}

    @cached_property
    def traffic(self) -> Line:
        """All bytes that had crossed by the end of each round, evaluation left out."""
        each: dict[int, float] = dict.fromkeys(self.curve, 0.0)
        for row in self.ledger:
            if row.kind != "eval":
                each[row.round] = each.get(row.round, 0.0) + row.bytes
        total = 0.0
        found = {}
        for t in sorted(each):
            total += each[t]
            found[t] = total
        if self.ledger:
            self._check("ledger.csv", total, lambda summary: float(summary["bytes"]["total"]))
        return found

    @property
    def rounds_done(self) -> int:
        """The last round in the tables."""
        return max((row.round for row in self.timing), default=max(self.curve, default=0))

    @cached_property
    def job(self) -> SimulatedRun:
        """The run made concrete again, with its data."""
        return reopen(self.folder, trust=self.trust)

    @cached_property
    def judged_by(self) -> Metric | None:
        """The metric that it chose; of a user's own maybe no more than the run says of it."""
        return metric_of(self._files, self.experiment, self.trust) if self.experiment else None

    @cached_property
    def closed(self) -> str | None:
        """Why the run is not made concrete: it would run files that are not known to be the user's
        own, or lacks a function.
        """
        if self.experiment is None:
            return None
        try:
            check(
                self.folder,
                self._files.config.read_text(encoding="utf-8"),
                code_of(self.experiment),
                self.trust,
            )
        except Untrusted as why:
            return str(why)
        if self.judged_by and not self.judged_by.known:
            return (
                f"The metric {self.judged_by.name} was given from Python as a function, which is"
                " not here: gains need it, too."
            )
        return None


def _figures(block: dict[str, Any] | None) -> list[float]:
    """The parties' figures in a summary's block."""
    return [
        figure
        for figure in (block or {"per_party": {}})["per_party"].values()
        if figure is not None
    ]


def _mean(summary: dict[str, Any]) -> float | None:
    """The accuracy; None where the label is a number."""
    mean: float | None = summary["accuracy"]["mean"]
    return mean
