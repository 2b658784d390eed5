"""MATLAB files: variables by name, and SVHN's cropped digits."""

from __future__ import annotations

from math import prod
from pathlib import Path

import numpy as np

from comity.data.formats.common import (
    DAMAGED,
    Array,
    Labels,
    Pixels,
    Source,
    check_same_length,
    check_unpacked,
    existing_file,
    file_error,
    labels,
    wrap_parse_errors,
    wrap_read_errors,
)


def read_mat(path: Source, *names: str) -> dict[str, Array]:
    """Read numeric variables by name."""
    from scipy.io import loadmat, whosmat  # half a second to import

    with (
        wrap_read_errors(path),
        existing_file(path).open("rb") as stream,
        wrap_parse_errors(path, f"is no MATLAB file, or {DAMAGED}"),
    ):
        try:
            check_unpacked(
                path, sum(prod(shape) for _, shape, _ in whosmat(stream)), Path(path).stat().st_size
            )
            variables = loadmat(stream, variable_names=list(names))
        except NotImplementedError as error:
            raise file_error(
                path, "is a MATLAB 7.3 file: save it again with save(..., '-v7')"
            ) from error
    for name in names:
        if name not in variables:
            raise file_error(path, f"has no variable called {name}")
        if not isinstance(variables[name], np.ndarray) or variables[name].dtype.kind not in "biuf":
            raise file_error(path, f"has a variable {name} that is not numeric")
    return {name: variables[name] for name in names}


def read_svhn_mat(path: Source) -> tuple[Pixels, Labels]:
    """Read SVHN's cropped digits (`train_32x32.mat`): images N x 3 x 32 x 32, and digits.

    SVHN writes 10 for the digit 0; SynthDigits uses the same format with 0. Both become 0.
    """
    variables = read_mat(path, "X", "y")
    x = variables["X"]
    if x.dtype != np.uint8 or x.ndim != 4 or x.shape[:3] != (32, 32, 3) or not x.size:
        raise file_error(
            path,
            f"has an X of shape {x.shape} and type {x.dtype}, but SVHN's is (32, 32, 3, images) and"
            " uint8: use the cropped digits (train_32x32.mat)",
        )
    images = np.ascontiguousarray(x.transpose(3, 2, 0, 1))
    y = labels(path, variables["y"], classes=11)
    check_same_length(path, images=images, labels=y)
    return images, y % 10
