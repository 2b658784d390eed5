"""Datasets of the Hugging Face hub, through the package `datasets` (the extra `comity[data]`):
`--data hub:ylecun/mnist`.

The columns decide: pictures with a class; else text with a class; else numbers with a class. What
was chosen, and what was left out, is said in the dataset's warnings. Nothing of the hub's code is run.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from importlib import import_module
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from comity.data import prepared
from comity.data.dataset import DEFAULT_PARTITION, Dataset
from comity.data.files import cache_folder, keep, recall
from comity.data.formats.common import labels
from comity.data.groups import Groups
from comity.data.sets.text import numbers
from comity.errors import UsageError

SIZE = 64  # pixels a side, for pictures of many sizes
TEST = (
    "test",
    "validation",
    "valid",
    "val",
)  # which split is the official test part: the first of these that is there
LABEL = ("label", "labels", "fine_label", "target", "class", "y")
TEXT = ("text", "sentence", "content", "review")
PARTIES = {
    "writer_id": "writer",
    "domain": "domain",
    "subject": "subject",
    "site": "site",
    "hospital": "hospital",
    "user": "user",
    "user_id": "user",
    "client_id": "client",
}  # columns that say whose a sample is
NUMBERS = ("int", "uint", "float", "bool", "double")
OTHERS = (
    "put its files into a folder and name it with COMITY_DATA, or bring them with 'comity data"
    " import'"
)
SAFE = 4  # the first version of `datasets` that runs no scripts: a dataset's name may come out of a stranger's folder
Rows = Any  # a split: of the package's own types, which are not there without it


@dataclass(frozen=True)
class Columns:
    """What the columns of a dataset are used for."""

    label: str
    kind: str  # pictures, text or numbers
    inputs: tuple[str, ...]
    parties: dict[str, str]  # a column, and what its groups are called
    names: tuple[str, ...]  # of the classes, where the hub has them

    def warnings(self, every: Iterable[str]) -> tuple[str, ...]:
        """A sentence that says which columns were chosen and which left out."""
        rest = [c for c in every if c not in (self.label, *self.inputs, *self.parties)]
        return (
            (
                f"the inputs are the {self.kind} of {', '.join(self.inputs)}, the classes those of"
                f" {self.label}{'; left out: ' + ', '.join(rest) if rest else ''}."
            ),
        )


def from_hub(name: str) -> Dataset:
    """A dataset of the hub, as in `owner/name`, or `owner/name:configuration`; prepared once, then
    taken from the cache.
    """
    splits = _load(name)
    test = next((split for split in TEST if split in splits), None)
    train = (
        "train" if "train" in splits else next((split for split in splits if split != test), test)
    )
    if train is None:
        raise UsageError(f"{name} of the Hugging Face hub holds no samples.")
    parts = [splits[train], *([splits[test]] if test not in (None, train) else [])]
    mark = blake2b("".join(part._fingerprint for part in parts).encode(), digest_size=8).hexdigest()
    kept = (
        cache_folder() / f"hub-{re.sub(r'[^a-z0-9]+', '-', name.lower())}-{prepared.VERSION}-{mark}"
    )
    if (ready := recall(kept)) is not None:
        return ready
    told = (
        (f"its {test} split is the official test part.",)
        if len(parts) > 1 and test != "test"
        else ()
    )
    return keep(_dataset(name, parts, told), kept)


def _load(name: str) -> Mapping[str, Rows]:
    """All splits; without the package, the network or the dataset, one sentence that names the
    other ways.
    """
    try:
        package = import_module("datasets")
    except ImportError as why:
        raise UsageError(
            f"{name} is on the Hugging Face hub, which takes the package datasets: pip install"
            f" 'comity[data]', or {OTHERS}."
        ) from why
    if int(package.__version__.partition(".")[0]) < SAFE:
        raise UsageError(
            f"datasets {package.__version__} runs scripts that come with a dataset: pip install"
            f" 'datasets>={SAFE}', or {OTHERS}."
        )
    path, _, configuration = name.partition(":")
    try:
        found = package.load_dataset(path, configuration or None)
    except ConnectionError as why:
        raise UsageError(
            f"The Hugging Face hub cannot be reached for {name}: try again where there is a"
            f" network, or {OTHERS}."
        ) from why
    except (
        Exception
    ) as why:  # whatever it says of a name, a configuration or a file that is not there
        raise UsageError(
            f"{name} could not be loaded from the Hugging Face hub ({type(why).__name__}): check"
            f" the name, or {OTHERS}."
        ) from why
    if not isinstance(found, Mapping):
        raise UsageError(f"{name} of the Hugging Face hub has no splits that Comity can use.")
    return found


def _dataset(name: str, parts: list[Rows], warnings: tuple[str, ...]) -> Dataset:
    """Arrays of one or two splits, one after the other."""
    features = dict(parts[0].features)
    chosen = _columns(name, features)
    said = [*chosen.warnings(features), *warnings]
    y, names = _classes(name, chosen, list(_values(parts, chosen.label)))
    x: NDArray[Any]
    if chosen.kind == "pictures":
        x, sizes = _pictures(parts, chosen.inputs[0])
        said += [f"pictures of {sizes} sizes were brought to {SIZE} x {SIZE}."] if sizes > 1 else []
    elif chosen.kind == "text":
        x = numbers([str(text or "") for text in _values(parts, chosen.inputs[0])])
    else:
        rows = [
            [np.nan if value is None else value for value in _values(parts, column)]
            for column in chosen.inputs
        ]
        x = np.array(rows, dtype=np.float32).T
    held = torch.arange(len(y)) >= len(parts[0])
    groups = {by: _groups(_values(parts, column)) for column, by in chosen.parties.items()}
    fixed: dict[str, Any] = {} if chosen.kind == "pictures" else {"mean": (0.0,), "std": (1.0,)}
    return Dataset(
        name=name,
        x=torch.from_numpy(x),
        y=torch.from_numpy(y),
        classes=len(names) or int(y.max()) + 1,
        description=f"{name} of the Hugging Face hub",
        licence=getattr(parts[0].info, "license", None) or "not stated on the hub",
        official_test=held if held.any() else None,
        groups=groups,
        default_partition=f"natural(by={next(iter(groups))})" if groups else DEFAULT_PARTITION,
        class_names=names,
        missing="impute" if chosen.kind == "numbers" and bool(np.isnan(x).any()) else "refuse",
        warnings=tuple(f"{name}: {note}" for note in said),
        **fixed,
    )


def _values(parts: list[Rows], column: str) -> Iterator[Any]:
    """A column of all splits, value by value: pictures are decoded one at a time."""
    for part in parts:
        yield from part[column]


def _columns(name: str, features: Mapping[str, Any]) -> Columns:
    """Which column is the class, which the input, and which says whose a sample is."""
    kinds = {column: type(feature).__name__ for column, feature in features.items()}
    plain = {
        column: str(getattr(feature, "dtype", ""))
        for column, feature in features.items()
        if kinds[column] == "Value"
    }
    parties = {column: by for column, by in PARTIES.items() if column in features}
    classed = [c for c, kind in kinds.items() if kind == "ClassLabel" and c not in parties]
    label = next((c for c in LABEL if c in classed or c in plain), None) or (
        classed[0] if classed else None
    )
    if label is None:
        raise UsageError(
            f"{name} of the Hugging Face hub has no column of classes that Comity knows; it has"
            f" {', '.join(features)}."
        )
    free = [c for c in plain if c not in (label, *parties)]
    images = [c for c, kind in kinds.items() if kind == "Image"]
    texts = [c for c in free if "string" in plain[c]]
    numeric = tuple(c for c in free if plain[c].startswith(NUMBERS))
    text = next((c for c in TEXT if c in texts), None) or (
        texts[0] if texts and not numeric else None
    )
    classes = tuple(getattr(features[label], "names", None) or ())
    if images:
        return Columns(label, "pictures", (images[0],), parties, classes)
    if text:
        return Columns(label, "text", (text,), parties, classes)
    if numeric:
        return Columns(label, "numbers", numeric, parties, classes)
    raise UsageError(
        f"{name} of the Hugging Face hub has no pictures, text or numbers that Comity can use; it"
        f" has {', '.join(features)}."
    )


def _classes(
    name: str, chosen: Columns, values: list[Any]
) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Labels from 0, and the classes' names where there are some; words are classes in sorted
    order.
    """
    where = f"The column {chosen.label!r} of {name}"
    if any(value is None for value in values) or not values:
        raise UsageError(f"{where} has samples without a class.")
    if all(isinstance(value, str) for value in values):
        words = sorted(set(values))
        return np.searchsorted(words, values).astype(np.int64), tuple(words)
    return (
        labels(where, np.array(values, dtype=np.float64), len(chosen.names) or None),
        chosen.names,
    )


def _pictures(parts: list[Rows], column: str) -> tuple[NDArray[np.uint8], int]:
    """Bytes N x C x H x W, grey if all pictures are, and how many sizes they had."""
    looks = [(picture.mode, picture.size) for picture in _values(parts, column)]
    grey = all(mode in ("1", "L") for mode, _ in looks)
    sizes = {size for _, size in looks}
    width, height = looks[0][1] if len(sizes) == 1 else (SIZE, SIZE)
    made = np.empty((len(looks), 1 if grey else 3, height, width), np.uint8)
    for k, picture in enumerate(_values(parts, column)):
        pixels = np.asarray(
            picture.convert("L" if grey else "RGB").resize((width, height))
        )  # bicubic
        made[k] = pixels if grey else pixels.transpose(2, 0, 1)
    return made, len(sizes)


def _groups(values: Iterable[Any]) -> Groups:
    """Whose each sample is, by the column's values."""
    names, of = np.unique([str(value) for value in values], return_inverse=True)
    return Groups(tuple(map(str, names)), of.astype(np.int64))
