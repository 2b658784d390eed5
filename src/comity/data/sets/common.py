"""What the datasets' files have in common: from arrays as they lie on disk to a `Dataset`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from comity.data.dataset import Dataset
from comity.data.groups import Groups
from comity.data.library import Card
from comity.errors import Refusal

Arrays = dict[str, NDArray[Any]]


def planes(images: NDArray[Any]) -> Tensor:
    """N x H x W or N x H x W x 3 bytes as N x C x H x W."""
    x = torch.from_numpy(np.ascontiguousarray(images))
    return x[:, None] if x.dim() == 3 else x.permute(0, 3, 1, 2).contiguous()


def resized(x: Tensor, size: int, channels: int) -> Tensor:
    """Images of bytes brought to size x size, bilinear with antialiasing; grey ones are repeated where there are 3 channels."""
    parts = []
    for part in x.split(4096):  # bounded memory
        if part.shape[-1] == size and part.shape[-2] == size:
            parts.append(part)
            continue
        bigger = F.interpolate(part.float(), (size, size), mode="bilinear", antialias=True, align_corners=False)
        parts.append(bigger.round().clamp(0, 255).byte())
    made = torch.cat(parts)
    return made.expand(-1, channels, -1, -1).contiguous() if made.shape[1] != channels else made


def halves(card: Card, path: Path, train: tuple[NDArray[Any], NDArray[Any]], test: tuple[NDArray[Any], NDArray[Any]]) -> Dataset:
    """Training and official test images, one after the other."""
    for x, y in (train, test):
        if len(x) != len(y):
            raise Refusal(f"{path} has {len(x)} images but {len(y)} labels; it is damaged.")
    if train[0].shape[1:] != test[0].shape[1:]:
        raise Refusal(f"{path} has training images of shape {train[0].shape[1:]} but test images of {test[0].shape[1:]}.")
    images, labels = (np.concatenate([a, b]) for a, b in zip(train, test, strict=True))
    return picture(card, path, planes(images), labels, np.arange(len(labels)) >= len(train[1]))


def stacked(
    card: Card, path: Path, train: tuple[NDArray[Any], NDArray[Any]], test: tuple[NDArray[Any], NDArray[Any]]
) -> Dataset:
    """Training and official test images that are N x C x H x W already."""
    x, y = (np.concatenate([a, b]) for a, b in zip(train, test, strict=True))
    return picture(card, path, torch.from_numpy(x), y, np.arange(len(y)) >= len(train[1]))


def picture(
    card: Card, path: Path, x: Tensor, y: NDArray[Any], test: NDArray[np.bool_] | None, **more: Any
) -> Dataset:
    """A dataset of images as bytes; labels that the card does not know mean another file."""
    if x.dtype != torch.uint8 or x.dim() != 4:
        raise Refusal(f"{path} must hold images as bytes, but they are {x.dtype} of shape {tuple(x.shape)}.")
    if len(y) and not 0 <= int(y.min()) <= int(y.max()) < card.classes:
        raise Refusal(f"{path} has labels from {int(y.min())} to {int(y.max())}, but {card.name} has classes 0 to {card.classes - 1}.")
    held = None if test is None else torch.from_numpy(np.asarray(test, dtype=np.bool_))
    labels = torch.from_numpy(np.asarray(y, dtype=np.int64))
    return Dataset(card.name, x, labels, card.classes, card.description, card.licence, held, **more)


def groups(path: Path, names: Sequence[Any], of: NDArray[Any]) -> Groups:
    """A grouping whose numbers all have a name."""
    numbers = np.asarray(of, dtype=np.int64)
    if len(numbers) and not 0 <= numbers.min() <= numbers.max() < len(names):
        raise Refusal(f"{path} has groups from {numbers.min()} to {numbers.max()}, but names for {len(names)}.")
    return Groups(tuple(str(name) for name in names), numbers)
