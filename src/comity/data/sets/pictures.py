"""Image classification datasets: digits, letters, clothes and objects; digits-five."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import numpy as np
import torch

from comity.base.samples import Ints
from comity.data.dataset import Dataset
from comity.data.files import FileLayout, FilePaths
from comity.data.formats import (
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
from comity.data.library import Card, Entry, register
from comity.data.sets.common import RESEARCH, Pair, image_dataset, resize, train_and_test_images
from comity.data.sets.sums import SUMS

MNIST = Card(
    name="mnist",
    samples=70000,
    classes=10,
    shape=(1, 28, 28),
    description="Handwritten digits, grey",
    licence="CC BY-SA 3.0",
    hub="ylecun/mnist",
)
FASHION = Card(
    name="fashion-mnist",
    samples=70000,
    classes=10,
    shape=(1, 28, 28),
    description="Clothes, grey (Xiao et al. 2017)",
    licence="MIT",
    hub="zalando-datasets/fashion_mnist",
)
USPS = Card(
    name="usps",
    samples=9298,
    classes=10,
    shape=(1, 16, 16),
    description="Handwritten digits of the US mail, grey (Hull 1994)",
    licence=RESEARCH,
    hub="flwrlabs/usps",
)
MNIST_M = Card(
    name="mnist-m",
    samples=68002,
    classes=10,
    shape=(3, 32, 32),
    description="MNIST digits over pieces of photos (Ganin et al. 2016)",
    licence="none stated; derived from MNIST (CC BY-SA 3.0) and BSDS500 (research)",
)
SVHN = Card(
    name="svhn",
    samples=99289,
    classes=10,
    shape=(3, 32, 32),
    description="House numbers in street photos, cropped (Netzer et al. 2011)",
    licence="non-commercial use only",
    hub="ufldl-stanford/svhn",
)
SYNTH = Card(
    name="synth-digits",
    samples=488953,
    classes=10,
    shape=(3, 32, 32),
    description="Digits drawn by a program (Ganin et al. 2016)",
    licence=RESEARCH,
)
CIFAR10 = Card(
    name="cifar10",
    samples=60000,
    classes=10,
    shape=(3, 32, 32),
    description="Small photos of ten kinds (Krizhevsky 2009)",
    licence=RESEARCH,
    hub="uoft-cs/cifar10",
)
CIFAR100 = Card(
    name="cifar100",
    samples=60000,
    classes=100,
    shape=(3, 32, 32),
    description="Small photos of a hundred kinds (Krizhevsky 2009)",
    licence=RESEARCH,
    hub="uoft-cs/cifar100",
)
LETTERS = Card(
    name="emnist-letters",
    samples=145600,
    classes=26,
    shape=(1, 28, 28),
    description="Handwritten letters, capital and small alike, grey (Cohen et al. 2017)",
    licence="NIST SD 19 is a US government work",
)
BALANCED = Card(
    name="emnist-balanced",
    samples=131600,
    classes=47,
    shape=(1, 28, 28),
    description="Handwritten digits and letters, as many of each, grey (Cohen et al. 2017)",
    licence="NIST SD 19 is a US government work",
)
DIGITS_FIVE = Card(
    name="digits-five",
    samples=735542,
    classes=10,
    shape=(3, 28, 28),
    description="Digits from five sources, as FedBN and ADCOL use them: 28 x 28 in three channels",
    licence="those of its sources",
    groups=("source",),
)


def _npz(
    card: Card, file: str, *warnings: str, has_class_names: bool = False, cut_by: str = ""
) -> FileLayout:
    """An npz file with training and test images, and with class names if `has_class_names`.

    `cut_by` names the arrays of units (`photo` for `photo_train` and `photo_test`), if the parts
    are not official (see `Dataset.cut_by`).
    """

    def read(paths: FilePaths) -> Dataset:
        path = paths[file]
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
            card, path, train, test, class_names=names, warnings=warnings, cut_by=units
        )

    return FileLayout(read, (file,), sums=SUMS[card.name])


def _train_and_test(
    card: Card, train: tuple[str, ...], test: tuple[str, ...], read_part: Callable[..., Pair]
) -> FileLayout:
    """A training and a test part in files of their own."""

    def read(paths: FilePaths) -> Dataset:
        return train_and_test_images(
            card,
            paths[train[0]],
            *(read_part(*(paths[file] for file in part)) for part in (train, test)),
        )

    return FileLayout(read, (*train, *test), sums=SUMS.get(card.name, {}))


def _idx(card: Card, train: str, test: str, first: int = 0, transposed: bool = False) -> FileLayout:
    """Four IDX files, whose names begin with `train` and `test`."""

    def pair(images: Source, answers: Source) -> Pair:
        return read_idx_pair(images, answers, card.classes, first, transposed)

    names = [(f"{part}-images-idx3-ubyte", f"{part}-labels-idx1-ubyte") for part in (train, test)]
    return _train_and_test(card, names[0], names[1], pair)


def _cifar(card: Card, file: str, trust: bool) -> FileLayout:
    """The official archive, or its unpacked folder."""

    def read(paths: FilePaths) -> Dataset:
        classes: Literal[10, 100] = 100 if card is CIFAR100 else 10
        cifar = (
            read_cifar_python(paths[file], True, classes)
            if trust
            else read_cifar_binary(paths[file], classes)
        )
        return image_dataset(card, paths[file], cifar.x, cifar.y, cifar.is_test)

    return FileLayout(read, (file,), pickles=trust, sums=SUMS[card.name])


def _cifar_layouts(card: Card, binary: str, python: str) -> tuple[FileLayout, ...]:
    """The binary version first, then the Python version, which needs trust."""
    stem = card.name.replace("cifar", "cifar-")
    return (
        *(_cifar(card, file, False) for file in (f"{stem}-binary.tar.gz", binary)),
        *(_cifar(card, file, True) for file in (f"{stem}-python.tar.gz", python)),
    )


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


def _read_mnist_m(folder: Source, answers: Source) -> Pair:
    """Read MNIST-M in its original form: a folder of images, and a list with their digits."""
    return read_image_list(folder, answers, 32, 10)


def _join_digits(parts: Mapping[str, Dataset], absent: tuple[str, ...]) -> Dataset:
    """Combine the available sources, resized to the same shape."""
    x = torch.cat([resize(part.x, 28, 3) for part in parts.values()])
    y = torch.cat([part.y for part in parts.values()])
    is_test = torch.cat(
        [part.official_test for part in parts.values() if part.official_test is not None]
    )
    units = [
        np.full(len(part), -1) if part.cut_by is None else part.cut_by for part in parts.values()
    ]
    names = tuple("synth" if name == SYNTH.name else name for name in parts)
    source_numbers = np.repeat(np.arange(len(parts)), [len(part) for part in parts.values()])
    warnings = [warning for part in parts.values() for warning in part.warnings]
    if absent:
        warnings.append(
            f"digits-five: {', '.join(absent)} not available, so there are {len(parts)} of its 5"
            " sources."
        )
    card = DIGITS_FIVE
    return Dataset(
        name=card.name,
        x=x,
        y=y,
        classes=card.classes,
        description=card.description,
        licence=card.licence,
        official_test=is_test,
        groups={"source": Groups(names, source_numbers)},
        default_partition="domain",
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


MNIST_M_TRAIN = ("mnist_m_train", "mnist_m_train_labels.txt")
MNIST_M_TEST = ("mnist_m_test", "mnist_m_test_labels.txt")

register(Entry(MNIST, (_idx(MNIST, "train", "t10k"), _npz(MNIST, "mnist.npz"))))
register(
    Entry(
        FASHION,
        (_idx(FASHION, "train", "t10k"), _npz(FASHION, "fashion_mnist.npz", has_class_names=True)),
    )
)
register(
    Entry(
        USPS,
        (_train_and_test(USPS, ("usps.bz2",), ("usps.t.bz2",), _read_usps), _npz(USPS, "usps.npz")),
    )
)
register(
    Entry(
        MNIST_M,
        (
            _train_and_test(MNIST_M, MNIST_M_TRAIN, MNIST_M_TEST, _read_mnist_m),
            _npz(MNIST_M, "mnist_m_subset.npz"),
        ),
    )
)
register(
    Entry(
        SVHN,
        (
            _train_and_test(SVHN, ("train_32x32.mat",), ("test_32x32.mat",), read_svhn_mat),
            _npz(
                SVHN,
                "svhn_first1083.npz",
                "svhn: all images are from the official training part, split by photo into"
                " training and test.",
                cut_by="photo",
            ),
        ),
    )
)
register(
    Entry(
        SYNTH,
        (
            _train_and_test(
                SYNTH, ("synth_train_32x32.mat",), ("synth_test_32x32.mat",), read_svhn_mat
            ),
        ),
    )
)
register(
    Entry(
        CIFAR10,
        (
            *_cifar_layouts(CIFAR10, "cifar-10-batches-bin", "cifar-10-batches-py"),
            _npz(CIFAR10, "cifar10_subset.npz", has_class_names=True),
        ),
    )
)
register(
    Entry(
        CIFAR100,
        (
            *_cifar_layouts(CIFAR100, "cifar-100-binary", "cifar-100-python"),
            _npz(
                CIFAR100,
                "cifar100_subset.npz",
                "cifar100: this file does not say which images are official test images, so the"
                " test part is random.",
                has_class_names=True,
            ),
        ),
    )
)
register(
    Entry(
        LETTERS,
        (_idx(LETTERS, "emnist-letters-train", "emnist-letters-test", first=1, transposed=True),),
    )
)
register(
    Entry(
        BALANCED,
        (_idx(BALANCED, "emnist-balanced-train", "emnist-balanced-test", transposed=True),),
    )
)
register(
    Entry(
        DIGITS_FIVE, parts=("mnist", "svhn", "usps", "synth-digits", "mnist-m"), join=_join_digits
    )
)
