"""Datasets of the Hugging Face hub, as in `--data hub:ylecun/mnist`.

They are loaded by the package `datasets` (the extra `comity[data]`). The inputs are the pictures of
the dataset, otherwise its text, otherwise its numbers. The dataset's warnings name the columns that
are used and those that are left out. No code of the hub is run.
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
from comity.data.files import cache_folder, read_cache, write_cache
from comity.data.formats.common import labels
from comity.data.groups import Groups
from comity.data.sets.text import encode_texts
from comity.errors import UsageError

PICTURE_SIZE = 64
"""Side length in pixels to which pictures of different sizes are resized."""
TEST_SPLITS = ("test", "validation", "valid", "val")
"""Names of the official test part; the first one that exists is used."""
LABEL_COLUMNS = ("label", "labels", "fine_label", "target", "class", "y")
TEXT_COLUMNS = ("text", "sentence", "content", "review")
PARTY_COLUMNS = {
    "writer_id": "writer",
    "domain": "domain",
    "subject": "subject",
    "site": "site",
    "hospital": "hospital",
    "user": "user",
    "user_id": "user",
    "client_id": "client",
}
"""Columns with the origin of a sample, and the names of the groupings."""
NUMBER_TYPES = ("int", "uint", "float", "bool", "double")
ALTERNATIVES = (
    "put its files into a folder and name it with COMITY_DATA, or import them with 'comity data"
    " import'"
)
# Earlier versions of `datasets` run scripts of a dataset, and the name of a dataset may come from a
# config file of somebody else.
FIRST_SAFE_VERSION = 4
Rows = Any
"""A split, of a type of the optional package `datasets`."""


@dataclass(frozen=True)
class Columns:
    """The roles of a dataset's columns."""

    label: str
    kind: str
    """pictures, text or numbers"""
    inputs: tuple[str, ...]
    parties: dict[str, str]
    """Columns with the origin of a sample, and the names of the groupings."""
    names: tuple[str, ...]
    """Names of the classes, if the hub has them."""

    def warning(self, all_columns: Iterable[str]) -> str:
        """A sentence about the columns that are used and those that are left out."""
        rest = [c for c in all_columns if c not in (self.label, *self.inputs, *self.parties)]
        left_out = f"; left out: {', '.join(rest)}" if rest else ""
        return (
            f"the inputs are the {self.kind} of {', '.join(self.inputs)}, the classes those of"
            f" {self.label}{left_out}."
        )


def from_hub(name: str) -> Dataset:
    """Load a dataset of the hub, as in `owner/name` or `owner/name:configuration`.

    It is prepared once and then read from the cache.

    Raises:
        UsageError: if it cannot be loaded, or has no columns that Comity can use.
    """
    splits = _load(name)
    test = next((split for split in TEST_SPLITS if split in splits), None)
    train = (
        "train" if "train" in splits else next((split for split in splits if split != test), test)
    )
    if train is None:
        raise UsageError(f"{name} of the Hugging Face hub holds no samples.")
    parts = [splits[train], *([splits[test]] if test not in (None, train) else [])]
    digest = blake2b(
        "".join(part._fingerprint for part in parts).encode(), digest_size=8
    ).hexdigest()
    cached = (
        cache_folder()
        / f"hub-{re.sub(r'[^a-z0-9]+', '-', name.lower())}-{prepared.VERSION}-{digest}"
    )
    if (dataset := read_cache(cached)) is not None:
        return dataset
    warnings = (
        (f"its {test} split is the official test part.",)
        if len(parts) > 1 and test != "test"
        else ()
    )
    return write_cache(_dataset(name, parts, warnings), cached)


def _load(name: str) -> Mapping[str, Rows]:
    """All splits of a dataset.

    Raises:
        UsageError: if the package, the network or the dataset is missing; names alternatives.
    """
    try:
        package = import_module("datasets")
    except ImportError as error:
        raise UsageError(
            f"{name} is on the Hugging Face hub, which needs the package datasets: pip install"
            f" 'comity[data]', or {ALTERNATIVES}."
        ) from error
    if int(package.__version__.partition(".")[0]) < FIRST_SAFE_VERSION:
        raise UsageError(
            f"datasets {package.__version__} runs scripts that come with a dataset: pip install"
            f" 'datasets>={FIRST_SAFE_VERSION}', or {ALTERNATIVES}."
        )
    path, _, configuration = name.partition(":")
    try:
        splits = package.load_dataset(path, configuration or None)
    except ConnectionError as error:
        raise UsageError(
            f"The Hugging Face hub cannot be reached for {name}: try again where there is a"
            f" network, or {ALTERNATIVES}."
        ) from error
    # The package raises many types for a wrong name, configuration or file.
    except Exception as error:
        raise UsageError(
            f"{name} could not be loaded from the Hugging Face hub ({type(error).__name__}): check"
            f" the name, or {ALTERNATIVES}."
        ) from error
    if not isinstance(splits, Mapping):
        raise UsageError(f"{name} of the Hugging Face hub has no splits that Comity can use.")
    return splits


