"""What all readers share: opening a file, what is said when it is bad, and the checks that several
formats need.
"""

from __future__ import annotations

import gzip
import io
import os
import zlib
from collections.abc import Iterable, Iterator
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


def bad(where: Source, what: str) -> UsageError:
    """A refusal of one sentence: the file (or a place in it), then what is wrong with it."""
    return UsageError(f"{where} {what}.")


def few(names: Iterable[str], most: int = 20) -> str:
    """Names in a sentence: all, or the first of very many."""
    every = list(names)
    rest = len(every) - most
    return ", ".join(every[:most]) + (f" and {rest} more" if rest > 0 else "")


@contextmanager
def reading(path: Source) -> Iterator[None]:
    """Whatever the system or a decompressor says about the file becomes a refusal."""
    try:
        yield
    except _DAMAGE as why:
        raise bad(path, DAMAGED) from why
    except UnicodeDecodeError as why:
        raise bad(path, "is not text in UTF-8: save it in that encoding") from why
    except OSError as why:
        raise bad(path, f"cannot be read ({why.strerror or type(why).__name__})") from why
    except MemoryError as why:
        raise bad(path, "needs more memory than there is") from why


@contextmanager
def parsing(where: Source, what: str = DAMAGED) -> Iterator[None]:
    """Whatever somebody else's parser says about the bytes becomes a refusal: on damaged ones it
    fails in every way there is.
    """
    try:
        yield
    except (UsageError, MemoryError):
        raise
    except Exception as why:
        raise bad(where, what) from why


def present(path: Source) -> Path:
    """The path of a file that is there and not empty."""
    file = Path(path)
    with reading(path):
        if file.is_dir():
            raise bad(path, "is a folder, but a file is needed here")
        if not file.is_file():  # not there, or a device or pipe that might never end
            raise UsageError(f"There is no file {path}.")
        if not file.stat().st_size:
            raise bad(path, "is empty: get a new copy of it")
    return file


def folder_of(path: Source, inner: str = "") -> Path:
    """The path of a folder that is there; when it has a folder called `inner`, that one."""
    folder = Path(path)
    with reading(path):
        if not folder.is_dir():
            raise UsageError(f"There is no folder {path}.")
        return folder / inner if inner and (folder / inner).is_dir() else folder


def inside(folder: Path) -> list[Path]:
    """What a folder holds, by name, without what is hidden."""
    with reading(folder):
        return sorted(path for path in folder.iterdir() if not path.name.startswith("."))


FREELY_UNPACKED = 16_000_000  # bytes
# times: text of few different rows gets there, but what is larger as well is made to fill a machine
MOST_PACKED = 100


def most_unpacked(packed: int) -> int:
    """How many bytes may come of a packed file of that size."""
    return max(FREELY_UNPACKED, MOST_PACKED * packed)


def check_unpacked(path: Source, size: int, packed: int) -> None:
    """Refuse a packed file that says it would unpack to very much more than it is."""
    if size > most_unpacked(packed):
        raise bad(
            path,
            f"unpacks to more than {MOST_PACKED} times its size: if that is meant, save it again"
            " without packing it",
        )


class _Unpacked(io.RawIOBase):
    """What is in a gzip file, up to a bound: a few packed bytes can stand for more than any disk
    holds.
    """

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
def opened(path: Source) -> Iterator[IO[bytes]]:
    """The bytes of a file, unpacked when it is gzip: its first bytes decide, since browsers unpack
    and keep the name.
    """
    with reading(path), present(path).open("rb") as raw:
        if raw.peek(2)[:2] == b"\x1f\x8b":
            with gzip.GzipFile(fileobj=raw) as packed:
                yield io.BufferedReader(
                    _Unpacked(path, packed, os.fstat(raw.fileno()).st_size), 1 << 17
                )
        else:
            yield raw


def take(stream: IO[bytes], size: int) -> bytes:
    """At most `size` bytes, in pieces: a size that a file merely claims reserves no memory."""
    pieces = []
    while size > 0 and (piece := stream.read(min(size, 1 << 20))):
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces)


MOST_CLASSES = 2**31


def labels(
    where: Source, values: Array, classes: int | None = None, first: int = 0, what: str = "label"
) -> Labels:
    """Labels that the file counts from `first`, as int64 from 0; there are `classes` of them when
    that is known.
    """
    flat = np.asarray(values).reshape(-1)
    last = MOST_CLASSES if classes is None else first + classes - 1
    good = np.isfinite(flat) & (flat >= first) & (flat <= last) & (flat == np.floor(flat))
    if not good.all():
        row = int(np.argmin(good))
        span = f"whole numbers from {first}" + ("" if classes is None else f" to {int(last)}")
        raise bad(where, f"has the {what} {flat[row]:g} in row {row + 1}, but {what}s are {span}")
    return flat.astype(np.int64) - first


def same_length(where: Source, **arrays: Array) -> None:
    """Refuse arrays that do not have one entry a sample."""
    if len({len(a) for a in arrays.values()}) > 1:
        sizes = " but ".join(f"{len(a)} {name}" for name, a in arrays.items())
        raise bad(where, f"has {sizes}: there must be one a sample")


def optional(module: str, path: Source) -> Any:
    """A module that only some readers need, imported when it is."""
    try:
        return import_module(module)
    except ImportError as why:
        package = module.partition(".")[0]
        name = {"PIL": "pillow"}.get(package, package)
        raise bad(path, f"can only be read with {name}: pip install comity[data]") from why
