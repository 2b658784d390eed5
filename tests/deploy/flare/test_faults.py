"""Processes that are killed or stand still, while a job runs."""

from __future__ import annotations

import signal
import time

import psutil
import pytest
from deployed import Deployed

from comity.deploy.flare import startup_kits
from comity.errors import ComityError


def said(step: dict[str, dict[str, list[object]]], *names: str) -> list[object]:
    return [step["answers"][name][0] for name in names]


def test_sites_that_are_lost_on_the_way(place: Deployed) -> None:
    """A job process killed, a whole site killed and back, a site that stands still: the job goes on
    with the others.
    """
    steps = [
        {"ask": "sleep 3", "seconds": 6},
        {"ask": "echo a", "seconds": 8, "after": "go-a"},
        {"ask": "sleep 2", "seconds": 6, "after": "go-b"},
        {"ask": "echo c", "seconds": 8, "after": "go-c"},
        {"ask": "echo d", "seconds": 3, "after": "go-d"},
        {"ask": "echo e", "seconds": 8, "after": "go-e"},
    ]
    with place.jobs() as jobs:
        place.wait_for(jobs)
        job = jobs.submit({"steps": steps})

        place.wait_until_asked("sleep 3")
        place.job_process("east").kill()
        step = place.wait_for_steps(1)[0]
        assert said(step, "north", "south", "east") == ["sleep 3", "sleep 3", None]
        assert step["answers"]["north"][1] < 5
        assert 5.9 < step["took"] < 6.5
        time.sleep(12)  # FLARE hears of it with a heartbeat
        assert jobs.status(job) == "RUNNING"
        place.go("go-a")
        step = place.wait_for_steps(2)[1]
        assert said(step, "north", "south", "east") == ["echo a", "echo a", None]
        assert step["took"] < 6  # five seconds to find that it is not there, not eight

        place.go("go-b")
        place.wait_until_asked("sleep 2")
        place.kill("south")
        step = place.wait_for_steps(3)[2]
        assert said(step, "north", "south", "east") == ["sleep 2", None, None]
        place.start("south")
        place.wait_for(jobs)
        place.go("go-c")
        step = place.wait_for_steps(4)[3]
        assert said(step, "north", "south") == ["echo c", None]  # it is back, but for the next job

        still = place.tree("north")
        for process in still:
            process.suspend()
        place.go("go-d")
        step = place.wait_for_steps(5)[4]
        for process in still:
            process.resume()
        assert said(step, "north") == [None]
        assert step["took"] < 3.5
        place.go("go-e")
        step = place.wait_for_steps(6)[5]
        assert said(step, "north") == ["echo e"]
        assert jobs.wait(job, seconds=90).startswith("FINISHED")

        job = jobs.submit({"steps": [{"ask": "echo f"}]})
        assert jobs.wait(job, seconds=90) == "FINISHED:COMPLETED"
        assert said(place.steps()[-1], *place.names) == ["echo f"] * 3


def test_a_server_that_is_killed(place: Deployed) -> None:
    """Its job is lost; sites find it again by themselves, and what they did for it ends before the
    next job begins.
    """
    with place.jobs() as jobs:
        place.wait_for(jobs)
        lost = jobs.submit({"steps": [{"ask": "sleep 300", "seconds": 400}]})
        place.wait_until_asked("sleep 300")
        old = {name: place.job_process(name).pid for name in place.names}
        place.kill("server")
        begun = time.monotonic()
        with pytest.raises(ComityError, match="The server did not answer"):
            jobs.wait(lost)
        assert time.monotonic() - begun < 60
    place.start("server")
    with place.jobs() as jobs:
        place.wait_for(jobs)
        assert jobs.status(lost) == "RUNNING"  # FLARE does not know better
        job = jobs.submit({"steps": [{"ask": "who"}, {"ask": "sleep 2"}]})
        place.wait_until_asked("sleep 2")
        assert {name: place.job_process(name).pid for name in place.names}.items().isdisjoint(
            old.items()
        )  # and one each
        assert jobs.wait(job, seconds=90) == "FINISHED:COMPLETED"


def test_stopping_leaves_nothing(place: Deployed) -> None:
    """In the middle of a job: told to stop by either signal, or its foremost process killed."""
    with place.jobs() as jobs:
        place.wait_for(jobs)
        jobs.submit({"steps": [{"ask": "sleep 300", "seconds": 400}]})
        place.wait_until_asked("sleep 300")
    trees = {name: place.tree(name) for name in ("server", *place.names)}
    assert all(len(tree) == 3 for tree in trees.values())
    assert place.stop("south", signal.SIGTERM) == 0
    assert place.stop("east", signal.SIGINT) == 0
    place.processes["north"].kill()
    place.processes.pop("north").wait()
    assert place.stop("server") == 0
    assert not place.left()
    assert not [process for tree in trees.values() for process in tree if alive(process)]


def test_flare_that_ends_by_itself(place: Deployed) -> None:
    """In the middle of a job: the command that started it says so, and the job's process does not
    stay.
    """
    with place.jobs() as jobs:
        place.wait_for(jobs)
        jobs.submit({"steps": [{"ask": "sleep 300", "seconds": 400}]})
        place.wait_until_asked("sleep 300")
    command, flare, job = place.tree("north")
    flare.kill()
    assert place.processes.pop("north").wait(timeout=30) == 1
    assert "process was ended by SIGKILL" in place.said("north")
    assert not [process for process in (command, flare, job) if alive(process)]
    place.stop("server")  # and with it the job


def alive(process: psutil.Process) -> bool:
    """Whether it runs; one that ended and that nobody asked about yet (this machine's first process
    may not care) does not.
    """
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def test_one_process_a_kit(place: Deployed) -> None:
    from comity.deploy.flare.processes import running

    kit = place.site("north") / startup_kits.KIT
    end = time.monotonic() + 20
    while running(kit) is None and time.monotonic() < end:
        time.sleep(0.1)
    assert running(kit) == place.processes["north"].pid
    first = place.processes.pop("north")
    place.start("north")
    assert place.processes.pop("north").wait(timeout=30) == 1
    assert "is running already" in place.said("north")
    place.processes["north"] = first
