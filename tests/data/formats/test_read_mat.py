"""MATLAB files, as of SVHN."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.io import savemat

from comity.data.formats import read_mat, read_svhn_mat

X = np.random.default_rng(0).integers(0, 256, (32, 32, 3, 4), np.uint8)
Y = np.array([[1], [10], [9], [2]], np.uint8)


def save(path: Path, compressed: bool = True, **variables: Any) -> Path:
    savemat(path, variables, do_compression=compressed)
    return path


@pytest.mark.parametrize(
    "y", [Y, Y.astype(float), Y.T, np.where(Y == 10, 0, Y)], ids=["bytes", "floats", "row", "synth"]
)
def test_svhn(y: Any, tmp_path: Path) -> None:
    x, digits = read_svhn_mat(save(tmp_path / "train_32x32.mat", X=X, y=y))
    assert (x.shape, x.dtype, digits.dtype) == ((4, 3, 32, 32), np.uint8, np.int64)
    assert x[1, 2, 3, 4] == X[3, 4, 2, 1]
    assert digits.tolist() == [1, 0, 9, 2]


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"X": X}, "no variable called y"),
        ({"X": X[:28], "y": Y}, "(28, 32, 3, 4)"),
        ({"X": X[..., 0], "y": Y}, "(32, 32, 3)"),
        ({"X": X.astype(float), "y": Y}, "float64"),
        ({"X": X, "y": Y[:3]}, "4 images but 3 labels"),
        ({"X": X, "y": Y + 1}, "label 11 in row 2"),
        ({"X": X, "y": Y + 0.5}, "label 1.5 in row 1"),
        ({"X": X, "y": np.where(Y == 9, np.nan, Y)}, "label nan in row 3"),
        ({"X": X, "y": np.array([1, "a"], object)}, "not numeric"),
        ({"X": X, "y": {"a": 1}}, "not numeric"),
    ],
)
def test_bad_svhn(variables: dict[str, Any], words: str, tmp_path: Path, refuses: Any) -> None:
    path = save(tmp_path / "train_32x32.mat", **variables)
    with refuses(path, words):
        read_svhn_mat(path)


def test_mat(tmp_path: Path, refuses: Any) -> None:
    path = save(tmp_path / "any.mat", a=np.eye(2), b=np.arange(3), words="text")
    variables = read_mat(path, "a", "b")
    assert list(variables) == ["a", "b"]
    assert np.array_equal(variables["a"], np.eye(2))
    with refuses(path, "no variable called c"):
        read_mat(path, "a", "c")
    with refuses(path, "words"):
        read_mat(path, "words")


@pytest.mark.parametrize(
    "spoil",
    [
        lambda content: content[: len(content) // 2],
        lambda content: content[:128] + b"\xff" * 200,
        lambda content: b"not matlab at all" * 20,
        lambda content: b"MATLAB 7.3 MAT-file".ljust(124) + b"\x00\x02IM" + bytes(400),
    ],
    ids=["half", "garbage", "text", "7.3"],
)
@pytest.mark.parametrize("compressed", [True, False])
def test_damaged(spoil: Any, compressed: bool, tmp_path: Path, refuses: Any) -> None:
    path = save(tmp_path / "train_32x32.mat", compressed, X=X, y=Y)
    path.write_bytes(spoil(path.read_bytes()))
    with refuses(path):
        read_svhn_mat(path)
