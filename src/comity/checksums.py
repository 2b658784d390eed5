"""Checksums of files. They detect accidental damage, not deliberate changes."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from comity.errors import ComityError, CorruptedFile

CRC = "crc"
UNREADABLE = (
    OSError,
    CorruptedFile,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    RecursionError,
)
"""What reading a file raises, and the use of its content, if the file is missing or damaged."""
BLOCK = 1 << 20


class Checksum(NamedTuple):
    """The length of a file, or of its beginning, and its CRC-32 (None if it was not recorded)."""

    length: int
    crc: int | None

    @staticmethod
    def of(blob: bytes) -> Checksum:
        """Return the checksum of a file with this content."""
        return Checksum(len(blob), zlib.crc32(blob))

    def and_then(self, blob: bytes) -> Checksum:
        """Return the checksum after appending `blob`, without reading the file again."""
        return Checksum(
            self.length + len(blob), None if self.crc is None else zlib.crc32(blob, self.crc)
        )

    def check_beginning(self, path: Path) -> Checksum:
        """Check that a file begins with the bytes of this checksum.

        Returns this checksum, with the CRC computed if it was None. Raises `CorruptedFile` if the
        file differs, and `ComityError` if it cannot be read.
        """
        try:
            with path.open("rb") as file:
                if os.fstat(file.fileno()).st_size < self.length:
                    raise CorruptedFile(f"{path} is damaged: it is shorter than it was written.")
                remaining = self.length
                crc = 0
                while remaining and (block := file.read(min(BLOCK, remaining))):
                    crc = zlib.crc32(block, crc)
                    remaining -= len(block)
        except OSError as why:
            raise ComityError(f"{path} cannot be read ({why.strerror}).") from why
        if remaining or self.crc not in (None, crc):
            raise CorruptedFile(f"{path} is damaged: it is not what was written.")
        return Checksum(self.length, crc)

    def check(self, path: Path) -> None:
        """Raise `CorruptedFile` if a file differs from this checksum in length or content."""
        self.check_beginning(path)
        if path.stat().st_size != self.length:
            raise CorruptedFile(f"{path} is damaged: it is longer than it was written.")


def with_crc(plain: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of a JSON file with its checksum added."""
    return {**plain, CRC: _crc(plain)}


def without_crc(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of a JSON file without its checksum.

    Files of earlier versions have no checksum. Raises `ValueError` if the checksum differs.
    """
    plain = {name: value for name, value in content.items() if name != CRC}
    if CRC in content and content[CRC] != _crc(plain):
        raise ValueError("the checksum differs")
    return plain


def read_json(path: Path, *, needs_checksum: bool = False) -> dict[str, Any]:
    """Return the content of a JSON file without its checksum.

    Args:
        path: the file
        needs_checksum: whether a file without a checksum is damaged. Otherwise it is one of an
            earlier version.

    Raises:
        OSError: the file cannot be read.
        CorruptedFile: it is not what was written.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if needs_checksum and CRC not in content:
            raise ValueError("the checksum is missing")
        return without_crc(content)
    except ValueError as why:
        raise CorruptedFile(f"{path} is damaged: {why}.") from why
    except (TypeError, AttributeError, RecursionError) as why:
        raise CorruptedFile(f"{path} is damaged: it is not what was written.") from why


def _crc(plain: Mapping[str, Any]) -> int:
    """Return the checksum of JSON content, independent of its line breaks and spaces."""
    return zlib.crc32(json.dumps(plain).encode())
