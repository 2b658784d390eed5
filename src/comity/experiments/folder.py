"""A run's folder: what makes a folder one, the names of its files, and the one way to write and to read each of them.

The readers here are strict: what is missing or damaged is an error. Whoever can do with less reads the tables with
`tables.Table.salvage`, and those of a run that goes on with `tables.Growing`.
"""

from __future__ import annotations

import contextlib
import csv
import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from comity.core.attendance import Absence
from comity.core.ledger import Charge
from comity.core.net import Note
from comity.errors import ComityError, Refusal
from comity.experiments import config
from comity.experiments.checkpoint import Checkpoints, write_atomically
from comity.experiments.config import Experiment
from comity.experiments.tables import ABSENCES, LEDGER, METRICS, TABLES, TIMING, Timing, Writer

CONFIG = "config.toml"
ENVIRONMENT = "env.json"
SPLIT = "split.json"
SUMMARY = "summary.json"
OUTCOMES = "outcomes.csv"
MEASURES = "measures.json"
PLAN = "absent-plan.csv"
CHECKPOINTS = "checkpoints"
LOCK = ".lock"

BEGINNING = (CONFIG, ENVIRONMENT)
"""The files that make a folder a run's: a run has begun when it has both. The settings alone are anybody's."""
MARKS = (CONFIG, METRICS.name, SUMMARY)
"""Files of which one is enough to see that a run was here, should others be lost."""
NEVER_OVERWRITTEN = (CONFIG, *(table.name for table in TABLES), OUTCOMES, SUMMARY, CHECKPOINTS, "tensorboard", "mlflow.json")
"""What a new run may not find in its folder."""


