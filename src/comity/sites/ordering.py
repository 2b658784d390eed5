"""A researcher's side of a run between sites: it is ordered, followed and, where it broke off, ordered again.

The run's folder grows at the server, in the operator's folder; at the end it is copied to where the researcher wants it.
"""

from __future__ import annotations

import json
import secrets
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from comity.errors import ComityError, Refusal
from comity.experiments.checkpoint import write_atomically
from comity.experiments.config import Experiment
from comity.experiments.folder import RunFolder
from comity.experiments.tables import ABSENCES
from comity.sites.flare.jobs import Jobs
from comity.sites.flare.kits import LEAD
from comity.sites.server import FAILURE, RUNS

ORDER = "federation.json"
"""In the researcher's folder: which federation a run was ordered from, and under which name."""
AGAIN = 5
"""How often a run is ordered again without having come further in between."""
LOOK = 1.0  # seconds from look to look
BACK = 20.0  # seconds that a site which is back waits until the run is ordered again for its sake


@dataclass
class Ordered:
    """A run that was ordered from a federation."""

    federation: Path
    run: str
    settings: dict[str, Any]
    deadline: float
    sites: tuple[str, ...] = ()
    """Who takes part; empty until it was ordered for the first time."""
    wait: float = 60.0
    """Seconds to wait for sites."""
    told: Callable[[str], None] = field(default=lambda text: None, repr=False)

    @property
    def folder(self) -> RunFolder:
        """The run's folder at the server."""
        return RunFolder(self.federation / RUNS / self.run)

    @staticmethod
    def new(federation: Path, experiment: Experiment, out: Path, deadline: float, wait: float) -> Ordered:
        """A new run, whose name is written down where it can be found again."""
        if not (federation / LEAD).is_dir():
            raise Refusal(f"{federation} is no federation's folder: comity deploy init makes one.")
        if out.exists() and any(out.iterdir()):
            raise Refusal(f"{out} is there already: choose another --out, or go on with 'comity resume {out}'.")
        settings = experiment.model_dump(mode="json", exclude_none=True)
        made = Ordered(federation.resolve(), secrets.token_hex(8), settings, deadline, wait=wait)
        out.mkdir(parents=True, exist_ok=True)
        made.write(out)
        return made

    @staticmethod
    def read(out: Path) -> Ordered:
        """A run that was ordered before."""
        try:
            held = json.loads((out / ORDER).read_text(encoding="utf-8"))
            return Ordered(
                Path(held["federation"]), held["run"], held["settings"], held["deadline"], tuple(held["sites"]), held["wait"]
            )
        except (OSError, ValueError, KeyError, TypeError) as why:
            raise Refusal(f"{out / ORDER} cannot be read: which run it was is not known.") from why

    def write(self, out: Path) -> None:
        """Write down what it takes to order it again."""
        held: dict[str, Any] = {"federation": str(self.federation), "run": self.run, "settings": self.settings}
        held |= {"deadline": self.deadline, "sites": list(self.sites), "wait": self.wait}
        write_atomically(out / ORDER, json.dumps(held, indent=2) + "\n")

    def conduct(self, out: Path, followed: Callable[[RunFolder], None] = lambda folder: None) -> dict[str, Any]:
        """Order the run, and again where it broke off, until it has ended; its summary. Its folder is copied to `out`."""
        with Jobs.at(self.federation / LEAD) as jobs:
            if not self.sites:
                self.sites = self._there(jobs)
                self.write(out)
            tries, before = 0, -1
            while not self.folder.ended:
                self._once(jobs, followed)
                if failure := self._failure():
                    raise ComityError(failure)
                come = len(_timing(self.folder))
                tries = 0 if come > before else tries + 1
                before = come
                if tries >= AGAIN and not self.folder.ended:
                    raise ComityError(f"The run broke off {tries} times without having come further.")
        followed(self.folder)
        shutil.copytree(self.folder.path, out, dirs_exist_ok=True, ignore=shutil.ignore_patterns(".lock"))
        self.folder.check()
        summary = RunFolder(out).read_summary()
        assert summary is not None
        return summary

    def _there(self, jobs: Jobs) -> tuple[str, ...]:
        end = time.monotonic() + self.wait
        while not (there := jobs.sites()) and time.monotonic() < end:
            time.sleep(LOOK)
        if not there:
            raise ComityError(f"No site is connected to the server of {self.federation}.")
        return tuple(there)

    def _once(self, jobs: Jobs, followed: Callable[[RunFolder], None]) -> None:
        """One job, to its end; it is ended early if a site that was lost is back, as it can join the next job only."""
        order = {"run": self.run, "settings": self.settings, "sites": list(self.sites), "deadline": self.deadline}
        job = jobs.submit(order | {"patience": self.wait})
        self.told(f"ordered as {job} from {', '.join(self.sites)}")
        back: dict[str, float] = {}
        try:
            while not jobs.status(job).startswith("FINISHED"):
                followed(self.folder)
                if self.folder.ended or self._failure():
                    jobs.wait(job, seconds=60)
                    return
                if returned := self._returned(jobs, back):
                    self.told(f"{returned} is back: the run goes on from its last checkpoint, with it")
                    jobs.abort(job)
                    jobs.wait(job, seconds=60)
                    return
                time.sleep(LOOK)
        except KeyboardInterrupt:
            jobs.abort(job)
            raise

    def _returned(self, jobs: Jobs, back: dict[str, float]) -> str:
        """A site that missed the last round and has been connected for a while since, if there is one."""
        silent = _silent(self.folder)
        connected = set(jobs.sites()) if silent else set()
        now = time.monotonic()
        for name in self.sites:
            if name in silent & connected:
                if now - back.setdefault(name, now) >= BACK:
                    return name
            else:
                back.pop(name, None)
        return ""

    def _failure(self) -> str:
        path = self.folder.path / FAILURE
        return path.read_text(encoding="utf-8").split("\n")[0] if path.exists() else ""


def _timing(folder: RunFolder) -> list[Any]:
    return folder.timing.read_text(encoding="utf-8").splitlines()[1:] if folder.timing.exists() else []


def _silent(folder: RunFolder) -> set[str]:
    """Who was not heard in the last round that is over."""
    done = len(_timing(folder)) - 1
    if not (folder.path / ABSENCES.name).exists():
        return set()
    return {row.party for row in ABSENCES.salvage(folder.path).rows if row.round == done}
