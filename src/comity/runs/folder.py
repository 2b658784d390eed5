"""A run's folder: which files it has, and how each is written, read and checked.

Readers are strict: they raise an error if a file is missing, damaged or was changed after the run
wrote it. Callers that accept less use `tables.RunTable.salvage`, and `tables.Growing` for runs in
progress; `RunFolder.damaged` lists the files not to rely on.

How changes are detected: env.json, which is written first, has digests of the settings and the
split. Each checkpoint's manifest has checksums of the tables so far. At the end, .checksums.json
gets those of all tables and of summary.json, which is written after it and marks the end of the
run. The other JSON files contain a checksum of themselves.
"""

from __future__ import annotations

import contextlib
import csv
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import torch

from comity.checksums import CRC, UNREADABLE, Checksum, read_json, with_crc, without_crc
from comity.core.participation import Absence
from comity.core.server import Note
from comity.data.split import Split
from comity.errors import ComityError, UsageError
from comity.metrics.evaluation import Answers
from comity.privacy.account import PrivacyCharge
from comity.runs import config
from comity.runs.caveats import add_caveats
from comity.runs.checkpoint import Checkpoints, is_inside
from comity.runs.config import Experiment
from comity.runs.environment import digest
from comity.runs.recording import RecordedMessage, read_messages
from comity.runs.run_warnings import WARNINGS, upgrade_warnings
from comity.runs.tables import (
    ABSENCES,
    LEDGER,
    METRICS,
    PRIVACY,
    TABLES,
    TIMING,
    RunTable,
    Timing,
    Writer,
)
from comity.runs.trust import MARK
from comity.safe_files import (
    NO_LINK,
    check_no_links,
    flush_to_disk,
    open_to_append,
    remove_temporary_files,
    write_atomically,
)
from comity.text import shell_line
from comity.wire.ledger import Charge

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

REQUIRED = (CONFIG, ENVIRONMENT)
"""The files that make a folder a run's folder. Settings alone are not enough."""
TRACES = (CONFIG, METRICS.name, SUMMARY)
"""Files of which one is enough to recognise a run whose other files are lost."""
MESSAGES = "messages/recording"
OLD_MESSAGES = "tape/messages"
"""Where runs of earlier versions record their messages."""
OTHERS = (
    "comparison.json",
    "tensorboard",
    "mlflow.json",
    "wandb",
    "wandb.json",
    "messages",
    "tape",
)
NEVER_OVERWRITTEN = (
    CONFIG,
    *(table.name for table in TABLES),
    OUTCOMES,
    SUMMARY,
    CHECKPOINTS,
    *OTHERS,
)
"""Files and folders that a new run refuses to overwrite."""
REPLACED = {
    *REQUIRED,
    SPLIT,
    PLAN,
    MARK,
    *(table.name for table in TABLES),
    CHECKPOINTS,
    LOCK,
    CHECKSUMS,
}
"""Files and folders of a run without a finished round, which a new run replaces."""


