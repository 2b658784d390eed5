"""Every reader on missing, foreign and damaged files: it returns a result or refuses the file."""

from __future__ import annotations

import gzip
import io
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.io import savemat

from comity.data import formats as f
from comity.errors import UsageError

SAMPLES = np.random.default_rng(0).integers(0, 256, (2, 3072), np.uint8)


def _mat() -> bytes:
    stream = io.BytesIO()
    savemat(
        stream, {"X": SAMPLES.reshape(32, 32, 3, 2), "y": np.array([[1], [2]])}, do_compression=True
    )
    return stream.getvalue()


def _npz() -> bytes:
    stream = io.BytesIO()
    np.savez_compressed(stream, x=SAMPLES, y=np.array([1.0, 2.0]))
    return stream.getvalue()


def _lzma() -> bytes:
    stream, array = io.BytesIO(), io.BytesIO()
    np.save(array, SAMPLES)
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("x.npy", array.getvalue())
    return stream.getvalue()


def _picture(kind: str) -> bytes:
    image = pytest.importorskip("PIL.Image")
    stream = io.BytesIO()
    image.fromarray(SAMPLES[0].reshape(32, 32, 3)).save(stream, kind)
    return stream.getvalue()


def _parquet() -> bytes:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    stream = io.BytesIO()
    parquet.write_table(arrow.table({"a": list(range(50)), "b": ["word"] * 50}), stream)
    return stream.getvalue()


def _sheet() -> bytes:
    book = pytest.importorskip("openpyxl").Workbook()
    for row in (["a", "b"], [1, "word"], [2.5, None]):
        book.active.append(row)
    stream = io.BytesIO()
    book.save(stream)
    return stream.getvalue()


def _idx() -> bytes:
    return bytes([0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 48, 0, 0, 0, 64]) + SAMPLES.tobytes()


READERS: dict[str, tuple[Callable[[Path], Any], Callable[[], bytes]]] = {
    "idx": (f.read_idx, _idx),
    "idx.gz": (f.read_idx, lambda: gzip.compress(_idx())),
    "cifar.bin": (f.read_cifar_binary, lambda: b"\1" + SAMPLES[0].tobytes()),
    "cifar.pickle": (
        lambda p: f.read_cifar_python(p, True),
        lambda: pickle.dumps({b"data": SAMPLES, b"labels": [1, 2]}),
    ),
    "svhn.mat": (f.read_svhn_mat, _mat),
    "npz": (f.read_npz, _npz),
    "lzma.npz": (f.read_npz, _lzma),
    "png": (f.read_image, lambda: _picture("PNG")),
    "jpeg": (f.read_image, lambda: _picture("JPEG")),
    "bmp": (f.read_image, lambda: _picture("BMP")),
    "ppm": (f.read_image, lambda: _picture("PPM")),
    "csv": (f.read_csv, lambda: b"a,b\n1,2\n3,4\n"),
    "csv.gz": (f.read_csv, lambda: gzip.compress(b"a,b\n1,2\n3,4\n" * 50)),
    "parquet": (f.read_parquet, _parquet),
    "adult": (f.read_adult, lambda: b"39, S, 7, B, 13, N, A, N, W, M, 2, 0, 40, U, >50K\n"),
    "xlsx": (f.read_xlsx, _sheet),
}


@pytest.fixture(params=READERS)
def reader(request: pytest.FixtureRequest) -> tuple[Callable[[Path], Any], bytes]:
    read, make = READERS[request.param]
    return read, make()


def test_good(reader: Any, tmp_path: Path) -> None:
    read, content = reader
    (tmp_path / "file").write_bytes(content)
    read(tmp_path / "file")
    read(str(tmp_path / "file"))


def test_missing_empty_and_folder(reader: Any, tmp_path: Path, refuses: Any) -> None:
    read, _ = reader
    path = tmp_path / "file"
    with refuses(path, "There is no file"):
        read(path)
    with refuses("n" * 300, "File name too long"):
        read(tmp_path / ("n" * 300))
    path.touch()
    with refuses(path, "is empty"):
        read(path)
    path.unlink()
    path.mkdir()
    with refuses(path):
        read(path)


@pytest.mark.parametrize(
    "other",
    [
        b"\0",
        b"\x1f\x8b",
        b"PK\3\4",
        bytes(range(256)) * 20,
        gzip.compress(b"hello", mtime=0)[:-2],
        b"<html>404 Not Found</html>\n",
    ],
    ids=["zero", "gzip", "zip", "bytes", "cut gzip", "html"],
)
def test_other_files(reader: Any, other: bytes, tmp_path: Path, refuses: Any) -> None:
    read, _ = reader
    path = tmp_path / "file"
    path.write_bytes(other)
    with refuses(path):
        read(path)


def test_damage_anywhere(reader: Any, tmp_path: Path, refuses: Any) -> None:
    """Some damage cannot be detected (a pixel of a bmp); any other must be refused."""
    read, content = reader
    path, rng = tmp_path / "file", np.random.default_rng(1)
    for _ in range(60):
        at, size = int(rng.integers(len(content))), int(rng.integers(1, 9))
        cut = (
            content[:at]
            if rng.random() < 0.4
            else content[:at] + rng.bytes(size) + content[at + size :]
        )
        path.write_bytes(cut)
        try:
            read(path)
        except UsageError:
            with refuses(path):
                read(path)
