"""Runs as their files tell, while somebody else writes them: every look reads only what is new."""

from __future__ import annotations

import contextlib
import csv
import os
import re
import time
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import fmean
from typing import Any, BinaryIO

from comity.core.ledger import SERVER
from comity.errors import ComityError
from comity.experiments.checkpoint import held
from comity.studies.compare import finished

BLOCK = 1 << 20
LATELY = 10  # rounds that tell how long one takes


class Tail:
    """A table that grows: each look hands on its new whole rows. If it was cut back, all is forgotten and read again."""

    def __init__(self, path: Path, take: Callable[[list[str]], None], forget: Callable[[], None]) -> None:
        self._path, self._take, self._forget = path, take, forget
        self._at, self._last = 0, b""  # how far it was read, and the bytes before: if they are others now, so is the file

    def look(self) -> None:
        """Read on."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._at - len(self._last))
                if file.read(len(self._last)) != self._last:
                    self._begin_again()
                    file.seek(0)
                for lines in self._whole(file):
                    self._hand_on(lines)
        except OSError:
            self._begin_again()

    def _begin_again(self) -> None:
        if self._at:
            self._forget()
        self._at, self._last = 0, b""

    def _whole(self, file: BinaryIO) -> Iterator[bytes]:
        """The new lines in blocks, without a last one that is still being written."""
        rest = b""
        while block := file.read(BLOCK):
            lines, newline, rest = (rest + block).rpartition(b"\n")
            if newline:
                self._at += len(lines) + 1
                self._last = (self._last + lines + newline)[-64:]
                yield lines

    def _hand_on(self, lines: bytes) -> None:
        with contextlib.suppress(csv.Error):
            for row in csv.reader(lines.decode("utf-8", "replace").split("\n")):
                with contextlib.suppress(ValueError, IndexError):  # the heading, or a row that was damaged
                    self._take(row)


class Followed:
    """One run's course. A round is known when timing.csv has it, since that row is written last."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.state = "stopped"
        self.settings: dict[str, Any] = {}
        self.summary: dict[str, Any] | None = None
        self._stamp = 0
        self.bytes: Counter[str] = Counter()
        self.memory = 0
        self._sums: dict[int, tuple[float, int]] = {}
        self._parties: dict[int, dict[str, float]] = {}  # of the last two evaluated rounds only
        self._seconds: dict[int, float] = {}
        self._tables = (
            Tail(folder / "metrics.csv", self._judged, self._forget_judged),
            Tail(folder / "ledger.csv", self._charged, self.bytes.clear),
            Tail(folder / "timing.csv", self._timed, self._seconds.clear),
        )

    def look(self, tables: bool = True) -> None:
        """See what is new; the tables of a finished run only if they are wanted, as its summary tells the end."""
        if not self.settings:
            with contextlib.suppress(OSError, ValueError):
                self.settings = tomllib.loads((self.folder / "config.toml").read_text(encoding="utf-8"))
        running = held(self.folder)  # before the summary: a run that ends between the two is finished, not stopped
        self._look_for_summary()
        self.state = "finished" if self.summary else "running" if running else "stopped"
        if tables or not self.summary:
            for table in self._tables:
                table.look()

    def _look_for_summary(self) -> None:
        try:
            stamp = (self.folder / "summary.json").stat().st_mtime_ns
            if stamp != self._stamp:
                self._stamp, self.summary = stamp, finished(self.folder)
        except (OSError, ComityError):
            self._stamp, self.summary = 0, None

    def _judged(self, row: list[str]) -> None:
        t, party, split, metric, value = int(row[0]), *row[1:4], float(row[4])
        if (split, metric) == ("test", "accuracy") and party != SERVER:
            total, count = self._sums.get(t, (0.0, 0))
            self._sums[t] = total + value, count + 1
            self._parties.setdefault(t, {})[party] = value
            if len(self._parties) > 2:
                del self._parties[min(self._parties)]

    def _forget_judged(self) -> None:
        self._sums.clear()
        self._parties.clear()

    def _charged(self, row: list[str]) -> None:
        self.bytes[row[4]] += int(row[5])

    def _timed(self, row: list[str]) -> None:
        self._seconds[int(row[0])] = sum(float(value) for value in row[1:4])
        self.memory = max(self.memory, int(row[4]))

    @property
    def done(self) -> int:
        """The last round that is over; -1 before the start."""
        return max(self._seconds, default=-1)

    @property
    def rounds(self) -> int:
        """How many there will be; one that ran out of patience ended earlier."""
        return int((self.summary or self.settings).get("rounds", 0))

    @property
    def line(self) -> dict[int, float]:
        """The mean accuracy by evaluated round."""
        return {t: total / count for t, (total, count) in self._sums.items() if t <= self.done}

    @property
    def parties(self) -> dict[str, float]:
        """Everyone's accuracy when it was last evaluated."""
        return self._parties[max(known)] if (known := [t for t in self._parties if t <= self.done]) else {}

    @property
    def seconds_a_round(self) -> float | None:
        """Lately."""
        lately = [self._seconds[t] for t in sorted(self._seconds)[-LATELY:] if t > 0]
        return fmean(lately) if lately else None

    @property
    def left(self) -> float | None:
        """Seconds until the last round is over, if it goes on as it did lately."""
        each = self.seconds_a_round
        if self.state != "running" or each is None:
            return None
        with contextlib.suppress(OSError):
            since = max(0.0, time.time() - (self.folder / "timing.csv").stat().st_mtime)
            return max(0.0, (self.rounds - self.done) * each - min(since, each))
        return None


def is_run(folder: Path) -> bool:
    """Whether a folder is a run's own; its config.toml is written last."""
    return all((folder / name).is_file() for name in ("env.json", "config.toml"))


class Runs:
    """All runs in a folder, or the one that it is; they may come and go."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._known: dict[Path, Followed] = {}

    def look(self) -> list[Followed]:
        """The runs that are there now, in their folders' order; what has changed in them is theirs to look at."""
        self._known = {folder: self._known.get(folder) or Followed(folder) for folder in sorted(self._folders(), key=_order)}
        return list(self._known.values())

    def _folders(self) -> Iterator[Path]:
        for place, inner, _ in os.walk(self.root):
            if is_run(Path(place)):
                yield Path(place)
                inner.clear()
            inner[:] = [name for name in inner if not name.startswith(".")]


def _order(folder: Path) -> list[tuple[int, str]]:
    """seed-2 before seed-10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", str(folder))]
