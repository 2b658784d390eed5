"""Pictures with one label each: digits from several sources, letters, clothes, objects, and one
federation of digit sources.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import numpy as np
import torch

from comity.base.samples import Ints
from comity.data.dataset import Dataset
from comity.data.files import Found, Way
from comity.data.formats import (
    read_cifar_binary,
    read_cifar_python,
    read_idx_pair,
    read_image_list,
    read_npz,
    read_svhn_mat,
)
from comity.data.formats.common import Source, bad, labels, parsing, present, reading
from comity.data.groups import Groups
from comity.data.library import Card, Entry, register
from comity.data.sets.common import RESEARCH, Pair, halves, picture, resized
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


def _npz(card: Card, file: str, *warnings: str, named: bool = False, cut_by: str = "") -> Way:
    """Training and test images of one npz file, with the names of the classes if it has them.

    `cut_by` is what its parts were cut by (`photo_train`, `photo_test`), if that was not done by
    the dataset's makers.
    """

    def read(found: Found) -> Dataset:
        path = found[file]
        wholes = (f"{cut_by}_train", f"{cut_by}_test") if cut_by else ()
        wanted = (
            "x_train",
            "y_train",
            "x_test",
            "y_test",
            *(["class_names"] if named else []),
            *wholes,
        )
        data = read_npz(path, missing=False, **dict.fromkeys(wanted))
        names = tuple(map(str, data["class_names"])) if named else ()
        train, test = ((data[f"x_{part}"], data[f"y_{part}"]) for part in ("train", "test"))
        cut = (
            np.unique(np.concatenate([data[name] for name in wholes]), return_inverse=True)[1]
            if cut_by
            else None
        )
        return halves(card, path, train, test, class_names=names, warnings=warnings, cut_by=cut)

    return Way(read, (file,), sums=SUMS[card.name])


def _two(
    card: Card, train: tuple[str, ...], test: tuple[str, ...], read_part: Callable[..., Pair]
) -> Way:
    """A training and a test part, each of some files."""

    def read(found: Found) -> Dataset:
        return halves(
            card,
            found[train[0]],
            *(read_part(*(found[file] for file in part)) for part in (train, test)),
        )

    return Way(read, (*train, *test), sums=SUMS.get(card.name, {}))


def _idx(card: Card, train: str, test: str, first: int = 0, transposed: bool = False) -> Way:
    """Four IDX files, whose names begin with `train` and `test`."""

    def pair(images: Source, answers: Source) -> Pair:
        return read_idx_pair(images, answers, card.classes, first, transposed)

    names = [(f"{part}-images-idx3-ubyte", f"{part}-labels-idx1-ubyte") for part in (train, test)]
    return _two(card, names[0], names[1], pair)


def _cifar(card: Card, file: str, trust: bool) -> Way:
    """The official archive, or the folder that it unpacks to."""

    def read(found: Found) -> Dataset:
        kinds: Literal[10, 100] = 100 if card is CIFAR100 else 10
        made = (
            read_cifar_python(found[file], True, kinds)
            if trust
            else read_cifar_binary(found[file], kinds)
        )
        return picture(card, found[file], made.x, made.y, made.is_test)

    return Way(read, (file,), pickles=trust, sums=SUMS[card.name])


def _cifars(card: Card, binary: str, python: str) -> tuple[Way, ...]:
    stem = card.name.replace("cifar", "cifar-")
    return (
        *(_cifar(card, file, False) for file in (f"{stem}-binary.tar.gz", binary)),
        *(_cifar(card, file, True) for file in (f"{stem}-python.tar.gz", python)),
    )


def _libsvm(path: Source) -> Pair:
    """USPS as the libsvm site has it: labels 1 to 10, and 256 values from -1 to 1."""
    from sklearn.datasets import load_svmlight_file  # a second to import

    what = (
        "is no text in libsvm's format with 256 values a line, or is damaged or cut short: get a"
        " new copy of it"
    )
    with reading(path), parsing(path, what):
        values, digits = load_svmlight_file(str(present(path)), n_features=256, zero_based=False)
    x = values.toarray()
    if not (np.abs(x) <= 1).all():  # NaN is not
        raise bad(path, "has values that are not between -1 and 1, as those of USPS are")
    return np.rint((x + 1) / 2 * 255).astype(np.uint8).reshape(-1, 16, 16), labels(
        path, digits, 10, first=1
    )


def _listed(folder: Source, answers: Source) -> Pair:
    """MNIST-M as it was given: a folder of pictures, and a list of their names and digits."""
    return read_image_list(folder, answers, 32, 10)


def _join_digits(parts: Mapping[str, Dataset], absent: tuple[str, ...]) -> Dataset:
    """The sources that are here, brought to one shape."""
    x = torch.cat([resized(part.x, 28, 3) for part in parts.values()])
    y = torch.cat([part.y for part in parts.values()])
    held = torch.cat(
        [part.official_test for part in parts.values() if part.official_test is not None]
    )
    cut = [
        np.full(len(part), -1) if part.cut_by is None else part.cut_by for part in parts.values()
    ]
    names = tuple("synth" if name == SYNTH.name else name for name in parts)
    of = np.repeat(np.arange(len(parts)), [len(part) for part in parts.values()])
    warnings = [note for part in parts.values() for note in part.warnings]
    if absent:
        warnings.append(
            f"digits-five: {', '.join(absent)} not here, so there are {len(parts)} of its 5"
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
        official_test=held,
        groups={"source": Groups(names, of)},
        default_partition="domain",
        warnings=tuple(warnings),
        cut_by=_apart(cut) if any(part.cut_by is not None for part in parts.values()) else None,
    )


def _apart(cut: Sequence[Ints]) -> Ints:
    """The wholes of several datasets, numbered on from one to the next."""
    first = np.cumsum([0, *(part.max(initial=-1) + 1 for part in cut)])
    return np.concatenate(
        [np.where(part < 0, -1, part + start) for part, start in zip(cut, first[:-1], strict=True)]
    )


MNIST_M_TRAIN = ("mnist_m_train", "mnist_m_train_labels.txt")
MNIST_M_TEST = ("mnist_m_test", "mnist_m_test_labels.txt")

register(Entry(MNIST, (_idx(MNIST, "train", "t10k"), _npz(MNIST, "mnist.npz"))))
register(
    Entry(FASHION, (_idx(FASHION, "train", "t10k"), _npz(FASHION, "fashion_mnist.npz", named=True)))
)
register(Entry(USPS, (_two(USPS, ("usps.bz2",), ("usps.t.bz2",), _libsvm), _npz(USPS, "usps.npz"))))
register(
    Entry(
        MNIST_M,
        (_two(MNIST_M, MNIST_M_TRAIN, MNIST_M_TEST, _listed), _npz(MNIST_M, "mnist_m_subset.npz")),
    )
)
register(
    Entry(
        SVHN,
        (
            _two(SVHN, ("train_32x32.mat",), ("test_32x32.mat",), read_svhn_mat),
            _npz(
                SVHN,
                "svhn_first1083.npz",
                "svhn: all of them are from the official training part, cut by photo in training"
                " and test.",
                cut_by="photo",
            ),
        ),
    )
)
register(
    Entry(
        SYNTH, (_two(SYNTH, ("synth_train_32x32.mat",), ("synth_test_32x32.mat",), read_svhn_mat),)
    )
)
register(
    Entry(
        CIFAR10,
        (
            *_cifars(CIFAR10, "cifar-10-batches-bin", "cifar-10-batches-py"),
            _npz(CIFAR10, "cifar10_subset.npz", named=True),
        ),
    )
)
register(
    Entry(
        CIFAR100,
        (
            *_cifars(CIFAR100, "cifar-100-binary", "cifar-100-python"),
            _npz(
                CIFAR100,
                "cifar100_subset.npz",
                "cifar100: which images were official test ones is lost here, so the test part is a"
                " random one.",
                named=True,
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
