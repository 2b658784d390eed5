"""What comes with Comity's dependencies, and needs no files."""

from __future__ import annotations

import torch

from comity.data.dataset import Dataset
from comity.data.library import Card, Entry, register

DIGITS = Card(
    name="digits",
    samples=1797,
    classes=10,
    shape=(1, 8, 8),
    description="Handwritten digits, 8 x 8 grey pixels (UCI optical recognition, bundled with scikit-learn)",
    licence="CC BY 4.0",
)


def _digits() -> Dataset:
    from sklearn.datasets import load_digits  # a second to import, and only needed here

    pixels, labels = load_digits(return_X_y=True)
    x = torch.tensor(pixels / 16, dtype=torch.float32).reshape(-1, *DIGITS.shape)
    return Dataset(DIGITS.name, x, torch.tensor(labels), DIGITS.classes, DIGITS.description, DIGITS.licence)


register(Entry(DIGITS, make=_digits))
