"""Follows runs by reading their files while other processes write them.

Every update reads only what is new.
"""

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
from comity.metrics import metrics
from comity.runs.figures import is_figure, mean
from comity.runs.folder import RunFolder
from comity.runs.tables import LEDGER, METRICS, TIMING, Growing, Timing
from comity.wire.ledger import Charge

RECENT_ROUNDS = 10  # rounds from which the time per round is estimated


class RunMonitor:
    """The progress of one run. A round is complete when timing.csv has it: that is written last."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.state = "stopped"
        self.settings: dict[str, Any] = {}
        self.summary: dict[str, Any] | None = None
        self.bytes: Counter[str] = Counter()
        self.memory = 0
        self.damaged: list[str] = []
        """The files that differ from what the run wrote; checked while it is not running."""
        self._damage_checked = False
        self._files = RunFolder(folder)
        self._summary_written = 0
        self._means: dict[int, float] = {}
        self._figures: dict[int, dict[str, float]] = {}  # only of the last two evaluated rounds
        self._seconds: dict[int, float] = {}
        self._metrics = Growing(METRICS, folder, self._add_figure, self._clear_figures)
        self._ledger = Growing(LEDGER, folder, self._add_bytes, self.bytes.clear)
        self._timing = Growing(TIMING, folder, self._add_timing, self._seconds.clear)

    def update(self, tables: bool = True) -> None:
        """Read what is new.

        Args:
            tables: also read the tables of a finished run; its summary has the final figures
        """
        if not self.settings:
            with contextlib.suppress(OSError, ValueError):
                self.settings = tomllib.loads(self._files.config.read_text(encoding="utf-8"))
        # Before the summary: a run that ends between the two is finished, not stopped.
        running = self._files.is_locked()
        self._update_summary()
        has_ended = self.summary or self._files.is_finished  # its summary may be unreadable
        self.state = "finished" if has_ended else "running" if running else "stopped"
        self._update_damage(running)
        if tables or not self.summary:
            self._metrics.look()
            self._ledger.look()
            self._timing.look()

    def _update_summary(self) -> None:
        try:
            modified = self._files.summary.stat().st_mtime_ns
            if modified != self._summary_written:
                self._summary_written = modified
                self.summary = self._files.read_summary()
        except (OSError, ComityError):
            self._summary_written = 0
            self.summary = None

    def _update_damage(self, running: bool) -> None:
        """Check the files of a run once after it stops, since this reads all of them."""
        if not running and not self._damage_checked:
            self.damaged = self._files.damaged()
        self._damage_checked = not running

    def _add_figure(self, note: Note) -> None:
        if is_figure(note, metric=self.metric.name):
            self._figures.setdefault(note.round, {})[note.party] = note.value
        if len(self._figures) > 2:
            first = min(self._figures)
            self._means[first] = mean(self._figures.pop(first))

    def _clear_figures(self) -> None:
        self._means.clear()
        self._figures.clear()

    def _add_bytes(self, charge: Charge) -> None:
        self.bytes[charge.kind] += charge.bytes

    def _add_timing(self, row: Timing) -> None:
        self._seconds[row.round] = row.train + row.evaluate + row.checkpoint
        self.memory = max(self.memory, row.memory)

    @property
    def metric(self) -> metrics.Metric:
        """The metric of the run; runs of earlier versions name none and use accuracy."""
        return metrics.METRICS.get(str(self.settings.get("metric")), metrics.ACCURACY)

    @property
    def last_round(self) -> int:
        """The last complete round; -1 before the start."""
        return max(self._seconds, default=-1)

    @property
    def rounds(self) -> int:
        """The number of rounds; smaller than planned if early stopping ended the run."""
        return int((self.summary or self.settings).get("rounds", 0))

    @property
    def curve(self) -> dict[int, float]:
        """The mean of the metric over parties, by evaluated round."""
        means = self._means | {t: mean(figures) for t, figures in self._figures.items()}
        return {
            t: value for t, value in means.items() if t <= self.last_round and math.isfinite(value)
        }

    @property
    def party_figures(self) -> dict[str, float]:
        """The metric of each party in the last evaluated round."""
        evaluated = [t for t in self._figures if t <= self.last_round]
        last = self._figures[max(evaluated)] if evaluated else {}
        return {party: figure for party, figure in last.items() if math.isfinite(figure)}

    @property
    def seconds_per_round(self) -> float | None:
        """The mean duration of the recent rounds."""
        recent = [self._seconds[t] for t in sorted(self._seconds)[-RECENT_ROUNDS:] if t > 0]
        return fmean(recent) if recent else None

    @property
    def seconds_left(self) -> float | None:
        """The estimated time until the last round is complete; None if the run is not running."""
        per_round = self.seconds_per_round
        if self.state != "running" or per_round is None:
            return None
        with contextlib.suppress(OSError):
            since = max(0.0, time.time() - self._files.timing.stat().st_mtime)
            remaining_rounds = self.rounds - self.last_round
            return max(0.0, remaining_rounds * per_round - min(since, per_round))
        return None


class FolderMonitor:
    """All runs in a folder, or the run that the folder is. Runs may be added and removed."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._monitors: dict[Path, RunMonitor] = {}

    def find_runs(self) -> list[RunMonitor]:
        """Return the present runs, in the order of their folders, without updating them."""
        self._monitors = {
            folder: self._monitors.get(folder) or RunMonitor(folder)
            for folder in sorted(self._folders(), key=_order)
        }
        return list(self._monitors.values())

    def _folders(self) -> Iterator[Path]:
        for place, inner, _ in os.walk(self.root):
            if RunFolder(Path(place)).has_run:
                yield Path(place)
                inner.clear()
            inner[:] = [name for name in inner if not name.startswith(".")]


def _order(folder: Path) -> list[tuple[int, str]]:
    """Return a sort key that orders seed-2 before seed-10."""
    return [
        (int(part), "") if part.isdecimal() else (-1, part)
        for part in re.split(r"(\d+)", str(folder))
    ]
