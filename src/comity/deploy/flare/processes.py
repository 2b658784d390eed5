"""A server or a site as one command in the foreground: it runs until it is told to stop, and leaves
no process behind.

FLARE starts a process for each job, in a session of its own. So whoever starts FLARE here watches
over all that comes of it: on SIGTERM or SIGINT it ends FLARE and every job's process, gently at
first. If it is killed itself, FLARE's process ends with it (Linux sees to that), and the jobs'
processes notice (`apps.end_with_parent`).
"""

from __future__ import annotations

import ctypes
import datetime
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from cryptography import x509

from comity.deploy.flare import needs_flare
from comity.errors import ComityError, UsageError, describe_exit

if TYPE_CHECKING:
    import psutil

FOLDER = "COMITY_SITES_FOLDER"  # as in `apps`, which only job processes import
GRACE = 5.0  # seconds for a process to end when it is asked to
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
PID = "pid"  # in the kit: the process that `run_server` or `run_site` was


def run_server(folder: Path, kit: Path) -> None:
    """Run the server whose own folder and kit these are, until this process is told to stop."""
    check_certificate(kit, "server.crt")
    _run(
        folder,
        kit,
        [
            "nvflare.private.fed.app.server.server_train",
            "-m",
            str(kit.resolve()),
            "-s",
            "fed_server.json",
        ],
        [],
    )


def run_site(folder: Path, kit: Path) -> None:
    """Run the site whose own folder (with site.toml) and kit these are, until this process is told
    to stop.
    """
    name = site_name(kit)
    check_certificate(kit, "client.crt")
    _run(
        folder,
        kit,
        [
            "nvflare.private.fed.app.client.client_train",
            "-m",
            str(kit.resolve()),
            "-s",
            "fed_client.json",
        ],
        [f"uid={name}"],
    )


def site_name(kit: Path) -> str:
    """The name that a site's kit was made for."""
    try:
        return str(
            json.loads((kit / "startup" / "fed_client.json").read_text(encoding="utf-8"))["client"][
                "fqsn"
            ]
        )
    except (OSError, ValueError, KeyError):
        raise UsageError(f"{kit} is not a site's kit: comity deploy accept makes one.") from None


def check_certificate(kit: Path, name: str) -> None:
    """Refuse a kit whose certificate is not valid today: the other side would drop the connection
    without a word.
    """
    try:
        held = x509.load_pem_x509_certificate((kit / "startup" / name).read_bytes())
    except (OSError, ValueError):
        raise UsageError(
            f"There is no certificate {kit / 'startup' / name}, or it is damaged."
        ) from None
    now = datetime.datetime.now(datetime.UTC)
    if held.not_valid_after_utc < now:
        raise UsageError(
            f"The certificate in {kit} expired on {held.not_valid_after_utc:%Y-%m-%d}: join again"
            " for a new one."
        )
    if held.not_valid_before_utc > now:
        raise UsageError(
            f"The certificate in {kit} is valid from {held.not_valid_before_utc:%Y-%m-%d} on: is"
            " the clock right?"
        )


def running(kit: Path) -> int | None:
    """The process that runs this kit, if one does."""
    import psutil

    try:
        pid, started = map(float, (kit / PID).read_text(encoding="utf-8").split())
        return int(pid) if psutil.Process(int(pid)).create_time() == started else None
    except (OSError, ValueError, psutil.NoSuchProcess):
        return None


def _run(folder: Path, kit: Path, command: list[str], settings: list[str]) -> None:
    needs_flare()
    import psutil

    kit = kit.resolve()
    if not (kit / "startup").is_dir():
        raise UsageError(f"There is no kit in {kit}.")
    if (pid := running(kit)) is not None:
        raise UsageError(f"{kit} is running already, as process {pid}.")
    me = psutil.Process()
    (kit / PID).write_text(f"{me.pid} {me.create_time()!r}\n", encoding="utf-8")
    settings = ["secure_train=true", "org=comity", "config_folder=", *settings]
    env = os.environ | {FOLDER: str(folder.resolve())}
    env.setdefault("OMP_NUM_THREADS", "1")
    told: list[int] = []
    waiting = False

    def stop(number: int, _: object) -> None:
        told.append(number)
        if waiting:
            raise InterruptedError

    _adopt_orphans()
    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        flare = subprocess.Popen(
            [sys.executable, "-u", "-m", *command, "--set", *settings],
            env=env,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=_with_parent(),  # noqa: PLW1509 -- one call to the system, that no other thread has to do with
        )
        try:
            waiting = True
            if not told:
                flare.wait()
        except InterruptedError:
            pass
        finally:
            waiting = False
            end_all([child.pid for child in me.children()])
            flare.wait()
    finally:
        (kit / PID).unlink(missing_ok=True)
        for number, handler in before.items():
            signal.signal(number, handler)
    if not told:
        raise ComityError(
            f"NVIDIA FLARE's process {describe_exit(flare.returncode)}: {kit / 'log.txt'} may say"
            " why."
        )


def _with_parent() -> Callable[[], None] | None:
    """What makes a new process end when its parent does; only Linux knows such a thing."""
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None)  # found before the fork: little may be done after it
    return lambda: libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _adopt_orphans() -> None:
    """Make this process the parent of jobs' processes whose own parent is gone, FLARE's process: so
    they are found.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)


def end_all(pids: list[int]) -> None:
    """End these processes and all that they started: first asked, then killed."""
    import psutil

    found = descendants(pids)
    for process in found:
        _send(process, signal.SIGTERM)
    _, left = psutil.wait_procs(found, timeout=GRACE)
    for process in {*left, *descendants(pids)}:
        _send(process, signal.SIGKILL)
    psutil.wait_procs(left, timeout=GRACE)


def descendants(pids: list[int]) -> list[psutil.Process]:
    """These processes and all that they started, as far as they live."""
    import psutil

    found = []
    for pid in pids:
        try:
            process = psutil.Process(pid)
            found += [process, *process.children(recursive=True)]
        except psutil.NoSuchProcess:
            continue
    return found


def _send(process: psutil.Process, number: int) -> None:
    import psutil

    with suppress(psutil.NoSuchProcess):
        process.send_signal(number)
