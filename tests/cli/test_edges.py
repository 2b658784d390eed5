"""At the edges: a machine that has too little of something, signals from the first moment, values beyond all measure."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from harness import SMALL, Ended, Nursery, complaint, one_sentence

from comity.engines.channel import Channel

# --- Signals ----------------------------------------------------------------------------------------------------------

EARLY = """
import os, sys

which, module = int(sys.argv.pop(1)), sys.argv.pop(1)

def watch(event, args):
    global module
    if event == "import" and args[0] == module:
        module = ""
        os.kill(os.getpid(), which)

sys.addaudithook(watch)
from comity.cli import main
sys.exit(main())
"""


@pytest.mark.parametrize(
    ("which", "module"),
    [(signal.SIGINT, "click"), (signal.SIGINT, "numpy.matrixlib"), (signal.SIGTERM, "torch"), (signal.SIGINT, "signal")],
)
def test_a_signal_while_modules_are_imported(which: signal.Signals, module: str, tmp_path: Path) -> None:
    """tests/soak/interrupts.py does it at random moments."""
    command = [sys.executable, "-c", EARLY, str(int(which)), module, "run", "fedavg", "--out", "run"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path)
    one_sentence(Ended(done.returncode, done.stdout, done.stderr), 128 + which)
    assert not (tmp_path / "run").exists()


PROCESS = ("--engine", "process", "--workers", "2", "--parties", "3", "--rounds", "2", "--model", "linear")


def test_an_interrupt_while_workers_start(nursery: Nursery, tmp_path: Path) -> None:
    """A terminal sends Ctrl-C to a worker, too, before it has come to its first line."""
    (tmp_path / "mine.py").write_text(
        "import os, signal\nfrom multiprocessing.process import BaseProcess\nfrom comity.data import load as known\n"
        "run = BaseProcess.run\n"
        "def interrupted(self):\n    os.kill(os.getpid(), signal.SIGINT)\n    run(self)\n"
        "BaseProcess.run = interrupted\n"
        "def load():\n    return known('digits')\n",
        encoding="utf-8",
    )
    ended = nursery.run("run", "fedavg", "--data", "./mine.py", *PROCESS, "--out", "run", cwd=str(tmp_path))
    assert ended.code == 0, ended.err
    assert "Traceback" not in ended.err


def test_sigterm_says_how_to_go_on(nursery: Nursery, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import os, signal, threading\nfrom comity.data import load as known\n"
        "def load():\n    threading.Timer(1, os.kill, (os.getpid(), signal.SIGTERM)).start()\n    return known('digits')\n",
        encoding="utf-8",
    )
    args = ("run", "fedavg", "--data", "./mine.py", *PROCESS, "--rounds", "100000", "--out", "run")
    assert "comity resume run" in complaint(nursery.run(*args, cwd=str(tmp_path)), 143)


# --- Too little of something ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [10, 24])
def test_too_few_descriptors(count: int, nursery: Nursery, tmp_path: Path) -> None:
    ended = nursery.run("run", "fedavg", *PROCESS, "--workers", "3", "--out", tmp_path / "run", descriptors=count)
    if ended.code:
        said = complaint(ended, 1)
        assert f"too few file descriptors for this (ulimit -n says {count})" in said
    else:
        assert count > 10, "three workers need more"


def test_a_message_whose_descriptor_was_dropped_is_not_read() -> None:
    """The system drops a descriptor that there is no room for without a word: then the tensors are not there."""
    here, there = Channel.pair()
    here.send({"w": torch.ones(4)})
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest_free = os.dup(0)
    os.close(lowest_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, before[1]))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            there.receive()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        here.close()
        there.close()


@pytest.mark.parametrize("engine", ["loop", "process"])
def test_too_little_memory(engine: str, nursery: Nursery, tmp_path: Path) -> None:
    args = (*SMALL[:-1], engine, "--model", "mlp2(width=5000)")
    ended = nursery.run("run", "fedavg", *args, "--out", tmp_path / "run", memory=150_000_000)
    assert "not enough memory" in complaint(ended, 1, 2)


def test_a_full_disk_under_what_is_printed() -> None:
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "comity.cli", "--version"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert "No space left" in one_sentence(Ended(done.returncode, "", done.stderr), 1)
