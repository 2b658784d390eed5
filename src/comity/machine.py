"""What the machine has, as far as it tells."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from comity.errors import UsageError
from comity.units import size


def memory() -> int | None:
    """Bytes of memory that this process could have at most; None where the system does not say."""
    limits = []
    try:
        from resource import RLIM_INFINITY, RLIMIT_AS, getrlimit

        limits.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
        if (allowed := getrlimit(RLIMIT_AS)[0]) != RLIM_INFINITY:
            limits.append(allowed)
    except (ImportError, OSError, ValueError):
        pass
    return min(limits, default=None)


def available() -> int | None:
    """Bytes of memory that new processes can have now, without others having to go; None where the
    system does not say.

    That is what the system says, and no more than the group of processes that this one is in is
    allowed, in a container or a batch job; on systems that say neither, half of all memory.
    """
    free = []
    with suppress(OSError, ValueError, StopIteration):
        told = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        free.append(
            1024 * next(int(line.split()[1]) for line in told if line.startswith("MemAvailable:"))
        )
    with suppress(OSError, ValueError, IndexError):  # "max", where there is no limit
        mine = (
            Path("/proc/self/cgroup")
            .read_text(encoding="utf-8")
            .splitlines()[-1]
            .rpartition(":")[2]
        )
        group = Path("/sys/fs/cgroup") / mine.lstrip("/")
        allowed, used = (
            int((group / name).read_text(encoding="ascii"))
            for name in ("memory.max", "memory.current")
        )
        files = dict(
            line.split()
            for line in (group / "memory.stat").read_text(encoding="ascii").splitlines()
        )
        free.append(allowed - used + int(files.get("inactive_file", 0)))
    if not free and (most := memory()) is not None:
        free.append(most // 2)
    return min(free, default=None)


def private(pid: int) -> int:
    """Bytes that a process has for itself, shared pages left out; 0 where the system does not say,
    or it is gone.
    """
    with suppress(OSError, ValueError):
        told = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
        return sum(1024 * int(line.split()[1]) for line in told if line.startswith("Private_"))
    return 0


def check_fits(what: str, needed: int) -> None:
    """Refuse what cannot be held however little else there is: asking the system for it may end in
    its killing us.
    """
    most = memory()
    if most is not None and needed > most:
        raise UsageError(
            f"{what}, would take {size(min(needed, 10**30))}, but this machine has {size(most)} of"
            " memory: make it smaller."
        )