@dataclass(frozen=True)
class RunFolder:
    """The folder of one run."""

    path: Path

    # What makes a folder a run's.

    @property
    def begun(self) -> bool:
        """Whether a run has begun here, be it going on, stopped or finished."""
        return self._missing() is None

    @property
    def remains(self) -> bool:
        """Whether at least something of a run is here; files may be lost."""
        return any((self.path / name).is_file() for name in MARKS)

    @property
    def ended(self) -> bool:
        """Whether the run came to its end, be its summary readable or not."""
        return self.summary.exists()

    def check_begun(self) -> None:
        """Refuse a folder that holds no run."""
        if missing := self._missing():
            raise Refusal(f"{self.path} holds no run: it has no {missing}.")

    def check_free(self) -> None:
        """Refuse a folder that holds a run, or anything that a new run would overwrite."""
        if self.begun:
            raise Refusal(
                f"{self.path} already holds a run: continue it with 'comity resume {self.path}', or choose another --out."
            )
        if taken := sorted(name for name in NEVER_OVERWRITTEN if (self.path / name).exists()):
            raise Refusal(f"{self.path} already has a {taken[0]}: choose another --out.")

    def _missing(self) -> str | None:
        try:
            return next((name for name in BEGINNING if not (self.path / name).is_file()), None)
        except OSError:  # a name that no file can have
            return BEGINNING[0]

    # Where its files are.

    @property
    def config(self) -> Path:
        """The settings, all resolved."""
        return self.path / CONFIG

    @property
    def environment(self) -> Path:
        """Versions and machine, and what the settings and the data were when the run began."""
        return self.path / ENVIRONMENT

    @property
    def split(self) -> Path:
        """Which sample went to which party."""
        return self.path / SPLIT

    @property
    def summary(self) -> Path:
        """The run in a few figures, written when it has ended."""
        return self.path / SUMMARY

    @property
    def outcomes(self) -> Path:
        """Which test samples were right after the last round."""
        return self.path / OUTCOMES

    @property
    def plan(self) -> Path:
        """The table of planned absences, if the run has one."""
        return self.path / PLAN

    @property
    def measures(self) -> Path:
        """What `comity measure` found."""
        return self.path / MEASURES

    @property
    def timing(self) -> Path:
        """What rounds took; its rows are the last that a round writes."""
        return self.path / TIMING.name

    # Readers.

    def read_experiment(self) -> Experiment:
        """The settings."""
        return config.read(self.config)

    def read_environment(self) -> dict[str, Any]:
        """Versions, machine, and the marks of settings and data."""
        try:
            return dict(_json(self.environment))
        except (OSError, ValueError, TypeError) as why:
            raise ComityError(f"{self.environment} cannot be read.") from why

    def read_metrics(self) -> list[Note]:
        """All rows of metrics.csv."""
        return METRICS.read(self.path)

    def read_ledger(self) -> list[Charge]:
        """All rows of ledger.csv."""
        return LEDGER.read(self.path)

    def read_absences(self) -> list[Absence]:
        """All rows of absences.csv."""
        return ABSENCES.read(self.path)

    def read_timing(self) -> list[Timing]:
        """All rows of timing.csv."""
        return TIMING.read(self.path)

    def read_plan(self) -> str | None:
        """The table of planned absences, if the run has one."""
        return self.plan.read_text(encoding="utf-8") if self.plan.exists() else None

    def read_outcomes(self) -> dict[str, list[int]]:
        """By party: 1 for each of its test samples that was right after the last round, 0 for the others."""
        found: dict[str, list[int]] = {}
        try:
            with self.outcomes.open(encoding="utf-8", newline="") as file:
                for row in csv.DictReader(file):
                    found.setdefault(row["party"], []).append(int(row["correct"]))
        except (OSError, KeyError, ValueError, TypeError, csv.Error) as why:
            raise ComityError(f"{self.outcomes} cannot be read: the run is not finished, or damaged.") from why
        return found

    def read_summary(self) -> dict[str, Any] | None:
        """The summary; None while the run is not finished."""
        try:
            summary: dict[str, Any] = _json(self.summary)
            for part in ("accuracy", "bytes", "seconds"):
                summary[part].keys()
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as why:
            raise ComityError(f"{self.summary} cannot be read: it is damaged.") from why
        return summary

    def read_measures(self) -> dict[str, Any]:
        """What `comity measure` found."""
        return dict(_json(self.measures))

    def checkpoints(self) -> Checkpoints:
        """The states of server and parties."""
        return Checkpoints(self.path / CHECKPOINTS)

    # Writers.

    def begin(self, settings: str, split: str, environment: Mapping[str, Any], plan: str = "") -> None:
        """Write what a run begins with; the settings last, so that whoever sees them sees the rest."""
        write_atomically(self.split, split)
        if plan:
            write_atomically(self.plan, plan)
        write_atomically(self.environment, _lines(environment))
        write_atomically(self.config, settings)

    def tables(self) -> Writer:
        """The tables, to be begun or continued."""
        return Writer(self.path)

    def write_outcomes(self, right: Mapping[str, list[bool]]) -> None:
        """Write down which test samples were right, by party."""
        lines = ["party,sample,correct"]
        for party, each in right.items():
            lines += [f"{party},{k},{int(ok)}" for k, ok in enumerate(each)]
        write_atomically(self.outcomes, "\n".join(lines) + "\n")

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Write the summary, which says that the run has ended."""
        write_atomically(self.summary, _lines(summary))

    def write_measures(self, measures: Mapping[str, Any]) -> None:
        """Write what `comity measure` found."""
        write_atomically(self.measures, _lines(measures))

    # Who is at work in it.

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder; the system lets go of it when the process ends, however it ends."""
        try:
            import fcntl
        except ImportError:  # no such lock on this system
            yield
            return
        with (self.path / LOCK).open("a") as file:
            for left in reversed(range(5)):
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except OSError as why:
                    if not left:
                        raise ComityError(f"Another process is running in {self.path}.") from why
                    time.sleep(0.05)  # somebody may only be looking whether it is held
            yield

    def held(self) -> bool:
        """Whether a process is running in it."""
        try:
            import fcntl

            with (self.path / LOCK).open() as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)  # let go of at once
        except BlockingIOError:
            return True
        except (ImportError, OSError):
            return False
        return False


def _json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def _lines(plain: Mapping[str, Any]) -> str:
    return json.dumps(plain, indent=2) + "\n"
