"""Pictures: one file, folders of them, and lists of them, all brought to one size.

The rule: the picture as stored (no rotation by its EXIF notes; transparency dropped), converted to
RGB or grey, then the whole of it resampled by Pillow's bicubic filter, which smooths when it makes
smaller. A size is a number of pixels a side, or height and width.
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
    bad,
    folder_of,
    inside,
    opened,
    optional,
    parsing,
    present,
    reading,
    quote,
)
from comity.errors import UsageError

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".ppm", ".pgm")
FORMATS = ("PNG", "JPEG", "BMP", "PPM")  # the only decoders that are let near the file
DEEP = ("I", "F")  # more than 8 bits a pixel, in all their variants
MOST_PIXELS = 100_000_000  # of one picture: more are made to fill a machine
MOST_SIDE = 4096  # pixels of a picture that is learned from
Size = int | tuple[int, int]


class Pictures(NamedTuple):
    """Images N x C x H x W, their labels, and the names of the classes in the order of the labels."""

    x: Pixels
    y: Labels
    classes: tuple[str, ...]


def read_image(path: Source, size: Size | None = None, grey: bool = False) -> Pixels:
    """One picture, C x H x W: png, jpeg, bmp or ppm."""
    sides = None if size is None else _sides(size)
    file = present(path)
    pillow = optional("PIL.Image", path)
    with (
        reading(path),
        file.open("rb") as stream,
        parsing(path, f"is no png, jpeg, bmp or ppm picture, or {DAMAGED}"),
    ):
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore", pillow.DecompressionBombWarning
            )  # said below, in our words
            picture = pillow.open(stream, formats=FORMATS)
        mode = picture.mode
        if math.prod(picture.size) > MOST_PIXELS:
            raise bad(
                path,
                f"has {picture.width} x {picture.height} pixels, more than {MOST_PIXELS:,}: make it"
                " smaller",
            )
        made = picture.convert("L" if grey else "RGB")
    if mode.startswith(DEEP):
        raise bad(path, "has more than 8 bits a colour: save it with 8")
    if sides is not None:
        made = made.resize(sides[::-1], pillow.Resampling.BICUBIC)
    pixels: Pixels = np.array(made, np.uint8)
    return pixels[None] if grey else np.ascontiguousarray(pixels.transpose(2, 0, 1))


def read_image_folder(
    folder: Source, size: Size, classes: Sequence[str] | None = None, grey: bool = False
) -> Pictures:
    """The pictures of a folder that has one folder a class: labels follow the sorted names, or
    `classes`, which also choose.

    Hidden files are passed over; any other file that is no picture is refused, so that none is lost
    unseen.
    """
    root = folder_of(folder)
    names = [path.name for path in inside(root) if path.is_dir()]
    if not names:
        raise bad(
            folder, "has no folders in it: put the pictures of each class into a folder of its own"
        )
    if classes is not None:
        missing = [name for name in classes if name not in names]
        if missing:
            raise bad(folder, f"has no folder for the class {quote(missing[0])}")
        names = list(classes)
    found = [
        (path, label) for label, name in enumerate(names) for path in picture_files(root / name)
    ]
    return Pictures(
        read_images([path for path, _ in found], size, grey),
        np.array([y for _, y in found], np.int64),
        tuple(names),
    )


def read_image_list(
    root: Source, list_file: Source, size: Size, classes: int | None = None, grey: bool = False
) -> tuple[Pixels, Labels]:
    """The pictures that a list names: a path within `root`, a space and a label from 0 on each line
    (as of DomainNet).
    """
    base = folder_of(root)
    paths = []
    answers = []
    with opened(list_file) as stream:
        lines = stream.read().decode("utf-8-sig").splitlines()
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        name, _, label = line.strip().rpartition(" ")
        if not name or not (label.isascii() and label.isdigit()) or len(label) > 9:
            raise bad(
                list_file,
                f"has {quote(line)} in line {number}, but each line is a path, a space and a label"
                " from 0",
            )
        if classes is not None and int(label) >= classes:
            raise bad(
                list_file,
                f"has the label {label} in line {number}, but labels are whole numbers from 0 to"
                f" {classes - 1}",
            )
        within = PurePosixPath(name.strip())
        if within.is_absolute() or ".." in within.parts:
            raise bad(
                list_file,
                f"has a path in line {number} that leads out of the folder: {quote(name)}",
            )
        paths.append(base / within)
        answers.append(int(label))
    if not paths:
        raise bad(list_file, "names no pictures")
    return read_images(paths, size, grey), np.array(answers, np.int64)


def picture_files(folder: Path) -> list[Path]:
    """The pictures of one folder, by name; any other file in it is refused."""
    paths = inside(folder_of(folder))
    if not paths:
        raise bad(folder, "holds no pictures: fill it or remove it")
    for path in paths:
        if not path.name.lower().endswith(SUFFIXES):
            raise bad(
                path, "is not a png, jpeg, bmp or ppm picture: convert it or move it elsewhere"
            )
    return paths


def read_images(paths: Sequence[Path], size: Size, grey: bool = False) -> Pixels:
    """All these pictures in one array, which is reserved once."""
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
                f"size is the number of pixels a side, from 1 to {MOST_SIDE}, not {quote(side)}."
            )
    return sides
