"""Pictures whose parties are people or sources: characters by writer, objects by where their
pictures come from.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from comity.base.key import Key
from comity.data.dataset import Dataset
from comity.data.files import Found, Way
from comity.data.formats import picture_files, read_leaf, read_npz
from comity.data.formats.common import bad, folder_of, inside, quote
from comity.data.groups import Groups
from comity.data.library import Card, Entry, register
from comity.data.sets.common import (
    RESEARCH,
    Shot,
    a_fifth,
    album,
    groups,
    halves,
    picture,
    table,
    within,
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


# From arrays: subsets that somebody prepared.


def _femnist(found: Found) -> Dataset:
    return _grouped_npz(FEMNIST, found["femnist_writers.npz"], "writer", "natural(by=writer)")


def _pacs(found: Found) -> Dataset:
    return _grouped_npz(PACS, found["pacs64_subset.npz"], "domain", "domain")


def _grouped_npz(card: Card, path: Path, by: str, home: str) -> Dataset:
    """Training and test images, and the number of each one's group."""
    wanted: dict[str, Any] = {
        f"{what}_{part}": (part,) for part in ("train", "test") for what in ("y", by)
    }
    wanted[f"{by}_names"] = None
    data = read_npz(path, x_train=None, x_test=None, class_names=None, **wanted)
    of = np.concatenate([data[f"{by}_train"], data[f"{by}_test"]])
    train, test = ((data[f"x_{part}"], data[f"y_{part}"]) for part in ("train", "test"))
    return halves(
        card,
        path,
        train,
        test,
        groups={by: groups(path, data[f"{by}_names"].tolist(), of)},
        home=home,
        class_names=tuple(map(str, data["class_names"])),
    )


def _office(found: Found) -> Dataset:
    path = found["office10_amazon_webcam64.npz"]
    data = read_npz(
        path,
        x=("n", "h", "w", 3),
        y=("n",),
        domain=("n",),
        is_test=("n",),
        domain_names=None,
        class_names=None,
    )
    mine = groups(path, data["domain_names"].tolist(), data["domain"])
    return picture(
        OFFICE,
        path,
        data["x"],
        data["y"],
        data["is_test"].astype(bool),
        groups={"domain": mine},
        home="domain",
        class_names=tuple(map(str, data["class_names"])),
        notes=_lacking(OFFICE, OFFICE_SOURCES, mine.names),
    )


# From the original files.


def _leaf(found: Found) -> Dataset:
    folder = next(iter(found.values())).parent
    made = read_leaf(folder)
    return picture(
        FEMNIST,
        folder,
        made.x,
        made.y,
        made.is_test,
        groups={"writer": groups(folder, made.users, made.user)},
        home="natural(by=writer)",
    )


def _lacking(card: Card, sources: Iterable[str], here: Iterable[str]) -> tuple[str, ...]:
    lost = [name for name in sources if name not in here]
    return (
        (
            (
                f"{card.name}: {', '.join(lost)} not here, so there are {len(tuple(here))} of its"
                " sources."
            ),
        )
        if lost
        else ()
    )


def _sources(
    card: Card, folder: Path, sources: tuple[str, ...], classes: tuple[str, ...] | None = None
) -> Dataset:
    """A folder with one folder a source, each with one folder a class; lists may say what is for
    training and for testing.
    """
    root = folder_of(folder, "kfold")
    here = [name for name in sources if (root / name).is_dir()]
    if not here:
        raise bad(folder, f"must have folders called {', '.join(sources)} in it, or some of them")
    kinds = classes or sorted(
        {path.name for name in here for path in inside(root / name) if path.is_dir()}
    )
    lists = [root / f"{name}_{part}.txt" for name in here for part in ("train", "test")]
    if all(file.is_file() for file in lists):
        shots = _by_lists(root, lists, here, kinds)
        notes = _lacking(card, sources, here)
    else:
        shots = a_fifth(
            _by_folders(root, here, kinds, every=classes is not None),
            Key.root(0).fold(card.name, "test"),
        )
        told = (
            f"{card.name}: nothing here says what is for testing, so it is a fifth of each class"
            " and source, always the same."
        )
        notes = (*_lacking(card, sources, here), told)
    mine = Groups(tuple(here), np.array([shot.group for shot in shots]))
    return album(
        card,
        root,
        shots,
        groups={"domain": mine},
        home="domain",
        class_names=tuple(kinds),
        notes=notes,
    )


def _by_folders(root: Path, here: list[str], kinds: Iterable[str], every: bool) -> list[Shot]:
    """All pictures of these classes; every source must have every class, if that is known."""
    shots = []
    for group, source in enumerate(here):
        for label, kind in enumerate(kinds):
            folder = root / source / kind
            if every and not folder.is_dir():
                raise bad(root / source, f"has no folder for the class {quote(kind)}")
            shots += [
                Shot(path, label, group)
                for path in (picture_files(folder) if folder.is_dir() else [])
            ]
    return shots


def _by_lists(root: Path, lists: list[Path], here: list[str], kinds: Iterable[str]) -> list[Shot]:
    """What DomainNet's official lists name (source/class/file and a number): the class is known by
    its name.
    """
    label = {kind: k for k, kind in enumerate(kinds)}
    numbers: dict[str, str] = {}
    shots = []
    for k, file in enumerate(lists):
        for name, number in table(file, "a path", "a label"):
            path = within(root, name, file)
            kind = path.parent.name
            if numbers.setdefault(kind, number) != number:
                raise bad(
                    file,
                    f"has the label {quote(number)} for {quote(name)}, but {kind} is"
                    f" {numbers[kind]} elsewhere",
                )
            if kind in label:
                shots.append(Shot(path, label[kind], k // 2, test=k % 2 == 1))
    if not shots:
        raise bad(root, f"has lists that name no pictures of {', '.join(here)}")
    return shots


def _folder(
    card: Card, name: str, sources: tuple[str, ...], classes: tuple[str, ...] | None = None
) -> Way:
    def read(found: Found) -> Dataset:
        return _sources(card, found[name], sources, classes)

    return Way(read, (name,), f"{name}/")


def _writers(folder: str) -> Way:
    return Way(_leaf, (f"{folder}/train", f"{folder}/test"))


register(
    Entry(
        FEMNIST,
        (
            _writers("femnist"),
            _writers("femnist/data"),
            Way(_femnist, ("femnist_writers.npz",), sums=SUMS["femnist"]),
        ),
    )
)
register(
    Entry(
        PACS,
        (
            *(_folder(PACS, name, PACS_SOURCES, PACS_CLASSES) for name in ("PACS", "pacs")),
            Way(_pacs, ("pacs64_subset.npz",), sums=SUMS["pacs"]),
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
            Way(_office, ("office10_amazon_webcam64.npz",), sums=SUMS["office-caltech"]),
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
