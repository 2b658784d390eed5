"""Arrays of a numpy archive (.npz); pickles in it are refused."""

from __future__ import annotations

import os
from math import prod
from typing import IO
from zipfile import ZipFile, ZipInfo

import numpy as np
from numpy.lib import format as npy

from comity.data.formats.common import (
    Array,
    Source,
    check_unpacked,
    existing_file,
    file_error,
    wrap_parse_errors,
    wrap_read_errors,
)
from comity.text import join_names

Shape = tuple[int | str, ...]


def read_npz(path: Source, /, *, missing: bool = False, **shapes: Shape | None) -> dict[str, Array]:
    """Read arrays by name and check their shapes.

    As in `read_npz(path, x=("n", 28, 28), y=("n",), names=None)`. A word in a shape stands for any
    size, which must be the same wherever the word occurs; None allows any shape. Without names, all
    arrays are read. NaN and infinity are refused unless `missing` is true. Shapes are checked
    before anything is unpacked.
    """
    sizes: dict[str, tuple[str, int]] = {}
    arrays: dict[str, Array] = {}
    with (
        wrap_read_errors(path),
        existing_file(path).open("rb") as raw,
        wrap_parse_errors(path),
        ZipFile(raw) as archive,
    ):
        members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
        requested = shapes or dict.fromkeys(members)
        if not requested:
            raise file_error(path, "holds no arrays")
        for name, shape in requested.items():
            if name not in members:
                raise file_error(
                    path, f"has no array called {name}; it has {join_names(members) or 'none'}"
                )
            with archive.open(members[name]) as stream:
                actual = _header(path, name, stream, members[name])
            if shape is not None:
                _check_shape(path, name, actual, shape, sizes)
        check_unpacked(
            path, sum(members[name].file_size for name in requested), os.fstat(raw.fileno()).st_size
        )
        for name in requested:
            with archive.open(members[name]) as stream:
                arrays[name] = npy.read_array(stream, allow_pickle=False)
    for name, values in arrays.items():
        if not missing and values.dtype.kind == "f" and not np.isfinite(values).all():
            where = tuple(int(i) for i in np.argwhere(~np.isfinite(values))[0])
            raise file_error(
                path,
                f"has {values[where]} in {name} at {list(where)}: only finite numbers can be used",
            )
    return arrays


def _header(path: Source, name: str, stream: IO[bytes], info: ZipInfo) -> tuple[int, ...]:
    """The shape of a member, from its header.

    Refuses members that hold objects, or whose size does not fit the shape.
    """
    if not info.filename.endswith(".npy"):
        raise file_error(path, f"holds {name}, which is not an array")
    version = npy.read_magic(stream)
    read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, _, dtype = read(stream)
    if dtype.hasobject:
        raise file_error(
            path,
            f"holds Python objects in {name}, which are not read because they can run any program:"
            " save it as numbers or text",
        )
    if dtype.kind not in "biufU":
        raise file_error(
            path, f"holds {name} of type {dtype}, but only numbers and text can be read"
        )
    if info.file_size != stream.tell() + prod(shape) * dtype.itemsize:
        raise file_error(
            path,
            f"holds {name} of shape {shape}, which does not fit its length: get a new copy of it",
        )
    return tuple(shape)


def _check_shape(
    path: Source,
    name: str,
    actual: tuple[int, ...],
    shape: Shape,
    sizes: dict[str, tuple[str, int]],
) -> None:
    """Refuse a shape that is not as expected; `sizes` holds the size and array of each word."""
    if len(actual) != len(shape) or any(
        isinstance(s, int) and s != f for s, f in zip(shape, actual, strict=True)
    ):
        expected = f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"
        raise file_error(path, f"has {name} of shape {actual}, but {expected} is needed")
    for word, size in zip(shape, actual, strict=True):
        if isinstance(word, str):
            other_array, known_size = sizes.setdefault(word, (name, size))
            if known_size != size:
                raise file_error(
                    path,
                    f"has {size} for {word} in {name} but {known_size} in {other_array}: they must"
                    " be equal",
                )
