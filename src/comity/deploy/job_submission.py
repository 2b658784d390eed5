"""The researcher's side of a run between sites: submit it as a job, follow it, and submit it again
if the job broke off.

The server writes the run's folder in the operator's folder. At the end it is copied to the
researcher's folder.
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

from comity.core.participation import LOST_REPLY
from comity.deploy.flare.jobs import Jobs
from comity.deploy.flare.startup_kits import LEAD
from comity.deploy.server import (
    FAILED_ENDINGS,
    FAILURE,
    REFUSED,
    RUNS,
    WRONG_SETTINGS,
    SitesRefused,
)
from comity.errors import ComityError, UsageError
from comity.models.named_files import without_weights
from comity.models.referenced_weights import INITIAL_WEIGHTS, WeightsReference
from comity.models.weight_files import as_safetensors
from comity.runs.config import Experiment
from comity.runs.folder import RunFolder
from comity.runs.tables import ABSENCES, METRICS, TIMING
from comity.safe_files import check_no_links, write_atomically
from comity.text import shell_line

SUBMISSION = "federation.json"
"""In the researcher's folder: the federation that a run was submitted to, and the run's name."""
MAX_TRIES = 5
"""How often a run is submitted again without having completed a round in between."""
POLL = 1.0  # seconds between two looks at the job
BACK = 20.0  # seconds that a site must be connected again before the run is submitted again with it


def was_submitted(out: Path) -> bool:
    """Whether a folder is that of a run between sites."""
    try:
        return (out / SUBMISSION).is_file()
    except OSError:  # a name that no file can have
        return False


@dataclass
class SubmittedJob:
    """A run that was submitted to a federation."""

    federation: Path
    run: str
    settings: dict[str, Any]
    deadline: float
    sites: tuple[str, ...] = ()
    """The sites that take part; empty until the first job is submitted."""
    wait: float = 60.0
    """Seconds to wait for sites."""
    job: str = ""
    """The last job of the run. It may still be running if its researcher's command was killed."""
    report_progress: Callable[[str], None] = field(default=lambda text: None, repr=False)
    """Is called with a text about what happens to the job."""

    @property
    def folder(self) -> RunFolder:
        """The run's folder at the server."""
        return RunFolder(self.federation / RUNS / self.run)

    @staticmethod
    def new(
        federation: Path, experiment: Experiment, out: Path, deadline: float, wait: float
    ) -> SubmittedJob:
        """A new run; its name is written to the researcher's folder `out`."""
        if not (federation / LEAD).is_dir():
            raise UsageError(
                f"{federation} is not an operator's folder: create one with comity deploy init."
            )
        if out.exists() and any(out.iterdir()):
            raise UsageError(
                f"{out} is there already: choose another --out, or go on with"
                f" '{shell_line('comity', 'resume', out)}'."
            )
        experiment, weights = _with_reference(experiment)
        settings = experiment.model_dump(mode="json", exclude_none=True)
        job = SubmittedJob(
            federation.resolve(), secrets.token_hex(8), settings, deadline, wait=wait
        )
        if weights:
            job.folder.path.mkdir(parents=True)
            write_atomically(job.folder.path / INITIAL_WEIGHTS, weights)
        out.mkdir(parents=True, exist_ok=True)
        job.write(out)
        return job

    @staticmethod
    def read(out: Path) -> SubmittedJob:
        """The run whose researcher's folder is `out`, to which the run's files will be copied."""
        check_no_links(out)
        try:
            content = json.loads((out / SUBMISSION).read_text(encoding="utf-8"))
            return SubmittedJob(
                federation=Path(content["federation"]),
                run=content["run"],
                settings=content["settings"],
                deadline=content["deadline"],
                sites=tuple(content["sites"]),
                wait=content["wait"],
                job=content["job"],
            )
        except (OSError, ValueError, KeyError, TypeError) as why:
            raise UsageError(
                f"{out / SUBMISSION} cannot be read: which run it was is not known."
            ) from why

    def write(self, out: Path) -> None:
        """Write everything that is needed to submit the run again."""
        content = {
            "federation": str(self.federation),
            "run": self.run,
            "settings": self.settings,
            "deadline": self.deadline,
            "sites": list(self.sites),
            "wait": self.wait,
            "job": self.job,
        }
        write_atomically(out / SUBMISSION, json.dumps(content, indent=2) + "\n")

    def conduct(
        self, out: Path, follow: Callable[[RunFolder], None] = lambda folder: None
    ) -> dict[str, Any]:
        """Submit the run, again if a job broke off, until it has ended; return its summary.

        If the end of the run failed at a site, it is repeated there.

        Arguments:
            out: the researcher's folder, to which the run's folder is copied at the end
            follow: is called now and then with the run's folder at the server
        """
        if not self.has_ended:
            with Jobs.at(self.federation / LEAD) as jobs:
                self._abort_last_job(jobs)
                self.wait_for_sites(jobs)
                self.folder.summary.unlink(missing_ok=True)  # the server writes it at the end
                self._run_jobs(jobs, out, follow)
        follow(self.folder)
        shutil.copytree(
            self.folder.path, out, dirs_exist_ok=True, ignore=shutil.ignore_patterns(".lock")
        )
        self.folder.check()
        summary = RunFolder(out).read_summary()
        assert summary is not None
        return summary

    def _run_jobs(self, jobs: Jobs, out: Path, follow: Callable[[RunFolder], None]) -> None:
        """Submit one job after the other until the run has ended."""
        tries, last_round = 0, -2
        returned: set[str] = set()
        while not self.folder.is_finished:
            self._run_job(jobs, out, follow, returned)
            if self.folder.is_finished:
                return
            if failure := self._failure():
                raise failure
            current_round = _last_round(self.folder)
            tries = 0 if current_round > last_round else tries + 1
            last_round = current_round
            if tries >= MAX_TRIES:
                raise ComityError(f"The run broke off {tries} times without completing a round.")

    def _abort_last_job(self, jobs: Jobs) -> None:
        """Abort the last job if it is still running, so that the run is not computed twice."""
        if self.job and not jobs.status(self.job).startswith("FINISHED"):
            # A server that was killed lists its job as running, and cannot abort it.
            with suppress(ComityError):
                jobs.abort(self.job)

    def wait_for_sites(self, jobs: Jobs) -> None:
        """Wait for the sites of the run: those of the first job or, before that, for any site."""
        end = time.monotonic() + self.wait
        while not (connected := set(jobs.sites())).issuperset(self.sites) or not connected:
            if time.monotonic() > end:
                break
            time.sleep(POLL)
        if not connected:
            raise ComityError(f"No site is connected to the server of {self.federation}.")
        self.sites = self.sites or tuple(sorted(connected))

    def _run_job(
        self, jobs: Jobs, out: Path, follow: Callable[[RunFolder], None], returned: set[str]
    ) -> None:
        """Submit one job and follow it to its end.

        The job is aborted early if a site that was lost is back, because the site can only join the
        next job. `returned` are the sites for which that was done before. It is done again for
        such a site only after it replied or was gone in between: it may be connected and refuse.
        """
        request = {
            "run": self.run,
            "settings": self.settings,
            "sites": list(self.sites),
            "deadline": self.deadline,
        }
        (self.folder.path / FAILURE).unlink(missing_ok=True)  # why an earlier job of it failed
        self.job = jobs.submit(request)
        self.write(out)
        self.report_progress(f"submitted as {self.job} to {', '.join(self.sites)}")
        back_since: dict[str, float] = {}
        try:
            while not jobs.status(self.job).startswith("FINISHED"):
                follow(self.folder)
                if self.folder.is_finished or self._failure():
                    jobs.wait(self.job, seconds=60)
                    return
                if name := self._returned_site(jobs, back_since, returned):
                    self.report_progress(
                        f"{name} is back: the run goes on from its last checkpoint, with it"
                    )
                    returned.add(name)
                    jobs.abort(self.job)
                    jobs.wait(self.job, seconds=60)
                    return
                time.sleep(POLL)
        except KeyboardInterrupt:
            jobs.abort(self.job)
            raise

    def _returned_site(self, jobs: Jobs, back_since: dict[str, float], returned: set[str]) -> str:
        """A site that missed the last round and has been connected again for `BACK` seconds.

        Empty if there is none. `back_since` and `returned` are updated.
        """
        silent = _silent_sites(self.folder)
        connected = set(jobs.sites()) if silent else set()
        returned &= silent & connected
        now = time.monotonic()
        for name in self.sites:
            if name in (silent & connected) - returned:
                if now - back_since.setdefault(name, now) >= BACK:
                    return name
            else:
                back_since.pop(name, None)
        return ""

    @property
    def has_ended(self) -> bool:
        """Whether the run has ended at the server and at all its sites."""
        return self.folder.is_finished and not self._failed_endings()

    def _failed_endings(self) -> bool:
        return bool((self.folder.read_summary() or {}).get(FAILED_ENDINGS))

    def _failure(self) -> ComityError | None:
        """Why the server could not conduct the run; None if it did not say so."""
        path = self.folder.path / FAILURE
        if not path.exists():
            return None
        why, kind, *_ = [*path.read_text(encoding="utf-8").split("\n"), ""]
        errors = {REFUSED: SitesRefused, WRONG_SETTINGS: UsageError}
        return errors.get(kind, ComityError)(why)


