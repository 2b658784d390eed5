"""The memory and the processes of this machine."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import platform
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from comity.errors import UsageError
from comity.units import size


def total_memory() -> int | None:
    """Return the most bytes of memory that this process can use; None if unknown."""
    limits = []
    try:
        from resource import RLIM_INFINITY, RLIMIT_AS, getrlimit

        limits.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
        if (limit := getrlimit(RLIMIT_AS)[0]) != RLIM_INFINITY:
            limits.append(limit)
    except (ImportError, OSError, ValueError):
        pass
    return min(limits, default=None)


def available_memory() -> int | None:
    """Return the bytes of memory that new processes can use now; None if unknown.

    This is the smaller of the system's available memory and what the limit of this process's
    control group (in a container or batch job) leaves. If neither is known, it is half of the total
    memory.
    """
    free = []
    with suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        kilobytes = next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
        free.append(1024 * kilobytes)
    with suppress(OSError, ValueError, IndexError):  # memory.max is "max" if there is no limit
        last_line = Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()[-1]
        group = Path("/sys/fs/cgroup") / last_line.rpartition(":")[2].lstrip("/")
        limit, used = (
            int((group / name).read_text(encoding="ascii"))
            for name in ("memory.max", "memory.current")
        )
        statistics = dict(
            line.split()
            for line in (group / "memory.stat").read_text(encoding="ascii").splitlines()
        )
        free.append(limit - used + int(statistics.get("inactive_file", 0)))
    if not free and (total := total_memory()) is not None:
        free.append(total // 2)
    return min(free, default=None)


def can_fork() -> bool:
    """Return whether this system can fork processes, which Windows cannot."""
    return "fork" in multiprocessing.get_all_start_methods()


def processor() -> str:
    """Return the model name of the processor; the kind of machine, as in x86_64, if unknown."""
    with suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        name = next(line for line in lines if line.startswith("model name"))
        return " ".join(name.partition(":")[2].split()) or platform.machine()
    return platform.processor() or platform.machine()


def computes_bfloat16() -> bool:
    """Return whether the processor has instructions for bfloat16: AVX-512 or AMX on x86, or those
    of ARM; True if unknown.
    """
    with suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        flags = next(line for line in lines if line.startswith(("flags", "Features"))).split()
        return not {"avx512_bf16", "amx_bf16", "bf16"}.isdisjoint(flags)
    return True


PR_SET_PDEATHSIG = 1  # as in prctl.h


def signal_at_end_of_parent(number: int) -> Callable[[], None] | None:
    """Return a function that a new process calls to get a signal when its parent ends in any way.

    None on other systems than Linux. A process whose parent ends before the call gets no signal.
    """
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None)  # loaded before the fork, after which little is safe

    def ask_for_signal() -> None:
        libc.prctl(PR_SET_PDEATHSIG, number)

    return ask_for_signal


def private_memory(pid: int) -> int:
    """Return the bytes of a process without shared pages; 0 if unknown or the process has ended."""
    with suppress(OSError, ValueError):
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
        return sum(1024 * int(line.split()[1]) for line in lines if line.startswith("Private_"))
    return 0


def trim_memory() -> None:
    """Return the memory that was freed to the system, where the C library can."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


class FreedMemory:
    """Counts freed memory, and returns it to the system after each 32 MB.

    For work that frees one item's memory while it needs memory for the next: freed blocks lie
    between blocks in use, are too small for what comes next, and the C library keeps them.
    """

    STEP = 32 << 20

    def __init__(self) -> None:
        self._waiting = 0

    def add(self, size: int) -> None:
        """So many bytes were freed."""
        self._waiting += size
        if self._waiting >= self.STEP:
            trim_memory()
            self._waiting = 0


def check_fits(what: str, needed: int) -> None:
    """Raise `UsageError` if something needs more memory than the machine has.

    Allocating it anyway could make the system kill this process.
    """
    total = total_memory()
    if total is not None and needed > total:
        raise UsageError(
            f"{what}, would take {size(min(needed, 10**30))}, but this machine has {size(total)} of"
            " memory: make it smaller."
        )
