"""For whose sake a run between sites is ordered again, and for whose not. With real sites:
tests/deploy/flare/test_runs.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from comity.deploy import job_submission
from comity.deploy.job_submission import SubmittedJob
from comity.errors import ComityError


class Connected:
    """A researcher's way to a server that knows of sites, and of one job."""

    def __init__(self, *sites: str, status: str = "RUNNING", known: bool = True) -> None:
        self._sites = sites
        self._status = status
        self._known = known
        self.aborted: list[str] = []

    def sites(self) -> list[str]:
        return list(self._sites)

    def status(self, job: str) -> str:
        return self._status

    def abort(self, job: str) -> None:
        if not self._known:
            raise ComityError("no such job")
        self.aborted.append(job)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SubmittedJob:
    """A run whose third round is over, and east was not heard in it."""
    monkeypatch.setattr(job_submission, "BACK", 0)
    made = SubmittedJob(tmp_path, "run", {}, 60, ("east", "north"), job="job")
    made.folder.path.mkdir(parents=True)
    # a run that goes on loses a row
    timing = "round,train,evaluate,checkpoint,memory\n0,1,1,0,9\n2,1,1,0,9\n3,1,1,0,9\n"
    made.folder.timing.write_text(timing)
    note(
        made,
        "absences.csv",
        "party,round,call,how,occurrence",
        "east,3,local,lost,0",
        "north,2,local,lost,0",
    )
    note(made, "metrics.csv", "round,party,split,name,value", "3,north,test,loss,1.0")
    return made


def note(run: SubmittedJob, name: str, *lines: str) -> None:
    (run.folder.path / name).write_text("\n".join(lines) + "\n")


def back(run: SubmittedJob, *there: str, before: set[str] | None = None) -> str:
    jobs: Any = Connected(*there)
    return run._returned_site(jobs, {}, set() if before is None else before)


def test_who_is_back(run: SubmittedJob) -> None:
    assert back(run, "east", "north") == "east"
    assert back(run, "north") == ""


def test_once_for_somebody_who_is_there_and_says_nothing(run: SubmittedJob) -> None:
    before = {"east"}
    assert back(run, "east", "north", before=before) == ""
    assert back(run, "north", before=before) == ""
    assert before == set()  # it went away, and may come back
    assert back(run, "east", "north", before=before) == "east"


def test_not_for_somebody_who_was_late_or_has_values_that_are_not_finite(run: SubmittedJob) -> None:
    note(run, "metrics.csv", "round,party,split,name,value", "3,east,test,loss,1.0")
    assert back(run, "east", "north") == ""
    note(run, "metrics.csv", "round,party,split,name,value")
    note(run, "absences.csv", "party,round,call,how,occurrence", "east,3,local,nonfinite,0")
    assert back(run, "east", "north") == ""


def test_the_last_job_is_ended(run: SubmittedJob) -> None:
    """If it is still under way; a server that was killed says so of a job that it cannot end."""
    for jobs, ended in (
        (Connected(), ["job"]),
        (Connected(status="FINISHED:COMPLETED"), []),
        (Connected(known=False), []),
    ):
        run._abort_last_job(cast(Any, jobs))
        assert jobs.aborted == ended
