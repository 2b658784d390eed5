"""A state on disk: written once, read back checked."""

from __future__ import annotations

import os
import re
import stat
import zlib
from pathlib import Path
from typing import Any, NamedTuple

from comity.errors import ComityError, CorruptedFile
from comity.wire.codec import decode

OURS = re.compile(r"(server|party-[0-9]+)-[0-9]+\.safetensors")
"""What a state's file is called: nothing else is read, and nothing else is removed."""


class Saved(NamedTuple):
    """Where a party's state lies, and what it must be."""

    party: int
    file: str
    bytes: int
    crc: int


def write_state(folder: Path, file: str, party: int, blob: bytes) -> Saved:
    """Write an encoded state. Whoever names it in a manifest sees to it that it is on the disk by
    then.
    """
    with open(_opened(folder / file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "wb") as out:
        out.write(blob)
    return Saved(party, file, len(blob), zlib.crc32(blob))


def read_state(folder: Path, saved: Saved) -> Any:
    """A state as it was written, or an error that says it is not."""
    path = folder / saved.file
    if not OURS.fullmatch(saved.file):
        raise CorruptedFile(
            f"The checkpoint is damaged: it names {saved.file!r}, which is no state of a run."
        )
    try:
        with open(_opened(path, os.O_RDONLY), "rb") as file:
            about = os.fstat(file.fileno())
            as_written = (
                stat.S_ISREG(about.st_mode) and about.st_size == saved.bytes
            )  # before anything is read
            if as_written and saved.bytes > _memory():
                raise ComityError(
                    f"{path} has {saved.bytes} bytes, more than this machine's memory."
                )
            blob = file.read(saved.bytes) if as_written else b""
    except OSError as why:
        raise CorruptedFile(
            f"The checkpoint is damaged: {path} cannot be read ({why.strerror})."
        ) from why
    if not as_written or zlib.crc32(blob) != saved.crc:
        raise CorruptedFile(f"The checkpoint is damaged: {path} is not what was written.")
    return decode(blob)


def _opened(path: Path, how: int) -> int:
    """A file itself: a link may lead anywhere, and a pipe would make us wait."""
    return os.open(path, how | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0), 0o666)


def _memory() -> float:
    """The bytes of memory that this machine has, if that can be known."""
    try:
        return float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (AttributeError, ValueError, OSError):
        return float("inf")