def _with_reference(experiment: Experiment) -> tuple[Experiment, bytes]:
    """The settings with a reference to the file of initial weights instead of its path, and the
    file in safetensors' format; empty if there is none.
    """
    model, file = without_weights(experiment.model)
    if file and experiment.weights:
        raise UsageError(
            f"The model names the weights {file} and --weights names {experiment.weights}: leave"
            " out one of the two."
        )
    if not (file := file or experiment.weights or ""):
        return experiment, b""
    content = as_safetensors(file)
    return experiment.but(model=model, weights=str(WeightsReference.of(content))), content


def _last_round(folder: RunFolder) -> int:
    """The last completed round; -1 if there is none."""
    rows = TIMING.salvage(folder.path).rows if folder.timing.exists() else []
    return rows[-1].round if rows else -1


def _silent_sites(folder: RunFolder) -> set[str]:
    """The sites that did not reply in the last completed round, not even to its evaluation."""
    last = _last_round(folder)
    if not (folder.path / ABSENCES.name).exists():
        return set()
    missing = {
        row.party
        for row in ABSENCES.salvage(folder.path).rows
        if row.round == last and row.how == LOST_REPLY
    }
    if not missing:
        return set()
    return missing - {row.party for row in METRICS.salvage(folder.path).rows if row.round == last}
