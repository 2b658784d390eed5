"""Image datasets with natural parties: characters by writer, objects by image source."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from comity.base.key import Key
from comity.data.dataset import Dataset
from comity.data.files import FilePaths
from comity.data.formats import picture_files, read_leaf, read_npz
from comity.data.formats.common import existing_folder, file_error, list_folder, quote
from comity.data.groups import Groups
from comity.data.sets.common import (
    ImageFile,
    draw_test_fifth,
    groups,
    image_dataset,
    image_file_dataset,
    path_inside,
    table,
    train_and_test_images,
)
from comity.data.sets.descriptions import Description, register_datasets

# From arrays: prepared subsets.


def _grouped_npz(card: Description, paths: FilePaths) -> Dataset:
    """Read training and test images, and the group of each image."""
    (path,) = paths.values()
    (by,) = card.groups
    shapes: dict[str, Any] = {
        f"{array}_{part}": (part,) for part in ("train", "test") for array in ("y", by)
    }
    shapes[f"{by}_names"] = None
    data = read_npz(path, x_train=None, x_test=None, class_names=None, **shapes)
    group_numbers = np.concatenate([data[f"{by}_train"], data[f"{by}_test"]])
    train, test = ((data[f"x_{part}"], data[f"y_{part}"]) for part in ("train", "test"))
    return train_and_test_images(
        card,
        path,
        train,
        test,
        groups={by: groups(path, data[f"{by}_names"].tolist(), group_numbers)},
        class_names=tuple(map(str, data["class_names"])),
    )


def _office_npz(card: Description, paths: FilePaths) -> Dataset:
    (path,) = paths.values()
    data = read_npz(
        path,
        x=("n", "h", "w", 3),
        y=("n",),
        domain=("n",),
        is_test=("n",),
        domain_names=None,
        class_names=None,
    )
    domains = groups(path, data["domain_names"].tolist(), data["domain"])
    return image_dataset(
        card,
        path,
        data["x"],
        data["y"],
        data["is_test"].astype(bool),
        groups={"domain": domains},
        class_names=tuple(map(str, data["class_names"])),
        warnings=_source_warnings(card, domains.names),
    )


# From the original files.


def _leaf(card: Description, paths: FilePaths) -> Dataset:
    folder = next(iter(paths.values())).parent
    leaf = read_leaf(folder)
    return image_dataset(
        card,
        folder,
        leaf.x,
        leaf.y,
        leaf.is_test,
        groups={"writer": groups(folder, leaf.users, leaf.user)},
    )


def _source_warnings(card: Description, available: Sequence[str]) -> tuple[str, ...]:
    """A warning if sources are missing."""
    missing = [name for name in card.sources if name not in available]
    if not missing:
        return ()
    return (
        f"{card.name}: {', '.join(missing)} not available, so there are {len(available)} of its"
        " sources.",
    )


def _sources(card: Description, paths: FilePaths) -> Dataset:
    """Read a folder with one folder per source, each with one folder per class.

    The classes are those of the description, or all that have a folder. Lists, if there are some,
    say which images are for training and for testing.
    """
    (folder,) = paths.values()
    root = existing_folder(folder, "kfold")
    available = [name for name in card.sources if (root / name).is_dir()]
    if not available:
        raise file_error(
            folder, f"must have folders called {', '.join(card.sources)} in it, or some of them"
        )
    kinds = card.class_names or sorted(
        {path.name for name in available for path in list_folder(root / name) if path.is_dir()}
    )
    lists = [root / f"{name}_{part}.txt" for name in available for part in ("train", "test")]
    if all(file.is_file() for file in lists):
        images = _read_lists(root, lists, available, kinds)
        warnings = _source_warnings(card, available)
    else:
        images = draw_test_fifth(
            _list_folders(root, available, kinds, require_all=bool(card.class_names)),
            Key.root(0).fold(card.name, "test"),
        )
        warning = (
            f"{card.name}: no list says which images are for testing, so the test part is a fixed"
            " fifth of each class and source."
        )
        warnings = (*_source_warnings(card, available), warning)
    domains = Groups(tuple(available), np.array([image.group for image in images]))
    return image_file_dataset(
        card,
        root,
        images,
        groups={"domain": domains},
        class_names=tuple(kinds),
        warnings=warnings,
    )


def _list_folders(
    root: Path, available: list[str], kinds: Iterable[str], require_all: bool
) -> list[ImageFile]:
    """The images of these classes; with `require_all`, each source must have each class."""
    images = []
    for group, source in enumerate(available):
        for label, kind in enumerate(kinds):
            folder = root / source / kind
            if require_all and not folder.is_dir():
                raise file_error(root / source, f"has no folder for the class {quote(kind)}")
            images += [
                ImageFile(path, label, group)
                for path in (picture_files(folder) if folder.is_dir() else [])
            ]
    return images


def _read_lists(
    root: Path, lists: list[Path], available: list[str], kinds: Iterable[str]
) -> list[ImageFile]:
    """The images of DomainNet's official lists, with lines of source/class/file and a number.

    The name decides the class, not the number.
    """
    label = {kind: k for k, kind in enumerate(kinds)}
    numbers: dict[str, str] = {}
    images = []
    for k, file in enumerate(lists):
        for name, number in table(file, "a path", "a label"):
            path = path_inside(root, name, file)
            kind = path.parent.name
            if numbers.setdefault(kind, number) != number:
                raise file_error(
                    file,
                    f"has the label {quote(number)} for {quote(name)}, but {kind} is"
                    f" {numbers[kind]} elsewhere",
                )
            if kind in label:
                images.append(ImageFile(path, label[kind], k // 2, test=k % 2 == 1))
    if not images:
        raise file_error(root, f"has lists that name no pictures of {', '.join(available)}")
    return images


register_datasets(
    Path(__file__).with_suffix(".toml"),
    readers={
        "leaf": _leaf,
        "grouped-npz": _grouped_npz,
        "office-npz": _office_npz,
        "sources": _sources,
    },
)
