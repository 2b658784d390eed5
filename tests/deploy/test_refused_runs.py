"""What the researcher reads after sites have refused a run, and what `comity resume` does then."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from harness import comity
from in_process_sites import HUB, Sites

from comity.deploy import job_submission
from comity.deploy.server import serve

OPTIONS = ("--rounds", "2", "--model", "linear", "--test", "official")


class LocalJobs:
    """Jobs that are done at once, with the sites in this process."""

    def __init__(self, sites: Sites) -> None:
        self._sites = sites

    def sites(self) -> list[str]:
        return self._sites.names

    def submit(self, order: dict[str, Any]) -> str:
        serve(
            self._sites.transport(),
            json.loads(json.dumps(order)),
            self._sites.folder / "hub",
            identity=self._sites.root.identity(HUB),
        )
        return "job"

    def status(self, job: str) -> str:
        return "FINISHED:COMPLETED"


@pytest.fixture
def sites(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sites:
    sites = Sites(
        tmp_path / "sites",
        {"east": (40, 12), "north": (40, 23)},
        {"export = true": "export = false"},
    )
    (sites.folder / "hub" / "lead").mkdir()

    class Jobs:
        @staticmethod
        @contextmanager
        def at(kit: Path) -> Iterator[LocalJobs]:
            yield LocalJobs(sites)

    monkeypatch.setattr(job_submission, "Jobs", Jobs)
    monkeypatch.chdir(tmp_path)
    return sites


def change_all(sites: Sites, old: str, new: str) -> None:
    for name in sites.names:
        sites.change(name, {old: new})


def test_resume_after_all_sites_have_refused(sites: Sites) -> None:
    """The message says what has to change; a resume without the change says the same again, and
    one after it begins the run.
    """
    change_all(sites, 'methods = ["*"]', 'methods = ["scaffold"]')
    sentence = (
        "comity: No site takes part. east does not allow fedavg (methods). north does not allow"
        " fedavg (methods). When the sites have changed that: comity resume out"
    )
    run = comity("run", "fedavg", "--federation", "sites/hub", "--out", "out", *OPTIONS)
    assert (run.code, " ".join(run.err.split())) == (1, sentence)
    resumed = comity("resume", "out")
    assert (resumed.code, " ".join(resumed.err.split())) == (1, sentence)

    change_all(sites, 'methods = ["scaffold"]', 'methods = ["*"]')
    resumed = comity("resume", "out")
    assert (resumed.code, resumed.err) == (0, "")
    assert "The run is in out" in resumed.out


def test_resume_after_a_site_has_refused_to_begin(sites: Sites) -> None:
    change_all(sites, "sites = 2", "sites = 3")
    run = comity("run", "fedavg", "--federation", "sites/hub", "--out", "out", *OPTIONS)
    assert run.code == 1
    assert "2 have shown a certificate (sites). When the sites have changed that: comity" in (
        " ".join(run.err.split())
    )
    change_all(sites, "sites = 3", "sites = 2")
    assert comity("resume", "out").code == 0


def test_settings_that_the_server_refuses_are_not_resumed(sites: Sites) -> None:
    """The same settings would be refused again: the message does not say to resume."""
    run = comity("run", "fedavg+dp", "--federation", "sites/hub", "--out", "out", *OPTIONS)
    assert run.code == 2, run.err
    assert "noise is given as a number" in run.err
    assert "resume" not in run.err.lower()


def test_resume_of_a_run_that_has_ended(sites: Sites) -> None:
    """It says so. A site that refused at the beginning stays out, and the warning says so."""
    sites.change("east", {'methods = ["*"]': 'methods = ["scaffold"]'})
    sites.change("north", {"sites = 2": "sites = 1"})
    run = comity("run", "fedavg", "--federation", "sites/hub", "--out", "out", *OPTIONS)
    assert run.code == 0, run.err
    warning = "Warning: east takes no part: it does not allow fedavg (methods)."
    assert warning in " ".join(run.out.split())
    sites.change("east", {'methods = ["scaffold"]': 'methods = ["*"]'})
    resumed = comity("resume", "out")
    assert resumed.code == 0
    assert resumed.out.startswith("The run in out has ended; nothing is left to resume.")
    assert warning in " ".join(resumed.out.split())


def test_options_that_a_run_between_sites_cannot_be_resumed_with(sites: Sites) -> None:
    assert comity("run", "fedavg", "--federation", "sites/hub", "--out", "out", *OPTIONS).code == 0
    longer = comity("resume", "out", "--rounds", "9")
    assert longer.code == 2
    assert "--rounds" in longer.err
