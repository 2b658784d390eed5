"""LEAF's json files of FEMNIST: characters by writer."""

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
    bad,
    folder_of,
    inside,
    labels,
    opened,
    quote,
)

SIDE = 28
CLASSES = 62


class Leaf(NamedTuple):
    """Images N x 1 x 28 x 28, labels, the position of each sample's writer in `users`, and who is
    in the test set.
    """

    x: Pixels
    y: Labels
    user: Labels
    users: tuple[str, ...]
    is_test: NDArray[np.bool_]


def read_leaf(folder: Source) -> Leaf:
    """All json files of LEAF's folder `data`, which has `train` and `test` in it, or of one of
    these two.

    LEAF writes a pixel as a fraction of 255, so the bytes it came from are had back exactly.
    """
    root = folder_of(folder)
    parts = [part for name in ("train", "test") if (part := root / name).is_dir()] or [root]
    found: list[tuple[str, Pixels, Labels, bool]] = []
    for part in parts:
        files = [path for path in inside(part) if path.suffix == ".json"]
        if not files:
            raise bad(
                part, "holds no json files: it must be a folder that LEAF's preprocess.sh made"
            )
        seen: dict[str, Path] = {}
        for path in files:
            for name, x, y in _users(path):
                if name in seen:
                    raise bad(
                        path,
                        f"has the user {quote(name)}, who is already in {seen[name].name}: remove"
                        " the copy",
                    )
                seen[name] = path
                found.append((name, x, y, part.name == "test"))
    if not any(len(y) for _, _, y, _ in found):
        raise bad(folder, "holds no samples")
    users = tuple(sorted({name for name, *_ in found}))
    position = {name: i for i, name in enumerate(users)}
    sizes = [len(y) for _, _, y, _ in found]
    return Leaf(
        np.concatenate([x for _, x, _, _ in found]),
        np.concatenate([y for _, _, y, _ in found]),
        np.repeat(np.array([position[name] for name, *_ in found], np.int64), sizes),
        users,
        np.repeat([test for *_, test in found], sizes),
    )


def _users(path: Path) -> Iterator[tuple[str, Pixels, Labels]]:
    """Each user of a file, with their images and labels."""
    with opened(path) as stream:
        content = stream.read().decode()
    try:
        held = json.loads(content)
    except (ValueError, RecursionError) as why:
        raise bad(path, f"is not json, or {DAMAGED}") from why
    told = held if isinstance(held, dict) else {}
    users = told.get("users")
    counts = told.get("num_samples")
    data = told.get("user_data")
    if not (
        isinstance(users, list)
        and isinstance(counts, list)
        and isinstance(data, dict)
        and len(users) == len(counts)
    ):
        raise bad(
            path,
            "is not a file of LEAF: it must have users, num_samples (one a user) and user_data",
        )
    for name, count in zip(users, counts, strict=True):
        own = data.get(name) if isinstance(name, str) else None
        if not isinstance(own, dict):
            raise bad(path, f"lists the user {quote(name)} but has no data of theirs")
        yield name, *_samples(path, name, own, count)


def _samples(path: Path, name: str, own: dict[str, Any], count: object) -> tuple[Pixels, Labels]:
    """The images and labels of one user."""
    x = _numbers(own.get("x"))
    y = _numbers(own.get("y"))
    if x is None or y is None or y.ndim != 1 or (x.shape != (len(y), SIDE * SIDE) and len(y)):
        raise bad(
            path,
            f"has data of {quote(name)} that are not lists of {SIDE * SIDE} pixels and a label for"
            " each",
        )
    if len(y) != count or len(x) != count:
        raise bad(
            path,
            f"says that {quote(name)} has {quote(count)} samples, but there are {len(y)}: get a new"
            " copy of it",
        )
    if not ((x >= 0) & (x <= 1)).all():  # NaN is neither
        raise bad(path, f"has a pixel of {quote(name)} that is not between 0 and 1")
    pixels = np.rint(x * 255).astype(np.uint8).reshape(-1, 1, SIDE, SIDE)
    return pixels, labels(f"The data of {quote(name)} in {path}", y, CLASSES)


def _numbers(values: object) -> NDArray[Any] | None:
    """A list (of lists) of numbers as an array, None for anything else."""
    try:
        made = np.asarray(values)
    except ValueError:  # lists of different lengths
        return None
    return made if isinstance(values, list) and made.dtype.kind in "iuf" else None
