"""LEAF's json files of FEMNIST."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from comity.data.formats import read_leaf


def pixels(*values: int) -> list[list[float]]:
    return [[value / 255] * 784 for value in values]


def content(**users: tuple[Any, Any]) -> dict[str, Any]:
    return {
        "users": list(users),
        "num_samples": [len(y) for _, y in users.values()],
        "user_data": {name: {"x": x, "y": y} for name, (x, y) in users.items()},
    }


def write(path: Path, content: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_train_and_test(tmp_path: Path) -> None:
    write(
        tmp_path / "train" / "all_data_0.json",
        content(f2=(pixels(0, 255), [3, 61]), f1=(pixels(7), [0])),
    )
    write(tmp_path / "train" / "all_data_1.json", content(f3=(pixels(9), [1])))
    write(tmp_path / "test" / "all_data_0.json", content(f1=(pixels(8), [2]), f4=([], [])))
    x, y, user, users, is_test = read_leaf(tmp_path)
    assert (x.shape, x.dtype, y.dtype) == ((5, 1, 28, 28), np.uint8, np.int64)
    assert x[:, 0, 0, 0].tolist() == [0, 255, 7, 9, 8]
    assert y.tolist() == [3, 61, 0, 1, 2]
    assert users == ("f1", "f2", "f3", "f4")
    assert user.tolist() == [1, 1, 0, 2, 0]
    assert is_test.tolist() == [False, False, False, False, True]
    assert read_leaf(tmp_path / "test").is_test.tolist() == [True]


def test_every_byte_comes_back(tmp_path: Path) -> None:
    values = np.arange(784) % 256
    write(tmp_path / "a.json", content(u=([(values / 255).tolist()], [0])))
    assert np.array_equal(read_leaf(tmp_path).x.reshape(-1), values)


@pytest.mark.parametrize(
    ("content_of_file", "words"),
    [
        ("{", "not json"),
        ("[" * 100_000, "not json"),
        ("[]", "not a file of LEAF"),
        ({"users": [], "num_samples": []}, "not a file of LEAF"),
        (content(u=(pixels(1), [0])) | {"num_samples": []}, "not a file of LEAF"),
        (content(u=(pixels(1), [0])) | {"num_samples": [2]}, "'u' has 2 samples, but there are 1"),
        (content(u=(pixels(1), [0])) | {"user_data": {}}, "no data"),
        (content(u=(pixels(1), [0])) | {"users": [[]]}, "no data"),
        (content(u=(pixels(1, 2), [0])), "784 pixels"),
        (content(u=([[0.5] * 783], [0])), "784 pixels"),
        (content(u=([[0.5] * 784, [0.5]], [0, 1])), "784 pixels"),
        (content(u=([["0.5"] * 784], [0])), "784 pixels"),
        (content(u=([[None] * 784], [0])), "784 pixels"),
        (content(u=(pixels(1), [[0]])), "784 pixels"),
        (content(u=(pixels(256), [0])), "between 0 and 1"),
        (content(u=([[float("nan")] * 784], [0])), "between 0 and 1"),
        (content(u=(pixels(1), [62])), "label 62 in row 1"),
        (content(u=(pixels(1), [-1])), "label -1"),
        (content(u=(pixels(1), [0.5])), "label 0.5"),
    ],
)
def test_bad_files(content_of_file: Any, words: str, tmp_path: Path, refuses: Any) -> None:
    path = write(tmp_path / "all_data_0.json", content_of_file)
    with refuses(path, words):
        read_leaf(tmp_path)


def test_bad_folders(tmp_path: Path, refuses: Any) -> None:
    with refuses(tmp_path, "no json files"):
        read_leaf(tmp_path)
    with refuses("nowhere", "no folder"):
        read_leaf(tmp_path / "nowhere")
    write(tmp_path / "a.json", content(u=([], [])))
    with refuses(tmp_path, "no samples"):
        read_leaf(tmp_path)
    write(tmp_path / "b.json", content(u=(pixels(1), [0])))
    with refuses(tmp_path / "b.json", "'u'", "already in a.json"):
        read_leaf(tmp_path)
