"""Settings of the C library's allocator: freed memory is kept for reuse.

Each block of parties needs some megabytes for a short time. By default such memory returns to the
system when it is freed, and the system clears and maps every page of the next block again, which
takes longer than filling it.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator

from comity.machine import trim_memory

TRIM_THRESHOLD, TOP_PAD, MMAP_THRESHOLD = -1, -2, -3  # as in malloc.h
LARGEST = 32 << 20  # the allocator ignores a larger mmap threshold
DEFAULT = 128 << 10


def _set(trim: int, pad: int, mmap: int) -> None:
    with contextlib.suppress(OSError, AttributeError):  # systems without glibc have no mallopt
        libc = ctypes.CDLL(None)
        for name, value in ((TRIM_THRESHOLD, trim), (TOP_PAD, pad), (MMAP_THRESHOLD, mmap)):
            libc.mallopt(name, value)


def keep_freed_memory() -> None:
    """Keep freed memory for the rest of this process's life."""
    _set(trim=2**31 - 1, pad=LARGEST, mmap=LARGEST)


@contextlib.contextmanager
def keeping_freed_memory() -> Iterator[None]:
    """Keep freed memory within this context, and return it to the system at the end."""
    keep_freed_memory()
    try:
        yield
    finally:
        _set(trim=DEFAULT, pad=DEFAULT, mmap=DEFAULT)
        trim_memory()
