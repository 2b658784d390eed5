"""Imports Comity once; then forks a process, with a session of its own, for each command that is
requested on stdin.
"""

from __future__ import annotations

import json
import math
import os
import resource
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import sklearn.datasets  # noqa: F401
import torch

from comity import cli
from comity.runs import loop
from comity.safe_files import TEMPORARY
from comity.studies import compare, plan, tune  # noqa: F401

torch.set_num_threads(1)
os.fsync = lambda fd: None  # as in tests/conftest.py


def die_at(count: int, folder: str, worker: bool) -> None:
    """Kill this process (or a worker) at the `count`-th time that it opens, renames, cuts or
    removes something in `folder`.
    """
    me, remaining = os.getpid(), count
    watched_events = {"open", "os.rename", "os.remove", "os.truncate", "os.mkdir"}

    def hook(event: str, args: tuple[Any, ...]) -> None:
        nonlocal remaining
        if event not in watched_events or (os.getpid() != me) != worker:
            return
        name = str(args[0])
        # `comity.safe_files` names files relative to a folder that it has opened.
        if name.startswith(folder) or (name and "/" not in name and TEMPORARY.fullmatch(name)):
            remaining -= 1
            if remaining == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


def pace_rounds(seconds: float, stop_after: float) -> None:
    """Each round takes at least `seconds`, and the one after round `stop_after` takes a minute
    more.

    Processes that the command forks inherit this. What a test does to a run under way then does not
    depend on the speed of the machine.
    """
    next_round = loop._Rounds.next_round

    def paced_next_round(self: loop._Rounds) -> Any:
        time.sleep(seconds)
        if self.completed >= stop_after:
            time.sleep(60)
        return next_round(self)

    loop._Rounds.next_round = paced_next_round


def child(request: dict[str, Any]) -> int:
    """Turn the forked process into the requested command."""
    os.setsid()
    tty = request.get("tty")
    names = (
        [tty] * 3
        if tty
        else [os.devnull, f"{request['folder']}/stdout", f"{request['folder']}/stderr"]
    )
    for fd, name in enumerate(names):
        os.dup2(os.open(name, os.O_RDWR), fd)
    sys.stdin, sys.stdout, sys.stderr = (
        open(fd, mode, buffering=1)  # noqa: SIM115
        for fd, mode in ((0, "r"), (1, "w"), (2, "w"))
    )
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.update(request.get("env", {}))
    os.chdir(request.get("cwd") or request["folder"])
    if "limit" in request:
        resource.setrlimit(resource.RLIMIT_FSIZE, (request["limit"], request["limit"]))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    if "descriptors" in request:
        resource.setrlimit(resource.RLIMIT_NOFILE, (request["descriptors"], request["descriptors"]))
    if "memory" in request:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
        most = request["memory"] + resource.getpagesize() * pages
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
    if "die_at" in request:
        die_at(request["die_at"], request["die_in"], request.get("die_as") == "worker")
    if "round_seconds" in request or "stop_after" in request:
        pace_rounds(request.get("round_seconds", 0.0), request.get("stop_after", math.inf))
    sys.argv = ["comity", *request["args"]]
    try:
        cli.main()
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Start a command, or report the exit code of one."""
    if "poll" in request:
        pid, status = os.waitpid(request["poll"], os.WNOHANG)
        return {"code": os.waitstatus_to_exitcode(status) if pid else None}
    pid = os.fork()
    if pid == 0:
        code = 70
        try:
            code = child(request)
            sys.stdout.flush()
            sys.stderr.flush()
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return {"pid": pid}


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    say, listen = os.fdopen(os.dup(1), "w"), os.fdopen(os.dup(0), "r")
    say.write('{"ready": true}\n')
    say.flush()
    for line in listen:
        say.write(json.dumps(answer(json.loads(line))) + "\n")
        say.flush()


if __name__ == "__main__":
    main()