@dataclass(frozen=True)
class RunFolder:
    """The folder of one run."""

    path: Path

    # Whether the folder holds a run.

    @property
    def has_run(self) -> bool:
        """Whether the folder holds a run: in progress, stopped or finished."""
        return self._missing() is None

    @property
    def remains(self) -> bool:
        """Whether the folder holds at least parts of a run. Files may be lost."""
        return any((self.path / name).is_file() for name in TRACES)

    @property
    def is_finished(self) -> bool:
        """Whether the run has finished, even if its summary is damaged."""
        return self.summary.exists()

    @property
    def recorded(self) -> bool:
        """Whether the run records its messages."""
        if not self.environment.is_file():
            return False
        environment = self.read_environment()
        # Earlier versions wrote "tape".
        return bool(environment.get("record_messages", environment.get("tape")))

    def check_begun(self) -> None:
        """Refuse a folder that holds no run, or contains links."""
        if missing := self._missing():
            runs: list[str] = []
            with contextlib.suppress(OSError):  # a name that no file can have
                runs = sorted(str(path.parent) for path in self.path.glob(f"*/seed-*/{CONFIG}"))
            hint = (
                " The runs in it are"
                f" {', '.join(runs[:8])}{' and others' if len(runs) > 8 else ''}: name one of"
                " them."
            )
            raise UsageError(
                f"{self.path} holds no run: it has no {missing}.{hint if runs else ''}"
            )
        check_no_links(self.path)

    @property
    def has_no_round(self) -> bool:
        """Whether the folder holds a run of a simulation without a finished round, and nothing
        else. A new run may replace it.
        """
        if not self.has_run or self.is_finished:
            return False
        try:
            names = {entry.name for entry in self.path.iterdir()}
            tables = {t.name: t.salvage(self.path) for t in TABLES if t.name in names}
            manifest = self.checkpoints().load()
        except (OSError, ComityError):
            return False
        is_damaged = any(table.damaged for table in tables.values())
        has_releases = PRIVACY.name in tables and bool(tables[PRIVACY.name].rows)
        if is_damaged or has_releases or not names <= REPLACED:
            return False
        timed = tables[TIMING.name].rows if TIMING.name in tables else []
        completed = [row.round for row in timed] + ([manifest.round] if manifest else [])
        return max(completed, default=0) < 1

    def clear(self) -> None:
        """Remove a run without a finished round. The folder must be locked."""
        if not self.has_no_round:
            return
        check_no_links(self.path)
        shutil.rmtree(self.path / CHECKPOINTS, ignore_errors=True)
        for name in sorted(REPLACED - {CHECKPOINTS, LOCK}):
            (self.path / name).unlink(missing_ok=True)

    def check_free(self) -> None:
        """Refuse a folder that holds a run with a finished round, or anything that a new run would
        overwrite.
        """
        if self.has_no_round:
            return
        if self.has_run:
            raise UsageError(
                f"{self.path} already holds a run: continue it with"
                f" '{shell_line('comity', 'resume', self.path)}' (in Python resume=True), or choose"
                " another --out."
            )
        if existing := sorted(
            name for name in NEVER_OVERWRITTEN if os.path.lexists(self.path / name)
        ):
            raise UsageError(f"{self.path} already has a {existing[0]}: choose another --out.")

    def _missing(self) -> str | None:
        try:
            return next((name for name in REQUIRED if not (self.path / name).is_file()), None)
        except OSError:  # a name that no file can have
            return REQUIRED[0]

    # Paths.

    @property
    def config(self) -> Path:
        """The settings, with `auto` resolved."""
        return self.path / CONFIG

    @property
    def environment(self) -> Path:
        """Versions and machine, and digests of the settings and the data at the start."""
        return self.path / ENVIRONMENT

    @property
    def split(self) -> Path:
        """Which sample belongs to which party."""
        return self.path / SPLIT

    @property
    def parties(self) -> Path:
        """What sites said of themselves, in a run between sites."""
        return self.path / PARTIES

    @property
    def summary(self) -> Path:
        """The summary, which is written when the run has finished."""
        return self.path / SUMMARY

    @property
    def outcomes(self) -> Path:
        """The predictions for the test samples after the last round, and the labels."""
        return self.path / OUTCOMES

    @property
    def plan(self) -> Path:
        """The table of planned absences, if the run has one."""
        return self.path / PLAN

    @property
    def measures(self) -> Path:
        """The results of `comity measure`."""
        return self.path / MEASURES

    @property
    def messages(self) -> Path:
        """The recorded messages, if the run records them."""
        return self.path / self._messages_name

    @property
    def _messages_name(self) -> str:
        """The file of recorded messages. A run of an earlier version goes on where it began."""
        return OLD_MESSAGES if (self.path / OLD_MESSAGES).exists() else MESSAGES

    @property
    def timing(self) -> Path:
        """The time that rounds took. Its row is the last that a round writes."""
        return self.path / TIMING.name

    # Checks.

    def check(self) -> None:
        """Refuse a run with a lost or changed file."""
        for check in self._checks().values():
            check()

    def damaged(self) -> list[str]:
        """The names of the files that `check` would refuse."""
        names = []
        for name, check in self._checks().items():
            try:
                check()
            except ComityError:
                names.append(name)
        return names

    def _checks(self) -> dict[str, Callable[[], object]]:
        """The check of each file. Files without a checksum are left out."""
        checks: dict[str, Callable[[], object]] = {ENVIRONMENT: self.read_environment}
        with contextlib.suppress(ComityError):
            digested = {
                "config": self.config,
                "split": self.split,
                "parties": self.parties,
                "plan": self.plan,
            }
            keys = digested.keys() & self.read_environment().keys()
            checks |= {
                digested[key].name: partial(self._check_digest, digested[key], key)
                for key in sorted(keys)
            }
        try:
            checksums = self._checksums()
        except ComityError:
            return checks | {CHECKSUMS if self.is_finished else CHECKPOINTS: self._checksums}
        return checks | {name: partial(self._check_file, name) for name in checksums}

    def _checksums(self) -> dict[str, Checksum]:
        """The checksums of tables and outcomes: at the end of the run or, before that, at its last
        checkpoint.
        """
        if self.is_finished:
            return self._final_checksums()
        manifest = self.checkpoints().load()
        return manifest.files if manifest else {}

    def _final_checksums(self) -> dict[str, Checksum]:
        """The checksums of a finished run. Empty for early versions, which wrote neither them nor
        digests of splits.
        """
        path = self.path / CHECKSUMS
        if not path.exists() and not {"split", "parties"} & self.read_environment().keys():
            return {}
        try:
            return {
                name: Checksum(*checksum)
                for name, checksum in _checked(_json(path), "files")["files"].items()
                if is_inside(name)
            }
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as why:
            raise ComityError(
                f"{path} cannot be read: the files of the run cannot be checked."
            ) from why

    def _check_file(self, name: str) -> None:
        if checksum := self._checksums().get(name):
            path = self.path / name
            checksum.check(path) if self.is_finished else checksum.check_beginning(path)

    def _check_digest(self, path: Path, key: str) -> None:
        """Refuse a file whose digest differs from that in env.json."""
        environment = self.read_environment()
        try:
            # While a run is being extended, env.json has the digests of both settings.
            digests = [environment[k] for k in (key, f"{key}_before") if k in environment]
            changed = bool(digests) and digest(path.read_text(encoding="utf-8")) not in digests
        except (OSError, ValueError) as why:
            raise UsageError(f"{path} cannot be read.") from why
        if changed:
            raise UsageError(
                f"{path} has changed since the run was started: start a new run with it instead."
            )

    # Readers.

    def read_experiment(self) -> Experiment:
        """The settings, which must be those that the run was started with."""
        experiment = config.read(self.config)
        self._check_digest(self.config, "config")
        return experiment

    def read_split(self) -> Split:
        """Which sample belongs to which party."""
        split = Split.read(self.split)
        self._check_digest(self.split, "split")
        return split

    def read_parties(self) -> dict[str, Any]:
        """What sites said of themselves, by name."""
        self._check_digest(self.parties, "parties")
        parties: dict[str, Any] = _json(self.parties)
        return parties

    def read_environment(self) -> dict[str, Any]:
        """Versions, machine, and digests of settings, split and data."""
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
        """All rows of absences.csv. Empty if all parties replied, or an early version wrote no such
        table.
        """
        return self._rows(ABSENCES) if self._should_exist(ABSENCES) else []

    def read_privacy(self) -> list[PrivacyCharge]:
        """All rows of privacy.csv. Empty if nothing left a party, or an early version wrote no such
        table.
        """
        return self._rows(PRIVACY) if self._should_exist(PRIVACY) else []

    def read_timing(self) -> list[Timing]:
        """All rows of timing.csv."""
        return self._rows(TIMING)

    def _should_exist(self, table: RunTable[Any]) -> bool:
        """Whether a table that is written only if needed should exist."""
        return (self.path / table.name).exists() or table.name in self._checksums()

    def _rows(self, table: RunTable[R]) -> list[R]:
        self._check_file(table.name)
        return table.read(self.path)

    def read_messages(self) -> Iterator[RecordedMessage]:
        """All recorded messages in order. Raises UsageError if there are none."""
        if not self.recorded:
            raise UsageError(
                f"{self.path} has no recorded messages: start the run with --record-messages (in"
                " Python record_messages=True)."
            )
        self._check_file(self._messages_name)
        return read_messages(self.messages)

    def read_plan(self) -> str | None:
        """The table of planned absences; None if the run has none."""
        if "plan" not in self.read_environment():
            return None
        self._check_digest(self.plan, "plan")
        return self.plan.read_text(encoding="utf-8")

    def read_outcomes(self) -> dict[str, list[int]]:
        """By party: 1 for each test sample that was predicted correctly after the last round, 0 for
        the others.
        """
        if self.outcomes.exists():
            self._check_file(OUTCOMES)
        return self.salvage_outcomes()

    def read_answers(self) -> dict[str, Answers]:
        """By party: its model's predictions for the test samples after the last round."""
        if self.outcomes.exists():
            self._check_file(OUTCOMES)
        return self.salvage_answers()

    def salvage_answers(self) -> dict[str, Answers]:
        """The same if it can be parsed, without checksums."""
        rows = self._outcome_rows()
        if rows and "answer" not in rows[0]:
            raise ComityError(
                f"{self.outcomes} is of an earlier version of Comity, and has no answers to judge"
                " by a metric."
            )
        # Classes are whole numbers; 3.0, 1e-05 and nan are not.
        if rows and set(rows[0]["truth"]) & set(".en"):
            return self._amounts(rows)
        cells: dict[str, list[tuple[int, int, float]]] = {}
        try:
            for row in rows:
                truth, prediction = int(row["truth"]), int(row["answer"])
                if int(row["correct"]) != (truth == prediction) or min(truth, prediction) < 0:
                    raise ValueError
                cells.setdefault(row["party"], []).append(
                    (truth, prediction, float(row.get("score", "nan")))
                )
        except (KeyError, ValueError, TypeError) as why:
            raise self._outcomes_error() from why
        scored = bool(rows) and "score" in rows[0]
        return {party: _answers(values, scored) for party, values in cells.items()}

    def _amounts(self, rows: list[dict[str, str]]) -> dict[str, Answers]:
        """The predictions of regression models."""
        cells: dict[str, list[tuple[float, float]]] = {}
        try:
            for row in rows:
                cells.setdefault(row["party"], []).append(
                    (float(row["truth"]), float(row["answer"]))
                )
        except (KeyError, ValueError, TypeError) as why:
            raise self._outcomes_error() from why
        tensors = {
            party: torch.tensor(pairs, dtype=torch.float32) for party, pairs in cells.items()
        }
        return {party: Answers(pairs[:, 0], pairs[:, 1], None) for party, pairs in tensors.items()}

    def _outcome_rows(self) -> list[dict[str, str]]:
        try:
            with self.outcomes.open(encoding="utf-8", newline="") as file:
                return list(csv.DictReader(file))
        except (OSError, ValueError, csv.Error) as why:
            raise self._outcomes_error() from why

    def _outcomes_error(self) -> ComityError:
        return ComityError(f"{self.outcomes} cannot be read: the run is not finished, or damaged.")

    def salvage_outcomes(self) -> dict[str, list[int]]:
        """The same if it can be parsed, without checksums."""
        outcomes: dict[str, list[int]] = {}
        try:
            for row in self._outcome_rows():
                outcomes.setdefault(row["party"], []).append(int(row["correct"]))
        except (KeyError, ValueError, TypeError) as why:
            raise self._outcomes_error() from why
        return outcomes

    def read_summary(self) -> dict[str, Any] | None:
        """The summary; None while the run is not finished."""
        if not self.is_finished:
            return None
        self._check_file(SUMMARY)
        return self.salvage_summary()

    def salvage_summary(self) -> dict[str, Any]:
        """The summary of a finished run if it can be parsed, without checksums."""
        try:
            summary: dict[str, Any] = _json(self.summary)
            for part in ("accuracy", "bytes", "seconds"):
                summary[part].keys()
            return _with_warnings(summary)
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as why:
            raise ComityError(f"{self.summary} cannot be read: it is damaged.") from why

    def read_measures(self) -> dict[str, Any]:
        """The results of `comity measure`."""
        try:
            return read_json(self.measures)
        except UNREADABLE as why:
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
        """Write the files that a run starts with. The settings are last, so that a folder with
        settings has the others.
        """
        for path, text in ((self.split, split), (self.parties, parties), (self.plan, plan)):
            if text:
                write_atomically(path, text)
        self.write_environment(environment)
        write_atomically(self.config, settings)

    def write_environment(self, entries: Mapping[str, Any]) -> None:
        """Write env.json. While settings are replaced, `config_before` is the digest of the old
        ones.
        """
        write_atomically(self.environment, _lines(with_crc(entries)))

    def replace_settings(self, settings: str) -> None:
        """Replace the settings. At any moment the folder has the earlier ones or these, with their
        digest.
        """
        environment = self.read_environment()
        environment.pop("config_before", None)
        before = digest(self.config.read_text(encoding="utf-8"))
        after = environment | {"config": digest(settings)}
        self.write_environment(after | {"config_before": before})
        write_atomically(self.config, settings)
        self.write_environment(after)

    def tables(self) -> Writer:
        """The writer of the tables, and of recorded messages if the run has them."""
        return Writer(self.path, self._messages_name if self.recorded else "")

    def write_outcomes(self, answers: Mapping[str, Answers]) -> None:
        """Write the parties' predictions for their test samples, with scores for two classes. All
        values read back exactly.
        """
        scored = any(answer.score is not None for answer in answers.values())
        lines = ["party,sample,correct,truth,answer" + ",score" * scored]
        for party, answer in answers.items():
            scores = [""] * len(answer.truth)
            if answer.score is not None:
                scores = [f",{score!s}" for score in answer.score.numpy()]
            truths = [str(value) for value in answer.truth.numpy()]
            predictions = [str(value) for value in answer.given.numpy()]
            rows = zip(answer.right.tolist(), truths, predictions, scores, strict=True)
            lines += [
                f"{party},{k},{int(correct)},{truth},{prediction}{score}"
                for k, (correct, truth, prediction, score) in enumerate(rows)
            ]
        write_atomically(self.outcomes, "\n".join(lines) + "\n")

    def write_summary(self, summary: Mapping[str, Any], files: Mapping[str, Checksum]) -> None:
        """Write the checksums of all files and, last, the summary, which marks the end of the
        run.
        """
        text = _lines(summary)
        for name in files:
            flush_to_disk(self.path / name)
        checksums = {**files, SUMMARY: Checksum.of(text.encode())}
        write_atomically(self.path / CHECKSUMS, _lines(with_crc({"files": checksums})))
        write_atomically(self.summary, text)

    def write_measures(self, measures: Mapping[str, Any]) -> None:
        """Write the results of `comity measure`."""
        write_atomically(self.measures, _lines(with_crc(measures)))

    # Locking.

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the folder, and remove what a killed process left half-written.

        The system releases the lock when the process ends in any way. Processes that it forked
        close their copies of the lock, so that they cannot hold it any longer.
        """
        try:
            import fcntl
        except ImportError:  # this system has no such locks
            yield
            return
        with open_to_append(self.path / LOCK, create=True) as file, _not_inherited(file):
            for attempts_left in reversed(range(5)):
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except OSError as why:
                    if not attempts_left:
                        raise ComityError(f"Another process is running in {self.path}.") from why
                    time.sleep(0.05)  # `is_locked` holds the lock for a moment
            for folder in (self.path, self.path / CHECKPOINTS):
                remove_temporary_files(folder)
            try:
                yield
            finally:
                fcntl.flock(file, fcntl.LOCK_UN)

    def is_locked(self) -> bool:
        """Whether a process is running in the folder."""
        try:
            import fcntl

            with os.fdopen(os.open(self.path / LOCK, os.O_RDONLY | NO_LINK)) as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)  # released at once
        except BlockingIOError:
            return True
        except (ImportError, OSError):
            return False
        return False


_locks: set[BinaryIO] = set()
"""The lock files that this process has open."""


@contextlib.contextmanager
def _not_inherited(lock: BinaryIO) -> Iterator[None]:
    """Let processes that are forked meanwhile close their copy of a lock file."""
    _locks.add(lock)
    try:
        yield
    finally:
        _locks.discard(lock)


def _close_locks() -> None:
    for lock in _locks:
        lock.close()
    _locks.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_locks)


def _json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def _with_warnings(summary: Mapping[str, Any]) -> dict[str, Any]:
    """The summary with its warnings in one list. Earlier versions wrote two lists, without the
    caveats.
    """
    upgraded = upgrade_warnings(summary)
    if WARNINGS not in summary:
        add_caveats(upgraded)
    return upgraded


def _checked(content: Mapping[str, Any], *newest: str) -> dict[str, Any]:
    """The content of a JSON file, if its checksum is right. A file with any of the keys `newest`
    must have a checksum.
    """
    if any(name in content for name in newest) and CRC not in content:
        raise ValueError("the checksum is lost")
    return without_crc(content)


def _answers(rows: list[tuple[int, int, float]], scored: bool) -> Answers:
    truth, predictions, score = zip(*rows, strict=True)
    return Answers(
        torch.tensor(truth),
        torch.tensor(predictions),
        torch.tensor(score, dtype=torch.float32) if scored else None,
    )


def _lines(plain: Mapping[str, Any]) -> str:
    return json.dumps(plain, indent=2) + "\n"
