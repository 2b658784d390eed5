"""What a run tells its trackers. `comity.track` has the trackers themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from comity.core.server import Note
from comity.runs.server_run import ServerRun


class RunTracker(Protocol):
    """Logs one run."""

    def begin(self, job: ServerRun, folder: Path) -> None:
        """Start to log a run, and log the rounds that its tables have already."""

    def round(self, t: int, notes: Sequence[Note], total: Mapping[str, int]) -> None:
        """Log a round if it was evaluated. `total` is the bytes so far, by direction."""

    def end(self, summary: Mapping[str, Any] | None) -> None:
        """Finish the log. The summary is None if the run was stopped."""


class NoTracker:
    """A tracker that logs nothing."""

    def begin(self, job: ServerRun, folder: Path) -> None:
        """Log nothing."""

    def round(self, t: int, notes: Sequence[Note], total: Mapping[str, int]) -> None:
        """Log nothing."""

    def end(self, summary: Mapping[str, Any] | None) -> None:
        """Log nothing."""
