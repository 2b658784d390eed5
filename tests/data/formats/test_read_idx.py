"""IDX files, as of MNIST."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from comity.data.formats import read_idx, read_idx_pair


def idx(values: np.ndarray[Any, Any]) -> bytes:
    return (
        bytes([0, 0, 8, values.ndim])
        + struct.pack(f">{values.ndim}I", *values.shape)
        + values.astype(np.uint8).tobytes()
    )


PICTURES = np.arange(2 * 3 * 4).reshape(2, 3, 4)
GOOD = idx(PICTURES)


@given(
    values=arrays(
        np.uint8,
        st.one_of(
            st.tuples(st.integers(1, 40)),
            st.tuples(st.integers(1, 5), st.integers(1, 6), st.integers(1, 6)),
        ),
    ),
    packed=st.booleans(),
)
def test_round_trip(
    tmp_path_factory: pytest.TempPathFactory, values: np.ndarray[Any, Any], packed: bool
) -> None:
    path = tmp_path_factory.mktemp("idx") / "file"
    path.write_bytes(gzip.compress(idx(values)) if packed else idx(values))
    read = read_idx(path)
    assert read.dtype == (np.int64 if values.ndim == 1 else np.uint8)
    assert np.array_equal(read if values.ndim == 1 else read[:, 0], values)
    read += 1  # writable


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"\x89PNG\r\n\x1a\n", "not an IDX file"),
        (b"\0\0", "not an IDX file"),
        (b"\0\0\x0d\3" + GOOD[4:], "type 0x0d"),
        (b"\0\0\x08\2" + GOOD[4:], "2 dimensions"),
        (GOOD[:10], "header"),
        (GOOD[:-1], "only 23"),
        (GOOD + b"\0", "more"),
        (idx(np.zeros((0, 3, 4))), "0 x 3 x 4"),
        (
            b"\0\0\x08\3" + b"\xff" * 12 + b"ab",
            "only 2",
        ),  # a huge claimed size
        (gzip.compress(GOOD, mtime=0)[:-9], "damaged"),
        (gzip.compress(GOOD, mtime=0)[:-8] + bytes(8), "damaged"),
        (gzip.compress(b"", mtime=0), "not an IDX file"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_bad_files(content: bytes, words: str, tmp_path: Path, refuses: Any) -> None:
    path = tmp_path / "train-images-idx3-ubyte"
    path.write_bytes(content)
    with refuses(path, words):
        read_idx(path)


class TestPair:
    @pytest.fixture
    def files(self, tmp_path: Path) -> tuple[Path, Path]:
        images, labels = tmp_path / "images", tmp_path / "labels"
        images.write_bytes(GOOD)
        labels.write_bytes(idx(np.array([1, 3])))
        return images, labels

    def test_good(self, files: tuple[Path, Path]) -> None:
        x, y = read_idx_pair(*files, classes=10)
        assert x.shape == (2, 1, 3, 4)
        assert y.tolist() == [1, 3]

    def test_emnist_letters(self, files: tuple[Path, Path]) -> None:
        x, y = read_idx_pair(*files, classes=26, first=1, transposed=True)
        assert np.array_equal(x[:, 0], PICTURES.swapaxes(1, 2))
        assert y.tolist() == [0, 2]

    def test_label_out_of_range(self, files: tuple[Path, Path], refuses: Any) -> None:
        with refuses(files[1], "label 3", "row 2", "0 to 2"):
            read_idx_pair(*files, classes=3)

    def test_other_lengths(self, files: tuple[Path, Path], refuses: Any) -> None:
        files[1].write_bytes(idx(np.array([1])))
        with refuses(files[0], "2 images", "1 labels", str(files[1])):
            read_idx_pair(*files, classes=10)

    def test_exchanged(self, files: tuple[Path, Path], refuses: Any) -> None:
        with refuses(files[1], "holds labels, but images"):
            read_idx_pair(files[1], files[0], classes=10)
        with refuses(files[0], "holds images, but labels"):
            read_idx_pair(files[0], files[0], classes=10)
