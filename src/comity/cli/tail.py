"""Runs as their files tell, while somebody else writes them: every look reads only what is new."""

from __future__ import annotations

import contextlib
import math
import os
import re
import time
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

from comity.core.server import Note
from comity.errors import ComityError
from comity.measure.figures import is_figure, mean
from comity.metrics import metrics
from comity.runs.folder import RunFolder
from comity.runs.tables import LEDGER, METRICS, TIMING, Growing, Timing
from comity.wire.ledger import Charge

LATELY = 10  # rounds that tell how long one takes


class Followed:
    """One run's course. A round is known when timing.csv has it, since that row is written last."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.state = "stopped"
        self.settings: dict[str, Any] = {}
        self.summary: dict[str, Any] | None = None
        self.bytes: Counter[str] = Counter()
        self.memory = 0
        self.damaged: list[str] = []
        """The files of a run at rest that are not what it wrote."""
        self._resting = False
        self._files = RunFolder(folder)
        self._summary_written = 0
        self._means: dict[int, float] = {}
        self._figures: dict[int, dict[str, float]] = {}  # of the last two evaluated rounds only
        self._seconds: dict[int, float] = {}
        self._metrics = Growing(METRICS, folder, self._noted, self._forget_figures)
        self._ledger = Growing(LEDGER, folder, self._charged, self.bytes.clear)
        self._timing = Growing(TIMING, folder, self._timed, self._seconds.clear)

    def look(self, tables: bool = True) -> None:
        """See what is new; the tables of a finished run only if they are wanted, as its summary
        tells the end.
        """
        if not self.settings:
            with contextlib.suppress(OSError, ValueError):
                self.settings = tomllib.loads(self._files.config.read_text(encoding="utf-8"))
        running = (
            self._files.is_locked()
        )  # before the summary: a run that ends between the two is finished, not stopped
        self._look_for_summary()
        over = self.summary or self._files.ended  # be its summary readable or not
        self.state = "finished" if over else "running" if running else "stopped"
        self._look_for_damage(resting=not running)
        if tables or not self.summary:
            self._metrics.look()
            self._ledger.look()
            self._timing.look()

    def _look_for_summary(self) -> None:
        try:
            written = self._files.summary.stat().st_mtime_ns
            if written != self._summary_written:
                self._summary_written = written
                self.summary = self._files.read_summary()
        except (OSError, ComityError):
            self._summary_written = 0
            self.summary = None

    def _look_for_damage(self, resting: bool) -> None:
        """Once, when a run has come to rest: all of its files are read for that."""
        if resting and not self._resting:
            self.damaged = self._files.damaged()
        self._resting = resting

    def _noted(self, note: Note) -> None:
        if is_figure(note, metric=self.metric.name):
            self._figures.setdefault(note.round, {})[note.party] = note.value
        if len(self._figures) > 2:
            first = min(self._figures)
            self._means[first] = mean(self._figures.pop(first))

    def _forget_figures(self) -> None:
        self._means.clear()
        self._figures.clear()

    def _charged(self, charge: Charge) -> None:
        self.bytes[charge.kind] += charge.bytes

    def _timed(self, row: Timing) -> None:
        self._seconds[row.round] = row.train + row.evaluate + row.checkpoint
        self.memory = max(self.memory, row.memory)

    @property
    def metric(self) -> metrics.Metric:
        """What the run is judged by."""
        return metrics.METRICS.get(
            str(self.settings.get("metric")), metrics.ACCURACY
        )  # settings of earlier versions name none

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
        """The mean of the chosen metric by evaluated round."""
        means = self._means | {t: mean(figures) for t, figures in self._figures.items()}
        return {t: value for t, value in means.items() if t <= self.done and math.isfinite(value)}

    @property
    def party_figures(self) -> dict[str, float]:
        """Everyone's figure by the chosen metric when it was last evaluated."""
        known = [t for t in self._figures if t <= self.done]
        last = self._figures[max(known)] if known else {}
        return {party: figure for party, figure in last.items() if math.isfinite(figure)}

    @property
    def seconds_a_round(self) -> float | None:
        """The seconds that a round took, on average over the last few."""
        lately = [self._seconds[t] for t in sorted(self._seconds)[-LATELY:] if t > 0]
        return fmean(lately) if lately else None

    @property
    def left(self) -> float | None:
        """Seconds until the last round is over, if it goes on as it did lately."""
        each = self.seconds_a_round
        if self.state != "running" or each is None:
            return None
        with contextlib.suppress(OSError):
            since = max(0.0, time.time() - self._files.timing.stat().st_mtime)
            return max(0.0, (self.rounds - self.done) * each - min(since, each))
        return None


class Runs:
    """All runs in a folder, or the one that it is; they may come and go."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._known: dict[Path, Followed] = {}

    def look(self) -> list[Followed]:
        """The runs that are there now, in their folders' order; what has changed in them is theirs
        to look at.
        """
        self._known = {
            folder: self._known.get(folder) or Followed(folder)
            for folder in sorted(self._folders(), key=_order)
        }
        return list(self._known.values())

    def _folders(self) -> Iterator[Path]:
        for place, inner, _ in os.walk(self.root):
            if RunFolder(Path(place)).begun:
                yield Path(place)
                inner.clear()
            inner[:] = [name for name in inner if not name.startswith(".")]


def _order(folder: Path) -> list[tuple[int, str]]:
    """seed-2 before seed-10."""
    return [
        (int(part), "") if part.isdecimal() else (-1, part)
        for part in re.split(r"(\d+)", str(folder))
    ]
