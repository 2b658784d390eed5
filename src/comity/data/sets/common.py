"""What the modules of datasets share: from arrays and folders on disk to a `Dataset`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from comity.base.key import Key
from comity.data.dataset import Dataset
from comity.data.formats import read_images
from comity.data.formats.common import check_same_length, file_error, labels, open_binary, quote
from comity.data.groups import Groups
from comity.data.library import Card
from comity.data.protocols import stratified
from comity.data.sets.descriptions import Description

Arrays = dict[str, NDArray[Any]]
Pair = tuple[NDArray[Any], NDArray[Any]]  # images or other samples, and their labels


def channels_first(images: NDArray[Any]) -> NDArray[Any]:
    """Convert images N x H x W or N x H x W x 3 to N x C x H x W; others do not change."""
    if images.ndim == 3:
        return images[:, None]
    is_channels_last = images.ndim == 4 and images.shape[-1] == 3 and images.shape[1] != 3
    return images.transpose(0, 3, 1, 2) if is_channels_last else images


def resize(x: Tensor, size: int, channels: int) -> Tensor:
    """Resize images of bytes to size x size, bilinear with antialiasing.

    Grey images are repeated if there are 3 channels.
    """
    parts = []
    for part in x.split(4096):  # bounded memory
        if part.shape[-1] == size and part.shape[-2] == size:
            parts.append(part)
            continue
        resized = F.interpolate(
            part.float(), (size, size), mode="bilinear", antialias=True, align_corners=False
        )
        parts.append(resized.round().clamp(0, 255).byte())
    images = torch.cat(parts)
    return (
        images.expand(-1, channels, -1, -1).contiguous() if images.shape[1] != channels else images
    )


def build_dataset(card: Description, x: Tensor, y: Tensor, **more_options: Any) -> Dataset:
    """A dataset with the class names, the licence and so on of its description.

    `more_options` are further fields of the dataset, or replace those of the description. Warnings
    are added to those of the description.
    """
    options: dict[str, Any] = {
        "classes": card.classes,
        "description": card.description,
        "licence": card.licence,
        "default_partition": card.default_partition,
        "class_names": card.class_names,
    }
    options |= more_options
    options["warnings"] = (*card.warnings, *more_options.get("warnings", ()))
    return Dataset(name=card.name, x=x, y=y, **options)


def train_and_test_images(
    card: Description, path: Path, train: Pair, test: Pair, **more: Any
) -> Dataset:
    """A dataset of training images and official test images."""
    for x, y in (train, test):
        check_same_length(path, images=x, labels=y)
    if train[0].shape[1:] != test[0].shape[1:]:
        raise file_error(
            path,
            f"has training images of shape {train[0].shape[1:]} but test images of"
            f" {test[0].shape[1:]}",
        )
    x, y = (np.concatenate([a, b]) for a, b in zip(train, test, strict=True))
    return image_dataset(card, path, x, y, np.arange(len(y)) >= len(train[1]), **more)


def image_dataset(
    card: Description,
    path: Path,
    x: NDArray[Any],
    y: NDArray[Any],
    test: NDArray[np.bool_] | None,
    **more_options: Any,
) -> Dataset:
    """A dataset of images as bytes; images that do not fit the card are refused."""
    x = np.ascontiguousarray(channels_first(x))
    if x.dtype != np.uint8 or x.shape[1:] != card.shape:
        raise file_error(
            path,
            f"has images of shape {x.shape[1:]} and type {x.dtype}, but {card.name} has bytes of"
            f" shape {card.shape}",
        )
    if y.dtype.kind not in "biuf":
        raise file_error(path, "has labels that are not numbers")
    official_test = None if test is None else torch.from_numpy(np.asarray(test, dtype=np.bool_))
    numbers = torch.from_numpy(labels(path, y, card.classes))
    options = more_options | {
        "warnings": (*subset_warnings(card, len(y)), *more_options.get("warnings", ()))
    }
    return build_dataset(card, torch.from_numpy(x), numbers, official_test=official_test, **options)


def subset_warnings(card: Card, samples: int) -> tuple[str, ...]:
    """A warning if a dataset has fewer samples than its card says."""
    return (
        (f"{card.name}: {samples:,} of its {card.samples:,} samples are available.",)
        if samples < card.samples
        else ()
    )


def groups(path: Path, names: Sequence[Any], of: NDArray[Any]) -> Groups:
    """A grouping; refuse group numbers without a name."""
    numbers = np.asarray(of, dtype=np.int64)
    if len(numbers) and not 0 <= numbers.min() <= numbers.max() < len(names):
        raise file_error(
            path, f"has groups from {numbers.min()} to {numbers.max()}, but names for {len(names)}"
        )
    return Groups(tuple(str(name) for name in names), numbers)


class ImageFile(NamedTuple):
    """An image file: its class, its group, and whether it is for testing."""

    path: Path
    label: int
    group: int = 0
    test: bool = False


def image_file_dataset(
    card: Description, root: Path, images: Sequence[ImageFile], **more: Any
) -> Dataset:
    """A dataset of image files, resized to the size of the card."""
    x = read_images([image.path for image in images], (card.shape[1], card.shape[2]))
    y = np.array([image.label for image in images])
    test = np.array([image.test for image in images])
    return image_dataset(card, root, x, y, test if test.any() else None, **more)


def draw_test_fifth(images: Sequence[ImageFile], key: Key) -> list[ImageFile]:
    """Mark a fifth of each class of each group as test images; the choice is fixed by `key`."""
    _, kinds = np.unique(
        [(image.group, image.label) for image in images], axis=0, return_inverse=True
    )
    is_test = stratified(kinds.reshape(-1), 0.2, key.numpy())
    return [image._replace(test=bool(test)) for image, test in zip(images, is_test, strict=True)]


def table(path: Path, *columns: str) -> list[list[str]]:
    """Read a text file with these columns, separated by blanks or tabs.

    Only the first column may contain blanks.
    """
    with open_binary(path) as stream:
        lines = stream.read().decode("utf-8-sig").splitlines()
    rows = []
    for number, line in enumerate(lines, 1):
        cells = line.strip().rsplit(maxsplit=len(columns) - 1)
        if cells and len(cells) != len(columns):
            raise file_error(
                path, f"has {quote(line)} in line {number}, but each line is: {', '.join(columns)}"
            )
        rows += [cells] if cells else []
    if not rows:
        raise file_error(path, "has no lines in it")
    return rows


def path_inside(folder: Path, name: str, source: Path) -> Path:
    """The path of a file that the list `source` names; refuse paths that leave the folder."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        raise file_error(source, f"has a path that leads out of the folder: {quote(name)}")
    return folder / path
