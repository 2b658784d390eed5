"""What all readers share: opening files, error messages, and checks of arrays."""

from __future__ import annotations

import gzip
import io
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from lzma import LZMAError
from pathlib import Path
from tarfile import TarError
from typing import IO, Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from comity.errors import UsageError
from comity.errors import quote as quote  # noqa: PLC0414

Array = NDArray[Any]
Pixels = NDArray[np.uint8]
Labels = NDArray[np.int64]
Source = str | Path

DAMAGED = "is damaged or cut short: get a new copy of it"
_DAMAGE = (gzip.BadGzipFile, zlib.error, EOFError, LZMAError, TarError, BadZipFile)


def file_error(where: Source, what: str) -> UsageError:
    """An error of one sentence: the file (or a place in it), then what is wrong with it."""
    return UsageError(f"{where} {what}.")


@contextmanager
def wrap_read_errors(path: Source) -> Iterator[None]:
    """Turn errors of the operating system and of decompressors into a `UsageError`."""
    try:
        yield
    except _DAMAGE as error:
        raise file_error(path, DAMAGED) from error
    except UnicodeDecodeError as error:
        raise file_error(path, "is not text in UTF-8: save it in that encoding") from error
    except OSError as error:
        raise file_error(
            path, f"cannot be read ({error.strerror or type(error).__name__})"
        ) from error
    except MemoryError as error:
        raise file_error(path, "needs more memory than there is") from error


@contextmanager
def wrap_parse_errors(where: Source, what: str = DAMAGED) -> Iterator[None]:
    """Turn any error of a third-party parser into a `UsageError` with the message `what`.

    On damaged files, parsers raise errors of many types.
    """
    try:
        yield
    except (UsageError, MemoryError):
        raise
    except Exception as error:
        raise file_error(where, what) from error


def existing_file(path: Source) -> Path:
    """Check that a file exists and is not empty, and return its path."""
    file = Path(path)
    with wrap_read_errors(path):
        if file.is_dir():
            raise file_error(path, "is a folder, but a file is needed here")
        if not file.is_file():  # missing, or a device or pipe that might never end
            raise UsageError(f"There is no file {path}.")
        if not file.stat().st_size:
            raise file_error(path, "is empty: get a new copy of it")
    return file


def existing_folder(path: Source, inner: str = "") -> Path:
    """Check that a folder exists; return its subfolder `inner` if there is one, else itself."""
    folder = Path(path)
    with wrap_read_errors(path):
        if not folder.is_dir():
            raise UsageError(f"There is no folder {path}.")
        return folder / inner if inner and (folder / inner).is_dir() else folder


def list_folder(folder: Path) -> list[Path]:
    """The files and folders in a folder, sorted by name, without hidden ones."""
    with wrap_read_errors(folder):
        return sorted(path for path in folder.iterdir() if not path.name.startswith("."))


FREELY_UNPACKED = 16_000_000
"""Size in bytes up to which files may be unpacked at any compression ratio."""
MOST_PACKED = 100
"""Largest compression ratio of larger files. Repetitive text can reach it; a higher ratio indicates
a decompression bomb.
"""


def most_unpacked(packed: int) -> int:
    """The largest allowed unpacked size of a file of `packed` bytes."""
    return max(FREELY_UNPACKED, MOST_PACKED * packed)


def check_unpacked(path: Source, size: int, packed: int) -> None:
    """Refuse a compressed file whose unpacked size is too large (a decompression bomb)."""
    if size > most_unpacked(packed):
        raise file_error(
            path,
            f"unpacks to more than {MOST_PACKED} times its size: if that is intended, save it"
            " without compression",
        )


class _Unpacked(io.RawIOBase):
    """The content of a gzip file, up to the allowed size (see `check_unpacked`)."""

    def __init__(self, path: Source, packed: gzip.GzipFile, size: int) -> None:
        self._path = path
        self._packed = packed
        self._size = size

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count = self._packed.readinto(buffer)
        check_unpacked(self._path, self._packed.tell(), self._size)
        return count

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        check_unpacked(
            self._path, offset + (self._packed.tell() if whence == io.SEEK_CUR else 0), self._size
        )
        return self._packed.seek(offset, whence)

    def tell(self) -> int:
        return self._packed.tell()


@contextmanager
def open_binary(path: Source) -> Iterator[IO[bytes]]:
    """Open a file for reading bytes; gzip files are unpacked.

    The first bytes decide, not the name, because browsers may unpack a file and keep its name.
    """
    with wrap_read_errors(path), existing_file(path).open("rb") as raw:
        if raw.peek(2)[:2] == b"\x1f\x8b":
            with gzip.GzipFile(fileobj=raw) as packed:
                yield io.BufferedReader(
                    _Unpacked(path, packed, os.fstat(raw.fileno()).st_size), 1 << 17
                )
        else:
            yield raw


def read_bytes(stream: IO[bytes], size: int) -> bytes:
    """Read at most `size` bytes, in pieces, so that a wrong size in a file reserves no memory."""
    pieces = []
    while size > 0 and (piece := stream.read(min(size, 1 << 20))):
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces)


MOST_CLASSES = 2**31


def labels(
    where: Source, values: Array, classes: int | None = None, first: int = 0, what: str = "label"
) -> Labels:
    """Convert labels that a file counts from `first` to int64 from 0.

    Raises:
        UsageError: if a label is not a whole number in the range of `classes`.
    """
    flat = np.asarray(values).reshape(-1)
    last = MOST_CLASSES if classes is None else first + classes - 1
    good = np.isfinite(flat) & (flat >= first) & (flat <= last) & (flat == np.floor(flat))
    if not good.all():
        row = int(np.argmin(good))
        span = f"whole numbers from {first}" + ("" if classes is None else f" to {int(last)}")
        raise file_error(
            where, f"has the {what} {flat[row]:g} in row {row + 1}, but {what}s are {span}"
        )
    return flat.astype(np.int64) - first


def check_same_length(where: Source, **arrays: Array) -> None:
    """Refuse arrays of different lengths."""
    if len({len(a) for a in arrays.values()}) > 1:
        sizes = " but ".join(f"{len(a)} {name}" for name, a in arrays.items())
        raise file_error(where, f"has {sizes}: there must be one per sample")


def import_optional(module: str, path: Source) -> Any:
    """Import a module that only some readers need.

    Raises:
        UsageError: if it is not installed; says what to install.
    """
    try:
        return import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        name = {"PIL": "pillow"}.get(package, package)
        raise file_error(
            path, f"can only be read with {name}: pip install 'comity[data]'"
        ) from error
