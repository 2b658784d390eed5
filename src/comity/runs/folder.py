"""A run's folder: what makes a folder one, the names of its files, and the one way to write and to
read each of them.

The readers here are strict: what is missing, damaged, or no longer what the run wrote is an error.
Whoever can do with less reads the tables with `tables.Table.salvage`, and those of a run that goes
on with `tables.Growing`; `RunFolder.damaged` tells him what not to trust.

How a change is noticed: env.json, written first, has marks of the settings and the split; each
checkpoint's manifest has checksums of the tables up to there; at the end .checksums.json gets those
of all tables and of summary.json, which is written after it, as it says that the run has ended. The
other files of JSON have a checksum of themselves.
"""

from __future__ import annotations

import contextlib
import csv
import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch

from comity.checksums import CRC, Checksum, with_crc, without_crc
from comity.metrics.evaluation import Answers
from comity.wire.ledger import Charge
from comity.core.participation import Absence
from comity.core.server import Note
from comity.data.split import Split
from comity.errors import ComityError, UsageError
from comity.runs import config
from comity.runs.checkpoint import Checkpoints, to_disk, write_atomically
from comity.runs.config import Experiment
from comity.runs.environment import digest
from comity.runs.recording import RecordedMessage, read_messages
from comity.runs.tables import (
    ABSENCES,
    LEDGER,
    METRICS,
    PRIVACY,
    TABLES,
    TIMING,
    Table,
    Timing,
    Writer,
)
from comity.privacy.account import PrivacyCharge

R = TypeVar("R")
CONFIG = "config.toml"
ENVIRONMENT = "env.json"
SPLIT = "split.json"
PARTIES = "parties.json"
SUMMARY = "summary.json"
OUTCOMES = "outcomes.csv"
MEASURES = "measures.json"
PLAN = "absent-plan.csv"
CHECKPOINTS = "checkpoints"
LOCK = ".lock"
CHECKSUMS = ".checksums.json"

