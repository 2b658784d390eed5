"""For which returned sites a run is submitted again. Tests with real sites are in
tests/deploy/flare/test_runs.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from comity.deploy import job_submission
from comity.deploy.job_submission import SubmittedJob
from comity.errors import ComityError


class FakeConnection:
    """A connection to a server that has connected sites and one job."""

    def __init__(self, *sites: str, status: str = "RUNNING", knows_job: bool = True) -> None:
        self._sites = sites
        self._status = status
        self._knows_job = knows_job
        self.aborted: list[str] = []

    def sites(self) -> list[str]:
        return list(self._sites)

    def status(self, job: str) -> str:
        return self._status

    def abort(self, job: str) -> None:
        if not self._knows_job:
            raise ComityError("no such job")
        self.aborted.append(job)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SubmittedJob:
    """A run whose third round is done, without a reply of east."""
    monkeypatch.setattr(job_submission, "BACK", 0)
    job = SubmittedJob(tmp_path, "run", {}, 60, ("east", "north"), job="job")
    job.folder.path.mkdir(parents=True)
    # a resumed run has no row for one round
    timing = "round,train,evaluate,checkpoint,memory\n0,1,1,0,9\n2,1,1,0,9\n3,1,1,0,9\n"
    job.folder.timing.write_text(timing)
    write_table(
        job,
        "absences.csv",
        "party,round,call,how,occurrence",
        "east,3,local,lost,0",
        "north,2,local,lost,0",
    )
    write_table(job, "metrics.csv", "round,party,split,name,value", "3,north,test,loss,1.0")
    return job


def write_table(run: SubmittedJob, name: str, *lines: str) -> None:
    (run.folder.path / name).write_text("\n".join(lines) + "\n")


def returned_site(run: SubmittedJob, *connected: str, before: set[str] | None = None) -> str:
    jobs: Any = FakeConnection(*connected)
    return run._returned_site(jobs, {}, set() if before is None else before)


def test_connected_site_that_missed_the_last_round_has_returned(run: SubmittedJob) -> None:
    assert returned_site(run, "east", "north") == "east"
    assert returned_site(run, "north") == ""


def test_job_is_submitted_once_for_a_silent_site(run: SubmittedJob) -> None:
    before = {"east"}
    assert returned_site(run, "east", "north", before=before) == ""
    assert returned_site(run, "north", before=before) == ""
    assert before == set()  # it disconnected, and may return
    assert returned_site(run, "east", "north", before=before) == "east"


def test_late_and_nonfinite_sites_have_not_returned(run: SubmittedJob) -> None:
    write_table(run, "metrics.csv", "round,party,split,name,value", "3,east,test,loss,1.0")
    assert returned_site(run, "east", "north") == ""
    write_table(run, "metrics.csv", "round,party,split,name,value")
    write_table(run, "absences.csv", "party,round,call,how,occurrence", "east,3,local,nonfinite,0")
    assert returned_site(run, "east", "north") == ""


def test_last_job_is_aborted_if_it_runs(run: SubmittedJob) -> None:
    """A running job is aborted. A restarted server reports a job as running that it cannot abort."""
    for jobs, expected in (
        (FakeConnection(), ["job"]),
        (FakeConnection(status="FINISHED:COMPLETED"), []),
        (FakeConnection(knows_job=False), []),
    ):
        run._abort_last_job(cast(Any, jobs))
        assert jobs.aborted == expected
