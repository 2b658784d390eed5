"""Runs between real sites: what comes out is, byte for byte, what comes out of a loop that has all
data in one place.

Also where processes are killed, or stand still, while they go on: then the loop is given the
absences that the run wrote down.
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

from real import SETTINGS as USUAL
from real import JobRequest, Real, done, until

SETTINGS: dict[str, dict[str, Any]] = {
    "fedufo": {"lr": 0.02}
}  # with larger steps it runs away on so few samples


@pytest.fixture(scope="module")
def one_real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Real]:
    real = Real(tmp_path_factory.mktemp("real"))
    yield real
    real.close()


@pytest.fixture
def real(one_real: Real) -> Real:
    """A server and three sites, all running and connected."""
    one_real.mend()
    with one_real.jobs() as jobs:
        one_real.wait_for(jobs)
    return one_real


@pytest.mark.parametrize(
    "method", ["fedavg", "scaffold", "adcol", "fedavg+dbe", "fedufo", "fed-sps", "relay"]
)
def test_the_same_as_in_one_place(method: str, real: Real, tmp_path: Path) -> None:
    settings = SETTINGS.get(method, {})
    order = real.order(method, tmp_path / "run", **settings)
    assert warning_texts(order.summary(), "during") == []
    real.check_same(method, tmp_path / "run", **settings)
    server = real.run_of(tmp_path / "run")
    assert server.is_finished
    assert not list((server.path / "checkpoints").glob("party-*"))  # states stay at home
    charged = [row for row in server.read_ledger() if row.kind != "setup"]
    for name in real.names:
        ours = RunFolder(real.site(name) / "runs" / order.ordered.run).read_ledger()
        assert rows_of(name, ours) == rows_of(name, charged)


def rows_of(site: str, ledger: list[Charge]) -> list[Charge]:
    """A site's rows, sorted; a parcel that leaves it is charged there under its own work, at the
    server under its recipient's.
    """
    rows = [row for row in ledger if site in (row.src, row.dst)]
    return sorted(
        row._replace(call="") if row.kind == "peer" and row.src == site else row for row in rows
    )


SLOW: dict[str, Any] = {
    "rounds": 6,
    "epochs": 30,
}  # rounds of a second or so: time to kill somebody in


@pytest.fixture(scope="module")
def undisturbed(one_real: Real, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of the tests below as it is if nothing happens."""
    return one_real.sites.pooled(
        "scaffold", tmp_path_factory.mktemp("undisturbed") / "run", **USUAL | SLOW
    ).folder


def same(out: Path, other: Path) -> None:
    for name in ("metrics.csv", "ledger.csv", "outcomes.csv"):
        assert (out / name).read_text() == (other / name).read_text(), name


def test_a_site_that_is_killed_and_comes_back(real: Real, tmp_path: Path) -> None:
    """The run goes on without it; once it is back the run is ordered again, and it takes part to
    the end.
    """
    order = real.order("scaffold", tmp_path / "run", deadline=10, **SLOW | {"rounds": 12})
    order.wait_for_round(1)
    real.kill("east")
    killed = done(order.ordered.folder)
    order.wait_for_round(killed + 2)
    real.start("east")
    summary = order.summary()
    assert "east is back: the run goes on from its last checkpoint, with it" in order.said
    missed = {row.round for row in real.run_of(tmp_path / "run").read_absences()}
    assert {row.party for row in RunFolder(tmp_path / "run").read_absences()} == {"east"}
    assert killed + 2 in missed
    assert 12 not in missed
    assert summary["discarded"] == []
    real.check_same("scaffold", tmp_path / "run", absent=True, **SLOW | {"rounds": 12})
    real.check_idle()


def test_a_job_process_that_is_killed_and_a_site_that_stands_still(
    real: Real, tmp_path: Path
) -> None:
    """Who stands still is heard again as soon as it goes on, in the same job; whose process is gone
    comes with the next one.
    """
    order = real.order("scaffold", tmp_path / "run", deadline=10, **SLOW | {"rounds": 12})
    order.wait_for_round(1)
    still = real.tree("south")
    for process in still:
        process.suspend()
    stopped = done(order.ordered.folder)
    order.wait_for_round(stopped + 1)
    for process in still:
        process.resume()
    order.wait_for_round(stopped + 3)
    assert len(order.said) == 1
    real.job_process("east").kill()
    killed = done(order.ordered.folder)
    order.summary()
    assert order.said[1] == "east is back: the run goes on from its last checkpoint, with it"
    missed = [
        (row.party, row.round)
        for row in RunFolder(tmp_path / "run").read_absences()
        if row.call == "local"
    ]
    assert ("south", stopped + 1) in missed
    assert ("east", killed + 1) in missed
    assert not {("south", stopped + 3), ("east", 12)} & set(missed)
    real.check_same("scaffold", tmp_path / "run", absent=True, **SLOW | {"rounds": 12})
    real.check_idle()


def test_a_server_that_is_killed(real: Real, tmp_path: Path, undisturbed: Path) -> None:
    """The researcher is told, and goes on with `comity resume` when it is there again."""
    order = real.order("scaffold", tmp_path / "run", **SLOW)
    order.wait_for_round(2)
    real.kill("server")
    with pytest.raises(ComityError, match="The server did not answer"):
        order.summary()
    real.start("server")
    with real.jobs() as jobs:
        real.wait_for(jobs)
    resumed = real.command("resume", str(tmp_path / "run"))
    said, _ = resumed.communicate(timeout=200)
    assert resumed.returncode == 0, said
    same(tmp_path / "run", undisturbed)
    assert not (tmp_path / "run" / "absences.csv").exists()
    real.check_idle()


