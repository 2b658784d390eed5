"""A state on disk: written once, read back checked."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any, NamedTuple

from comity.core.codec import decode
from comity.errors import ComityError


class Saved(NamedTuple):
    """Where a party's state lies, and what it must be."""

    party: int
    file: str
    bytes: int
    crc: int


def write_state(folder: Path, file: str, party: int, blob: bytes) -> Saved:
    """Write an encoded state."""
    (folder / file).write_bytes(blob)
    return Saved(party, file, len(blob), zlib.crc32(blob))


def read_state(folder: Path, saved: Saved) -> Any:
    """A state as it was written, or an error that says it is not."""
    try:
        blob = (folder / saved.file).read_bytes()
    except OSError as why:
        raise ComityError(f"The checkpoint is damaged: {folder / saved.file} cannot be read ({why.strerror}).") from why
    if len(blob) != saved.bytes or zlib.crc32(blob) != saved.crc:
        raise ComityError(f"The checkpoint is damaged: {folder / saved.file} is not what was written.")
    return decode(blob)
