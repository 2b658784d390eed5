"""Orders through a real server with three real sites."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from pathlib import Path

import psutil
from deployed import OUTSIDE, Deployed

from comity.deploy.flare import startup_kits


def test_all_that_a_job_does(place: Deployed) -> None:
    """One job, as each costs half a minute: answers, a desk a job, faults at a site, silence, large messages."""
    steps = [
        {"ask": "who"},
        {"ask": "who"},
        {"ask": "only north", "seconds": 2},
        {"ask": "raise", "sites": ["south"]},
        {"ask": "exit", "sites": ["south"]},
        {"ask": "echo", "sites": ["south"]},
        {"ask": "echo", "bytes": 20_000_000, "seconds": 60},
    ]
    heard: list[str] = []
    with place.jobs() as jobs:
        place.wait_for(jobs)
        # An order is any json: FLARE must not take parts of it for its own.
        job = jobs.submit(
            {"steps": steps, "path": "os.system", "args": {"path": "{not_a_variable}"}, "name": "Ä"}
        )
        assert jobs.wait(job, heard.append, seconds=150) == "FINISHED:COMPLETED"
    assert heard[0] in ("SUBMITTED", "RUNNING")
    done = [step["answers"] for step in place.steps()]
    assert place.steps()[0]["names"] == ["east", "north", "south"]

    first, second = (
        {name: said.split() for name, (said, _) in answers.items()} for answers in done[:2]
    )
    assert {name: (who, asked, at) for name, (who, asked, _, at) in first.items()} == {
        name: ("lead@comity.local", "1", name) for name in place.names
    }
    assert {name: asked for name, (_, asked, _, _) in second.items()} == dict.fromkeys(
        place.names, "2"
    )
    assert [first[name][2] for name in place.names] == [
        second[name][2] for name in place.names
    ]  # the same process

    said, after = done[2]["north"]
    assert said == "only north"
    assert after < 1  # before the silence of the others is over
    for name in ("south", "east"):
        said, after = done[2][name]
        assert said is None
        assert 1.9 < after < 2.5

    assert [done[k]["south"][0] for k in (3, 4)] == [None, None]
    assert done[5]["south"][0] == "echo"  # it lives
    assert {said for said, _ in done[6].values()} == {20_000_004}

    words = b"a patient's name"
    assert words in place.log("south").encode()  # its own log knows
    assert not [
        file for file in place.hub.rglob("*") if file.is_file() and words in file.read_bytes()
    ]
    assert words.decode() not in place.said("server")


def test_only_loopback(place: Deployed) -> None:
    """The server was made for localhost, and nobody else can reach it; sites listen to nobody elsewhere."""
    listening = {}
    for name in ("server", *place.names):
        for process in place.tree(name):
            for at in process.net_connections("inet"):
                if at.status == psutil.CONN_LISTEN:
                    listening[at.laddr.port] = at.laddr.ip
    assert startup_kits.Invite.load(place.hub / startup_kits.INVITE).port in listening
    assert set(listening.values()) <= {"127.0.0.1", "::ffff:127.0.0.1", "::1"}


def test_abort(place: Deployed) -> None:
    with place.jobs() as jobs:
        place.wait_for(jobs)
        job = jobs.submit({"steps": [{"ask": "sleep 100", "seconds": 200}]})
        place.wait_until_asked("sleep 100")
        jobs.abort(job)
        assert jobs.wait(job, seconds=60) == "FINISHED:ABORTED"
    assert not place.steps()  # nobody was taken for silent


def test_nothing_outside_of_the_folders(place: Deployed) -> None:
    """FLARE's defaults write to the temporary folder and the home directory."""
    assert [folder for folder in OUTSIDE if folder.exists()] == place.before
    assert {entry.name for entry in (place.hub / "jobs").iterdir()} >= {"snapshots"}


def test_what_a_job_is(tmp_path: Path) -> None:
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


def test_only_the_server_may_ask(tmp_path: Path) -> None:
    """In a process of its own: an app watches over the process it is in."""
    code = """
from nvflare.collab.api.context import Context, set_call_context
from comity.deploy.flare.apps import SiteApp, UNASKED, FAILED
site = SiteApp("e30=")
for caller, said in (("south", UNASKED), ("server", FAILED)):  # without a folder no desk can be opened
    set_call_context(Context(None, caller, "north", None))
    assert site.ask(b"who") == said, caller
set_call_context(None)
assert site.ask(b"who") == FAILED
"""
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=60)
