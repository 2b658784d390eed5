"""Runs between real sites on this machine: their data, their laws, and the run with all data in one
place to compare with.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from deployed import Deployed
from in_process_sites import OPEN, Sites

from comity.deploy.job_submission import SubmittedJob
from comity.deploy.server import RUNS
from comity.runs import config
from comity.runs.folder import RunFolder
from comity.runs.tables import ABSENCES, TIMING

SIZES = {"north": (47, 12), "east": (23, 9), "south": (34, 17)}
LAW = OPEN | {
    "export = true": "export = false"
}  # writing models takes seconds, and has a test of its own
TABLES = ("metrics.csv", "ledger.csv", "outcomes.csv")
SETTINGS: dict[str, Any] = {
    "model": "fedbn-cnn(scale=0.06)",
    "rounds": 2,
    "lr": 0.05,
    "test": "official",
}


class Real(Deployed):
    """A server and sites with data, all running once `mend` was called."""

    def __init__(
        self, folder: Path, sizes: Mapping[str, tuple[int, int]] = SIZES, data: str = "digits"
    ) -> None:
        self.sites = Sites(folder, sizes, LAW, data)
        super().__init__(folder, self.sites.names, handler="")

    def order(
        self, method: str, out: Path, deadline: float = 60, wait: float = 60, **settings: Any
    ) -> JobRequest:
        """JobRequest a run, and follow it in a thread."""
        return JobRequest(
            SubmittedJob.new(
                self.hub,
                config.experiment({"algorithm": method} | SETTINGS | settings),
                out,
                deadline,
                wait,
            ),
            out,
        )

    def check_same(self, method: str, out: Path, absent: bool = False, **settings: Any) -> None:
        """Whether a run's tables are those of the loop with all data in one place, and with the
        run's own absences.
        """
        plan = {"absent": str(out / ABSENCES.name)} if absent else {}
        pooled = self.sites.pooled(
            method, out.with_name(f"{out.name}-pooled"), **SETTINGS | settings | plan
        )
        for name in (*TABLES, *([ABSENCES.name] if absent else [])):
            assert (out / name).read_text() == (pooled.folder / name).read_text(), name

    def command(self, *words: str) -> subprocess.Popen[str]:
        """A `comity` command of the researcher's."""
        return subprocess.Popen(
            [sys.executable, "-c", "from comity.cli import main; main()", *words],
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    def check_idle(self, seconds: float = 30) -> None:
        """Whether no job's process is left at the server or at a site; they may take some seconds
        to end.
        """
        until(
            lambda: all(len(self.tree(name)) == 2 for name in self.processes),
            "no job's process is left",
            seconds,
        )

    def run_of(self, out: Path) -> RunFolder:
        """The server's folder of a run that was ordered for `out`."""
        return RunFolder(self.hub / RUNS / SubmittedJob.read(out).run)


class JobRequest:
    """A run that was ordered, and is followed."""

    def __init__(self, ordered: SubmittedJob, out: Path) -> None:
        self.ordered = ordered
        self.out = out
        self.said: list[str] = []
        self._ended: dict[str, Any] | BaseException | None = None
        self._thread = threading.Thread(target=self._conduct, daemon=True)
        ordered.report_progress = self.said.append
        self._thread.start()

    def _conduct(self) -> None:
        try:
            self._ended = self.ordered.conduct(self.out)
        except BaseException as why:
            self._ended = why

    def summary(self, seconds: float = 300) -> dict[str, Any]:
        """The summary at the end."""
        self._thread.join(seconds)
        assert not self._thread.is_alive(), (
            f"not over after {seconds} s, but in round {done(self.ordered.folder)}; {self.said}"
        )
        if isinstance(self._ended, BaseException):
            raise self._ended
        assert self._ended is not None
        return self._ended

    def wait_for_round(self, t: int, seconds: float = 120) -> None:
        """Wait until a round is over."""
        until(
            lambda: done(self.ordered.folder) >= t or not self._thread.is_alive(),
            f"round {t}",
            seconds,
        )
        assert self._thread.is_alive(), self._ended


def done(folder: RunFolder) -> int:
    """The last round that is over."""
    rows = TIMING.salvage(folder.path).rows if folder.timing.exists() else []
    return rows[-1].round if rows else -1


def until(true: Callable[[], bool], what: str, seconds: float) -> None:
    """Wait until something is so."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, f"{what}: not within {seconds} s"
        time.sleep(0.02)
