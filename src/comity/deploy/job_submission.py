"""A researcher's side of a run between sites: it is ordered, followed and, where it broke off,
ordered again.

The run's folder grows at the server, in the operator's folder; at the end it is copied to where the
researcher wants it.
"""

from __future__ import annotations

import json
import secrets
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from comity.core.participation import LOST
from comity.deploy.flare.jobs import Jobs
from comity.deploy.flare.startup_kits import LEAD
from comity.deploy.server import FAILED_ENDINGS, FAILURE, RUNS
from comity.errors import ComityError, UsageError
from comity.runs.checkpoint import write_atomically
from comity.runs.config import Experiment
from comity.runs.folder import RunFolder
from comity.runs.tables import ABSENCES, METRICS, TIMING

ORDER = "federation.json"
"""In the researcher's folder: which federation a run was ordered from, and under which name."""
AGAIN = 5
"""How often a run is ordered again without having come further in between."""
LOOK = 1.0  # seconds from look to look
BACK = 20.0  # seconds that a site which is back waits until the run is ordered again for its sake


def was_ordered(out: Path) -> bool:
    """Whether a folder is a researcher's of a run between sites."""
    try:
        return (out / ORDER).is_file()
    except OSError:  # a name that no file can have
        return False


@dataclass
class SubmittedJob:
    """A run that was ordered from a federation."""

    federation: Path
    run: str
    settings: dict[str, Any]
    deadline: float
    sites: tuple[str, ...] = ()
    """Who takes part; empty until it was ordered for the first time."""
    wait: float = 60.0
    """Seconds to wait for sites."""
    job: str = ""
    """The last job of it. Whoever was killed while following one left it running."""
    told: Callable[[str], None] = field(default=lambda text: None, repr=False)

    @property
    def folder(self) -> RunFolder:
        """The run's folder at the server."""
        return RunFolder(self.federation / RUNS / self.run)

    @staticmethod
    def new(
        federation: Path, experiment: Experiment, out: Path, deadline: float, wait: float
    ) -> SubmittedJob:
        """A new run, whose name is written down where it can be found again."""
        if not (federation / LEAD).is_dir():
            raise UsageError(
                f"{federation} is no federation's folder: comity deploy init makes one."
            )
        if out.exists() and any(out.iterdir()):
            raise UsageError(
                f"{out} is there already: choose another --out, or go on with 'comity resume"
                f" {out}'."
            )
        settings = experiment.model_dump(mode="json", exclude_none=True)
        made = SubmittedJob(
            federation.resolve(), secrets.token_hex(8), settings, deadline, wait=wait
        )
        out.mkdir(parents=True, exist_ok=True)
        made.write(out)
        return made

    @staticmethod
    def read(out: Path) -> SubmittedJob:
        """A run that was ordered before."""
        try:
            held = json.loads((out / ORDER).read_text(encoding="utf-8"))
            known = (
                held["settings"],
                held["deadline"],
                tuple(held["sites"]),
                held["wait"],
                held["job"],
            )
            return SubmittedJob(Path(held["federation"]), held["run"], *known)
        except (OSError, ValueError, KeyError, TypeError) as why:
            raise UsageError(
                f"{out / ORDER} cannot be read: which run it was is not known."
            ) from why

    def write(self, out: Path) -> None:
        """Write down what it takes to order it again."""
        held: dict[str, Any] = {
            "federation": str(self.federation),
            "run": self.run,
            "settings": self.settings,
        }
        held |= {
            "deadline": self.deadline,
            "sites": list(self.sites),
            "wait": self.wait,
            "job": self.job,
        }
        write_atomically(out / ORDER, json.dumps(held, indent=2) + "\n")

    def conduct(
        self, out: Path, followed: Callable[[RunFolder], None] = lambda folder: None
    ) -> dict[str, Any]:
        """JobRequest the run, and again where it broke off, until it has ended; its summary. Its
        folder is copied to `out`.

        Where its end failed at a site, that is repeated.
        """
        if not self.folder.ended or self._failed_endings():
            with Jobs.at(self.federation / LEAD) as jobs:
                self._end_last(jobs)
                self._gather(jobs)
                self.folder.summary.unlink(missing_ok=True)  # the server writes it at the end
                self._see_through(jobs, out, followed)
        followed(self.folder)
        shutil.copytree(
            self.folder.path, out, dirs_exist_ok=True, ignore=shutil.ignore_patterns(".lock")
        )
        self.folder.check()
        summary = RunFolder(out).read_summary()
        assert summary is not None
        return summary

    def _see_through(self, jobs: Jobs, out: Path, followed: Callable[[RunFolder], None]) -> None:
        """One job after the other, until the run has ended."""
        tries, before = 0, -2
        returned: set[str] = set()
        while not self.folder.ended:
            self._once(jobs, out, followed, returned)
            if self.folder.ended:
                return
            if failure := self._failure():
                raise ComityError(failure)
            come = _done(self.folder)
            tries = 0 if come > before else tries + 1
            before = come
            if tries >= AGAIN:
                raise ComityError(f"The run broke off {tries} times without having come further.")

    def _end_last(self, jobs: Jobs) -> None:
        """End the last job if it is still under way, so that the run is not ordered twice."""
        if self.job and not jobs.status(self.job).startswith("FINISHED"):
            with suppress(
                ComityError
            ):  # a server that was killed lists its job as running, and cannot end it
                jobs.abort(self.job)

    def _gather(self, jobs: Jobs) -> None:
        """Wait for the sites that are to take part: whoever is there or, of a run that was begun,
        all that were.
        """
        end = time.monotonic() + self.wait
        while not (there := set(jobs.sites())).issuperset(self.sites) or not there:
            if time.monotonic() > end:
                break
            time.sleep(LOOK)
        if not there:
            raise ComityError(f"No site is connected to the server of {self.federation}.")
        self.sites = self.sites or tuple(sorted(there))

    def _once(
        self, jobs: Jobs, out: Path, followed: Callable[[RunFolder], None], returned: set[str]
    ) -> None:
        """One job, to its end; it is ended early if a site that was lost is back, as it can join
        the next job only.

        Who is in `returned` is not waited for again until it was heard, or gone, in between: it may
        be there and refuse.
        """
        order = {
            "run": self.run,
            "settings": self.settings,
            "sites": list(self.sites),
            "deadline": self.deadline,
        }
        (self.folder.path / FAILURE).unlink(missing_ok=True)  # why an earlier job of it failed
        self.job = jobs.submit(order)
        self.write(out)
        self.told(f"ordered as {self.job} from {', '.join(self.sites)}")
        back: dict[str, float] = {}
        try:
            while not jobs.status(self.job).startswith("FINISHED"):
                followed(self.folder)
                if self.folder.ended or self._failure():
                    jobs.wait(self.job, seconds=60)
                    return
                if name := self._returned(jobs, back, returned):
                    self.told(f"{name} is back: the run goes on from its last checkpoint, with it")
                    returned.add(name)
                    jobs.abort(self.job)
                    jobs.wait(self.job, seconds=60)
                    return
                time.sleep(LOOK)
        except KeyboardInterrupt:
            jobs.abort(self.job)
            raise

    def _returned(self, jobs: Jobs, back: dict[str, float], before: set[str]) -> str:
        """A site that missed the last round and has been connected for a while since, if there is
        one.
        """
        silent = _silent(self.folder)
        connected = set(jobs.sites()) if silent else set()
        before &= silent & connected
        now = time.monotonic()
        for name in self.sites:
            if name in (silent & connected) - before:
                if now - back.setdefault(name, now) >= BACK:
                    return name
            else:
                back.pop(name, None)
        return ""

    def _failed_endings(self) -> bool:
        return bool((self.folder.read_summary() or {}).get(FAILED_ENDINGS))

    def _failure(self) -> str:
        path = self.folder.path / FAILURE
        return path.read_text(encoding="utf-8").split("\n")[0] if path.exists() else ""


def _done(folder: RunFolder) -> int:
    """The last round that is over; -1 if there is none."""
    rows = TIMING.salvage(folder.path).rows if folder.timing.exists() else []
    return rows[-1].round if rows else -1


def _silent(folder: RunFolder) -> set[str]:
    """Who did not answer in the last round that is over, to the end of it: who was only late is
    heard when it evaluates.
    """
    done = _done(folder)
    if not (folder.path / ABSENCES.name).exists():
        return set()
    missing = {
        row.party
        for row in ABSENCES.salvage(folder.path).rows
        if row.round == done and row.how == LOST
    }
    return missing - {
        note.party for note in METRICS.salvage(folder.path).rows if missing and note.round == done
    }
