"""Runs between real sites on this machine: their data, their policies, and the same run with pooled
data for comparison.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from deployment import Deployment
from in_process_sites import OPEN, Sites

from comity.deploy.job_submission import SubmittedJob
from comity.deploy.server import RUNS
from comity.runs import config
from comity.runs.folder import RunFolder
from comity.runs.tables import ABSENCES, TIMING

SIZES = {"north": (47, 12), "east": (23, 9), "south": (34, 17)}
POLICY_CHANGES = OPEN | {
    "export = true": "export = false"
}  # exporting models takes seconds, and is tested elsewhere
TABLES = ("metrics.csv", "ledger.csv", "outcomes.csv")
SETTINGS: dict[str, Any] = {
    "model": "fedbn-cnn(scale=0.06)",
    "rounds": 2,
    "lr": 0.05,
    "test": "official",
}


class RealSites(Deployment):
    """A server and sites with data; `restore` starts them."""

    def __init__(
        self, folder: Path, sizes: Mapping[str, tuple[int, int]] = SIZES, data: str = "digits"
    ) -> None:
        self.sites = Sites(folder, sizes, POLICY_CHANGES, data)
        super().__init__(folder, self.sites.names, handler="")

    def submit(
        self, method: str, out: Path, deadline: float = 60, wait: float = 60, **settings: Any
    ) -> JobRequest:
        """Submit a run, and follow it in a thread."""
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
        """Check that a run's tables equal those of the loop engine with pooled data and the same
        absences.
        """
        plan = {"absent": str(out / ABSENCES.name)} if absent else {}
        pooled = self.sites.pooled(
            method, out.with_name(f"{out.name}-pooled"), **SETTINGS | settings | plan
        )
        for name in (*TABLES, *([ABSENCES.name] if absent else [])):
            assert (out / name).read_text() == (pooled.folder / name).read_text(), name

    def command(self, *words: str) -> subprocess.Popen[str]:
        """Start a `comity` command of the researcher."""
        return subprocess.Popen(
            [sys.executable, "-c", "from comity.cli import main; main()", *words],
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    def check_idle(self, seconds: float = 30) -> None:
        """Check that no process of a job remains at the server or at a site within `seconds`."""
        wait_until(
            lambda: all(len(self.tree(name)) == 2 for name in self.processes),
            "no job's process is left",
            seconds,
        )

    def run_of(self, out: Path) -> RunFolder:
        """The server's folder of the run that was submitted for `out`."""
        return RunFolder(self.hub / RUNS / SubmittedJob.read(out).run)


class JobRequest:
    """A submitted run, followed in a thread."""

    def __init__(self, job: SubmittedJob, out: Path) -> None:
        self.job = job
        self.out = out
        self.progress: list[str] = []
        self._outcome: dict[str, Any] | BaseException | None = None
        self._thread = threading.Thread(target=self._conduct, daemon=True)
        job.report_progress = self.progress.append
        self._thread.start()

    def _conduct(self) -> None:
        try:
            self._outcome = self.job.conduct(self.out)
        except BaseException as why:
            self._outcome = why

    def summary(self, seconds: float = 300) -> dict[str, Any]:
        """Wait for the end of the run. Returns its summary."""
        self._thread.join(seconds)
        assert not self._thread.is_alive(), (
            f"not over after {seconds} s, but in round {last_round(self.job.folder)}; {self.progress}"
        )
        if isinstance(self._outcome, BaseException):
            raise self._outcome
        assert self._outcome is not None
        return self._outcome

    def wait_for_round(self, t: int, seconds: float = 120) -> None:
        """Wait until round `t` is done."""
        wait_until(
            lambda: last_round(self.job.folder) >= t or not self._thread.is_alive(),
            f"round {t}",
            seconds,
        )
        assert self._thread.is_alive(), self._outcome


def last_round(folder: RunFolder) -> int:
    """The last finished round; -1 without one."""
    rows = TIMING.salvage(folder.path).rows if folder.timing.exists() else []
    return rows[-1].round if rows else -1


def wait_until(condition: Callable[[], bool], what: str, seconds: float) -> None:
    """Wait until `condition()` is true; fail after `seconds`."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"{what}: not within {seconds} s"
        time.sleep(0.02)
