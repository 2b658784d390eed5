"""Processes that are killed or suspended while a job runs."""

from __future__ import annotations

import signal
import time

import psutil
import pytest
from deployment import Deployment

from comity.deploy.flare import startup_kits
from comity.errors import ComityError


def contents_of(step: dict[str, dict[str, list[object]]], *names: str) -> list[object]:
    return [step["answers"][name][0] for name in names]


def test_job_continues_without_lost_sites(deployment: Deployment) -> None:
    """A killed job process, a site that is killed and restarted, and a suspended site: the job
    continues with the others.
    """
    steps = [
        {"ask": "sleep 3", "seconds": 6},
        {"ask": "echo a", "seconds": 8, "after": "go-a"},
        {"ask": "sleep 2", "seconds": 6, "after": "go-b"},
        {"ask": "echo c", "seconds": 8, "after": "go-c"},
        {"ask": "echo d", "seconds": 3, "after": "go-d"},
        {"ask": "echo e", "seconds": 8, "after": "go-e"},
    ]
    with deployment.jobs() as jobs:
        deployment.wait_for(jobs)
        job = jobs.submit({"steps": steps})

        deployment.wait_until_asked("sleep 3")
        deployment.job_process("east").kill()
        step = deployment.wait_for_steps(1)[0]
        assert contents_of(step, "north", "south", "east") == ["sleep 3", "sleep 3", None]
        assert step["answers"]["north"][1] < 5
        assert 5.9 < step["took"] < 6.5
        time.sleep(12)  # FLARE notices it at a heartbeat
        assert jobs.status(job) == "RUNNING"
        deployment.go("go-a")
        step = deployment.wait_for_steps(2)[1]
        assert contents_of(step, "north", "south", "east") == ["echo a", "echo a", None]
        assert step["took"] < 6  # a ping of five seconds instead of the deadline of eight

        deployment.go("go-b")
        deployment.wait_until_asked("sleep 2")
        deployment.kill("south")
        step = deployment.wait_for_steps(3)[2]
        assert contents_of(step, "north", "south", "east") == ["sleep 2", None, None]
        deployment.start("south")
        deployment.wait_for(jobs)
        deployment.go("go-c")
        step = deployment.wait_for_steps(4)[3]
        assert contents_of(step, "north", "south") == [
            "echo c",
            None,
        ]  # it is connected, and takes part from the next job on

        suspended_processes = deployment.tree("north")
        for process in suspended_processes:
            process.suspend()
        deployment.go("go-d")
        step = deployment.wait_for_steps(5)[4]
        for process in suspended_processes:
            process.resume()
        assert contents_of(step, "north") == [None]
        assert step["took"] < 3.5
        deployment.go("go-e")
        step = deployment.wait_for_steps(6)[5]
        assert contents_of(step, "north") == ["echo e"]
        assert jobs.wait(job, seconds=90).startswith("FINISHED")

        job = jobs.submit({"steps": [{"ask": "echo f"}]})
        assert jobs.wait(job, seconds=90) == "FINISHED:COMPLETED"
        assert contents_of(deployment.steps()[-1], *deployment.names) == ["echo f"] * 3


def test_sites_reconnect_after_the_server_is_killed(deployment: Deployment) -> None:
    """Its job is lost. Sites reconnect by themselves, and their old job processes end before the
    next job begins.
    """
    with deployment.jobs() as jobs:
        deployment.wait_for(jobs)
        lost_job = jobs.submit({"steps": [{"ask": "sleep 300", "seconds": 400}]})
        deployment.wait_until_asked("sleep 300")
        old_processes = {name: deployment.job_process(name).pid for name in deployment.names}
        deployment.kill("server")
        start = time.monotonic()
        with pytest.raises(ComityError, match="The server did not answer"):
            jobs.wait(lost_job)
        assert time.monotonic() - start < 60
    deployment.start("server")
    with deployment.jobs() as jobs:
        deployment.wait_for(jobs)
        assert jobs.status(lost_job) == "RUNNING"  # FLARE's status is wrong here
        job = jobs.submit({"steps": [{"ask": "who"}, {"ask": "sleep 2"}]})
        deployment.wait_until_asked("sleep 2")
        assert {
            name: deployment.job_process(name).pid for name in deployment.names
        }.items().isdisjoint(old_processes.items())  # one process each
        assert jobs.wait(job, seconds=90) == "FINISHED:COMPLETED"


def test_no_process_remains_after_stopping(deployment: Deployment) -> None:
    """In the middle of a job: by SIGTERM, by SIGINT, or by killing the command's process."""
    with deployment.jobs() as jobs:
        deployment.wait_for(jobs)
        jobs.submit({"steps": [{"ask": "sleep 300", "seconds": 400}]})
        deployment.wait_until_asked("sleep 300")
    trees = {name: deployment.tree(name) for name in ("server", *deployment.names)}
    assert all(len(tree) == 3 for tree in trees.values())
    assert deployment.stop("south", signal.SIGTERM) == 0
    assert deployment.stop("east", signal.SIGINT) == 0
    deployment.processes["north"].kill()
    deployment.processes.pop("north").wait()
    assert deployment.stop("server") == 0
    assert not deployment.remaining_processes()
    assert not [process for tree in trees.values() for process in tree if alive(process)]


def test_command_ends_when_flare_is_killed(deployment: Deployment) -> None:
    """In the middle of a job: the command reports it, and the job's process ends."""
    with deployment.jobs() as jobs:
        deployment.wait_for(jobs)
        jobs.submit({"steps": [{"ask": "sleep 300", "seconds": 400}]})
        deployment.wait_until_asked("sleep 300")
    command, flare, job = deployment.tree("north")
    flare.kill()
    assert deployment.processes.pop("north").wait(timeout=30) == 1
    assert "process was ended by SIGKILL" in deployment.output("north")
    assert not [process for process in (command, flare, job) if alive(process)]
    deployment.stop("server")  # which also ends the job


def alive(process: psutil.Process) -> bool:
    """Whether a process runs; zombies do not."""
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def test_second_process_of_a_kit_is_refused(deployment: Deployment) -> None:
    from comity.deploy.flare.processes import running

    kit = deployment.site("north") / startup_kits.KIT
    end = time.monotonic() + 20
    while running(kit) is None and time.monotonic() < end:
        time.sleep(0.1)
    assert running(kit) == deployment.processes["north"].pid
    first = deployment.processes.pop("north")
    deployment.start("north")
    assert deployment.processes.pop("north").wait(timeout=30) == 1
    assert "is running already" in deployment.output("north")
    deployment.processes["north"] = first
