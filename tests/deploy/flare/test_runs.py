"""Runs between real sites write the same bytes as the loop engine with pooled data.

This also holds when processes are killed or suspended during the run: the loop then gets the
absences that the run recorded.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from comity.data.importing import read_federation
from comity.data.prepared import save
from comity.deploy.job_submission import SUBMISSION, SubmittedJob
from comity.errors import ComityError
from comity.runs.folder import RunFolder
from comity.runs.run_warnings import warning_texts
from comity.wire.ledger import Charge

pytest.importorskip("nvflare")

from real_sites import SETTINGS as USUAL
from real_sites import JobRequest, RealSites, last_round, wait_until

SETTINGS: dict[str, dict[str, Any]] = {
    "fedufo": {"lr": 0.02}
}  # with a larger learning rate it diverges on so few samples


@pytest.fixture(scope="module")
def shared_sites(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealSites]:
    real_sites = RealSites(tmp_path_factory.mktemp("real"))
    yield real_sites
    real_sites.close()


@pytest.fixture
def real_sites(shared_sites: RealSites) -> RealSites:
    """A server and three sites, all running and connected."""
    shared_sites.restore()
    with shared_sites.jobs() as jobs:
        shared_sites.wait_for(jobs)
    return shared_sites


@pytest.mark.parametrize(
    "method", ["fedavg", "scaffold", "adcol", "fedavg+dbe", "fedufo", "fed-sps", "relay"]
)
def test_real_sites_equal_loop(method: str, real_sites: RealSites, tmp_path: Path) -> None:
    settings = SETTINGS.get(method, {})
    request = real_sites.submit(method, tmp_path / "run", **settings)
    assert warning_texts(request.summary(), "during") == []
    real_sites.check_same(method, tmp_path / "run", **settings)
    server = real_sites.run_of(tmp_path / "run")
    assert server.is_finished
    assert not list((server.path / "checkpoints").glob("party-*"))  # states stay at the sites
    server_ledger = [row for row in server.read_ledger() if row.kind != "setup"]
    for name in real_sites.names:
        site_ledger = RunFolder(real_sites.site(name) / "runs" / request.job.run).read_ledger()
        assert rows_of(name, site_ledger) == rows_of(name, server_ledger)


def rows_of(site: str, ledger: list[Charge]) -> list[Charge]:
    """A site's rows, sorted. The site charges a sealed message that it sends under its own call,
    the server under the recipient's call.
    """
    rows = [row for row in ledger if site in (row.src, row.dst)]
    return sorted(
        row._replace(call="") if row.kind == "peer" and row.src == site else row for row in rows
    )


SLOW: dict[str, Any] = {
    "rounds": 6,
    "epochs": 30,
}  # rounds of about a second: time to kill a process


@pytest.fixture(scope="module")
def undisturbed(shared_sites: RealSites, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of the tests below without disturbances."""
    return shared_sites.sites.pooled(
        "scaffold", tmp_path_factory.mktemp("undisturbed") / "run", **USUAL | SLOW
    ).folder


def assert_same_tables(out: Path, other: Path) -> None:
    for name in ("metrics.csv", "ledger.csv", "outcomes.csv"):
        assert (out / name).read_text() == (other / name).read_text(), name


def test_killed_site_returns_to_the_run(real_sites: RealSites, tmp_path: Path) -> None:
    """The run continues without the site. When it is connected again, the run is submitted again,
    and the site takes part until the end.
    """
    request = real_sites.submit("scaffold", tmp_path / "run", deadline=10, **SLOW | {"rounds": 12})
    request.wait_for_round(1)
    real_sites.kill("east")
    killed_after = last_round(request.job.folder)
    request.wait_for_round(killed_after + 2)
    real_sites.start("east")
    summary = request.summary()
    assert "east is back: the run goes on from its last checkpoint, with it" in request.progress
    missed_rounds = {row.round for row in real_sites.run_of(tmp_path / "run").read_absences()}
    assert {row.party for row in RunFolder(tmp_path / "run").read_absences()} == {"east"}
    assert killed_after + 2 in missed_rounds
    assert 12 not in missed_rounds
    assert summary["discarded"] == []
    real_sites.check_same("scaffold", tmp_path / "run", absent=True, **SLOW | {"rounds": 12})
    real_sites.check_idle()


