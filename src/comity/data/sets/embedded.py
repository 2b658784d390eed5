"""Datasets that come with Comity's dependencies and need no files."""

from __future__ import annotations

import gzip
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from comity.data.dataset import Dataset
from comity.data.sets.common import build_dataset
from comity.data.sets.descriptions import Description, register_datasets


def _read_digits() -> tuple[NDArray[Any], NDArray[Any]]:
    """Pixels and labels of scikit-learn's `load_digits`.

    They are read from scikit-learn's file if it is at the known place, because importing
    scikit-learn takes most of a second.
    """
    package = find_spec("sklearn")
    file = (
        Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"
        if package and package.origin
        else None
    )
    if file and file.is_file():
        with gzip.open(file, "rt", encoding="ascii") as lines:
            table = np.array([line.split(",") for line in lines], dtype=np.float64)
        return table[:, :-1], table[:, -1].astype(np.int64)
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    return pixels, labels


def _digits(card: Description) -> Dataset:
    pixels, labels = _read_digits()
    x = torch.tensor(pixels / 16, dtype=torch.float32).reshape(-1, *card.shape)
    return build_dataset(card, x, torch.tensor(labels))


register_datasets(Path(__file__).with_suffix(".toml"), make={"digits": _digits})
