"""Peak memory of a run."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def peak_memory() -> int:
    """Return the peak memory in bytes: the sum of the peaks of this process and of its workers.

    Pages that workers share with this process are counted more than once, so it is an upper bound.
    Returns 0 where the system does not tell, as Windows.
    """
    try:
        from resource import RUSAGE_SELF, getrusage
    except ImportError:
        return 0
    peak = getrusage(RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return peak + sum(_peak(pid) for pid in _workers())


def _workers() -> list[str]:
    """Return the ids of the child processes; none where the system has no such list."""
    try:
        return Path(f"/proc/self/task/{os.getpid()}/children").read_text(encoding="ascii").split()
    except OSError:
        return []


def _peak(pid: str) -> int:
    try:
        lines = (
            Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace").splitlines()
        )
    except OSError:  # the process has ended
        return 0
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM:")), 0)
