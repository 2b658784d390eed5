"""Re-identification: people and vehicles seen by many cameras.

Training identities are the classes of a dataset whose natural parties are the cameras. The test
identities are others: they are matched, not classified, with `query_and_gallery` and the measures
of `comity.metrics.retrieval`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from comity.data.dataset import Dataset
from comity.data.files import FilePaths, load_dataset
from comity.data.formats.common import existing_folder, file_error, list_folder, quote
from comity.data.groups import Groups
from comity.data.library import ENTRIES
from comity.data.sets.common import ImageFile, image_file_dataset, path_inside, table
from comity.data.sets.descriptions import Description, register_datasets
from comity.errors import unknown
from comity.metrics.retrieval import Embeddings


class Sighting(NamedTuple):
    """An image file: the identity on it, and the camera that took it."""

    path: Path
    identity: int
    camera: int


@dataclass(frozen=True)
class MatchingSet:
    """Images to be matched (bytes, N x C x H x W), their identities and their cameras."""

    x: Tensor
    ids: Tensor
    cameras: Tensor

    def seen(self, extract: Callable[[Tensor], Tensor], batch: int = 256) -> Embeddings:
        """What `extract` makes of the images, normalised as those of the training part are, for
        `retrieval`.
        """
        features = [extract((part.float() / 255 - 0.5) / 0.5) for part in self.x.split(batch)]
        return Embeddings(torch.cat(features), self.ids, self.cameras)


def query_and_gallery(name: str) -> tuple[MatchingSet, MatchingSet]:
    """The test part of a re-identification dataset: queries, and the gallery to search."""
    layouts = {
        n: entry.query_and_gallery for n, entry in ENTRIES.items() if entry.query_and_gallery
    }
    if name not in layouts:
        raise unknown("re-identification dataset", name, layouts)
    dataset = load_dataset(name, layouts[name])
    cameras = torch.from_numpy(dataset.groups["camera"].of)
    queries = int((dataset.groups["part"].of == 0).sum())  # they come first
    return (
        MatchingSet(dataset.x[:queries], dataset.y[:queries], cameras[:queries]),
        MatchingSet(dataset.x[queries:], dataset.y[queries:], cameras[queries:]),
    )


def _by_name(folder: Path, junk: int | None = None) -> Iterator[Sighting]:
    """Files named like `0002_c1s1_000451_03.jpg`: the identity, then the camera.

    Files with the identity `junk` are skipped.
    """
    for path in list_folder(existing_folder(folder)):
        if path.suffix.lower() != ".jpg":  # Thumbs.db and the like
            continue
        match = re.match(r"(-?\d+)_c(\d+)", path.name)
        if match is None:
            raise file_error(
                path, "must begin with an identity and a camera, as 0002_c1s1_000451_03.jpg does"
            )
        if int(match[1]) != junk:
            yield Sighting(path, int(match[1]), int(match[2]))


def _by_list(folder: Path, *lists: Path) -> Iterator[Sighting]:
    """The lists of MSMT17, with lines like `0000/0000_000_01_0303noon_0008_0.jpg 0`.

    The third number of the file name is the camera.
    """
    for file in lists:
        for name, identity in table(file, "a path", "an identity"):
            match = re.match(r"\d+_\d+_(\d+)_", Path(name).name)
            if match is None or not identity.isdecimal():
                raise file_error(
                    file,
                    f"has {quote(f'{name} {identity}')}, but lines are as"
                    " 0000/0000_000_01_0303noon_0008_0.jpg 0",
                )
            yield Sighting(path_inside(folder, name, file), int(identity), int(match[1]))


def _dataset(card: Description, root: Path, *parts: Iterable[Sighting]) -> Dataset:
    """A dataset with identities and cameras numbered from 0.

    If there are several parts, they become a grouping.
    """
    parts_as_lists = [list(part) for part in parts]
    if not all(parts_as_lists):
        raise file_error(root, "holds no images of identities")
    sightings = [sighting for part in parts_as_lists for sighting in part]
    ids, y = np.unique([sighting.identity for sighting in sightings], return_inverse=True)
    cameras, camera_numbers = np.unique(
        [sighting.camera for sighting in sightings], return_inverse=True
    )
    groups = {"camera": Groups(tuple(f"camera {n}" for n in cameras), camera_numbers)}
    if len(parts) > 1:
        groups["part"] = Groups(
            ("query", "gallery"),
            np.repeat(np.arange(len(parts_as_lists)), [len(part) for part in parts_as_lists]),
        )
    actual_card = replace(
        card, classes=len(ids), samples=len(sightings) if len(parts) > 1 else card.samples
    )
    images = [
        ImageFile(sighting.path, int(label)) for sighting, label in zip(sightings, y, strict=True)
    ]
    return image_file_dataset(actual_card, root, images, groups=groups)


def _read_file_names(card: Description, paths: FilePaths, junk: int | None = None) -> Dataset:
    """Read folders of files with identities in their names: one, or a query and a gallery."""
    folders = list(paths.values())
    root = folders[0] if len(folders) == 1 else folders[0].parent
    return _dataset(card, root, *(_by_name(folder, junk) for folder in folders))


def _read_lists(card: Description, paths: FilePaths) -> Dataset:
    """Read a folder and the lists of its training images."""
    folder, *lists = paths.values()
    return _dataset(card, folder, _by_list(folder, *lists))


def _read_query_and_gallery(card: Description, paths: FilePaths) -> Dataset:
    """Read a folder and two lists, of the query and of the gallery."""
    folder, query, gallery = paths.values()
    return _dataset(card, folder, _by_list(folder, query), _by_list(folder, gallery))


register_datasets(
    Path(__file__).with_suffix(".toml"),
    readers={
        "file-names": _read_file_names,
        "lists": _read_lists,
        "query-and-gallery-lists": _read_query_and_gallery,
    },
)
