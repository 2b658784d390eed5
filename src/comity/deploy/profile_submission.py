"""The researcher's side of a profile: submit it as a job, wait for its end, and read the result."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from pathlib import Path

from comity.data.profiles import Profile
from comity.deploy.flare.jobs import Jobs
from comity.deploy.flare.startup_kits import LEAD
from comity.deploy.job_submission import POLL, SubmittedJob
from comity.deploy.profile_server import DATA
from comity.deploy.server import FAILURE, PROFILES
from comity.errors import ComityError, UsageError


def order_profile(
    federation: Path,
    deadline: float,
    wait: float,
    report_progress: Callable[[str], None] = lambda text: None,
) -> Profile:
    """Ask the connected sites of a federation for a profile of their data.

    Arguments:
        federation: the operator's folder
        deadline: seconds that a site has for a reply
        wait: seconds to wait for sites
        report_progress: is called with a text about what happens to the job
    """
    if not (federation / LEAD).is_dir():
        raise UsageError(
            f"{federation} is not an operator's folder: create one with comity deploy init."
        )
    job = SubmittedJob(federation.resolve(), secrets.token_hex(8), {}, deadline, wait=wait)
    folder = job.federation / PROFILES / job.run
    with Jobs.at(federation / LEAD) as jobs:
        job.wait_for_sites(jobs)
        request = {
            "run": job.run,
            "profile": True,
            "sites": list(job.sites),
            "deadline": deadline,
        }
        name = jobs.submit(request)
        report_progress(f"submitted as {name} to {', '.join(job.sites)}")
        try:
            while not jobs.status(name).startswith("FINISHED"):
                if (folder / DATA).exists() or (folder / FAILURE).exists():
                    jobs.wait(name, seconds=60)
                    break
                time.sleep(POLL)
        except KeyboardInterrupt:
            jobs.abort(name)
            raise
    if (folder / DATA).exists():
        return Profile.read(folder / DATA)
    failure = folder / FAILURE
    reason = failure.read_text(encoding="utf-8").split("\n")[0] if failure.exists() else ""
    raise ComityError(reason or "The job ended without a profile; the server's log says why.")
