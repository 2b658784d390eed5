"""The C library's memory: freed blocks are kept for the next ones.

Each block of parties needs some megabytes for a moment. By default such memory goes back to the
system when it is freed, and every page of the next block is cleared and mapped anew, which takes
longer than filling it.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator

TRIM_THRESHOLD, TOP_PAD, MMAP_THRESHOLD = -1, -2, -3  # as in malloc.h
LARGEST = 32 << 20  # a larger mmap threshold is not taken
DEFAULT = 128 << 10


def _set(trim: int, pad: int, mmap: int) -> None:
    with contextlib.suppress(
        OSError, AttributeError
    ):  # another system than Linux with glibc has its own ways
        libc = ctypes.CDLL(None)
        for name, value in ((TRIM_THRESHOLD, trim), (TOP_PAD, pad), (MMAP_THRESHOLD, mmap)):
            libc.mallopt(name, value)


def keep_freed_memory() -> None:
    """From now on, for the rest of this process's life."""
    _set(trim=2**31 - 1, pad=LARGEST, mmap=LARGEST)


@contextlib.contextmanager
def freed_memory_kept() -> Iterator[None]:
    """For a while; then all that is free goes back to the system."""
    keep_freed_memory()
    try:
        yield
    finally:
        _set(trim=DEFAULT, pad=DEFAULT, mmap=DEFAULT)
        give_back()


def give_back() -> None:
    """Return to the system what is free now."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
