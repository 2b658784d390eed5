"""Jobs through a real server with three real sites."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from pathlib import Path

import psutil
from deployment import OUTSIDE_FOLDERS, Deployment

from comity.deploy.flare import startup_kits


def test_requests_and_replies_of_a_job(deployment: Deployment) -> None:
    """Replies, one request handler per job, faults at a site, silent sites and large messages: all
    in one job, because each job takes half a minute.
    """
    steps = [
        {"ask": "who"},
        {"ask": "who"},
        {"ask": "only north", "seconds": 2},
        {"ask": "raise", "sites": ["south"]},
        {"ask": "exit", "sites": ["south"]},
        {"ask": "echo", "sites": ["south"]},
        {"ask": "echo", "bytes": 20_000_000, "seconds": 60},
    ]
    statuses: list[str] = []
    with deployment.jobs() as jobs:
        deployment.wait_for(jobs)
        # An order is any json: FLARE must not take parts of it for its own.
        job = jobs.submit(
            {"steps": steps, "path": "os.system", "args": {"path": "{not_a_variable}"}, "name": "Ä"}
        )
        assert jobs.wait(job, statuses.append, seconds=150) == "FINISHED:COMPLETED"
    assert statuses[0] in ("SUBMITTED", "RUNNING")
    replies = [step["answers"] for step in deployment.steps()]
    assert deployment.steps()[0]["names"] == ["east", "north", "south"]

    first, second = (
        {name: content.split() for name, (content, _) in answers.items()} for answers in replies[:2]
    )
    assert {name: (who, count, at) for name, (who, count, _, at) in first.items()} == {
        name: ("lead@comity.local", "1", name) for name in deployment.names
    }
    assert {name: count for name, (_, count, _, _) in second.items()} == dict.fromkeys(
        deployment.names, "2"
    )
    assert [first[name][2] for name in deployment.names] == [
        second[name][2] for name in deployment.names
    ]  # the same process

    content, after = replies[2]["north"]
    assert content == "only north"
    assert after < 1  # before the deadline of the silent sites
    for name in ("south", "east"):
        content, after = replies[2][name]
        assert content is None
        assert 1.9 < after < 2.5

    assert [replies[k]["south"][0] for k in (3, 4)] == [None, None]
    assert replies[5]["south"][0] == "echo"  # it still runs
    assert {content for content, _ in replies[6].values()} == {20_000_004}

    words = b"a patient's name"
    assert words in deployment.log("south").encode()  # the site's own log has the error
    assert not [
        file for file in deployment.hub.rglob("*") if file.is_file() and words in file.read_bytes()
    ]
    assert words.decode() not in deployment.output("server")


def test_server_and_sites_listen_on_loopback_only(deployment: Deployment) -> None:
    """The server was created for localhost: neither it nor the sites listen on other addresses."""
    listening = {}
    for name in ("server", *deployment.names):
        for process in deployment.tree(name):
            for at in process.net_connections("inet"):
                if at.status == psutil.CONN_LISTEN:
                    listening[at.laddr.port] = at.laddr.ip
    assert startup_kits.Invite.load(deployment.hub / startup_kits.INVITE).port in listening
    assert set(listening.values()) <= {"127.0.0.1", "::ffff:127.0.0.1", "::1"}


def test_aborted_job_ends(deployment: Deployment) -> None:
    with deployment.jobs() as jobs:
        deployment.wait_for(jobs)
        job = jobs.submit({"steps": [{"ask": "sleep 100", "seconds": 200}]})
        deployment.wait_until_asked("sleep 100")
        jobs.abort(job)
        assert jobs.wait(job, seconds=60) == "FINISHED:ABORTED"
    assert not deployment.steps()  # no site was taken for silent


def test_nothing_is_written_outside_the_folders(deployment: Deployment) -> None:
    """FLARE's defaults write to the temporary folder and the home directory."""
    assert [folder for folder in OUTSIDE_FOLDERS if folder.exists()] == deployment.before
    assert {entry.name for entry in (deployment.hub / "jobs").iterdir()} >= {"snapshots"}


def test_files_of_a_job(tmp_path: Path) -> None:
    from comity.deploy.flare.jobs import write_job

    write_job({"rounds": 3}, tmp_path / "job")
    files = sorted(
        str(file.relative_to(tmp_path / "job"))
        for file in (tmp_path / "job").rglob("*")
        if file.is_file()
    )
    assert files == [
        "app/config/config_fed_client.json",
        "app/config/config_fed_server.json",
        "meta.json",
    ]
    client = json.loads(
        (tmp_path / "job" / "app" / "config" / "config_fed_client.json").read_text(encoding="utf-8")
    )
    [site] = client["components"]
    assert (site["id"], site["path"]) == ("site", "comity.deploy.flare.apps.SiteApp")
    assert json.loads(base64.b64decode(site["args"]["order"])) == {"rounds": 3}


def test_site_answers_only_the_server(tmp_path: Path) -> None:
    """In a separate process, because an app monitors its own process."""
    code = """
from nvflare.collab.api.context import Context, set_call_context
from comity.deploy.flare.apps import SiteApp, UNASKED, FAILED
site = SiteApp("e30=")
for caller, reply in (("south", UNASKED), ("server", FAILED)):  # without a folder there is no handler
    set_call_context(Context(None, caller, "north", None))
    assert site.ask(b"who") == reply, caller
set_call_context(None)
assert site.ask(b"who") == FAILED
"""
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=60)
