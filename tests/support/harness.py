"""Ways to run the command line: inside this process (`comity`, `succeed`), as a new Python process
(`process`), and forked from a nursery (`Nursery`).

The nursery imports torch and Comity once and then forks a real process for each command. Such a
process can be killed, limited or given a terminal like any other, but starts at once.
"""

from __future__ import annotations

import contextlib
import csv
import fcntl
import io
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from comity import cli
from comity.runs.checkpoint import Checkpoints
from comity.wire.codec import flatten

torch.set_num_threads(1)

ENV = {**os.environ, "OMP_NUM_THREADS": "1", "TERM": "xterm", "COLUMNS": "80"}
for noisy in ("COMITY_DEBUG", "COMITY_CHECKPOINT_SECONDS", "FORCE_COLOR", "NO_COLOR", "LINES"):
    ENV.pop(noisy, None)
OFTEN = {"COMITY_CHECKPOINT_SECONDS": "0.05"}
"""Environment of a run that saves a checkpoint every 0.05 s."""
SMALL = (
    "--parties",
    "3",
    "--rounds",
    "2",
    "--model",
    "linear",
    "--partition",
    "iid",
    "--engine",
    "loop",
)
ESCAPE = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b[@-Z\\^_=>]|\x1b\].*?(\x07|\x1b\\)")
NURSERY = Path(__file__).with_name("nursery.py")
OWN = '''"""Mine: FedAvg under another name.

Idea: an example of a user's own method.
"""

from comity.algorithms.fedavg import FedAvg
from comity.core import *


@algorithm
class Mine(FedAvg):
    {}
'''
"""Source of a user's own method; {} is the body of the class."""


def once(args: Sequence[object]) -> list[str]:
    """The arguments as text, without options of SMALL that occur again later."""
    words = [str(word) for word in args]
    for flag in SMALL[::2]:
        while words.count(flag) > 1:
            first = words.index(flag)
            del words[first : first + 2]
    return words


class CommandResult(NamedTuple):
    """Exit code and output of a command."""

    code: int
    out: str
    err: str


def comity(*args: object) -> CommandResult:
    """Run `comity ARGS` inside this process."""
    out, err = io.StringIO(), io.StringIO()
    before, sys.argv = sys.argv, ["comity", *once(args)]
    code: Any = 0
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            cli.main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(bool(end.code))
    finally:
        sys.argv = before
    return CommandResult(int(code), out.getvalue(), err.getvalue())


def succeed(*args: object) -> CommandResult:
    """Run `comity ARGS` inside this process; it must end with exit code 0."""
    result = comity(*args)
    assert result.code == 0, result.err
    assert "Traceback" not in result.err
    return result


def one_sentence(result: CommandResult, *codes: int) -> str:
    """The error message of a command that had to fail: exactly one line on stderr, and one of
    these exit codes.
    """
    assert "Traceback" not in result.err, result.err
    lines = result.err.splitlines()
    assert len(lines) == 1, f"not one line on stderr, but:\n{result.err}"
    assert lines[0].startswith("comity: "), lines[0]
    assert len(lines[0]) > len("comity: x"), "the message is empty"
    assert result.code in codes, f"exit code {result.code}, not {codes}: {lines[0]}"
    return lines[0]


def complaint(result: CommandResult, *codes: int) -> str:
    """The error message of a command that failed during a run: one line after lines of progress."""
    sentences = [
        line
        for line in result.err.splitlines()
        if not re.fullmatch(r"\S.*  round \d+/\d+  accuracy .*|\d+/\d+ done.*", line)
    ]
    return one_sentence(CommandResult(result.code, result.out, "\n".join(sentences)), *codes)


def process(*args: object, **more: Any) -> CommandResult:
    """Run `python -m comity.cli ARGS` as a new process."""
    command = [sys.executable, "-m", "comity.cli", *once(args)]
    env = ENV | more.pop("env", {})
    child = subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=False, env=env, **more
    )
    return CommandResult(child.returncode, child.stdout, child.stderr)


class Child:
    """A command in a process and session of its own, forked from the nursery."""

    def __init__(self, nursery: Nursery, pid: int, folder: Path) -> None:
        self._nursery, self.pid, self._folder = nursery, pid, folder
        self.code: int | None = None

    def poll(self) -> int | None:
        """The exit code (negative: the signal that ended it), or None while it runs."""
        if self.code is None:
            self.code = self._nursery.ask({"poll": self.pid})["code"]
        return self.code

    def wait(self, seconds: float = 60) -> CommandResult:
        """Wait until the command ends."""
        until = time.monotonic() + seconds
        while self.poll() is None:
            if time.monotonic() > until:
                os.kill(self.pid, signal.SIGKILL)
                pytest.fail(f"still running after {seconds} s")
            time.sleep(0.005)
        assert self.code is not None
        out, err = (
            (self._folder / name).read_text(encoding="utf-8") for name in ("stdout", "stderr")
        )
        return CommandResult(self.code, out, err)

    def signal(self, which: signal.Signals, group: bool = False) -> None:
        """Send a signal, to its workers too if `group`; it may have ended already."""
        if self.poll() is None:
            (os.killpg if group else os.kill)(self.pid, which)

    def workers(self) -> list[int]:
        """The processes it has started."""
        try:
            return [
                int(p)
                for p in (
                    Path(f"/proc/{self.pid}/task/{self.pid}/children")
                    .read_text(encoding="utf-8")
                    .split()
                )
            ]
        except OSError:
            return []

    def session(self) -> list[int]:
        """The living processes of its session: itself, its workers, and processes they left behind."""
        living = []
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                state, _, _, session = (
                    stat.read_text(encoding="utf-8").rpartition(")")[2].split()[:4]
                )
                if int(session) == self.pid and state not in "ZX":
                    living.append(int(stat.parent.name))
        return living

    def all_gone(self, seconds: float = 10) -> bool:
        """Whether all processes of its session end within `seconds`."""
        until = time.monotonic() + seconds
        while self.session():
            if time.monotonic() > until:
                return False
            time.sleep(0.01)
        return True


