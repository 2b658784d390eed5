"""Image datasets with natural parties: characters by writer, objects by image source."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from comity.base.key import Key
from comity.data.dataset import Dataset
from comity.data.files import FileLayout, FilePaths
from comity.data.formats import picture_files, read_leaf, read_npz
from comity.data.formats.common import existing_folder, file_error, list_folder, quote
from comity.data.groups import Groups
from comity.data.library import Card, Entry, register
from comity.data.sets.common import (
    RESEARCH,
    ImageFile,
    draw_test_fifth,
    groups,
    image_dataset,
    image_file_dataset,
    path_inside,
    table,
    train_and_test_images,
)
from comity.data.sets.sums import SUMS

PACS_CLASSES = ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person")
PACS_SOURCES = ("photo", "art_painting", "cartoon", "sketch")
OFFICE_CLASSES = (
    "back_pack",
    "bike",
    "calculator",
    "headphones",
    "keyboard",
    "laptop_computer",
    "monitor",
    "mouse",
    "mug",
    "projector",
)
OFFICE_SOURCES = ("amazon", "caltech", "dslr", "webcam")
DOMAIN_CLASSES = (
    "bird",
    "feather",
    "headphones",
    "ice_cream",
    "teapot",
    "tiger",
    "whale",
    "windmill",
    "wine_glass",
    "zebra",
)
DOMAIN_SOURCES = ("clipart", "infograph", "painting", "quickdraw", "real", "sketch")

FEMNIST = Card(
    name="femnist",
    samples=805263,
    classes=62,
    shape=(1, 28, 28),
    description="Handwritten characters by writer (LEAF, from NIST SD 19), dark on white",
    licence="NIST SD 19 is a US government work; LEAF is BSD-2-Clause",
    groups=("writer",),
    hub="flwrlabs/femnist",
)
PACS = Card(
    name="pacs",
    samples=9991,
    classes=7,
    shape=(3, 64, 64),
    description=(
        "Photos, paintings, cartoons and sketches of seven kinds (Li et al. 2017), at 64 x 64"
    ),
    licence=RESEARCH,
    groups=("domain",),
    hub="flwrlabs/pacs",
)
OFFICE = Card(
    name="office-caltech",
    samples=2533,
    classes=10,
    shape=(3, 64, 64),
    description=(
        "Objects from Amazon, Caltech-256, a DSLR and a webcam (Gong et al. 2012), at 64 x 64"
    ),
    licence=RESEARCH,
    groups=("domain",),
)
DOMAINNET = Card(
    name="domainnet",
    samples=22851,
    classes=10,
    shape=(3, 64, 64),
    description=(
        "Pictures of ten kinds from six sources, as FedBN and ADCOL use them (Peng et al. 2019), at"
        " 64 x 64"
    ),
    licence="research use; the pictures' rights are their owners'",
    groups=("domain",),
)
DOMAINNET_345 = Card(
    name="domainnet-345",
    samples=586575,
    classes=345,
    shape=(3, 64, 64),
    description="Pictures of all 345 kinds from six sources (Peng et al. 2019), at 64 x 64",
    licence=DOMAINNET.licence,
    groups=("domain",),
    hub="wltjr1007/DomainNet",
)


# From arrays: prepared subsets.


def _femnist(paths: FilePaths) -> Dataset:
    return _grouped_npz(FEMNIST, paths["femnist_writers.npz"], "writer", "natural(by=writer)")


def _pacs(paths: FilePaths) -> Dataset:
    return _grouped_npz(PACS, paths["pacs64_subset.npz"], "domain", "domain")


def _grouped_npz(card: Card, path: Path, by: str, default_partition: str) -> Dataset:
    """Read training and test images, and the group of each image."""
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
        default_partition=default_partition,
        class_names=tuple(map(str, data["class_names"])),
    )


def _office(paths: FilePaths) -> Dataset:
    path = paths["office10_amazon_webcam64.npz"]
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
        OFFICE,
        path,
        data["x"],
        data["y"],
        data["is_test"].astype(bool),
        groups={"domain": domains},
        default_partition="domain",
        class_names=tuple(map(str, data["class_names"])),
        warnings=_source_warnings(OFFICE, OFFICE_SOURCES, domains.names),
    )


# From the original files.


def _leaf(paths: FilePaths) -> Dataset:
    folder = next(iter(paths.values())).parent
    leaf = read_leaf(folder)
    return image_dataset(
        FEMNIST,
        folder,
        leaf.x,
        leaf.y,
        leaf.is_test,
        groups={"writer": groups(folder, leaf.users, leaf.user)},
        default_partition="natural(by=writer)",
    )


def _source_warnings(
    card: Card, sources: Iterable[str], available: Iterable[str]
) -> tuple[str, ...]:
    """A warning if sources are missing."""
    missing = [name for name in sources if name not in available]
    if not missing:
        return ()
    count = len(tuple(available))
    return (
        f"{card.name}: {', '.join(missing)} not available, so there are {count} of its sources.",
    )


def _read_sources(
    card: Card, folder: Path, sources: tuple[str, ...], classes: tuple[str, ...] | None = None
) -> Dataset:
    """Read a folder with one folder per source, each with one folder per class.

    Lists, if there are some, say which images are for training and for testing.
    """
    root = existing_folder(folder, "kfold")
    available = [name for name in sources if (root / name).is_dir()]
    if not available:
        raise file_error(
            folder, f"must have folders called {', '.join(sources)} in it, or some of them"
        )
    kinds = classes or sorted(
        {path.name for name in available for path in list_folder(root / name) if path.is_dir()}
    )
    lists = [root / f"{name}_{part}.txt" for name in available for part in ("train", "test")]
    if all(file.is_file() for file in lists):
        images = _read_lists(root, lists, available, kinds)
        warnings = _source_warnings(card, sources, available)
    else:
        images = draw_test_fifth(
            _list_folders(root, available, kinds, require_all=classes is not None),
            Key.root(0).fold(card.name, "test"),
        )
        warning = (
            f"{card.name}: no list says which images are for testing, so the test part is a fixed"
            " fifth of each class and source."
        )
        warnings = (*_source_warnings(card, sources, available), warning)
    domains = Groups(tuple(available), np.array([image.group for image in images]))
    return image_file_dataset(
        card,
        root,
        images,
        groups={"domain": domains},
        default_partition="domain",
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


def _folder(
    card: Card, name: str, sources: tuple[str, ...], classes: tuple[str, ...] | None = None
) -> FileLayout:
    """A folder with one folder per source."""

    def read(paths: FilePaths) -> Dataset:
        return _read_sources(card, paths[name], sources, classes)

    return FileLayout(read, (name,), f"{name}/")


def _writers(folder: str) -> FileLayout:
    """A folder of LEAF with `train` and `test`."""
    return FileLayout(_leaf, (f"{folder}/train", f"{folder}/test"))


register(
    Entry(
        FEMNIST,
        (
            _writers("femnist"),
            _writers("femnist/data"),
            FileLayout(_femnist, ("femnist_writers.npz",), sums=SUMS["femnist"]),
        ),
    )
)
register(
    Entry(
        PACS,
        (
            *(_folder(PACS, name, PACS_SOURCES, PACS_CLASSES) for name in ("PACS", "pacs")),
            FileLayout(_pacs, ("pacs64_subset.npz",), sums=SUMS["pacs"]),
        ),
    )
)
register(
    Entry(
        OFFICE,
        (
            *(
                _folder(OFFICE, name, OFFICE_SOURCES, OFFICE_CLASSES)
                for name in ("office_caltech_10", "office-caltech")
            ),
            FileLayout(_office, ("office10_amazon_webcam64.npz",), sums=SUMS["office-caltech"]),
        ),
    )
)
register(
    Entry(
        DOMAINNET,
        tuple(
            _folder(DOMAINNET, name, DOMAIN_SOURCES, DOMAIN_CLASSES)
            for name in ("domainnet", "DomainNet")
        ),
    )
)
register(
    Entry(
        DOMAINNET_345,
        tuple(_folder(DOMAINNET_345, name, DOMAIN_SOURCES) for name in ("domainnet", "DomainNet")),
    )
)
