"""CIFAR-10 and CIFAR-100, in the binary version and in the Python version of their makers."""

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
    bad,
    folder_of,
    labels,
    opened,
    parsing,
    reading,
    same_length,
    quote,
    take,
)
from comity.errors import UsageError

Classes = Literal[10, 100]
PIXELS = 3 * 32 * 32
MOST = 60_000 * 4096  # bytes: no file of CIFAR is larger, so nothing beyond is read


class Cifar(NamedTuple):
    """Images (N x 3 x 32 x 32), their labels, which are for testing, and the 20 superclasses where
    there are 100 classes.
    """

    x: Pixels
    y: Labels
    is_test: NDArray[np.bool_]
    coarse: Labels | None


@dataclass(frozen=True)
class _Version:
    """One of the four archives: what it is called, its folder, and the files in it."""

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
    """The binary version: its archive (.tar.gz), the folder that was in it, or some of its files.

    A record is one byte for the label (CIFAR-100: two, coarse and fine) and 3072 for the pixels.
    """
    version = BINARY[classes]

    def batch(where: str, content: bytes) -> Batch:
        size = PIXELS + (1 if classes == 10 else 2)
        if not content or len(content) % size:
            raise bad(
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
    """The Python version, which is made of pickles: only with `trust`, and even then nothing but
    arrays is made of them.
    """
    version = PYTHON[classes]
    if not trust:
        first = (
            source
            if isinstance(source, str | Path)
            else next(iter(source), "CIFAR's Python version")
        )
        raise bad(
            first,
            "is made of Python pickles, and a pickle can run any program: use the binary version "
            f"({BINARY[classes].archive}), or, if you trust whoever gave you the file, "
            f"comity data prepare cifar{classes} --trust-pickle",
        )

    def batch(where: str, content: bytes) -> Batch:
        with parsing(where):
            held = _Arrays(where, io.BytesIO(content)).load()
        x = held.get(b"data") if isinstance(held, Mapping) else None
        if (
            not isinstance(x, np.ndarray)
            or x.dtype != np.uint8
            or x.ndim != 2
            or x.shape[1] != PIXELS
            or not len(x)
        ):
            raise bad(
                where,
                f"has no images of CIFAR-{classes} in it: get a new copy of it, from"
                f" {version.archive}",
            )
        if classes == 10:
            return x, _listed(where, held, b"labels", classes), None
        return (
            x,
            _listed(where, held, b"fine_labels", classes),
            _listed(where, held, b"coarse_labels", SUPERCLASSES),
        )

    return _read(source, version, batch)


class _Arrays(pickle.Unpickler):
    """Makes arrays and plain values only: a pickle that asks for anything else is not CIFAR's,
    whoever is trusted.
    """

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
        raise bad(
            self._where,
            f"asks for {quote(f'{module}.{name}')}, which no file of CIFAR does: do not open it",
        )


def _listed(where: str, held: Mapping[bytes, object], key: bytes, classes: int) -> Labels:
    """The labels that an unpickled batch holds as a list."""
    try:
        values = np.asarray(held.get(key))
    except ValueError:  # lists in the list
        values = np.empty(())
    if values.ndim != 1 or values.dtype.kind not in "iu":
        raise bad(where, f"has no list of numbers called {key.decode()}: get a new copy of it")
    return labels(where, values, classes, what=key.decode().replace("_", " ").removesuffix("s"))


def _read(
    source: Source | Sequence[Source], version: _Version, batch: Callable[[str, bytes], Batch]
) -> Cifar:
    """Read all batches, and put them after one another."""
    x = []
    y = []
    is_test = []
    coarse = []
    sources = [source] if isinstance(source, str | Path) else source
    for where, name, content in (found for s in sources for found in _contents(s, version)):
        images, fine, superclass = batch(where, content)
        same_length(where, images=images, labels=fine)
        x.append(images)
        y.append(fine)
        is_test.append(np.full(len(fine), name.startswith("test")))
        if superclass is not None:
            same_length(where, images=images, superclasses=superclass)
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
    """Where each batch is, its name and its bytes: all batches of an archive or folder, or the one
    file.
    """
    path = Path(source)
    with reading(source):
        is_folder = path.is_dir()
    if is_folder:
        folder = folder_of(path, version.folder)
        missing = [name for name in version.files if not (folder / name).exists()]
        if missing:
            raise bad(source, _lacks(missing[0], version))
        for name in version.files:
            yield from _contents(folder / name, version)
    elif path.name.endswith((".tar", ".tar.gz", ".tgz")):
        held = _archived(path, version.files)
        for name in version.files:
            if name not in held:
                raise bad(source, _lacks(name, version))
            yield f"{name} in {source}", name, held[name]
    else:
        with opened(path) as stream:
            content = take(stream, MOST + 1)
        if len(content) > MOST:
            raise bad(path, "is larger than any file of CIFAR")
        yield str(path), path.name, content


def _archived(path: Path, names: tuple[str, ...]) -> dict[str, bytes]:
    """The files of those names in an archive, whatever their folder: nothing is written to disk."""
    held: dict[str, bytes] = {}
    with opened(path) as stream:
        with tarfile.open(fileobj=stream, mode="r:") as archive:
            for member in archive:
                name = Path(member.name).name
                if name not in names or not member.isreg():
                    continue
                if member.size > MOST:
                    raise bad(f"{name} in {path}", "is larger than any file of CIFAR")
                content = archive.extractfile(member)
                held[name] = b"" if content is None else content.read()
        take(stream, 1 << 20)  # to the end, where gzip keeps its checksum
    return held


def _lacks(name: str, version: _Version) -> str:
    return f"has no {name} in it: get a new copy of {version.archive}"
