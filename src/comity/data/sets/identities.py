"""Re-identification: people and vehicles seen by many cameras.

Training identities are the classes of a dataset whose natural parties are the cameras. The test
identities are others: they are matched, not classified, with `query_and_gallery` and the measures
of `comity.measure.retrieval`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from comity.data.dataset import Dataset
from comity.data.files import Found, Way, obtain
from comity.data.formats.common import bad, folder_of, inside, quote
from comity.data.groups import Groups
from comity.data.library import Card, Entry, register
from comity.data.sets.common import Shot, album, table, within
from comity.errors import unknown

if TYPE_CHECKING:
    from comity.measure.retrieval import Seen

MARKET = Card(
    name="market1501",
    samples=12936,
    classes=751,
    shape=(3, 128, 64),
    description="People seen by six cameras (Zheng et al. 2015), the 751 for training, at 128 x 64",
    licence="research use",
    groups=("camera",),
)
MSMT = Card(
    name="msmt17",
    samples=32621,
    classes=1041,
    shape=(3, 128, 64),
    description=(
        "People seen by fifteen cameras (Wei et al. 2018), the 1,041 for training, at 128 x 64"
    ),
    licence="research use, by agreement",
    groups=("camera",),
)
VERI = Card(
    name="veri776",
    samples=37778,
    classes=576,
    shape=(3, 128, 128),
    description=(
        "Vehicles seen by twenty cameras (Liu et al. 2016), the 576 for training, at 128 x 128"
    ),
    licence="non-commercial research use, on request",
    groups=("camera",),
)


class Sight(NamedTuple):
    """One picture: who was seen, and by which camera."""

    path: Path
    identity: int
    camera: int


@dataclass(frozen=True)
class Lineup:
    """Images to be matched (bytes, N x C x H x W), whose they are, and which camera took them."""

    x: Tensor
    ids: Tensor
    cameras: Tensor

    def seen(self, extract: Callable[[Tensor], Tensor], batch: int = 256) -> Seen:
        """What `extract` makes of the images, normalised as those of the training part are, for
        `retrieval`.
        """
        from comity.measure.retrieval import Seen

        features = [extract((part.float() / 255 - 0.5) / 0.5) for part in self.x.split(batch)]
        return Seen(torch.cat(features), self.ids, self.cameras)


def query_and_gallery(name: str) -> tuple[Lineup, Lineup]:
    """The test part of a re-identification dataset: what is looked for, and among what."""
    if name not in TESTS:
        raise unknown("re-identification dataset", name, TESTS)
    made = obtain(name, TESTS[name])
    cameras = torch.from_numpy(made.groups["camera"].of)
    queries = int((made.groups["part"].of == 0).sum())  # they come first
    return (
        Lineup(made.x[:queries], made.y[:queries], cameras[:queries]),
        Lineup(made.x[queries:], made.y[queries:], cameras[queries:]),
    )


def _by_name(folder: Path, junk: int | None = None) -> Iterator[Sight]:
    """Files called as `0002_c1s1_000451_03.jpg`: the identity, then the camera; `junk` marks what
    is nobody.
    """
    for path in inside(folder_of(folder)):
        if path.suffix.lower() != ".jpg":  # Thumbs.db and the like
            continue
        told = re.match(r"(-?\d+)_c(\d+)", path.name)
        if told is None:
            raise bad(
                path, "must begin with an identity and a camera, as 0002_c1s1_000451_03.jpg does"
            )
        if int(told[1]) != junk:
            yield Sight(path, int(told[1]), int(told[2]))


def _by_list(folder: Path, *lists: Path) -> Iterator[Sight]:
    """MSMT17's lists: `0000/0000_000_01_0303noon_0008_0.jpg 0`, where the third number is the
    camera.
    """
    for file in lists:
        for name, identity in table(file, "a path", "an identity"):
            told = re.match(r"\d+_\d+_(\d+)_", Path(name).name)
            if told is None or not identity.isdecimal():
                raise bad(
                    file,
                    f"has {quote(f'{name} {identity}')}, but lines are as"
                    " 0000/0000_000_01_0303noon_0008_0.jpg 0",
                )
            yield Sight(within(folder, name, file), int(identity), int(told[1]))


def _dataset(card: Card, root: Path, *parts: Iterable[Sight]) -> Dataset:
    """What was seen, with identities and cameras counted from 0; several parts are a group of their
    own.
    """
    many = [list(part) for part in parts]
    if not all(many):
        raise bad(root, "holds no pictures of identities")
    every = [sight for part in many for sight in part]
    ids, y = np.unique([sight.identity for sight in every], return_inverse=True)
    cameras, of = np.unique([sight.camera for sight in every], return_inverse=True)
    groups = {"camera": Groups(tuple(f"camera {n}" for n in cameras), of)}
    if len(parts) > 1:
        groups["part"] = Groups(
            ("query", "gallery"), np.repeat(np.arange(len(many)), [len(part) for part in many])
        )
    known = replace(card, classes=len(ids), samples=len(every) if len(parts) > 1 else card.samples)
    shots = [Shot(sight.path, int(label)) for sight, label in zip(every, y, strict=True)]
    return album(known, root, shots, groups=groups, home="natural(by=camera)")


def _folders(
    card: Card, root: str, train: str, query: str, gallery: str, junk: int | None = None
) -> tuple[Way, Way]:
    """The ways to the training and the test part of a dataset whose file names say all."""

    def learn(found: Found) -> Dataset:
        (folder,) = found.values()
        return _dataset(card, folder, _by_name(folder, junk))

    def match(found: Found) -> Dataset:
        first, second = found.values()
        return _dataset(card, first.parent, _by_name(first, junk), _by_name(second, junk))

    return Way(learn, (f"{root}/{train}",)), Way(match, (f"{root}/{query}", f"{root}/{gallery}"))


def _lists(root: str, train: str, test: str) -> tuple[Way, Way]:
    """The ways to the training and the test part of MSMT17; what its makers set aside for
    validation is trained on.
    """

    def learn(found: Found) -> Dataset:
        folder, *files = found.values()
        return _dataset(MSMT, folder, _by_list(folder, *files))

    def match(found: Found) -> Dataset:
        folder, query, gallery = found.values()
        return _dataset(MSMT, folder, _by_list(folder, query), _by_list(folder, gallery))

    def names(folder: str, *lists: str) -> tuple[str, ...]:
        return (f"{root}/{folder}", *(f"{root}/list_{name}.txt" for name in lists))

    return Way(learn, names(train, "train", "val")), Way(match, names(test, "query", "gallery"))


WAYS = {
    MARKET: [
        _folders(
            MARKET,
            "Market-1501-v15.09.15",
            "bounding_box_train",
            "query",
            "bounding_box_test",
            junk=-1,
        )
    ],
    MSMT: [
        _lists("MSMT17_V1", "train", "test"),
        _lists("MSMT17_V2", "mask_train_v2", "mask_test_v2"),
    ],
    VERI: [_folders(VERI, "VeRi", "image_train", "image_query", "image_test")],
}
TESTS: dict[str, tuple[Way, ...]] = {
    card.name: tuple(test for _, test in ways) for card, ways in WAYS.items()
}
for _card, _ways in WAYS.items():
    register(Entry(_card, tuple(train for train, _ in _ways)))
