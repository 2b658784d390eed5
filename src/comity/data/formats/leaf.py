"""FEMNIST in the json files of LEAF: characters by writer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from comity.data.formats.common import (
    DAMAGED,
    Labels,
    Pixels,
    Source,
    existing_folder,
    file_error,
    labels,
    list_folder,
    open_binary,
    quote,
)

SIDE = 28
CLASSES = 62


class Leaf(NamedTuple):
    """Images N x 1 x 28 x 28, labels, each sample's writer as a position in `users`, and a test
    mask.
    """

    x: Pixels
    y: Labels
    user: Labels
    users: tuple[str, ...]
    is_test: NDArray[np.bool_]


def read_leaf(folder: Source) -> Leaf:
    """Read all json files of LEAF's folder `data`, with `train` and `test`, or of one of these two.

    LEAF writes a pixel as a fraction of 255, so that the original bytes are recovered exactly.
    """
    root = existing_folder(folder)
    parts = [part for name in ("train", "test") if (part := root / name).is_dir()] or [root]
    entries: list[tuple[str, Pixels, Labels, bool]] = []
    for part in parts:
        files = [path for path in list_folder(part) if path.suffix == ".json"]
        if not files:
            raise file_error(
                part, "holds no json files: it must be a folder that LEAF's preprocess.sh made"
            )
        file_of_user: dict[str, Path] = {}
        for path in files:
            for name, x, y in _users(path):
                if name in file_of_user:
                    raise file_error(
                        path,
                        f"has the user {quote(name)}, who is already in"
                        f" {file_of_user[name].name}: remove the copy",
                    )
                file_of_user[name] = path
                entries.append((name, x, y, part.name == "test"))
    if not any(len(y) for _, _, y, _ in entries):
        raise file_error(folder, "holds no samples")
    users = tuple(sorted({name for name, *_ in entries}))
    position = {name: i for i, name in enumerate(users)}
    sizes = [len(y) for _, _, y, _ in entries]
    return Leaf(
        np.concatenate([x for _, x, _, _ in entries]),
        np.concatenate([y for _, _, y, _ in entries]),
        np.repeat(np.array([position[name] for name, *_ in entries], np.int64), sizes),
        users,
        np.repeat([test for *_, test in entries], sizes),
    )


def _users(path: Path) -> Iterator[tuple[str, Pixels, Labels]]:
    """Iterate over the users of a file, with their images and labels."""
    with open_binary(path) as stream:
        content = stream.read().decode()
    try:
        parsed = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise file_error(path, f"is not json, or {DAMAGED}") from error
    fields = parsed if isinstance(parsed, dict) else {}
    users = fields.get("users")
    counts = fields.get("num_samples")
    data = fields.get("user_data")
    if not (
        isinstance(users, list)
        and isinstance(counts, list)
        and isinstance(data, dict)
        and len(users) == len(counts)
    ):
        raise file_error(
            path,
            "is not a file of LEAF: it must have users, num_samples (one per user) and user_data",
        )
    for name, count in zip(users, counts, strict=True):
        user_data = data.get(name) if isinstance(name, str) else None
        if not isinstance(user_data, dict):
            raise file_error(path, f"lists the user {quote(name)} but has no data of that user")
        yield name, *_samples(path, name, user_data, count)


def _samples(
    path: Path, name: str, user_data: dict[str, Any], count: object
) -> tuple[Pixels, Labels]:
    """The images and labels of one user."""
    x = _numbers(user_data.get("x"))
    y = _numbers(user_data.get("y"))
    if x is None or y is None or y.ndim != 1 or (x.shape != (len(y), SIDE * SIDE) and len(y)):
        raise file_error(
            path,
            f"has data of {quote(name)} that are not lists of {SIDE * SIDE} pixels and a label for"
            " each",
        )
    if len(y) != count or len(x) != count:
        raise file_error(
            path,
            f"says that {quote(name)} has {quote(count)} samples, but there are {len(y)}: get a new"
            " copy of it",
        )
    if not ((x >= 0) & (x <= 1)).all():  # false for NaN
        raise file_error(path, f"has a pixel of {quote(name)} that is not between 0 and 1")
    pixels = np.rint(x * 255).astype(np.uint8).reshape(-1, 1, SIDE, SIDE)
    return pixels, labels(f"The data of {quote(name)} in {path}", y, CLASSES)


def _numbers(values: object) -> NDArray[Any] | None:
    """A (nested) list of numbers as an array; None for anything else."""
    try:
        array = np.asarray(values)
    except ValueError:  # lists of different lengths
        return None
    return array if isinstance(values, list) and array.dtype.kind in "iuf" else None
