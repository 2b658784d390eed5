"""All runs in a folder, as far as they can be read: what is missing or damaged becomes a sentence, never an exception."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from comity.config import Experiment, read
from comity.core.net import Charge, Note
from comity.errors import ComityError, Refusal, describe
from comity.job import Job
from comity.measure.conventions import Line, curve, party_curves
from comity.measure.gain import outcomes

SOLO = "solo"
ASIDE = {"leave-one-out", "exported", "checkpoints", "tape", "tensorboard"}
"""Folders whose runs, if any, are no methods of their own."""
T = TypeVar("T")


@dataclass
class Run:
    """One run's folder; its files are read when they are asked for, and once."""

    folder: Path
    method: str
    problems: list[str] = field(default_factory=list)

    def _try(self, what: str, reading: Callable[[], T], otherwise: T) -> T:
        try:
            return reading()
        except FileNotFoundError:
            self._complain(f"{what} is missing")
        except (OSError, ValueError, KeyError, TypeError, IndexError, StopIteration, ComityError):
            self._complain(f"{what} is damaged")
        return otherwise

    def _complain(self, sentence: str) -> None:
        if sentence not in self.problems:
            self.problems.append(sentence)

    @cached_property
    def experiment(self) -> Experiment | None:
        """The resolved configuration."""
        return self._try("config.toml", lambda: read(self.folder / "config.toml"), None)

    @property
    def seed(self) -> int:
        """The run's seed; its folder may be called after it."""
        named = re.fullmatch(r"seed-(\d+)", self.folder.name)
        return self.experiment.seed if self.experiment else int(named[1]) if named else 0

    @cached_property
    def summary(self) -> dict[str, Any] | None:
        """The summary; None while the run is not finished."""
        if not (self.folder / "summary.json").exists():
            return None
        found: dict[str, Any] | None = self._try("summary.json", lambda: _json(self.folder / "summary.json"), None)
        if found is not None and not {"accuracy", "bytes", "seconds"} <= found.keys():
            self._complain("summary.json is damaged")
            return None
        return found

    @cached_property
    def metrics(self) -> list[Note]:
        """Rows of metrics.csv."""
        return self._rows("metrics.csv", lambda r: Note(int(r[0]), r[1], r[2], r[3], float(r[4])))

    @cached_property
    def ledger(self) -> list[Charge]:
        """Rows of ledger.csv."""
        return self._rows("ledger.csv", lambda r: Charge(int(r[0]), r[1], r[2], r[3], r[4], int(r[5])))

    @cached_property
    def timing(self) -> list[tuple[float, ...]]:
        """Rows of timing.csv: round, seconds of training, evaluation and checkpoint, and bytes of memory."""
        return self._rows("timing.csv", lambda r: tuple(map(float, r)))

    def _rows(self, name: str, parse: Callable[[list[str]], T]) -> list[T]:
        """A table's rows. The last may be half written, while a run goes on; any other that does not parse is damage."""
        found: list[T] = []

        def reading() -> None:
            with (self.folder / name).open(encoding="utf-8", newline="") as file:
                rows = csv.reader(file)
                width = len(next(rows))
                for row in rows:
                    if len(row) != width and next(rows, None) is None:
                        break
                    found.append(parse(row))

        self._try(name, reading, None)
        return found

    @cached_property
    def outcomes(self) -> dict[str, list[int]]:
        """Which test samples were right after the last round, by party."""
        return self._try("outcomes.csv", lambda: outcomes(self.folder), {}) if self.summary else {}

    @cached_property
    def split(self) -> dict[str, dict[str, list[int]]]:
        """Which samples each party has, by part."""
        return self._try("split.json", lambda: dict(_json(self.folder / "split.json")["parties"]), {})

    @cached_property
    def environment(self) -> dict[str, Any]:
        """Versions and machine."""
        return self._try("env.json", lambda: dict(_json(self.folder / "env.json")), {})

    @cached_property
    def measures(self) -> dict[str, Any] | None:
        """What `comity measure` found, if it was asked."""
        if not (self.folder / "measures.json").exists():
            return None
        return self._try("measures.json", lambda: dict(_json(self.folder / "measures.json")), None)

    @cached_property
    def curve(self) -> Line:
        """Mean test accuracy over parties, by round."""
        return curve(self.metrics)

    @cached_property
    def parties(self) -> dict[str, Line]:
        """Each party's test accuracy, by round; newcomers, who join after the last, are left out."""
        lines = party_curves(self.metrics)
        last = max(self.curve, default=0)
        return {party: line for party, line in lines.items() if min(line) <= last}

    @cached_property
    def traffic(self) -> Line:
        """All bytes that had crossed by the end of each round, evaluation left out."""
        each: dict[int, float] = dict.fromkeys(self.curve, 0.0)
        for row in self.ledger:
            if row.kind != "eval":
                each[row.round] = each.get(row.round, 0.0) + row.bytes
        total, found = 0.0, {}
        for t in sorted(each):
            total += each[t]
            found[t] = total
        return found

    @property
    def rounds_done(self) -> int:
        """The last round in the tables."""
        return max((int(row[0]) for row in self.timing), default=max(self.curve, default=0))

    @cached_property
    def job(self) -> Job:
        """The run made concrete again, with its data."""
        from comity.run import reopen

        return reopen(self.folder)


