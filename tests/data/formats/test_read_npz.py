"""Archives of numpy."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from comity.data.formats import read_npz


def npy(values: Any) -> bytes:
    stream = io.BytesIO()
    np.lib.format.write_array(stream, np.asarray(values), allow_pickle=True)
    return stream.getvalue()


def save(path: Path, how: int = zipfile.ZIP_DEFLATED, **members: Any) -> Path:
    with zipfile.ZipFile(path, "w", how) as archive:
        for name, values in members.items():
            archive.writestr(f"{name}.npy", values if isinstance(values, bytes) else npy(values))
    return path


GOOD = {
    "x": np.arange(24, dtype=np.uint8).reshape(2, 3, 4),
    "y": np.array([0, 1]),
    "names": np.array(["a", "bc"]),
}


@pytest.mark.parametrize("how", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA])
def test_good(how: int, tmp_path: Path) -> None:
    path = save(tmp_path / "a.npz", how, **GOOD, bad=np.array([{}]))
    arrays = read_npz(path, x=("n", 3, "w"), y=("n",), names=None)
    assert list(arrays) == ["x", "y", "names"]  # what is not asked for is not looked at
    assert all(np.array_equal(arrays[name], GOOD[name]) for name in arrays)


def test_all_of_a_file_that_numpy_wrote(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "a.npz", x=np.asfortranarray(np.ones((2, 3))), y=np.array(3.5))
    arrays = read_npz(tmp_path / "a.npz")
    assert np.array_equal(arrays["x"], np.ones((2, 3)))
    assert arrays["y"] == 3.5


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_nan_only_where_expected(value: float, tmp_path: Path, refuses: Any) -> None:
    path = save(tmp_path / "a.npz", x=np.array([[0, 1], [value, 2]]))
    with refuses(path, str(value), "[1, 0]"):
        read_npz(path)
    assert read_npz(path, missing=True)["x"].shape == (2, 2)


@pytest.mark.parametrize(
    ("members", "shapes", "words"),
    [
        (GOOD, {"z": None}, "no array called z; it has x, y, names"),
        (GOOD, {"x": (2, 3, 5)}, "(2, 3, 4), but (2, 3, 5)"),
        (GOOD, {"x": ("n", "h")}, "but (n, h)"),
        (GOOD, {"y": (3,)}, "(2,), but (3,)"),
        (GOOD | {"y": np.arange(3)}, {"x": ("n", 3, 4), "y": ("n",)}, "3 for n in y but 2 in x"),
        ({}, {}, "no arrays"),
        ({"x": np.array([{}, 1])}, {}, "Python objects in x"),
        ({"x": np.array([("a", 1)], [("f", object), ("g", int)])}, {}, "Python objects in x"),
        ({"x": np.array(["2020-01-01"], "M8[D]")}, {}, "datetime64"),
        ({"x": b"not an array"}, {}, "damaged"),
        ({"x": npy(np.arange(9))[:-1]}, {}, "which does not fit its length"),
        ({"x": npy(np.arange(9)) + b"0"}, {}, "which does not fit its length"),
        (
            {
                "x": npy(np.zeros((1000, 1000), np.uint8)).replace(
                    b"(1000, 1000)", b"(9000000000,)"
                )[:128]
            },
            {},
            "length",
        ),
    ],
)
def test_bad_members(
    members: dict[str, Any], shapes: dict[str, Any], words: str, tmp_path: Path, refuses: Any
) -> None:
    path = save(tmp_path / "a.npz", **members)
    with refuses(path, words):
        read_npz(path, **shapes)


def test_a_member_that_is_no_array(tmp_path: Path, refuses: Any) -> None:
    path = tmp_path / "a.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("../readme.txt", "hello")
    with refuses(path, "not an array"):
        read_npz(path)


@pytest.mark.parametrize("how", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA])
@pytest.mark.parametrize(
    "spoil",
    [
        lambda content: content[: len(content) // 2],
        lambda content: content[2000:],
        lambda content: (
            content[:1000] + bytes(b ^ 255 for b in content[1000:1100]) + content[1100:]
        ),
        lambda content: npy(np.arange(3)),
        lambda content: b"PK\5\6",
    ],
    ids=["half", "no beginning", "flipped", "npy", "stub"],
)
def test_damaged(how: int, spoil: Any, tmp_path: Path, refuses: Any) -> None:
    path = save(
        tmp_path / "a.npz", how, x=np.random.default_rng(0).integers(0, 256, 5000, np.uint8)
    )
    path.write_bytes(spoil(path.read_bytes()))
    with refuses(path, "damaged"):
        read_npz(path)
