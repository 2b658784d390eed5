"""Image classification datasets: digits, letters, clothes and objects; digits-five."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from comity.base.samples import Ints
from comity.data.dataset import Dataset
from comity.data.files import FilePaths
from comity.data.formats import (
    Cifar,
    read_cifar_binary,
    read_cifar_python,
    read_idx_pair,
    read_image_list,
    read_npz,
    read_svhn_mat,
)
from comity.data.formats.common import (
    Source,
    existing_file,
    file_error,
    labels,
    wrap_parse_errors,
    wrap_read_errors,
)
from comity.data.groups import Groups
from comity.data.sets.common import (
    Pair,
    build_dataset,
    image_dataset,
    resize,
    train_and_test_images,
)
from comity.data.sets.descriptions import Description, register_datasets


def _npz(
    card: Description,
    paths: FilePaths,
    has_class_names: bool = False,
    cut_by: str = "",
    warning: str = "",
) -> Dataset:
    """Read an npz file with training and test images.

    Args:
        card: the description of the dataset
        paths: the path of the file
        has_class_names: whether the file has class names
        cut_by: the name of the arrays of units (`photo` for `photo_train` and `photo_test`), if the
            parts are not official (see `Dataset.cut_by`)
        warning: a sentence for the user
    """
    (path,) = paths.values()
    unit_arrays = (f"{cut_by}_train", f"{cut_by}_test") if cut_by else ()
    names_to_read = (
        "x_train",
        "y_train",
        "x_test",
        "y_test",
        *(["class_names"] if has_class_names else []),
        *unit_arrays,
    )
    data = read_npz(path, missing=False, **dict.fromkeys(names_to_read))
    names = tuple(map(str, data["class_names"])) if has_class_names else ()
    train, test = ((data[f"x_{part}"], data[f"y_{part}"]) for part in ("train", "test"))
    units = (
        np.unique(np.concatenate([data[name] for name in unit_arrays]), return_inverse=True)[1]
        if cut_by
        else None
    )
    return train_and_test_images(
        card,
        path,
        train,
        test,
        class_names=names,
        warnings=(warning,) if warning else (),
        cut_by=units,
    )


def _train_and_test(card: Description, paths: FilePaths, read_part: Callable[..., Pair]) -> Dataset:
    """Read the files of the training part and as many files of the test part."""
    files = list(paths.values())
    half = len(files) // 2
    return train_and_test_images(card, files[0], read_part(*files[:half]), read_part(*files[half:]))


def _idx(
    card: Description, paths: FilePaths, first_label: int = 0, transposed: bool = False
) -> Dataset:
    """Read four IDX files: images and labels for training, images and labels for testing."""

    def pair(images: Source, answers: Source) -> Pair:
        return read_idx_pair(images, answers, card.classes, first_label, transposed)

    return _train_and_test(card, paths, pair)


def _mat(card: Description, paths: FilePaths) -> Dataset:
    return _train_and_test(card, paths, read_svhn_mat)


def _cifar_binary(card: Description, paths: FilePaths) -> Dataset:
    """Read the binary version: the official archive, or its unpacked folder."""
    (path,) = paths.values()
    return _cifar(card, path, read_cifar_binary(path, 100 if card.classes == 100 else 10))


def _cifar_python(card: Description, paths: FilePaths) -> Dataset:
    """Read the Python version, which holds pickles: the official archive, or its folder."""
    (path,) = paths.values()
    return _cifar(card, path, read_cifar_python(path, True, 100 if card.classes == 100 else 10))


def _cifar(card: Description, path: Path, cifar: Cifar) -> Dataset:
    return image_dataset(card, path, cifar.x, cifar.y, cifar.is_test)


def _usps(card: Description, paths: FilePaths) -> Dataset:
    return _train_and_test(card, paths, _read_usps)


def _read_usps(path: Source) -> Pair:
    """Read USPS in libsvm's format: labels 1 to 10, and 256 values from -1 to 1."""
    from sklearn.datasets import load_svmlight_file  # a second to import

    message = (
        "is not text in libsvm's format with 256 values per line, or is damaged or cut short: get a"
        " new copy of it"
    )
    with wrap_read_errors(path), wrap_parse_errors(path, message):
        values, digits = load_svmlight_file(
            str(existing_file(path)), n_features=256, zero_based=False
        )
    x = values.toarray()
    if not (np.abs(x) <= 1).all():  # false for NaN
        raise file_error(path, "has values that are not between -1 and 1, as those of USPS are")
    return np.rint((x + 1) / 2 * 255).astype(np.uint8).reshape(-1, 16, 16), labels(
        path, digits, 10, first=1
    )


def _mnist_m(card: Description, paths: FilePaths) -> Dataset:
    """Read MNIST-M in its original form: folders of images, and lists with their digits."""

    def pair(folder: Source, answers: Source) -> Pair:
        return read_image_list(folder, answers, 32, 10)

    return _train_and_test(card, paths, pair)


def _join_digits(
    card: Description, parts: Mapping[str, Dataset], absent: tuple[str, ...]
) -> Dataset:
    """Combine the available sources, resized to the same shape."""
    x = torch.cat([resize(part.x, 28, 3) for part in parts.values()])
    y = torch.cat([part.y for part in parts.values()])
    is_test = torch.cat(
        [part.official_test for part in parts.values() if part.official_test is not None]
    )
    units = [
        np.full(len(part), -1) if part.cut_by is None else part.cut_by for part in parts.values()
    ]
    names = tuple("synth" if name == "synth-digits" else name for name in parts)
    source_numbers = np.repeat(np.arange(len(parts)), [len(part) for part in parts.values()])
    warnings = [warning for part in parts.values() for warning in part.warnings]
    if absent:
        warnings.append(
            f"digits-five: {', '.join(absent)} not available, so there are {len(parts)} of its 5"
            " sources."
        )
    return build_dataset(
        card,
        x,
        y,
        official_test=is_test,
        groups={"source": Groups(names, source_numbers)},
        warnings=tuple(warnings),
        cut_by=_renumber_units(units)
        if any(part.cut_by is not None for part in parts.values())
        else None,
    )


def _renumber_units(units: Sequence[Ints]) -> Ints:
    """Number the units of several datasets consecutively; -1 stays."""
    offsets = np.cumsum([0, *(part.max(initial=-1) + 1 for part in units)])
    return np.concatenate(
        [
            np.where(part < 0, -1, part + start)
            for part, start in zip(units, offsets[:-1], strict=True)
        ]
    )


register_datasets(
    Path(__file__).with_suffix(".toml"),
    readers={
        "idx": _idx,
        "npz": _npz,
        "mat": _mat,
        "usps": _usps,
        "mnist-m": _mnist_m,
        "cifar-binary": _cifar_binary,
        "cifar-python": _cifar_python,
    },
    join={"digits-five": _join_digits},
)
