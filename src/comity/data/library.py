"""The datasets that can be loaded by name, and those of a user's own file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass

import torch

from comity.data.dataset import Dataset
from comity.errors import Refusal, unknown
from comity.plugins import call_from_file


@dataclass(frozen=True)
class Card:
    """What can be said of a dataset without loading it."""

    name: str
    samples: int
    classes: int
    shape: tuple[int, ...]
    description: str
    licence: str


Loader = Callable[[Card], Dataset]
_LIBRARY: dict[str, tuple[Card, Loader]] = {}


def dataset(card: Card) -> Callable[[Loader], Loader]:
    """Register a function that loads the dataset of `card`."""

    def register(loader: Loader) -> Loader:
        _LIBRARY[card.name] = card, loader
        return loader

    return register


def catalogue() -> list[dict[str, object]]:
    """The cards of all datasets that have a name."""
    return [asdict(card) for card, _ in _LIBRARY.values()]


def load(name: str) -> Dataset:
    """The dataset of that name, or what `load()` in the user's file `name` (ending in .py) returns."""
    if name.endswith(".py"):
        return _from_file(name)
    if name not in _LIBRARY:
        raise unknown("dataset", name, _LIBRARY)
    card, loader = _LIBRARY[name]
    return loader(card)


@dataset(Card(
    name="digits",
    samples=1797,
    classes=10,
    shape=(1, 8, 8),
    description="Handwritten digits, 8 x 8 grey pixels (UCI optical recognition, bundled with scikit-learn)",
    licence="CC BY 4.0",
))
def _digits(card: Card) -> Dataset:
    from sklearn.datasets import load_digits  # a second to import, and only needed here

    pixels, labels = load_digits(return_X_y=True)
    x = torch.tensor(pixels / 16, dtype=torch.float32).reshape(-1, *card.shape)
    return Dataset(card.name, x, torch.tensor(labels), card.classes, card.description, card.licence)


def _from_file(path: str) -> Dataset:
    """What `load()` in a user's Python file returns."""
    made = call_from_file(path, "load")
    if not isinstance(made, Dataset):
        raise Refusal(f"load() of {path} must return a comity.data.Dataset, not a {type(made).__name__}.")
    return made
