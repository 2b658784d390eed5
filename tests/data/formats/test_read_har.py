"""UCI's Human Activity Recognition in its original layout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from comity.data.formats import read_uci_har

SIGNALS = [f"{kind}_{axis}" for kind in ("body_acc", "body_gyro", "total_acc") for axis in "xyz"]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "UCI HAR Dataset"
    for part, people in (("train", [1, 1, 30]), ("test", [2])):
        inner = root / part / "Inertial Signals"
        inner.mkdir(parents=True)
        for k, name in enumerate(SIGNALS):
            rows = [
                " ".join(f"{k + row / 10 + t / 1000: .7e}" for t in range(128))
                for row in range(len(people))
            ]
            (inner / f"{name}_{part}.txt").write_text("".join(f"  {row}\n" for row in rows))
        (root / part / f"y_{part}.txt").write_text(
            "".join(f"{k + 1}\n" for k in range(len(people)))
        )
        (root / part / f"subject_{part}.txt").write_text("".join(f"{p}\n" for p in people))
    return root


@pytest.mark.parametrize("outer", [False, True])
def test_good(outer: bool, root: Path) -> None:
    x, y, subject, is_test = read_uci_har(root.parent if outer else root)
    assert (x.shape, x.dtype) == ((4, 9, 128), np.float32)
    assert np.allclose(x[1, :, 5], np.arange(9) + 0.1 + 0.005)
    assert y.tolist() == [0, 1, 2, 0]
    assert subject.tolist() == [1, 1, 30, 2]
    assert is_test.tolist() == [False, False, False, True]


LINE = " ".join(["0.5"] * 128)


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("train/Inertial Signals/body_gyro_y_train.txt", "", "is empty"),
        ("train/Inertial Signals/body_gyro_y_train.txt", " \n", "no numbers"),
        (
            "train/Inertial Signals/body_gyro_y_train.txt",
            f"{LINE}\n0.5 0.5\n",
            "2 numbers in line 2",
        ),
        (
            "train/Inertial Signals/body_gyro_y_train.txt",
            f"{LINE}\n{LINE[:-3]}abc\n",
            "other than numbers in line 2",
        ),
        ("train/Inertial Signals/body_gyro_y_train.txt", f"{LINE[:-3]}nan\n", "line 1"),
        ("train/Inertial Signals/body_gyro_y_train.txt", f"{LINE[:-3]}1e99\n", "line 1"),
        ("train/y_train.txt", "1\n2\n7\n", "label 7 in row 3"),
        ("train/y_train.txt", "1\n2\n0\n", "label 0 in row 3"),
        ("train/y_train.txt", "1\n2\nx\n", "line 3"),
        ("test/subject_test.txt", "31\n", "subject 31 in row 1"),
    ],
)
def test_bad_files(name: str, text: str, words: str, root: Path, refuses: Any) -> None:
    (root / name).write_text(text)
    with refuses(name, words):
        read_uci_har(root)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("y_test.txt", "2 labels but 1 subjects"),
        ("subject_test.txt", "1 labels but 2 subjects"),
        ("Inertial Signals/total_acc_z_test.txt", "1 labels but 2 windows of total_acc_z"),
    ],
)
def test_other_lengths(name: str, words: str, root: Path, refuses: Any) -> None:
    path = root / "test" / name
    path.write_text(path.read_text() * 2)
    with refuses("test", words):
        read_uci_har(root)


def test_missing_files_are_refused(root: Path, refuses: Any) -> None:
    with refuses("nowhere", "no folder"):
        read_uci_har(root / "nowhere")
    (root / "test" / "y_test.txt").unlink()
    with refuses("y_test.txt", "There is no file"):
        read_uci_har(root)
