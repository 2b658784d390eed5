"""How much memory a run took."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from resource import RUSAGE_SELF, getrusage


def peak_memory() -> int:
    """The most memory, in bytes, that this process ever held, and its workers each beside it.

    Pages that workers share with it are counted again for each, so this is what is needed at most.
    """
    own = getrusage(RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return own + sum(_peak(pid) for pid in _workers())


def _workers() -> list[str]:
    """The processes that this one started, where the system tells."""
    try:
        return Path(f"/proc/self/task/{os.getpid()}/children").read_text(encoding="ascii").split()
    except OSError:
        return []


def _peak(pid: str) -> int:
    try:
        lines = (
            Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace").splitlines()
        )
    except OSError:  # it has just ended
        return 0
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM:")), 0)
