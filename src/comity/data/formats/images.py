"""Pictures: single files, folders and lists, resized to one size.

A picture is read as stored (EXIF rotation is ignored, transparency is dropped), converted to RGB or
grey, and resized as a whole by Pillow's bicubic filter, which smooths when it reduces. A size is a
side length in pixels, or height and width.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import numpy as np

from comity.data.formats.common import (
    DAMAGED,
    Labels,
    Pixels,
    Source,
    existing_file,
    existing_folder,
    file_error,
    import_optional,
    list_folder,
    open_binary,
    quote,
    wrap_parse_errors,
    wrap_read_errors,
)
from comity.errors import UsageError

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".ppm", ".pgm")
FORMATS = ("PNG", "JPEG", "BMP", "PPM")
"""The only decoders of Pillow that are used."""
DEEP = ("I", "F")
"""First letters of Pillow's modes with more than 8 bits per pixel."""
MOST_PIXELS = 100_000_000
"""Largest picture file; larger ones are taken for decompression bombs."""
MOST_SIDE = 4096
"""Largest side length to resize to."""
Size = int | tuple[int, int]


class Pictures(NamedTuple):
    """Images N x C x H x W, labels, and class names in the order of the labels."""

    x: Pixels
    y: Labels
    classes: tuple[str, ...]


def read_image(path: Source, size: Size | None = None, grey: bool = False) -> Pixels:
    """Read one picture (png, jpeg, bmp or ppm) as C x H x W."""
    sides = None if size is None else _sides(size)
    file = existing_file(path)
    pillow = import_optional("PIL.Image", path)
    with (
        wrap_read_errors(path),
        file.open("rb") as stream,
        wrap_parse_errors(path, f"is no png, jpeg, bmp or ppm picture, or {DAMAGED}"),
    ):
        with warnings.catch_warnings():
            # Large pictures are refused below.
            warnings.simplefilter("ignore", pillow.DecompressionBombWarning)
            picture = pillow.open(stream, formats=FORMATS)
        mode = picture.mode
        if math.prod(picture.size) > MOST_PIXELS:
            raise file_error(
                path,
                f"has {picture.width} x {picture.height} pixels, more than {MOST_PIXELS:,}: make it"
                " smaller",
            )
        converted = picture.convert("L" if grey else "RGB")
    if mode.startswith(DEEP):
        raise file_error(path, "has more than 8 bits per colour: save it with 8")
    if sides is not None:
        converted = converted.resize(sides[::-1], pillow.Resampling.BICUBIC)
    pixels: Pixels = np.array(converted, np.uint8)
    return pixels[None] if grey else np.ascontiguousarray(pixels.transpose(2, 0, 1))


def read_image_folder(
    folder: Source, size: Size, classes: Sequence[str] | None = None, grey: bool = False
) -> Pictures:
    """Read the pictures of a folder with one folder per class.

    Labels follow the sorted class names, or the order of `classes`, which also selects folders.
    Hidden files are ignored; any other file that is not a picture is refused, so that no picture is
    lost unnoticed.
    """
    root = existing_folder(folder)
    names = [path.name for path in list_folder(root) if path.is_dir()]
    if not names:
        raise file_error(
            folder, "has no folders in it: put the pictures of each class into a folder of its own"
        )
    if classes is not None:
        missing = [name for name in classes if name not in names]
        if missing:
            raise file_error(folder, f"has no folder for the class {quote(missing[0])}")
        names = list(classes)
    labelled_files = [
        (path, label) for label, name in enumerate(names) for path in picture_files(root / name)
    ]
    return Pictures(
        read_images([path for path, _ in labelled_files], size, grey),
        np.array([y for _, y in labelled_files], np.int64),
        tuple(names),
    )


def read_image_list(
    root: Source, list_file: Source, size: Size, classes: int | None = None, grey: bool = False
) -> tuple[Pixels, Labels]:
    """Read the pictures of a list: on each line a path within `root`, a space and a label from 0.

    DomainNet uses this format.
    """
    base = existing_folder(root)
    paths = []
    labels = []
    with open_binary(list_file) as stream:
        lines = stream.read().decode("utf-8-sig").splitlines()
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        name, _, label = line.strip().rpartition(" ")
        if not name or not (label.isascii() and label.isdigit()) or len(label) > 9:
            raise file_error(
                list_file,
                f"has {quote(line)} in line {number}, but each line is a path, a space and a label"
                " from 0",
            )
        if classes is not None and int(label) >= classes:
            raise file_error(
                list_file,
                f"has the label {label} in line {number}, but labels are whole numbers from 0 to"
                f" {classes - 1}",
            )
        relative = PurePosixPath(name.strip())
        if relative.is_absolute() or ".." in relative.parts:
            raise file_error(
                list_file,
                f"has a path in line {number} that leads out of the folder: {quote(name)}",
            )
        paths.append(base / relative)
        labels.append(int(label))
    if not paths:
        raise file_error(list_file, "names no pictures")
    return read_images(paths, size, grey), np.array(labels, np.int64)


def picture_files(folder: Path) -> list[Path]:
    """The pictures in a folder, sorted by name; any other file is refused."""
    paths = list_folder(existing_folder(folder))
    if not paths:
        raise file_error(folder, "holds no pictures: fill it or remove it")
    for path in paths:
        if not path.name.lower().endswith(SUFFIXES):
            raise file_error(
                path, "is not a png, jpeg, bmp or ppm picture: convert it or move it elsewhere"
            )
    return paths


def read_images(paths: Sequence[Path], size: Size, grey: bool = False) -> Pixels:
    """Read pictures into one array, which is allocated once."""
    x = np.empty((len(paths), 1 if grey else 3, *_sides(size)), np.uint8)
    for i, path in enumerate(paths):
        x[i] = read_image(path, size, grey)
    return x


def _sides(size: Size) -> tuple[int, int]:
    """Height and width."""
    sides = (size, size) if isinstance(size, int) else size
    for side in sides:
        if not 1 <= side <= MOST_SIDE:
            raise UsageError(
                f"size must be a side length in pixels, from 1 to {MOST_SIDE}, not {quote(side)}."
            )
    return sides
