"""Decompression bombs: small files that unpack to many bytes are refused before they fill the
memory.
"""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from scipy.io import savemat

from comity.data import formats
from comity.data.formats import common, images, table
from comity.errors import UsageError

MANY = 20_000_000  # bytes; packed some 20,000
ZEROS = np.zeros((1, MANY), np.uint8)
IDX = b"\0\0\x08\x03" + b"\0\xff\xff\xff" * 3  # a picture file's header


@pytest.fixture(autouse=True)
def _small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(common, "FREELY_UNPACKED", 1_000_000)
    monkeypatch.setattr(images, "MOST_PIXELS", 1_000_000)


def _tar(path: Path) -> None:
    """A member that is skipped must be unpacked, too."""
    with tarfile.open(path, "w:gz") as archive:
        member = tarfile.TarInfo("nothing")
        member.size = MANY
        archive.addfile(member, io.BytesIO(bytes(MANY)))


def _parquet(path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    pytest.importorskip("pyarrow.parquet").write_table(
        arrow.table({"x": np.zeros(2_000_000, np.int8)}), path
    )


def _picture(path: Path) -> None:
    pytest.importorskip("PIL.Image").new("L", (2000, 2000)).save(path)


BOMBS: dict[str, tuple[str, Callable[[Path], object], Callable[[Path], object]]] = {
    "one line": ("a.csv.gz", lambda p: p.write_bytes(gzip.compress(b"x,y\n" + b"1," * (MANY // 2))), formats.read_csv),
    "idx": ("a.gz", lambda p: p.write_bytes(gzip.compress(IDX + bytes(MANY))), formats.read_idx),
    "npz": ("a.npz", lambda p: np.savez_compressed(p, x=ZEROS), formats.read_npz),
    "mat": ("a.mat", lambda p: savemat(p, {"X": ZEROS}, do_compression=True), lambda p: formats.read_mat(p, "X")),
    "tar": ("a.tar.gz", _tar, formats.read_cifar_binary),
    "list": ("a.txt", lambda p: p.write_bytes(gzip.compress(b"\n" * MANY)), lambda p: formats.read_image_list(p.parent, p, 8)),
    "leaf": ("all.json", lambda p: p.write_bytes(gzip.compress(b"[" * MANY)), lambda p: formats.read_leaf(p.parent)),
    "parquet": ("a.parquet", _parquet, formats.read_parquet),
    "picture": ("a.png", _picture, formats.read_image),
}  # fmt: skip


@pytest.mark.parametrize("kind", BOMBS)
def test_a_bomb_is_refused(kind: str, tmp_path: Path) -> None:
    name, make, read = BOMBS[kind]
    make(tmp_path / name)
    assert (tmp_path / name).stat().st_size < 100_000
    with pytest.raises(UsageError, match=r"more than 100 times its size|pixels, more than"):
        read(tmp_path / name)


def test_blank_lines_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "MOST_BLANK", 1000)
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(b"x,y\n" + b"\n" * MANY))
    with pytest.raises(UsageError, match="blank lines"):
        formats.read_csv(tmp_path / "a.csv.gz")


def test_small_compressible_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(b"x,y\n" + b"0,1\n" * 200_000))
    assert len(formats.read_csv(tmp_path / "a.csv.gz")) == 200_000


def test_huge_label_is_refused(tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_text(f"a.png {'9' * 5000}\n", encoding="utf-8")
    with pytest.raises(UsageError, match="in line 1"):
        formats.read_image_list(tmp_path, tmp_path / "list.txt", 8)
    with pytest.raises(UsageError, match="1e\\+300"):
        common.labels("a.csv", np.array([0, 1e300]))


def test_a_nul_byte_in_a_table(tmp_path: Path) -> None:
    """numpy's text ends at a NUL, so the cell would be truncated."""
    (tmp_path / "a.csv").write_bytes(b"x,y\n1\x00,2\n")
    with pytest.raises(UsageError, match="NUL byte in line 2"):
        formats.read_csv(tmp_path / "a.csv")
