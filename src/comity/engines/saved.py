"""States on disk: written once, and checked when they are read."""

from __future__ import annotations

import os
import re
import stat
import zlib
from pathlib import Path
from typing import Any, NamedTuple

from comity.errors import ComityError, CorruptedFile
from comity.safe_files import NO_LINK, create_file
from comity.wire.codec import decode

STATE_FILE = re.compile(r"(server|party-[0-9]+)-[0-9]+\.safetensors")
"""The names of state files. No other file is read or removed."""


class Saved(NamedTuple):
    """A party's state file: its name, size and checksum."""

    party: int
    file: str
    bytes: int
    crc: int


def write_state(folder: Path, file: str, party: int, blob: bytes) -> Saved:
    """Write an encoded state. The caller must flush it to the disk before naming it in a
    manifest.
    """
    with create_file(folder / file) as out:
        out.write(blob)
    return Saved(party, file, len(blob), zlib.crc32(blob))


def read_state(folder: Path, saved: Saved) -> Any:
    """Read a state. Raises CorruptedFile if it is not what was written."""
    path = folder / saved.file
    if not STATE_FILE.fullmatch(saved.file):
        raise CorruptedFile(
            f"The checkpoint is damaged: it names {saved.file!r}, which is not a state file."
        )
    try:
        with open(os.open(path, os.O_RDONLY | NO_LINK), "rb") as file:
            about = os.fstat(file.fileno())
            # Checked before anything is read.
            as_written = stat.S_ISREG(about.st_mode) and about.st_size == saved.bytes
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


def _memory() -> float:
    """The bytes of memory of this machine; infinite if unknown."""
    try:
        return float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (AttributeError, ValueError, OSError):
        return float("inf")
