"""CIFAR-10 and CIFAR-100, in the official binary and Python versions."""

from __future__ import annotations

import io
import pickle
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from comity.data.formats.common import (
    Labels,
    Pixels,
    Source,
    check_same_length,
    existing_folder,
    file_error,
    labels,
    open_binary,
    quote,
    read_bytes,
    wrap_parse_errors,
    wrap_read_errors,
)
from comity.errors import UsageError

Classes = Literal[10, 100]
PIXELS = 3 * 32 * 32
MOST = 60_000 * 4096
"""Bytes; no file of CIFAR is larger, so nothing beyond is read."""


class Cifar(NamedTuple):
    """Images (N x 3 x 32 x 32), labels, a test mask, and for CIFAR-100 the 20 superclasses."""

    x: Pixels
    y: Labels
    is_test: NDArray[np.bool_]
    coarse: Labels | None


@dataclass(frozen=True)
class _Version:
    """One of the four archives: its name, its folder and its files."""

    archive: str
    folder: str
    files: tuple[str, ...]


_TEN = (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")
_HUNDRED = ("train", "test")
BINARY: dict[int, _Version] = {
    10: _Version(
        "cifar-10-binary.tar.gz", "cifar-10-batches-bin", tuple(f"{name}.bin" for name in _TEN)
    ),
    100: _Version(
        "cifar-100-binary.tar.gz", "cifar-100-binary", tuple(f"{name}.bin" for name in _HUNDRED)
    ),
}
PYTHON: dict[int, _Version] = {
    10: _Version("cifar-10-python.tar.gz", "cifar-10-batches-py", _TEN),
    100: _Version("cifar-100-python.tar.gz", "cifar-100-python", _HUNDRED),
}

SUPERCLASSES = 20
Batch = tuple[Pixels, Labels, Labels | None]


def read_cifar_binary(source: Source | Sequence[Source], classes: Classes = 10) -> Cifar:
    """Read the binary version: its archive (.tar.gz), its folder, or some of its files.

    A record is one byte for the label (CIFAR-100: two, coarse and fine) and 3072 for the pixels.
    """
    version = BINARY[classes]

    def batch(where: str, content: bytes) -> Batch:
        size = PIXELS + (1 if classes == 10 else 2)
        if not content or len(content) % size:
            raise file_error(
                where,
                f"has {len(content)} bytes, but CIFAR-{classes} takes {size} an image: get a new"
                f" copy of it, from {version.archive}",
            )
        records = np.frombuffer(content, np.uint8).reshape(-1, size)
        coarse = (
            None
            if classes == 10
            else labels(where, records[:, 0], SUPERCLASSES, what="coarse label")
        )
        return records[:, -PIXELS:], labels(where, records[:, -PIXELS - 1], classes), coarse

    return _read(source, version, batch)


def read_cifar_python(
    source: Source | Sequence[Source], trust: bool, classes: Classes = 10
) -> Cifar:
    """Read the Python version, which consists of pickles.

    It is refused without `trust`. With `trust`, the unpickler still creates nothing but arrays and
    plain values.
    """
    version = PYTHON[classes]
    if not trust:
        first = (
            source
            if isinstance(source, str | Path)
            else next(iter(source), "CIFAR's Python version")
        )
        raise file_error(
            first,
            "is made of Python pickles, and a pickle can run any program: use the binary version "
            f"({BINARY[classes].archive}), or, if you trust the source of the file, "
            f"comity data prepare cifar{classes} --trust-pickle",
        )

    def batch(where: str, content: bytes) -> Batch:
        with wrap_parse_errors(where):
            unpickled = _Arrays(where, io.BytesIO(content)).load()
        x = unpickled.get(b"data") if isinstance(unpickled, Mapping) else None
        if (
            not isinstance(x, np.ndarray)
            or x.dtype != np.uint8
            or x.ndim != 2
            or x.shape[1] != PIXELS
            or not len(x)
        ):
            raise file_error(
                where,
                f"has no images of CIFAR-{classes} in it: get a new copy of it, from"
                f" {version.archive}",
            )
        if classes == 10:
            return x, _label_list(where, unpickled, b"labels", classes), None
        return (
            x,
            _label_list(where, unpickled, b"fine_labels", classes),
            _label_list(where, unpickled, b"coarse_labels", SUPERCLASSES),
        )

    return _read(source, version, batch)


class _Arrays(pickle.Unpickler):
    """An unpickler that creates arrays and plain values only and refuses any other class."""

    def __init__(self, where: str, stream: io.BytesIO) -> None:
        super().__init__(stream, encoding="bytes")
        self._where = where

    def find_class(self, module: str, name: str) -> Any:
        if (module.replace("numpy._core", "numpy.core"), name) in {
            ("numpy.core.multiarray", "_reconstruct"),
            ("numpy", "ndarray"),
            ("numpy", "dtype"),
            ("_codecs", "encode"),
        }:
            return super().find_class(module, name)
        raise file_error(
            self._where,
            f"asks for {quote(f'{module}.{name}')}, which no file of CIFAR does: do not open it",
        )


def _label_list(where: str, unpickled: Mapping[bytes, object], key: bytes, classes: int) -> Labels:
    """The labels of an unpickled batch."""
    try:
        values = np.asarray(unpickled.get(key))
    except ValueError:  # nested lists
        values = np.empty(())
    if values.ndim != 1 or values.dtype.kind not in "iu":
        raise file_error(
            where, f"has no list of numbers called {key.decode()}: get a new copy of it"
        )
    return labels(where, values, classes, what=key.decode().replace("_", " ").removesuffix("s"))


def _read(
    source: Source | Sequence[Source], version: _Version, batch: Callable[[str, bytes], Batch]
) -> Cifar:
    """Read and concatenate all batches."""
    x = []
    y = []
    is_test = []
    coarse = []
    sources = [source] if isinstance(source, str | Path) else source
    for where, name, content in (
        batch_content for s in sources for batch_content in _contents(s, version)
    ):
        images, fine, superclass = batch(where, content)
        check_same_length(where, images=images, labels=fine)
        x.append(images)
        y.append(fine)
        is_test.append(np.full(len(fine), name.startswith("test")))
        if superclass is not None:
            check_same_length(where, images=images, superclasses=superclass)
            coarse.append(superclass)
    if not x:
        raise UsageError("No file of CIFAR was named.")
    return Cifar(
        np.concatenate(x).reshape(-1, 3, 32, 32),
        np.concatenate(y),
        np.concatenate(is_test),
        np.concatenate(coarse) if coarse else None,
    )


def _contents(source: Source, version: _Version) -> Iterator[tuple[str, str, bytes]]:
    """Place, name and bytes of each batch of an archive or folder, or of one file."""
    path = Path(source)
    with wrap_read_errors(source):
        is_folder = path.is_dir()
    if is_folder:
        folder = existing_folder(path, version.folder)
        missing = [name for name in version.files if not (folder / name).exists()]
        if missing:
            raise file_error(source, _missing_file(missing[0], version))
        for name in version.files:
            yield from _contents(folder / name, version)
    elif path.name.endswith((".tar", ".tar.gz", ".tgz")):
        archived = _archived(path, version.files)
        for name in version.files:
            if name not in archived:
                raise file_error(source, _missing_file(name, version))
            yield f"{name} in {source}", name, archived[name]
    else:
        with open_binary(path) as stream:
            content = read_bytes(stream, MOST + 1)
        if len(content) > MOST:
            raise file_error(path, "is larger than any file of CIFAR")
        yield str(path), path.name, content


def _archived(path: Path, names: tuple[str, ...]) -> dict[str, bytes]:
    """The files of an archive with these names, in any folder; nothing is written to disk."""
    contents: dict[str, bytes] = {}
    with open_binary(path) as stream:
        with tarfile.open(fileobj=stream, mode="r:") as archive:
            for member in archive:
                name = Path(member.name).name
                if name not in names or not member.isreg():
                    continue
                if member.size > MOST:
                    raise file_error(f"{name} in {path}", "is larger than any file of CIFAR")
                content = archive.extractfile(member)
                contents[name] = b"" if content is None else content.read()
        read_bytes(stream, 1 << 20)  # to the end, so that gzip verifies its checksum
    return contents


def _missing_file(name: str, version: _Version) -> str:
    """The message about a missing batch."""
    return f"has no {name} in it: get a new copy of {version.archive}"
