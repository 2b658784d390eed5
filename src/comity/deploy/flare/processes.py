"""A server or a site as one command in the foreground, which leaves no process behind.

FLARE starts a process for each job in a session of its own. On SIGTERM or SIGINT this command
therefore ends FLARE and all job processes, first with SIGTERM and then with SIGKILL. If the command
itself is killed, Linux ends FLARE's process with it, and the job processes end themselves
(`apps.end_with_parent`).
"""

from __future__ import annotations

import ctypes
import datetime
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from cryptography import x509

from comity.deploy.flare import needs_flare
from comity.deploy.flare.output import FlareOutput
from comity.errors import ComityError, UsageError, describe_exit
from comity.machine import signal_at_end_of_parent
from comity.safe_files import PRIVATE_UMASK, make_private_folder, write_atomically

if TYPE_CHECKING:
    import psutil

FOLDER = "COMITY_SITES_FOLDER"  # as in `apps`, which only job processes import
GRACE = 5.0  # seconds between SIGTERM and SIGKILL
PR_SET_CHILD_SUBREAPER = 36
PID = "pid"  # the file in the kit with the process id of `run_server` or `run_site`


def _print(sentence: str) -> None:
    print(sentence, flush=True)


def run_server(folder: Path, kit: Path, report: Callable[[str], None] = _print) -> None:
    """Run a server in the foreground until this process gets SIGTERM or SIGINT.

    Arguments:
        folder: the operator's folder
        kit: the server's startup kit
        report: is called with one sentence about each error of FLARE
    """
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
        report,
    )


def run_site(folder: Path, kit: Path, report: Callable[[str], None] = _print) -> None:
    """Run a site in the foreground until this process gets SIGTERM or SIGINT.

    Arguments:
        folder: the site's folder, with site.toml
        kit: the site's startup kit
        report: is called with one sentence about each error of FLARE
    """
    name = site_name(kit)
    check_certificate(kit, "client.crt")
    make_private_folder(folder)  # earlier versions left it open to all users of the machine
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
        report,
        umask=PRIVATE_UMASK,
    )


def site_name(kit: Path) -> str:
    """The name of the site to which a startup kit belongs."""
    try:
        settings = json.loads((kit / "startup" / "fed_client.json").read_text(encoding="utf-8"))
        return str(settings["client"]["fqsn"])
    except (OSError, ValueError, KeyError):
        raise UsageError(f"{kit} is not a site's kit: comity deploy accept makes one.") from None


def check_certificate(kit: Path, name: str) -> None:
    """Refuse a kit whose certificate is not valid now: the other side would drop the connection
    without a message.
    """
    try:
        certificate = x509.load_pem_x509_certificate((kit / "startup" / name).read_bytes())
    except (OSError, ValueError):
        raise UsageError(
            f"There is no certificate {kit / 'startup' / name}, or it is damaged."
        ) from None
    now = datetime.datetime.now(datetime.UTC)
    first, last = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if last < now:
        raise UsageError(
            f"The certificate in {kit} expired on {last:%Y-%m-%d}: comity deploy renew"
            f" {kit.parent} {'makes' if name.startswith('server') else 'asks the operator for'} a"
            " new one."
        )
    if first > now:
        raise UsageError(
            f"The certificate in {kit} is valid from {first:%Y-%m-%d} on: is the clock right?"
        )


def running(kit: Path) -> int | None:
    """The id of the process that runs this kit; None if there is none."""
    import psutil

    try:
        pid, started = map(float, (kit / PID).read_text(encoding="utf-8").split())
        return int(pid) if psutil.Process(int(pid)).create_time() == started else None
    except (OSError, ValueError, psutil.NoSuchProcess):
        return None


def _run(
    folder: Path,
    kit: Path,
    command: list[str],
    settings: list[str],
    report: Callable[[str], None],
    umask: int = -1,
) -> None:
    """Run FLARE's process of a kit; `umask` is for the files that it creates (-1: the user's).

    What FLARE prints goes to a file in the kit. `report` is called with one sentence about each
    error.
    """
    needs_flare()
    import psutil

    kit = kit.resolve()
    if not (kit / "startup").is_dir():
        raise UsageError(f"There is no kit in {kit}.")
    if (pid := running(kit)) is not None:
        raise UsageError(f"{kit} is running already, as process {pid}.")
    me = psutil.Process()
    not_ours = set(me.children())
    write_atomically(kit / PID, f"{me.pid} {me.create_time()!r}\n")
    settings = ["secure_train=true", "org=comity", "config_folder=", *settings]
    env = os.environ | {FOLDER: str(folder.resolve())}
    env.setdefault("OMP_NUM_THREADS", "1")
    signals: list[int] = []
    waiting = False

    def stop(number: int, _: object) -> None:
        signals.append(number)
        if waiting:
            raise InterruptedError

    _adopt_orphans(True)
    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        flare = subprocess.Popen(
            [sys.executable, "-u", "-m", *command, "--set", *settings],
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
            umask=umask,
            preexec_fn=signal_at_end_of_parent(signal.SIGKILL),  # noqa: PLW1509 -- a single system call
        )
        # The lines of FLARE's job processes arrive here, too: they inherit its output.
        reader = threading.Thread(
            target=_read_output, args=(flare, FlareOutput(kit, report), signals), daemon=True
        )
        reader.start()
        try:
            waiting = True
            if not signals:
                flare.wait()
        except InterruptedError:
            pass
        finally:
            waiting = False
            end_all([child.pid for child in me.children() if child not in not_ours])
            flare.wait()
            reader.join(GRACE)
    finally:
        _adopt_orphans(False)
        (kit / PID).unlink(missing_ok=True)
        for number, handler in before.items():
            signal.signal(number, handler)
    if not signals:
        raise ComityError(
            f"NVIDIA FLARE's process {describe_exit(flare.returncode)}: {kit / 'log.txt'} may say"
            " why."
        )


def _read_output(flare: subprocess.Popen[str], output: FlareOutput, signals: Sequence[int]) -> None:
    """Read all lines that FLARE prints. What it prints while it is ended is no news."""
    assert flare.stdout is not None
    for line in flare.stdout:
        output.add(line, report=not signals)


def _adopt_orphans(adopt: bool) -> None:
    """Make this process the parent of job processes after the end of FLARE's process, so that they
    are found; or stop doing so.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, int(adopt))


def end_all(pids: list[int]) -> None:
    """End these processes and their descendants, by SIGTERM and then by SIGKILL."""
    import psutil

    processes = descendants(pids)
    for process in processes:
        _send(process, signal.SIGTERM)
    _, alive = psutil.wait_procs(processes, timeout=GRACE)
    for process in {*alive, *descendants(pids)}:
        _send(process, signal.SIGKILL)
    psutil.wait_procs(alive, timeout=GRACE)


def descendants(pids: list[int]) -> list[psutil.Process]:
    """Those of these processes that run, with all processes that they started."""
    import psutil

    processes = []
    for pid in pids:
        try:
            process = psutil.Process(pid)
            processes += [process, *process.children(recursive=True)]
        except psutil.NoSuchProcess:
            continue
    return processes


def _send(process: psutil.Process, number: int) -> None:
    import psutil

    with suppress(psutil.NoSuchProcess):
        process.send_signal(number)