def test_killed_job_process_and_suspended_site_return_to_the_run(
    real_sites: RealSites, tmp_path: Path
) -> None:
    """A suspended site takes part again in the same job once it is resumed; a site with a killed
    job process takes part from the next job on.
    """
    request = real_sites.submit("scaffold", tmp_path / "run", deadline=10, **SLOW | {"rounds": 12})
    request.wait_for_round(1)
    suspended_processes = real_sites.tree("south")
    for process in suspended_processes:
        process.suspend()
    suspended_after = last_round(request.job.folder)
    request.wait_for_round(suspended_after + 1)
    for process in suspended_processes:
        process.resume()
    request.wait_for_round(suspended_after + 3)
    assert len(request.progress) == 1
    real_sites.job_process("east").kill()
    killed_after = last_round(request.job.folder)
    request.summary()
    assert request.progress[1] == "east is back: the run goes on from its last checkpoint, with it"
    missed_rounds = [
        (row.party, row.round)
        for row in RunFolder(tmp_path / "run").read_absences()
        if row.call == "local"
    ]
    assert ("south", suspended_after + 1) in missed_rounds
    assert ("east", killed_after + 1) in missed_rounds
    assert not {("south", suspended_after + 3), ("east", 12)} & set(missed_rounds)
    real_sites.check_same("scaffold", tmp_path / "run", absent=True, **SLOW | {"rounds": 12})
    real_sites.check_idle()


def test_run_resumes_after_the_server_is_killed(
    real_sites: RealSites, tmp_path: Path, undisturbed: Path
) -> None:
    """The researcher gets an error, and resumes with `comity resume` when the server runs again."""
    request = real_sites.submit("scaffold", tmp_path / "run", **SLOW)
    request.wait_for_round(2)
    real_sites.kill("server")
    with pytest.raises(ComityError, match="The server did not answer"):
        request.summary()
    real_sites.start("server")
    with real_sites.jobs() as jobs:
        real_sites.wait_for(jobs)
    resume_command = real_sites.command("resume", str(tmp_path / "run"))
    output, _ = resume_command.communicate(timeout=200)
    assert resume_command.returncode == 0, output
    assert_same_tables(tmp_path / "run", undisturbed)
    assert not (tmp_path / "run" / "absences.csv").exists()
    real_sites.check_idle()


def test_run_is_submitted_again_after_its_job_process_is_killed(
    real_sites: RealSites, tmp_path: Path, undisturbed: Path
) -> None:
    """The run is submitted again automatically."""
    request = real_sites.submit("scaffold", tmp_path / "run", **SLOW)
    request.wait_for_round(2)
    real_sites.job_process("server").kill()
    request.summary()
    assert [text.split()[0] for text in request.progress] == ["submitted", "submitted"]
    assert_same_tables(tmp_path / "run", undisturbed)
    real_sites.check_idle()


def test_rounds_with_too_few_replies_are_discarded(real_sites: RealSites, tmp_path: Path) -> None:
    """Rounds with fewer than `min_replies` replies are discarded, and the summary says so."""
    settings = SLOW | {"rounds": 4, "min_replies": 3}
    request = real_sites.submit("scaffold", tmp_path / "run", deadline=10, **settings)
    request.wait_for_round(1)
    real_sites.kill("east")
    killed_after = last_round(request.job.folder)
    summary = request.summary()
    reasons = {row["round"]: row["why"] for row in summary["discarded"]}
    assert reasons[4] == "Only 2 of the 3 parties that are needed answered local in round 4."
    assert min(reasons) > killed_after
    real_sites.check_same("scaffold", tmp_path / "run", absent=True, **settings)
    real_sites.check_idle()


