"""What comes with Comity's dependencies, and needs no files."""

from __future__ import annotations

import gzip
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from comity.data.dataset import Dataset
from comity.data.library import Card, Entry, register

DIGITS = Card(
    name="digits",
    samples=1797,
    classes=10,
    shape=(1, 8, 8),
    description=(
        "Handwritten digits, 8 x 8 grey pixels (UCI optical recognition, bundled with scikit-learn)"
    ),
    licence="CC BY 4.0",
)


def _table() -> tuple[NDArray[Any], NDArray[Any]]:
    """Pixels and labels as scikit-learn's `load_digits` gives them, from its file if it is where it
    has always been.

    Importing scikit-learn takes most of a second, reading its file a few hundredths.
    """
    found = find_spec("sklearn")
    file = (
        Path(found.origin).parent / "datasets" / "data" / "digits.csv.gz"
        if found and found.origin
        else None
    )
    if file and file.is_file():
        with gzip.open(file, "rt", encoding="ascii") as lines:
            table = np.array([line.split(",") for line in lines], dtype=np.float64)
        return table[:, :-1], table[:, -1].astype(np.int64)
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    return pixels, labels


def _digits() -> Dataset:
    pixels, labels = _table()
    x = torch.tensor(pixels / 16, dtype=torch.float32).reshape(-1, *DIGITS.shape)
    return Dataset(
        name=DIGITS.name,
        x=x,
        y=torch.tensor(labels),
        classes=DIGITS.classes,
        description=DIGITS.description,
        licence=DIGITS.licence,
    )


register(Entry(DIGITS, make=_digits))
