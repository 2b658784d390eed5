"""Checksums of files: whether what is read is what was written. They tell of accidents, not of
somebody who means to deceive.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from comity.errors import ComityError, CorruptedFile

CRC = "crc"
BLOCK = 1 << 20


class Checksum(NamedTuple):
    """How many bytes a file has, or had at some time, and the checksum of these: None where nobody
    wrote it down.
    """

    length: int
    crc: int | None

    @staticmethod
    def of(blob: bytes) -> Checksum:
        """That of a file with this content."""
        return Checksum(len(blob), zlib.crc32(blob))

    def and_then(self, blob: bytes) -> Checksum:
        """That of the file once something was appended to it, which need not be read for that."""
        return Checksum(
            self.length + len(blob), None if self.crc is None else zlib.crc32(blob, self.crc)
        )

    def check_beginning(self, path: Path) -> Checksum:
        """Refuse a file that does not begin with what this was taken of; this, with the checksum if
        it had none.
        """
        try:
            with path.open("rb") as file:
                if os.fstat(file.fileno()).st_size < self.length:
                    raise CorruptedFile(f"{path} is damaged: it is shorter than it was written.")
                left = self.length
                crc = 0
                while left and (block := file.read(min(BLOCK, left))):
                    crc = zlib.crc32(block, crc)
                    left -= len(block)
        except OSError as why:
            raise ComityError(f"{path} cannot be read ({why.strerror}).") from why
        if left or self.crc not in (None, crc):
            raise CorruptedFile(f"{path} is damaged: it is not what was written.")
        return Checksum(self.length, crc)

    def check(self, path: Path) -> None:
        """Refuse a file that is not what this was taken of, from its beginning to its end."""
        self.check_beginning(path)
        if path.stat().st_size != self.length:
            raise CorruptedFile(f"{path} is damaged: it is longer than it was written.")


def with_crc(plain: Mapping[str, Any]) -> dict[str, Any]:
    """What goes into a JSON file, with a checksum of it all."""
    return {**plain, CRC: _crc(plain)}


def without_crc(told: Mapping[str, Any]) -> dict[str, Any]:
    """What such a file says; a ValueError if its checksum is another. A file of an earlier version
    has none.
    """
    plain = {name: value for name, value in told.items() if name != CRC}
    if CRC in told and told[CRC] != _crc(plain):
        raise ValueError("the checksum is another")
    return plain


def _crc(plain: Mapping[str, Any]) -> int:
    """The checksum of what is said, whatever the lines and spaces."""
    return zlib.crc32(json.dumps(plain).encode())
