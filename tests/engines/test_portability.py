"""What systems other than Linux lack: modules of POSIX, forks, memory files. They are taken away
here, in a process of its own. Nobody has tried Comity on Windows or macOS: this is as near as a
Linux machine comes.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from harness import ENV

ABSENT_ON_WINDOWS = """
import asyncio, importlib, multiprocessing, os, pkgutil, signal, socket, sys, tempfile
# Other packages have versions of their own for Windows, and are imported as they are.
import click, fpdf, numpy, pydantic, rich.live, rich.progress, scipy.optimize, scipy.special
import scipy.stats, sklearn.datasets, sklearn.linear_model, torch, torch.func, typer, vl_convert
import torch.distributed.elastic, multiprocessing.connection, multiprocessing.popen_spawn_posix
try:
    import nvflare, nvflare.fuel.flare_api.flare_api
except ImportError:
    pass

for name in ("fcntl", "grp", "pty", "pwd", "readline", "resource", "syslog", "termios", "tty"):
    sys.modules[name] = None  # importing it raises ImportError
for name in ("fork", "register_at_fork", "memfd_create", "posix_fallocate", "sched_getaffinity",
             "sysconf", "O_NOFOLLOW", "O_NONBLOCK", "O_DIRECTORY", "getuid", "geteuid", "killpg"):
    vars(os).pop(name, None)
for name in ("SIGKILL", "SIGALRM", "SIGHUP", "alarm", "pthread_kill", "pthread_sigmask",
             "SIG_BLOCK", "SIG_UNBLOCK", "SIG_SETMASK"):
    vars(signal).pop(name, None)
for name in ("AF_UNIX", "send_fds", "recv_fds"):
    vars(socket).pop(name, None)
os.supports_dir_fd = set()
multiprocessing.get_all_start_methods = lambda: ["spawn"]
"""
IMPORTS_ALL = """
import comity
failed = {}
for module in pkgutil.walk_packages(comity.__path__, "comity."):
    try:
        importlib.import_module(module.name)
    except ModuleNotFoundError as why:
        if (why.name or "").partition(".")[0] not in ("nvflare", "ray"):
            failed[module.name] = repr(why)
    except SystemExit:  # comity.cli.__main__ is the command
        pass
    except Exception as why:
        failed[module.name] = repr(why)
assert not failed, failed
print("imported", len([name for name in sys.modules if name.startswith("comity.")]))
"""
COMMAND = """
from comity.cli import main
main()
"""


def without_posix(code: str, *arguments: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", ABSENT_ON_WINDOWS + code, *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=cwd, env=ENV, timeout=600
    )


def test_every_module_is_imported_without_posix(tmp_path: Path) -> None:
    result = without_posix(IMPORTS_ALL, cwd=tmp_path)
    assert result.returncode == 0, result.stderr[-3000:]
    assert int(result.stdout.split()[-1]) > 300


SMALL = ("--parties", "4", "--rounds", "2", "--model", "linear", "--partition", "iid")


def test_the_process_engine_becomes_one_process_with_a_sentence(tmp_path: Path) -> None:
    """The results are the same as those of the process engine on this system."""
    how = (*SMALL, "--engine", "process", "--workers", "2")
    result = without_posix(COMMAND, "run", "fedavg", *how, "--out", "away", cwd=tmp_path)
    assert result.returncode == 0, result.stderr[-3000:]
    (warning,) = [line for line in result.stdout.splitlines() if line.startswith("Warning: This")]
    assert warning == (
        "Warning: This system cannot fork worker processes: parties are run in one process"
        " instead, one after another, with the same results."
    )
    here = subprocess.run(
        [sys.executable, "-m", "comity.cli", "run", "fedavg", *how, "--out", "here"],
        capture_output=True, text=True, check=False, cwd=tmp_path, env=ENV,
    )  # fmt: skip
    assert here.returncode == 0, here.stderr
    assert "cannot fork" not in here.stdout
    for name in ("metrics.csv", "ledger.csv", "outcomes.csv"):
        assert (tmp_path / "away" / name).read_bytes() == (tmp_path / "here" / name).read_bytes()


def test_parallel_runs_are_refused_in_a_sentence(tmp_path: Path) -> None:
    result = without_posix(
        COMMAND, "compare", "fedavg", *SMALL, "--jobs", "2", "--no-report", cwd=tmp_path
    )
    assert result.returncode == 2
    assert result.stderr.splitlines() == [
        "comity: Parallel runs need a system that can fork: run without jobs here."
    ]


def test_a_site_refuses_a_system_without_file_locks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from comity.deploy.file_lock import lock_file
    from comity.errors import UsageError

    monkeypatch.setitem(sys.modules, "fcntl", None)
    with (tmp_path / "ledger").open("wb") as file, pytest.raises(UsageError, match="file locks"):
        lock_file(file)
