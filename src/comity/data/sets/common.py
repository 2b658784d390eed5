"""What the datasets' files have in common: from arrays and folders as they lie on disk to a
`Dataset`.
"""

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
from comity.data.formats.common import bad, labels, opened, quote, same_length
from comity.data.groups import Groups
from comity.data.library import Card
from comity.data.protocols import stratified

RESEARCH = "none stated; research use"
Arrays = dict[str, NDArray[Any]]
Pair = tuple[NDArray[Any], NDArray[Any]]  # images or other samples, and their labels


def planes(images: NDArray[Any]) -> NDArray[Any]:
    """Images N x H x W or N x H x W x 3 as N x C x H x W; those that are so already as they are."""
    if images.ndim == 3:
        return images[:, None]
    turned = images.ndim == 4 and images.shape[-1] == 3 and images.shape[1] != 3
    return images.transpose(0, 3, 1, 2) if turned else images


def resized(x: Tensor, size: int, channels: int) -> Tensor:
    """Images of bytes brought to size x size, bilinear with antialiasing; grey ones are repeated
    where there are 3 channels.
    """
    parts = []
    for part in x.split(4096):  # bounded memory
        if part.shape[-1] == size and part.shape[-2] == size:
            parts.append(part)
            continue
        bigger = F.interpolate(
            part.float(), (size, size), mode="bilinear", antialias=True, align_corners=False
        )
        parts.append(bigger.round().clamp(0, 255).byte())
    made = torch.cat(parts)
    return made.expand(-1, channels, -1, -1).contiguous() if made.shape[1] != channels else made


def halves(card: Card, path: Path, train: Pair, test: Pair, **more: Any) -> Dataset:
    """Training and official test images, one after the other."""
    for x, y in (train, test):
        same_length(path, images=x, labels=y)
    if train[0].shape[1:] != test[0].shape[1:]:
        raise bad(
            path,
            f"has training images of shape {train[0].shape[1:]} but test images of"
            f" {test[0].shape[1:]}",
        )
    x, y = (np.concatenate([a, b]) for a, b in zip(train, test, strict=True))
    return picture(card, path, x, y, np.arange(len(y)) >= len(train[1]), **more)


def picture(
    card: Card,
    path: Path,
    x: NDArray[Any],
    y: NDArray[Any],
    test: NDArray[np.bool_] | None,
    **more: Any,
) -> Dataset:
    """A dataset of images as bytes; what the card does not know means another file."""
    x = np.ascontiguousarray(planes(x))
    if x.dtype != np.uint8 or x.shape[1:] != card.shape:
        raise bad(
            path,
            f"has images of shape {x.shape[1:]} and type {x.dtype}, but {card.name} has bytes of"
            f" shape {card.shape}",
        )
    if y.dtype.kind not in "biuf":
        raise bad(path, "has labels that are not numbers")
    held = None if test is None else torch.from_numpy(np.asarray(test, dtype=np.bool_))
    answers = torch.from_numpy(labels(path, y, card.classes))
    told: dict[str, Any] = more | {"notes": (*partly(card, len(y)), *more.get("notes", ()))}
    return Dataset(
        name=card.name,
        x=torch.from_numpy(x),
        y=answers,
        classes=card.classes,
        description=card.description,
        licence=card.licence,
        official_test=held,
        **told,
    )


def partly(card: Card, samples: int) -> tuple[str, ...]:
    """What is to be said of a part of a dataset."""
    return (
        (f"{card.name}: {samples:,} of its {card.samples:,} samples are here.",)
        if samples < card.samples
        else ()
    )


def groups(path: Path, names: Sequence[Any], of: NDArray[Any]) -> Groups:
    """A grouping whose numbers all have a name."""
    numbers = np.asarray(of, dtype=np.int64)
    if len(numbers) and not 0 <= numbers.min() <= numbers.max() < len(names):
        raise bad(
            path, f"has groups from {numbers.min()} to {numbers.max()}, but names for {len(names)}"
        )
    return Groups(tuple(str(name) for name in names), numbers)


class Shot(NamedTuple):
    """One picture file: its class, the group it is of, and whether it is for testing."""

    path: Path
    label: int
    group: int = 0
    test: bool = False


def album(card: Card, root: Path, shots: Sequence[Shot], **more: Any) -> Dataset:
    """A dataset of picture files, brought to the card's size."""
    x = read_images([shot.path for shot in shots], (card.shape[1], card.shape[2]))
    y = np.array([shot.label for shot in shots])
    test = np.array([shot.test for shot in shots])
    return picture(card, root, x, y, test if test.any() else None, **more)


def a_fifth(shots: Sequence[Shot], key: Key) -> list[Shot]:
    """The same pictures with a fifth of each class of each group for testing: always the same ones."""
    _, kinds = np.unique([(shot.group, shot.label) for shot in shots], axis=0, return_inverse=True)
    held = stratified(kinds.reshape(-1), 0.2, key.numpy())
    return [shot._replace(test=bool(test)) for shot, test in zip(shots, held, strict=True)]


def table(path: Path, *columns: str) -> list[list[str]]:
    """The lines of a text file, each with these columns, which spaces or tabs part (all but the
    first have none inside).
    """
    with opened(path) as stream:
        lines = stream.read().decode("utf-8-sig").splitlines()
    rows = []
    for number, line in enumerate(lines, 1):
        cells = line.strip().rsplit(maxsplit=len(columns) - 1)
        if cells and len(cells) != len(columns):
            raise bad(
                path, f"has {quote(line)} in line {number}, but each line is: {', '.join(columns)}"
            )
        rows += [cells] if cells else []
    if not rows:
        raise bad(path, "has no lines in it")
    return rows


def within(folder: Path, name: str, source: Path) -> Path:
    """The file of a folder that `source` names; it must not lead out of it."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        raise bad(source, f"has a path that leads out of the folder: {quote(name)}")
    return folder / path
