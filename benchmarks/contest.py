"""What the contestants of `peers.py` share: each builds its federation, says so, and then does one
round for every `go`.

A contestant calls `pause` when it is ready and after each round. On its standard output it says in
JSON, a line each, `{"ready": SECONDS}` since its process started, and `{"seconds": S, "memory":
MB, "resident": MB}` of every round; whatever its framework prints goes to standard error. Both
memories are sums over the contestant's process and all below it. `memory` is the most that each
ever held: pages that processes share count for each of them. `resident` is what they hold when the
round ends (PSS): a page that two processes share counts for each of them by half.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from subprocess import Popen

from works import TRIALS, WORKS


class Over(Exception):
    """No more rounds are wanted."""


class Contest:
    """The contestant's end of the line to the driver."""

    def __init__(self) -> None:
        cli = argparse.ArgumentParser()
        cli.add_argument("work", choices=[*WORKS, *TRIALS])
        cli.add_argument("mode", choices=["train", "whole"])
        cli.add_argument("rounds", type=int)
        args = cli.parse_args()
        self.name: str = args.work
        self.work = (WORKS | TRIALS)[args.work]
        self.whole: bool = args.mode == "whole"
        self.rounds: int = args.rounds + 1
        """What to tell a framework that wants to know: one more than will be asked for, since last
        rounds may be special.
        """
        self.followers: Iterable[Popen[bytes]] = ()
        """Processes that pause when this one does."""
        self._said = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)
        self._begin: float | None = None

    def pause(self) -> None:
        """Ready, or a round is done: say so, and wait for the next to begin."""
        now = time.perf_counter()
        if self._begin is None:
            self._say({"ready": _age()})
        else:
            processes = tree(os.getpid())
            self._say(
                {
                    "seconds": now - self._begin,
                    "memory": sum(map(_peak, processes)) / 1e6,
                    "resident": sum(map(_resident, processes)) / 1e6,
                }
            )
        order = sys.stdin.readline()
        for follower in self.followers:
            assert follower.stdin
            follower.stdin.write(order.encode() or b"stop\n")
            follower.stdin.flush()
        if order != "go\n":
            raise Over
        self._begin = time.perf_counter()

    def _say(self, what: dict[str, float]) -> None:
        self._said.write(json.dumps(what) + "\n")
        self._said.flush()


def tree(root: int) -> list[int]:
    """A process, all below it, and whoever else is of its session: a process' children outlive it."""
    children = defaultdict(list)
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                _, parent, _, session, *_ = (
                    (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
                )
            except OSError:  # it has just ended
                continue
            for above in {int(parent), int(session)}:
                children[above].append(int(entry.name))
    found = [root]
    for pid in found:
        found += [child for child in children[pid] if child not in found]
    return found


def _age() -> float:
    """Seconds since this process was started."""
    started = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]) / os.sysconf(
        "SC_CLK_TCK"
    )
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started


def _peak(pid: int) -> int:
    """The most memory that a process ever held, in bytes."""
    return _bytes_of(f"/proc/{pid}/status", "VmHWM:")


def _resident(pid: int) -> int:
    """The memory that a process holds now, in bytes: its share of pages that others have as well."""
    return _bytes_of(f"/proc/{pid}/smaps_rollup", "Pss:")


def _bytes_of(file: str, entry: str) -> int:
    """An entry in kB of a file of the system about a process; 0 for a process that has ended."""
    try:
        lines = Path(file).read_text(errors="replace").splitlines()
    except OSError:
        return 0
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith(entry)), 0)