class Nursery:
    """Forks commands on request."""

    def __init__(self, scratch: Path) -> None:
        self._scratch, self._count = scratch, 0
        self._process = subprocess.Popen(
            [sys.executable, str(NURSERY)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=ENV,
        )
        assert json.loads(self._line())["ready"]

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Send one request and return its answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._line())
        return answer

    def start(self, *args: object, **how: Any) -> Child:
        """Start `comity ARGS`. `how`: env, cwd, tty, limit (largest size of a file in bytes),
        descriptors, memory (bytes beyond those it starts with), die_at, die_in, die_as,
        round_seconds, stop_after (see nursery.py).
        """
        self._count += 1
        folder = self._scratch / str(self._count)
        folder.mkdir()
        for name in ("stdout", "stderr"):  # the child may be killed before it creates them
            (folder / name).touch()
        pid = self.ask({"args": once(args), "folder": str(folder), **how})["pid"]
        return Child(self, pid, folder)

    def run(self, *args: object, **how: Any) -> CommandResult:
        """Start a command and wait until it ends."""
        return self.start(*args, **how).wait()

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(10)
        assert self._process.stdout is not None
        self._process.stdout.close()


OnOutput = Callable[[Child, str], None]


def on_terminal(
    nursery: Nursery,
    *args: object,
    columns: int = 80,
    on_output: OnOutput | None = None,
    **how: object,
) -> tuple[int, str]:
    """Run a command on a pseudo-terminal. Returns its exit code and its whole output. `on_output`
    is called with the output so far.
    """
    main, side = pty.openpty()
    fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    env = {"TERM": "xterm-256color", "COLUMNS": str(columns), "LINES": "24"}
    child = nursery.start(*args, tty=os.ttyname(side), env=env, **how)
    output = b""
    while True:
        has_ended = child.poll() is not None
        if select.select([main], [], [], 0 if has_ended else 0.02)[0]:
            output += os.read(main, 65536)
        elif has_ended:
            break
        if on_output and not has_ended:
            on_output(child, output.decode(errors="ignore"))
    os.close(side)
    os.close(main)
    return child.wait().code, output.decode()


def frames(output: str) -> list[str]:
    """The lines that were on the terminal at some time, without escape codes; a line that was
    rewritten counts once for each version.
    """
    return [
        line
        for line in re.split(r"[\r\n]+", ESCAPE.sub("", output.replace("\x1b[1A", "\n")))
        if line.strip()
    ]


def rows(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV table."""
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def summary(folder: Path) -> dict[str, Any]:
    """The content of a run's summary.json."""
    content: dict[str, Any] = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    return content


def contents(folder: Path, *names: str) -> dict[str, bytes]:
    """The bytes of the files that must not differ between equal runs."""
    return {
        name: (folder / name).read_bytes()
        for name in names or ("metrics.csv", "ledger.csv", "outcomes.csv")
    }


def states(folder: Path) -> list[Any]:
    """The server's and all parties' final states, as plain values."""
    checkpoints = Checkpoints(folder / "checkpoints")
    manifest = checkpoints.load()
    assert manifest is not None
    plain_states = []
    for state in (
        checkpoints.server_state(),
        *(checkpoints.party_state(i) for i in sorted(manifest.parties)),
    ):
        skeleton, tensors = flatten(state)
        plain_states.append(
            (json.dumps(skeleton), [(str(t.dtype), t.shape, t.numpy().tobytes()) for t in tensors])
        )
    return [
        manifest.round,
        manifest.counters["steps"],
        manifest.counters["bytes"],
        sorted(manifest.parties),
        *plain_states,
    ]


def rounds(out: Path) -> int:
    """The last round in the run's ledger; -1 without one."""
    try:
        last = (
            (out / "ledger.csv")
            .read_text(encoding="utf-8")
            .rstrip("\n")
            .rpartition("\n")[2]
            .split(",")[0]
        )
    except FileNotFoundError:
        return -1
    return int(last) if last.isdigit() else -1


def wait_for(condition: Callable[[], bool], seconds: float = 20) -> None:
    """Wait until `condition()` is true; fail after `seconds`."""
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, f"the condition was still false after {seconds} s"
        time.sleep(0.002)
