"""A Ray cluster that Comity starts: only this machine can reach it, and it ends with the run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from comity.runs.folder import RunFolder

RUN = (
    "run", "scaffold", "--data", "digits", "--parties", "4", "--model", "mlp2(width=16)", "--lr", "0.02", "--partition",
    "dirichlet(alpha=0.5)|keep(samples=60)",
)  # fmt: skip
TEMPORARY = TemporaryDirectory(prefix="t-")  # names of sockets are short
ON_RAY = ("--engine", "ray", "--workers", "2")


def start_command(tmp_path: Path, *args: str) -> subprocess.Popen[str]:
    """Start a command with its own home folder and folder for temporary files."""
    (tmp_path / "home").mkdir(exist_ok=True)
    environment = {
        "HOME": str(tmp_path / "home"),
        "TMPDIR": TEMPORARY.name,
        "COMITY_CHECKPOINT_SECONDS": "0",
    }
    return subprocess.Popen(
        [sys.executable, "-m", "comity.cli", *args], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env=os.environ | environment, start_new_session=True,
    )  # fmt: skip


def process_tree(pid: int) -> list[int]:
    """The ids of a process and all its descendants."""
    pids = [pid]
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            pids += process_tree(int(child))
    return pids


def rounds(out: Path) -> int:
    try:
        return len((out / "timing.csv").read_text().splitlines()) - 1
    except OSError:
        return -1


def wait_for_rounds(run: subprocess.Popen[str], out: Path, count: int) -> list[int]:
    """Wait until `count` rounds are done. Returns the ids of all processes of the run."""
    while rounds(out) < count:
        assert run.poll() is None, run.communicate()[0]
        time.sleep(0.1)
    return process_tree(run.pid)


def have_ended(pids: list[int], seconds: float = 10.0) -> bool:
    """Whether all of these processes end within `seconds`."""
    until = time.monotonic() + seconds
    while any(Path(f"/proc/{pid}").exists() for pid in pids) and time.monotonic() < until:
        time.sleep(0.2)
    return not any(Path(f"/proc/{pid}").exists() for pid in pids)


def listening_addresses(pids: list[int]) -> set[str]:
    """The addresses at which these processes listen, as /proc/net writes them."""
    sockets = set()
    for pid in pids:
        for link in Path(f"/proc/{pid}/fd").iterdir():
            try:
                sockets.add(os.readlink(link).removeprefix("socket:[").removesuffix("]"))
            except OSError:
                continue
    addresses = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            _, local, _, state, *_rest = line.split()
            if state == "0A" and line.split()[9] in sockets:
                addresses.add(local.partition(":")[0])
    return addresses


@pytest.mark.parametrize("signal_number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_cluster_is_local_and_ends_with_the_run(
    signal_number: signal.Signals, tmp_path: Path
) -> None:
    """Whichever signal ends the run, all its processes end."""
    out = tmp_path / "run"
    before = set(Path(TEMPORARY.name).iterdir())
    run = start_command(tmp_path, *RUN, "--rounds", "500", *ON_RAY, "--out", str(out))
    pids = wait_for_rounds(run, out, 3)
    assert listening_addresses(pids) <= {"0100007F", "0000000000000000FFFF00000100007F"}, (
        "127.0.0.1 only"
    )
    (os.killpg if signal_number == signal.SIGINT else os.kill)(run.pid, signal_number)
    output = run.communicate()[0]
    if signal_number == signal.SIGKILL:
        assert have_ended(pids, 100), "two helpers of Ray's own wait for a minute"
    else:
        assert "Stopped; resume from the last checkpoint" in output
        assert have_ended(pids)
        assert set(Path(TEMPORARY.name).iterdir()) == before
    assert not list((tmp_path / "home").iterdir())


def test_killed_run_resumes_to_the_same_bytes(tmp_path: Path) -> None:
    out = tmp_path / "run"
    run = start_command(tmp_path, *RUN, "--rounds", "40", *ON_RAY, "--out", str(out))
    wait_for_rounds(run, out, 5)
    os.kill(run.pid, signal.SIGKILL)
    run.communicate()
    assert rounds(out) < 40
    resume_command = start_command(tmp_path, "resume", str(out))
    output = resume_command.communicate()[0]
    assert resume_command.returncode == 0, output
    assert "ray" not in output.lower().replace(str(out).lower(), ""), (
        "Ray's own messages are not printed"
    )
    loop_run = start_command(
        tmp_path, *RUN, "--rounds", "40", "--engine", "loop", "--out", str(tmp_path / "loop")
    )
    assert loop_run.wait() == 0
    for name in ("metrics.csv", "ledger.csv", "outcomes.csv"):
        assert (out / name).read_bytes() == (tmp_path / "loop" / name).read_bytes()
    timed_rounds = [row.round for row in RunFolder(out).read_timing()]
    missing = set(range(41)) - set(timed_rounds)
    assert len(missing) <= 1, (
        "a round's row comes after its checkpoint: a run that goes on there loses it"
    )
    assert timed_rounds == sorted({*range(41)} - missing)