BEGINNING = (CONFIG, ENVIRONMENT)
"""The files that make a folder a run's: a run has begun when it has both. The settings alone are
anybody's.
"""
MARKS = (CONFIG, METRICS.name, SUMMARY)
"""Files of which one is enough to see that a run was here, should others be lost."""
MESSAGES = "tape/messages"
OTHERS = ("comparison.json", "tensorboard", "mlflow.json", "record_messages")
NEVER_OVERWRITTEN = (
    CONFIG,
    *(table.name for table in TABLES),
    OUTCOMES,
    SUMMARY,
    CHECKPOINTS,
    *OTHERS,
)
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

    @property
    def recorded(self) -> bool:
        """Whether the run keeps its messages."""
        return self.environment.is_file() and bool(self.read_environment().get("record_messages"))

    def check_begun(self) -> None:
        """Refuse a folder that holds no run."""
        if missing := self._missing():
            inside: list[str] = []
            with contextlib.suppress(OSError):  # a name that no file can have
                inside = sorted(str(found.parent) for found in self.path.glob(f"*/seed-*/{CONFIG}"))
            more = (
                " The runs in it are"
                f" {', '.join(inside[:8])}{' and others' if len(inside) > 8 else ''}: name one of"
                " them."
            )
            raise UsageError(
                f"{self.path} holds no run: it has no {missing}.{more if inside else ''}"
            )

    def check_free(self) -> None:
        """Refuse a folder that holds a run, or anything that a new run would overwrite."""
        if self.begun:
            raise UsageError(
                f"{self.path} already holds a run: continue it with 'comity resume {self.path}' (in"
                " Python resume=True), or choose another --out."
            )
        if taken := sorted(name for name in NEVER_OVERWRITTEN if (self.path / name).exists()):
            raise UsageError(f"{self.path} already has a {taken[0]}: choose another --out.")

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
    def parties(self) -> Path:
        """What sites said of themselves, where the data are elsewhere."""
        return self.path / PARTIES

    @property
    def summary(self) -> Path:
        """The run in a few figures, written when it has ended."""
        return self.path / SUMMARY

    @property
    def outcomes(self) -> Path:
        """What models said of the test samples after the last round, and what was right."""
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
    def record_messages(self) -> Path:
        """The messages that the server saw, if they are kept."""
        return self.path / MESSAGES

    @property
    def timing(self) -> Path:
        """What rounds took; its rows are the last that a round writes."""
        return self.path / TIMING.name

    # Whether its files are what was written.

    def check(self) -> None:
        """Refuse a run of which a file is lost or is not what was written, whether it is going to
        be read or not.
        """
        for check in self._checks().values():
            check()

    def damaged(self) -> list[str]:
        """The names of the files that `check` would refuse."""
        found = []
        for name, check in self._checks().items():
            try:
                check()
            except ComityError:
                found.append(name)
        return found

    def _checks(self) -> dict[str, Callable[[], object]]:
        """How each file is checked; those that nothing is known of are left out."""
        checks: dict[str, Callable[[], object]] = {ENVIRONMENT: self.read_environment}
        with contextlib.suppress(ComityError):
            marked = {
                "config": self.config,
                "split": self.split,
                "parties": self.parties,
                "plan": self.plan,
            }
            marks = marked.keys() & self.read_environment().keys()
            checks |= {
                marked[mark].name: partial(self._check_digest, marked[mark], mark)
                for mark in sorted(marks)
            }
        try:
            known = self._known()
        except ComityError:
            return checks | {CHECKSUMS if self.ended else CHECKPOINTS: self._known}
        return checks | {name: partial(self._check_file, name) for name in known}

    def _known(self) -> dict[str, Checksum]:
        """The checksums of tables and outcomes: those at the run's end or, before that, of its last
        checkpoint.
        """
        if self.ended:
            return self._at_the_end()
        manifest = self.checkpoints().load()
        return manifest.files if manifest else {}

    def _at_the_end(self) -> dict[str, Checksum]:
        """The checksums of a finished run's files; none if it is of a version that had none, which
        marked no splits either.
        """
        path = self.path / CHECKSUMS
        if not path.exists() and not {"split", "parties"} & self.read_environment().keys():
            return {}
        try:
            return {
                name: Checksum(*known)
                for name, known in _checked(_json(path), "files")["files"].items()
            }
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as why:
            raise ComityError(
                f"{path} cannot be read: whether the run is what was written cannot be checked."
            ) from why

    def _check_file(self, name: str) -> None:
        if known := self._known().get(name):
            known.check(self.path / name) if self.ended else known.check_beginning(self.path / name)

    def _check_digest(self, path: Path, mark: str) -> None:
        """Refuse a file that is not the one of which the run's beginning has a mark."""
        told = self.read_environment()
        try:
            known = [told[key] for key in (mark, f"{mark}_before") if key in told]
            changed = bool(known) and digest(path.read_text(encoding="utf-8")) not in known
        except (OSError, ValueError) as why:
            raise UsageError(f"{path} cannot be read.") from why
        if changed:
            raise UsageError(
                f"{path} has changed since the run was started: start a new run with it instead."
            )

    # Readers.

    def read_experiment(self) -> Experiment:
        """The settings, which must be those that the run was started with."""
        made = config.read(self.config)
        self._check_digest(self.config, "config")
        return made

    def read_split(self) -> Split:
        """Which sample went to which party."""
        made = Split.read(self.split)
        self._check_digest(self.split, "split")
        return made

    def read_parties(self) -> dict[str, Any]:
        """What sites said of themselves, by name."""
        self._check_digest(self.parties, "parties")
        told: dict[str, Any] = _json(self.parties)
        return told

    def read_environment(self) -> dict[str, Any]:
        """Versions, machine, and the marks of settings, split and data."""
        try:
            return _checked(_json(self.environment), "split", "parties")
        except (OSError, ValueError, TypeError, AttributeError, RecursionError) as why:
            raise ComityError(f"{self.environment} cannot be read.") from why

    def read_metrics(self) -> list[Note]:
        """All rows of metrics.csv."""
        return self._rows(METRICS)

    def read_ledger(self) -> list[Charge]:
        """All rows of ledger.csv."""
        return self._rows(LEDGER)

    def read_absences(self) -> list[Absence]:
        """All rows of absences.csv; none if everybody was heard, or if the run is of a version that
        had no such table.
        """
        return self._rows(ABSENCES) if self._written(ABSENCES) else []

    def read_privacy(self) -> list[PrivacyCharge]:
        """All rows of privacy.csv; none if nothing left a party, or if the run is of a version that
        had no such table.
        """
        return self._rows(PRIVACY) if self._written(PRIVACY) else []

    def read_timing(self) -> list[Timing]:
        """All rows of timing.csv."""
        return self._rows(TIMING)

    def _written(self, table: Table[Any]) -> bool:
        """Whether a table that is not always there should be."""
        return (self.path / table.name).exists() or table.name in self._known()

    def _rows(self, table: Table[R]) -> list[R]:
        self._check_file(table.name)
        return table.read(self.path)

    def read_messages(self) -> Iterator[RecordedMessage]:
        """All messages in their order, if they were kept and are what was written."""
        if not self.recorded:
            raise UsageError(
                f"{self.path} has no tape: messages are kept by runs with --record-messages (in"
                " Python record_messages=True)."
            )
        self._check_file(MESSAGES)
        return read_messages(self.record_messages)

    def read_plan(self) -> str | None:
        """The table of planned absences, if the run has one."""
        if "plan" not in self.read_environment():
            return None
        self._check_digest(self.plan, "plan")
        return self.plan.read_text(encoding="utf-8")

    def read_outcomes(self) -> dict[str, list[int]]:
        """By party: 1 for each of its test samples that was right after the last round, 0 for the
        others.
        """
        if self.outcomes.exists():
            self._check_file(OUTCOMES)
        return self.salvage_outcomes()

    def read_answers(self) -> dict[str, Answers]:
        """By party: what its model said of its test samples after the last round."""
        if self.outcomes.exists():
            self._check_file(OUTCOMES)
        return self.salvage_answers()

    def salvage_answers(self) -> dict[str, Answers]:
        """The same, if it makes sense, be it what the run wrote or not."""
        rows = self._outcome_rows()
        if rows and "answer" not in rows[0]:
            raise ComityError(
                f"{self.outcomes} is of an earlier version of Comity, and has no answers to judge"
                " by a metric."
            )
        if rows and set(rows[0]["truth"]) & set(
            ".en"
        ):  # 3.0, 1e-05, nan: no classes, which are whole numbers
            return self._amounts(rows)
        cells: dict[str, list[tuple[int, int, float]]] = {}
        try:
            for row in rows:
                truth, given = int(row["truth"]), int(row["answer"])
                if int(row["correct"]) != (truth == given) or min(truth, given) < 0:
                    raise ValueError
                cells.setdefault(row["party"], []).append(
                    (truth, given, float(row.get("score", "nan")))
                )
        except (KeyError, ValueError, TypeError) as why:
            raise self._no_outcomes() from why
        scored = bool(rows) and "score" in rows[0]
        return {party: _answers(each, scored) for party, each in cells.items()}

    def _amounts(self, rows: list[dict[str, str]]) -> dict[str, Answers]:
        """The answers of models that predict numbers."""
        cells: dict[str, list[tuple[float, float]]] = {}
        try:
            for row in rows:
                cells.setdefault(row["party"], []).append(
                    (float(row["truth"]), float(row["answer"]))
                )
        except (KeyError, ValueError, TypeError) as why:
            raise self._no_outcomes() from why
        made = {party: torch.tensor(pairs, dtype=torch.float32) for party, pairs in cells.items()}
        return {party: Answers(pairs[:, 0], pairs[:, 1], None) for party, pairs in made.items()}

    def _outcome_rows(self) -> list[dict[str, str]]:
        try:
            with self.outcomes.open(encoding="utf-8", newline="") as file:
                return list(csv.DictReader(file))
        except (OSError, ValueError, csv.Error) as why:
            raise self._no_outcomes() from why

    def _no_outcomes(self) -> ComityError:
        return ComityError(f"{self.outcomes} cannot be read: the run is not finished, or damaged.")

    def salvage_outcomes(self) -> dict[str, list[int]]:
        """The same, if it makes sense, be it what the run wrote or not."""
        found: dict[str, list[int]] = {}
        try:
            for row in self._outcome_rows():
                found.setdefault(row["party"], []).append(int(row["correct"]))
        except (KeyError, ValueError, TypeError) as why:
            raise self._no_outcomes() from why
        return found

    def read_summary(self) -> dict[str, Any] | None:
        """The summary; None while the run is not finished."""
        if not self.ended:
            return None
        self._check_file(SUMMARY)
        return self.salvage_summary()

    def salvage_summary(self) -> dict[str, Any]:
        """The summary of a finished run, if it makes sense, be it what the run wrote or not."""
        try:
            summary: dict[str, Any] = _json(self.summary)
            for part in ("accuracy", "bytes", "seconds"):
                summary[part].keys()
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as why:
            raise ComityError(f"{self.summary} cannot be read: it is damaged.") from why
        return summary

    def read_measures(self) -> dict[str, Any]:
        """What `comity measure` found."""
        try:
            return without_crc(_json(self.measures))
        except (OSError, ValueError, TypeError, AttributeError, RecursionError) as why:
            raise ComityError(f"{self.measures} cannot be read: it is damaged.") from why

    def checkpoints(self) -> Checkpoints:
        """The states of server and parties."""
        return Checkpoints(self.path / CHECKPOINTS)

    # Writers.

    def begin(
        self,
        settings: str,
        environment: Mapping[str, Any],
        *,
        split: str = "",
        parties: str = "",
        plan: str = "",
    ) -> None:
        """Write what a run begins with; the settings last, so that whoever sees them sees the rest."""
        for path, text in ((self.split, split), (self.parties, parties), (self.plan, plan)):
            if text:
                write_atomically(path, text)
        self.write_environment(environment)
        write_atomically(self.config, settings)

    def write_environment(self, told: Mapping[str, Any]) -> None:
        """Write down versions, machine, and marks; `config_before` is that of settings which may be
        there instead.
        """
        write_atomically(self.environment, _lines(with_crc(told)))

    def tables(self) -> Writer:
        """The tables, to be begun or continued, and the tape if the run has one."""
        return Writer(self.path, MESSAGES if self.recorded else "")

    def write_outcomes(self, answers: Mapping[str, Answers]) -> None:
        """Write down what parties' models say of their test samples; for two classes with scores,
        which read back exactly.
        """
        scored = any(each.score is not None for each in answers.values())
        lines = ["party,sample,correct,truth,answer" + ",score" * scored]
        for party, each in answers.items():
            scores = (
                [f",{score!s}" for score in each.score.numpy()]
                if each.score is not None
                else [""] * len(each.truth)
            )
            said = [
                [str(value) for value in part.numpy()] for part in (each.truth, each.given)
            ]  # which read back exactly
            rows = zip(each.right.tolist(), *said, scores, strict=True)
            lines += [
                f"{party},{k},{int(ok)},{truth},{given}{score}"
                for k, (ok, truth, given, score) in enumerate(rows)
            ]
        write_atomically(self.outcomes, "\n".join(lines) + "\n")

    def write_summary(self, summary: Mapping[str, Any], files: Mapping[str, Checksum]) -> None:
        """Write the checksums of all files at the end and, last, the summary, which says that the
        run has ended.
        """
        text = _lines(summary)
        for name in files:
            to_disk(self.path / name)
        known = {**files, SUMMARY: Checksum.of(text.encode())}
        write_atomically(self.path / CHECKSUMS, _lines(with_crc({"files": known})))
        write_atomically(self.summary, text)

    def write_measures(self, measures: Mapping[str, Any]) -> None:
        """Write what `comity measure` found."""
        write_atomically(self.measures, _lines(with_crc(measures)))

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


def _checked(told: Mapping[str, Any], *newest: str) -> dict[str, Any]:
    """What a file says, if its checksum is right; one that has what earlier versions had not must
    have a checksum, too.
    """
    if any(name in told for name in newest) and CRC not in told:
        raise ValueError("the checksum is lost")
    return without_crc(told)


def _answers(rows: list[tuple[int, int, float]], scored: bool) -> Answers:
    truth, given, score = zip(*rows, strict=True)
    return Answers(
        torch.tensor(truth),
        torch.tensor(given),
        torch.tensor(score, dtype=torch.float32) if scored else None,
    )


def _lines(plain: Mapping[str, Any]) -> str:
    return json.dumps(plain, indent=2) + "\n"