def _dataset(name: str, parts: list[Rows], warnings: tuple[str, ...]) -> Dataset:
    """Build a dataset from one or two splits (training and test)."""
    features = dict(parts[0].features)
    columns = _columns(name, features)
    all_warnings = [columns.warning(features), *warnings]
    y, class_names = _classes(name, columns, list(_values(parts, columns.label)))
    x: NDArray[Any]
    if columns.kind == "pictures":
        x, sizes = _pictures(parts, columns.inputs[0])
        all_warnings += (
            [f"pictures of {sizes} sizes were resized to {PICTURE_SIZE} x {PICTURE_SIZE}."]
            if sizes > 1
            else []
        )
    elif columns.kind == "text":
        x = encode_texts([str(text or "") for text in _values(parts, columns.inputs[0])])
    else:
        rows = [
            [np.nan if value is None else value for value in _values(parts, column)]
            for column in columns.inputs
        ]
        x = np.array(rows, dtype=np.float32).T
    is_test = torch.arange(len(y)) >= len(parts[0])
    groups = {by: _groups(_values(parts, column)) for column, by in columns.parties.items()}
    constants: dict[str, Any] = (
        {} if columns.kind == "pictures" else {"mean": (0.0,), "std": (1.0,)}
    )
    return Dataset(
        name=name,
        x=torch.from_numpy(x),
        y=torch.from_numpy(y),
        classes=len(class_names) or int(y.max()) + 1,
        description=f"{name} of the Hugging Face hub",
        licence=getattr(parts[0].info, "license", None) or "not stated on the hub",
        official_test=is_test if is_test.any() else None,
        groups=groups,
        default_partition=f"natural(by={next(iter(groups))})" if groups else DEFAULT_PARTITION,
        class_names=class_names,
        missing="impute" if columns.kind == "numbers" and bool(np.isnan(x).any()) else "refuse",
        warnings=tuple(f"{name}: {warning}" for warning in all_warnings),
        **constants,
    )


def _values(parts: list[Rows], column: str) -> Iterator[Any]:
    """Iterate over a column of all splits; pictures are decoded one at a time."""
    for part in parts:
        yield from part[column]


def _columns(name: str, features: Mapping[str, Any]) -> Columns:
    """Find the columns of the classes, the inputs and the origins."""
    kinds = {column: type(feature).__name__ for column, feature in features.items()}
    value_types = {
        column: str(getattr(feature, "dtype", ""))
        for column, feature in features.items()
        if kinds[column] == "Value"
    }
    parties = {column: by for column, by in PARTY_COLUMNS.items() if column in features}
    class_columns = [c for c, kind in kinds.items() if kind == "ClassLabel" and c not in parties]
    label = next((c for c in LABEL_COLUMNS if c in class_columns or c in value_types), None) or (
        class_columns[0] if class_columns else None
    )
    if label is None:
        raise UsageError(
            f"{name} of the Hugging Face hub has no column of classes that Comity recognises; it"
            f" has {', '.join(features)}."
        )
    input_columns = [c for c in value_types if c not in (label, *parties)]
    images = [c for c, kind in kinds.items() if kind == "Image"]
    texts = [c for c in input_columns if "string" in value_types[c]]
    number_columns = tuple(c for c in input_columns if value_types[c].startswith(NUMBER_TYPES))
    text = next((c for c in TEXT_COLUMNS if c in texts), None) or (
        texts[0] if texts and not number_columns else None
    )
    classes = tuple(getattr(features[label], "names", None) or ())
    if images:
        return Columns(label, "pictures", (images[0],), parties, classes)
    if text:
        return Columns(label, "text", (text,), parties, classes)
    if number_columns:
        return Columns(label, "numbers", number_columns, parties, classes)
    raise UsageError(
        f"{name} of the Hugging Face hub has no pictures, text or numbers that Comity can use; it"
        f" has {', '.join(features)}."
    )


def _classes(
    name: str, columns: Columns, values: list[Any]
) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Class numbers from 0, and the names of the classes; words are numbered in sorted order."""
    where = f"The column {columns.label!r} of {name}"
    if any(value is None for value in values) or not values:
        raise UsageError(f"{where} has samples without a class.")
    if all(isinstance(value, str) for value in values):
        words = sorted(set(values))
        return np.searchsorted(words, values).astype(np.int64), tuple(words)
    return (
        labels(where, np.array(values, dtype=np.float64), len(columns.names) or None),
        columns.names,
    )


def _pictures(parts: list[Rows], column: str) -> tuple[NDArray[np.uint8], int]:
    """Pictures as bytes N x C x H x W, grey if all are grey, and the number of sizes."""
    formats = [(picture.mode, picture.size) for picture in _values(parts, column)]
    grey = all(mode in ("1", "L") for mode, _ in formats)
    sizes = {size for _, size in formats}
    width, height = formats[0][1] if len(sizes) == 1 else (PICTURE_SIZE, PICTURE_SIZE)
    images = np.empty((len(formats), 1 if grey else 3, height, width), np.uint8)
    for k, picture in enumerate(_values(parts, column)):
        # Pillow resizes with its bicubic filter by default.
        pixels = np.asarray(picture.convert("L" if grey else "RGB").resize((width, height)))
        images[k] = pixels if grey else pixels.transpose(2, 0, 1)
    return images, len(sizes)


def _groups(values: Iterable[Any]) -> Groups:
    """A grouping by the values of a column."""
    names, of = np.unique([str(value) for value in values], return_inverse=True)
    return Groups(tuple(map(str, names)), of.astype(np.int64))
