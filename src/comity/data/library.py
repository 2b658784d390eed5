"""The datasets that can be loaded by name, and those of a user's own file."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from comity.data.dataset import Dataset
from comity.errors import Refusal, unknown


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
        return _from_file(Path(name))
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


def _from_file(path: Path) -> Dataset:
    """What `load()` in a user's Python file returns."""
    if not path.is_file():
        raise Refusal(f"There is no file {str(path)!r} to load a dataset from; check its path.")
    spec = importlib.util.spec_from_file_location(f"comity_user_dataset_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses in the file look their module up there
    try:
        spec.loader.exec_module(module)
        made = module.load() if hasattr(module, "load") else None
    except Refusal:
        raise
    except Exception as error:
        raise Refusal(f"The dataset file {str(path)!r} failed with {type(error).__name__}: {error}.") from error
    if not isinstance(made, Dataset):
        raise Refusal(f"The dataset file {str(path)!r} must define load(), and it must return a comity.data.Dataset.")
    return made
