"""IDX files: MNIST, Fashion-MNIST and EMNIST, raw or gzipped."""

from __future__ import annotations

from math import prod

import numpy as np

from comity.data.formats.common import (
    Array,
    Labels,
    Pixels,
    Source,
    file_error,
    labels,
    open_binary,
    read_bytes,
)
from comity.errors import UsageError

UBYTE = 0x08
KINDS = {1: "labels", 3: "images"}


def read_idx(path: Source) -> Array:
    """Read an IDX file of bytes: images (uint8, N x 1 x H x W) or labels (int64, unchanged)."""
    with open_binary(path) as stream:
        magic = read_bytes(stream, 4)
        if len(magic) < 4 or magic[:2] != b"\0\0":
            raise file_error(path, "is not an IDX file: it does not begin as one")
        if magic[2] != UBYTE or magic[3] not in KINDS:
            raise file_error(
                path,
                f"is an IDX file of type {magic[2]:#04x} with {magic[3]} dimensions, but only"
                " unsigned bytes (0x08) with 1 (labels) or 3 (images) can be read",
            )
        header = read_bytes(stream, 4 * magic[3])
        if len(header) < 4 * magic[3]:
            raise file_error(path, "ends within its header: get a new copy of it")
        shape = [int(n) for n in np.frombuffer(header, ">u4")]
        if not all(shape):
            raise file_error(path, f"has the shape {_shape_text(shape)}, so it is empty")
        content = read_bytes(stream, prod(shape) + 1)  # one more byte, to detect excess content
    if len(content) != prod(shape):
        actual = "more" if len(content) > prod(shape) else f"only {len(content)}"
        raise file_error(
            path,
            f"must hold {_shape_text(shape)} = {prod(shape)} bytes after its header, but there"
            f" are {actual}: get a new copy of it",
        )
    values = np.frombuffer(content, np.uint8).reshape(shape)
    return values.astype(np.int64) if values.ndim == 1 else values[:, None].copy()


def read_idx_pair(
    images: Source, answers: Source, classes: int, first: int = 0, transposed: bool = False
) -> tuple[Pixels, Labels]:
    """Read images and their labels, converted to start at 0.

    EMNIST stores its pictures with rows and columns exchanged (`transposed`), and counts its
    letters from 1 (`first`).
    """
    x = _read_kind(images, 3)
    y = _read_kind(answers, 1)
    if len(x) != len(y):
        raise UsageError(
            f"{images} has {len(x)} images but {answers} has {len(y)} labels: they do not belong"
            " together."
        )
    return np.ascontiguousarray(x.swapaxes(2, 3)) if transposed else x, labels(
        answers, y, classes, first
    )


def _read_kind(path: Source, dimensions: int) -> Array:
    """Read an IDX file that must hold images (3 dimensions) or labels (1)."""
    values = read_idx(path)
    if (values.ndim == 1) != (dimensions == 1):
        raise file_error(
            path, f"holds {KINDS[4 - dimensions]}, but {KINDS[dimensions]} are needed here"
        )
    return values


def _shape_text(shape: list[int]) -> str:
    """A shape as in 10 x 28 x 28."""
    return " x ".join(map(str, shape))
