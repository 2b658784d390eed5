"""A Ray that Comity starts by itself: nobody else can reach it, and nothing of it stays."""

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


def begun(tmp_path: Path, *args: str) -> subprocess.Popen[str]:
    """A command in a home and a folder for temporary files of its own."""
    (tmp_path / "home").mkdir(exist_ok=True)
    own = {
        "HOME": str(tmp_path / "home"),
        "TMPDIR": TEMPORARY.name,
        "COMITY_CHECKPOINT_SECONDS": "0",
    }
    return subprocess.Popen(
        [sys.executable, "-m", "comity.cli", *args], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env=os.environ | own, start_new_session=True,
    )  # fmt: skip


def family(pid: int) -> list[int]:
    """A process and all below it."""
    found = [pid]
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            found += family(int(child))
    return found


def rounds(out: Path) -> int:
    try:
        return len((out / "timing.csv").read_text().splitlines()) - 1
    except OSError:
        return -1


def after_rounds(run: subprocess.Popen[str], out: Path, count: int) -> list[int]:
    """Wait for some rounds; all processes by then."""
    while rounds(out) < count:
        assert run.poll() is None, run.communicate()[0]
        time.sleep(0.1)
    return family(run.pid)


def gone(pids: list[int], seconds: float = 10.0) -> bool:
    """Whether all of these have ended, or do within a while."""
    until = time.monotonic() + seconds
    while any(Path(f"/proc/{pid}").exists() for pid in pids) and time.monotonic() < until:
        time.sleep(0.2)
    return not any(Path(f"/proc/{pid}").exists() for pid in pids)


def listening(pids: list[int]) -> set[str]:
    """The addresses at which these processes wait for connections, as the kernel writes them."""
    held = set()
    for pid in pids:
        for link in Path(f"/proc/{pid}/fd").iterdir():
            try:
                held.add(os.readlink(link).removeprefix("socket:[").removesuffix("]"))
            except OSError:
                continue
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            _, local, _, state, *_rest = line.split()
            if state == "0A" and line.split()[9] in held:
                found.add(local.partition(":")[0])
    return found


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_it_is_alone_and_leaves_nothing(how: signal.Signals, tmp_path: Path) -> None:
    """However it ends, its processes end; with the same bytes it goes on."""
    out = tmp_path / "run"
    before = set(Path(TEMPORARY.name).iterdir())
    run = begun(tmp_path, *RUN, "--rounds", "500", *ON_RAY, "--out", str(out))
    pids = after_rounds(run, out, 3)
    assert listening(pids) <= {"0100007F", "0000000000000000FFFF00000100007F"}, "127.0.0.1 only"
    (os.killpg if how == signal.SIGINT else os.kill)(run.pid, how)
    said = run.communicate()[0]
    if how == signal.SIGKILL:
        assert gone(pids, 100), "two helpers of Ray's own wait for a minute"
    else:
        assert "Stopped; resume from the last checkpoint" in said
        assert gone(pids)
        assert set(Path(TEMPORARY.name).iterdir()) == before
    assert not list((tmp_path / "home").iterdir())


def test_a_killed_run_goes_on_to_the_same_bytes(tmp_path: Path) -> None:
    out = tmp_path / "run"
    run = begun(tmp_path, *RUN, "--rounds", "40", *ON_RAY, "--out", str(out))
    after_rounds(run, out, 5)
    os.kill(run.pid, signal.SIGKILL)
    run.communicate()
    assert rounds(out) < 40
    again = begun(tmp_path, "resume", str(out))
    said = again.communicate()[0]
    assert again.returncode == 0, said
    assert "ray" not in said.lower().replace(str(out).lower(), ""), (
        "Ray's own messages are not printed"
    )
    alone = begun(
        tmp_path, *RUN, "--rounds", "40", "--engine", "loop", "--out", str(tmp_path / "loop")
    )
    assert alone.wait() == 0
    for name in ("metrics.csv", "ledger.csv", "outcomes.csv"):
        assert (out / name).read_bytes() == (tmp_path / "loop" / name).read_bytes()
    timed = [row.round for row in RunFolder(out).read_timing()]
    missing = set(range(41)) - set(timed)
    assert len(missing) <= 1, (
        "a round's row comes after its checkpoint: a run that goes on there loses it"
    )
    assert timed == sorted({*range(41)} - missing)