def test_run_resumes_after_the_researcher_stops(
    real_sites: RealSites, tmp_path: Path, undisturbed: Path
) -> None:
    """Ctrl-C ends the job; after a kill the job still runs. In both cases the run can be resumed."""
    out = tmp_path / "run"
    words = [f"--{name.replace('_', '-')}={value}" for name, value in ({**USUAL, **SLOW}).items()]
    first = real_sites.command(
        "run", "scaffold", "--federation", str(real_sites.hub), "--out", str(out), *words
    )
    wait_until((out / SUBMISSION).exists, "submitted", 60)
    wait_until(lambda: last_round(real_sites.run_of(out)) >= 1, "round 1", 90)
    first.send_signal(signal.SIGINT)
    output, _ = first.communicate(timeout=60)
    assert f"resume from the last checkpoint with: comity resume {out}" in " ".join(output.split())
    real_sites.check_idle(60)
    interrupted_after = last_round(real_sites.run_of(out))

    second = real_sites.command("resume", str(out))
    wait_until(lambda: last_round(real_sites.run_of(out)) > interrupted_after, "another round", 90)
    second.kill()
    second.communicate()
    request = JobRequest(SubmittedJob.read(out), out)
    request.summary()
    assert_same_tables(out, undisturbed)
    real_sites.check_idle()


def test_small_site_with_a_failed_ending(real_sites: RealSites, tmp_path: Path) -> None:
    """East withholds its figures, and cannot write its summary: both are reported, and the exit
    code is not zero.

    Once the cause is removed, `comity resume` completes the run.
    """
    out = tmp_path / "run"
    settings = USUAL | {"metric": "macro_f1"}
    words = [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]
    real_sites.sites.change("east", {"records = 0\n": "records = 10\n"})
    try:
        command = real_sites.command(
            "run", "fedavg", "--federation", str(real_sites.hub), "--out", str(out), *words
        )
        wait_until((out / SUBMISSION).exists, "submitted", 60)
        site_folder = RunFolder(real_sites.site("east") / "runs" / SubmittedJob.read(out).run)
        obstacle = site_folder.path / ".checksums.json"
        obstacle.mkdir(parents=True)
        text, _ = command.communicate(timeout=200)
        text = " ".join(text.split())
        assert command.returncode == 1, text
        assert "Withheld by site policy, and in no mean: the test figures of east." in text
        assert (
            "The run was not completed at east: its summary was not written: its own log says why."
            in text
        )
        assert f"Resume with: comity resume {out}" in text
        assert RunFolder(out).is_finished
        assert not site_folder.is_finished

        obstacle.rmdir()
        command = real_sites.command("resume", str(out))
        text, _ = command.communicate(timeout=200)
        assert command.returncode == 0, text
        assert "not completed" not in text
        summary = site_folder.read_summary()
        assert summary is not None
        assert summary["macro_f1"]["per_party"].keys() == {"east"}
    finally:
        real_sites.sites.change("east", {"records = 10\n": "records = 0\n"})
    real_sites.check_idle()


def test_sites_with_another_version_or_schema_take_no_part(
    real_sites: RealSites, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both sites refuse at their introduction, the others continue, and the summary says why."""
    other = tmp_path / "other"
    (other / "comity-99.dist-info").mkdir(parents=True)
    (other / "comity-99.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: comity\nVersion: 99\n"
    )
    real_sites.stop("east")
    table = tmp_path / "table.csv"
    table.write_text(
        "age,ill\n" + "".join(f"{30 + i % 7},{'yes' if i % 2 else 'no'}\n" for i in range(40))
    )
    save(read_federation({"south": table}, "south", label="ill", scale="own"), tmp_path / "table")
    policy = real_sites.site("south") / "site.toml"
    before = policy.read_text()
    policy.write_text(before.replace('data = "data"', f'data = "{tmp_path / "table"}"'))
    with monkeypatch.context() as patch:
        patch.setenv("PYTHONPATH", str(other), prepend=":")
        real_sites.start("east")
    try:
        with real_sites.jobs() as jobs:
            real_sites.wait_for(jobs)
        summary = real_sites.submit(
            "fedavg", tmp_path / "run", rounds=1, test="own(0.25)"
        ).summary()
    finally:
        policy.write_text(before)
        real_sites.stop("east")
    refusals = [text for text in warning_texts(summary, "during") if "takes no part" in text]
    assert sorted(refusals) == [
        (
            f"east takes no part: it has Comity 99, the server has {version('comity')}: install"
            " the same on both sides."
        ),
        (
            "south takes no part: The data of south follow another schema than the server's: import"
            " them again by that one."
        ),
    ]
    assert list(real_sites.run_of(tmp_path / "run").read_parties()) == ["north"]