def test_a_server_whose_job_process_is_killed(
    real: Real, tmp_path: Path, undisturbed: Path
) -> None:
    """The run is ordered again by itself."""
    order = real.order("scaffold", tmp_path / "run", **SLOW)
    order.wait_for_round(2)
    real.job_process("server").kill()
    order.summary()
    assert [said.split()[0] for said in order.said] == ["ordered", "ordered"]
    same(tmp_path / "run", undisturbed)
    real.check_idle()


def test_a_quorum_that_is_missed(real: Real, tmp_path: Path) -> None:
    """Rounds without it do not count, and the run says so."""
    settings = SLOW | {"rounds": 4, "min_replies": 3}
    order = real.order("scaffold", tmp_path / "run", deadline=10, **settings)
    order.wait_for_round(1)
    real.kill("east")
    killed = done(order.ordered.folder)
    summary = order.summary()
    discarded = {row["round"]: row["why"] for row in summary["discarded"]}
    assert discarded[4] == "Only 2 of the 3 parties that are needed answered local in round 4."
    assert min(discarded) > killed
    real.check_same("scaffold", tmp_path / "run", absent=True, **settings)
    real.check_idle()


def test_a_researcher_who_stops(real: Real, tmp_path: Path, undisturbed: Path) -> None:
    """By Ctrl-C the job is ended; whoever was killed finds the job still running, and in both cases
    the run is gone on with.
    """
    out = tmp_path / "run"
    words = [f"--{name.replace('_', '-')}={value}" for name, value in ({**USUAL, **SLOW}).items()]
    first = real.command(
        "run", "scaffold", "--federation", str(real.hub), "--out", str(out), *words
    )
    until((out / SUBMISSION).exists, "ordered", 60)
    until(lambda: done(real.run_of(out)) >= 1, "round 1", 90)
    first.send_signal(signal.SIGINT)
    said, _ = first.communicate(timeout=60)
    assert f"go on from the last checkpoint with: comity resume {out}" in " ".join(said.split())
    real.check_idle(60)
    stopped = done(real.run_of(out))

    second = real.command("resume", str(out))
    until(lambda: done(real.run_of(out)) > stopped, "another round", 90)
    second.kill()
    second.communicate()
    order = JobRequest(SubmittedJob.read(out), out)
    order.summary()
    same(out, undisturbed)
    real.check_idle()


def test_a_small_site_whose_end_fails(real: Real, tmp_path: Path) -> None:
    """East withholds its figures, and cannot write its summary: both are told, and the exit code is
    not zero.

    Once the cause is removed, `comity resume` completes the run.
    """
    out = tmp_path / "run"
    settings = USUAL | {"metric": "macro_f1"}
    words = [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]
    real.sites.change("east", {"records = 0\n": "records = 10\n"})
    try:
        command = real.command(
            "run", "fedavg", "--federation", str(real.hub), "--out", str(out), *words
        )
        until((out / SUBMISSION).exists, "ordered", 60)
        own = RunFolder(real.site("east") / "runs" / SubmittedJob.read(out).run)
        obstacle = own.path / ".checksums.json"
        obstacle.mkdir(parents=True)
        text, _ = command.communicate(timeout=200)
        text = " ".join(text.split())
        assert command.returncode == 1, text
        assert "Withheld by site policy, and in no mean: the test figures of east." in text
        assert (
            "The run was not completed at east: its summary was not written: its own log says why."
            in text
        )
        assert f"Go on with: comity resume {out}" in text
        assert RunFolder(out).is_finished
        assert not own.is_finished

        obstacle.rmdir()
        command = real.command("resume", str(out))
        text, _ = command.communicate(timeout=200)
        assert command.returncode == 0, text
        assert "not completed" not in text
        summary = own.read_summary()
        assert summary is not None
        assert summary["macro_f1"]["per_party"].keys() == {"east"}
    finally:
        real.sites.change("east", {"records = 10\n": "records = 0\n"})
    real.check_idle()


def test_another_version_and_another_schema(
    real: Real, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both sites refuse when they introduce themselves, the others go on, and the summary says why."""
    other = tmp_path / "other"
    (other / "comity-99.dist-info").mkdir(parents=True)
    (other / "comity-99.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: comity\nVersion: 99\n"
    )
    real.stop("east")
    table = tmp_path / "table.csv"
    table.write_text(
        "age,ill\n" + "".join(f"{30 + i % 7},{'yes' if i % 2 else 'no'}\n" for i in range(40))
    )
    save(read_federation({"south": table}, "south", label="ill", scale="own"), tmp_path / "table")
    policy = real.site("south") / "site.toml"
    before = policy.read_text()
    policy.write_text(before.replace('data = "data"', f'data = "{tmp_path / "table"}"'))
    with monkeypatch.context() as patch:
        patch.setenv("PYTHONPATH", str(other), prepend=":")
        real.start("east")
    try:
        with real.jobs() as jobs:
            real.wait_for(jobs)
        summary = real.order("fedavg", tmp_path / "run", rounds=1, test="own(0.25)").summary()
    finally:
        policy.write_text(before)
        real.stop("east")
    assert sorted(warning_texts(summary, "during")) == [
        (
            f"east takes no part: east has Comity 99, the server has {version('comity')}: install"
            " the same on both sides."
        ),
        (
            "south takes no part: The data of south follow another schema than the server's: import"
            " them again by that one."
        ),
    ]
    assert list(real.run_of(tmp_path / "run").read_parties()) == ["north"]
