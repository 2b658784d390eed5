"""Locks on the files of a site, by which processes take turns."""

from __future__ import annotations

from typing import IO, Any

from comity.errors import UsageError


def lock_file(file: IO[Any]) -> None:
    """Wait for the lock of an open file. It is released when the file is closed.

    A site's budget must hold for all processes together, so nothing goes on without a lock.

    Raises:
        UsageError: this system has no such locks, as Windows.
    """
    try:
        import fcntl
    except ImportError:
        raise UsageError(
            "A site needs file locks, so that concurrent runs cannot exceed its budget, and this"
            " system has none (module fcntl): run the site on Linux or macOS."
        ) from None
    fcntl.flock(file, fcntl.LOCK_EX)