@dataclass
class Method:
    """One method's runs, a seed each."""

    name: str
    runs: list[Run]

    @property
    def finished(self) -> list[Run]:
        """Those that came to their end."""
        return [run for run in self.runs if run.summary]

    def over_seeds(self, what: Callable[[dict[str, Any]], float]) -> list[float]:
        """A figure of each finished run's summary."""
        return [what(run.summary) for run in self.runs if run.summary]


@dataclass(eq=False)
class Group:
    """Methods that were run on the same data."""

    name: str
    methods: list[Method]

    @property
    def runs(self) -> list[Run]:
        """All runs."""
        return [run for method in self.methods for run in method.runs]

    @property
    def solo(self) -> Method | None:
        """Training alone, if it was run."""
        return next((m for m in self.methods if m.name == SOLO), None)

    @property
    def others(self) -> list[Method]:
        """All but training alone."""
        return [m for m in self.methods if m.name != SOLO]

    @cached_property
    def same_parties(self) -> bool:
        """Whether a party has the same samples under every seed; if not, its name is all it has in common with itself."""
        splits = {run.seed: run.split for run in self.runs}.values()
        first = next(iter(splits), {})
        return all({n: _all(p) for n, p in split.items()} == {n: _all(p) for n, p in first.items()} for split in splits)

    def comparable(self, method: Method) -> list[Run]:
        """A method's finished runs that may be averaged party by party."""
        return method.finished if self.same_parties else method.finished[:1]

    def alone(self, run: Run) -> Run | None:
        """The finished SOLO run on the same split."""
        return next((r for r in self.solo.finished if r.seed == run.seed), None) if self.solo else None

    @property
    def experiment(self) -> Experiment | None:
        """Some run's configuration: they share all but the method."""
        return next((run.experiment for run in self.runs if run.experiment), None)

    @property
    def title(self) -> str:
        """The setting in a line."""
        e = self.experiment
        if e is None:
            return self.name or "unknown data"
        return f"{e.data}, {e.partition}, {e.parties} parties, {e.model}, {e.rounds} rounds"


def gather(folder: Path) -> list[Group]:
    """The runs in a folder, grouped by what they were run on; methods in the order of their first run's start."""
    if not folder.is_dir():
        raise Refusal(f"{folder} is no folder.")
    found: dict[str, dict[str, list[Run]]] = {}
    for path in sorted(_run_folders(folder), key=_started):
        group, run = _placed(folder, path)
        found.setdefault(group, {}).setdefault(run.method, []).append(run)
    if not found:
        raise Refusal(f"{folder} holds no runs: no folder in it has a config.toml.")
    groups = []
    for name, methods in sorted(found.items()):
        made = [Method(method, sorted(runs, key=lambda r: r.seed)) for method, runs in methods.items()]
        groups.append(Group(name, sorted(made, key=lambda m: m.name != SOLO)))
    return groups


def _run_folders(folder: Path) -> Iterator[Path]:
    if (folder / "config.toml").is_file():
        yield folder
        return
    for inner in sorted(folder.iterdir()):
        if inner.is_dir() and inner.name not in ASIDE and not inner.is_symlink():
            yield from _run_folders(inner)


def _started(path: Path) -> float:
    try:
        return (path / "config.toml").stat().st_mtime
    except OSError:
        return 0.0


def _placed(root: Path, path: Path) -> tuple[str, Run]:
    """A run's group and name: by its folders where they follow `compare` or `reproduce`, otherwise by its configuration."""
    inside = path.relative_to(root).parts
    if len(inside) > 1 and re.fullmatch(r"seed-\d+", inside[-1]):
        return "/".join(inside[:-2]), Run(path, inside[-2])
    run = Run(path, path.name)
    if run.experiment:
        run.method = run.experiment.algorithm
        e = run.experiment
        own = [] if path == root else [f"{e.data}, {e.partition}, {e.parties} parties, {e.model}, {e.rounds} rounds"]
        return "/".join([*inside[:-1], *own]), run
    return "/".join(inside[:-1]), run


def _all(parts: dict[str, list[int]]) -> frozenset[int]:
    return frozenset(sample for part in parts.values() for sample in part or ())


def _json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def why_not(why: Exception) -> str:
    """A reason for a reader of the page."""
    return describe(why)


__all__ = ["SOLO", "Group", "Method", "Run", "gather", "why_not"]
