"""UCI HAR (Human Activity Recognition Using Smartphones) in its original text files."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from comity.data.formats.common import (
    Labels,
    Source,
    check_same_length,
    existing_folder,
    file_error,
    labels,
    open_binary,
    quote,
)

SIGNALS = tuple(
    f"{kind}_{axis}" for kind in ("body_acc", "body_gyro", "total_acc") for axis in "xyz"
)
TIMES = 128
ACTIVITIES = 6
PEOPLE = 30


class Har(NamedTuple):
    """Windows n x 9 x 128 (channels as in SIGNALS), activities 0-5, persons 1-30, a test mask."""

    x: NDArray[np.float32]
    y: Labels
    subject: Labels
    is_test: NDArray[np.bool_]


def read_uci_har(folder: Source) -> Har:
    """Read the inertial signals of `UCI HAR Dataset`, or of the folder that holds it."""
    root = existing_folder(folder, "UCI HAR Dataset")
    train = _part(root, "train")
    test = _part(root, "test")
    return Har(
        np.concatenate([train.x, test.x]),
        np.concatenate([train.y, test.y]),
        np.concatenate([train.subject, test.subject]),
        np.concatenate([train.is_test, test.is_test]),
    )


def _part(root: Path, part: str) -> Har:
    """Read the training or the test set."""
    folder = root / part
    signals = {
        name: _numbers(folder / "Inertial Signals" / f"{name}_{part}.txt", TIMES)
        for name in SIGNALS
    }
    y_file = folder / f"y_{part}.txt"
    people = folder / f"subject_{part}.txt"
    y = labels(y_file, _numbers(y_file, 1), ACTIVITIES, first=1)
    subject = labels(people, _numbers(people, 1), PEOPLE, first=1, what="subject") + 1
    check_same_length(folder, labels=y, subjects=subject)
    for name, values in signals.items():
        check_same_length(folder, labels=y, **{f"windows of {name}": values})
    return Har(
        np.stack(list(signals.values()), axis=1), y, subject, np.full(len(y), part == "test")
    )


def _numbers(path: Path, columns: int) -> NDArray[np.float32]:
    """Read a text file with `columns` numbers on each line."""
    rows = []
    with open_binary(path) as stream:
        for number, line in enumerate(stream, 1):
            cells = line.split()
            if not cells:
                continue
            if len(cells) != columns:
                raise file_error(
                    path,
                    f"has {len(cells)} numbers in line {number}, but there must be {columns}: get a"
                    " new copy of it",
                )
            try:
                with np.errstate(over="ignore"):  # an overflow is refused below, as infinity
                    row = np.array([float(cell) for cell in cells], np.float32)
            except ValueError as error:
                text = line.decode("utf-8", "replace").strip()
                raise file_error(
                    path, f"has something other than numbers in line {number}: {quote(text)}"
                ) from error
            if not np.isfinite(row).all():
                raise file_error(path, f"has a value in line {number} that is not a finite number")
            rows.append(row)
    if not rows:
        raise file_error(path, "has no numbers in it")
    return np.stack(rows)
