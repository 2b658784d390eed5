"""Pictures with one label each: digits from several sources, clothes, objects, and one federation of digit sources."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Literal

import numpy as np
import torch

from comity.data.dataset import Dataset
from comity.data.files import Found, Way
from comity.data.formats import read_cifar_binary, read_cifar_python, read_idx_pair, read_npz, read_svhn_mat
from comity.data.groups import Groups
from comity.data.library import Card, Entry, register
from comity.data.sets.common import groups, halves, picture, planes, resized, stacked

IDX = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
RESEARCH = "none stated; research use"

MNIST = Card("mnist", 70000, 10, (1, 28, 28), "Handwritten digits, grey", "CC BY-SA 3.0", hub="ylecun/mnist")
FASHION = Card("fashion-mnist", 70000, 10, (1, 28, 28), "Clothes, grey (Xiao et al. 2017)", "MIT",
               hub="zalando-datasets/fashion_mnist")
USPS = Card("usps", 9298, 10, (1, 16, 16), "Handwritten digits of the US mail, grey (Hull 1994)", RESEARCH, hub="flwrlabs/usps")
MNIST_M = Card("mnist-m", 68000, 10, (3, 32, 32), "MNIST digits over pieces of photos (Ganin et al. 2016)",
               "none stated; derived from MNIST (CC BY-SA 3.0) and BSDS500 (research)")
SVHN = Card("svhn", 99289, 10, (3, 32, 32), "House numbers in street photos, cropped (Netzer et al. 2011)",
            "non-commercial use only", hub="ufldl-stanford/svhn")
SYNTH = Card("synth-digits", 488953, 10, (3, 32, 32), "Digits drawn by a program (Ganin et al. 2016)", RESEARCH)
CIFAR10 = Card("cifar10", 60000, 10, (3, 32, 32), "Small photos of ten kinds (Krizhevsky 2009)", RESEARCH, hub="uoft-cs/cifar10")
CIFAR100 = Card("cifar100", 60000, 100, (3, 32, 32), "Small photos of a hundred kinds (Krizhevsky 2009)", RESEARCH,
                hub="uoft-cs/cifar100")
DIGITS_FIVE = Card("digits-five", 736541, 10, (3, 28, 28), "Digits from five sources, as FedBN and ADCOL use them: 28 x 28 in "
                   "three channels", "those of its sources", groups=("source",))


def _npz(card: Card, file: str) -> Callable[[Found], Dataset]:
    """Train and test images of one npz file, with the names of classes where it has them."""

    def read(found: Found) -> Dataset:
        path = found[file]
        data = read_npz(path, x_train=None, y_train=None, x_test=None, y_test=None)
        return halves(card, path, (data["x_train"], data["y_train"]), (data["x_test"], data["y_test"]))

    return read


def _idx(card: Card) -> Callable[[Found], Dataset]:
    def read(found: Found) -> Dataset:
        train, test = (read_idx_pair(found[IDX[k]], found[IDX[k + 1]], card.classes) for k in (0, 2))
        return stacked(card, found[IDX[0]], train, test)

    return read


def _cifar(card: Card, folder: str, trust: bool) -> Callable[[Found], Dataset]:
    """The official archive, or the folder that it unpacks to."""

    def read(found: Found) -> Dataset:
        path = found[folder]
        kinds: Literal[10, 100] = 100 if card is CIFAR100 else 10
        made = read_cifar_python(path, True, kinds) if trust else read_cifar_binary(path, kinds)
        return picture(card, path, torch.from_numpy(made.x), made.y, made.is_test)

    return read


def _mat(card: Card, train: str, test: str) -> Callable[[Found], Dataset]:
    """Two files of Matlab's, as SVHN and SynthDigits are given."""

    def read(found: Found) -> Dataset:
        return stacked(card, found[train], read_svhn_mat(found[train]), read_svhn_mat(found[test]))

    return read


def _join_digits(parts: Mapping[str, Dataset], absent: tuple[str, ...]) -> Dataset:
    """The sources that are here, brought to one shape."""
    x = torch.cat([resized(part.x, 28, 3) for part in parts.values()])
    y = torch.cat([part.y for part in parts.values()])
    held = torch.cat([part.official_test for part in parts.values() if part.official_test is not None])
    names = tuple("synth" if name == SYNTH.name else name for name in parts)
    of = np.repeat(np.arange(len(parts)), [len(part) for part in parts.values()])
    notes = (f"digits-five: {', '.join(absent)} not here, so there are {len(parts)} of its 5 sources.",) if absent else ()
    card = DIGITS_FIVE
    return Dataset(card.name, x, y, card.classes, card.description, card.licence, held,
                   groups={"source": Groups(names, of)}, home="domain", notes=notes)


def _ways(card: Card, npz: str, *more: Way) -> None:
    register(Entry(card, (*more, Way(_npz(card, npz), (npz,)))))


def _cifar_ways(card: Card, binary: str, python: str) -> tuple[Way, ...]:
    stem = card.name.replace("cifar", "cifar-")
    return (
        *(Way(_cifar(card, file, False), (file,)) for file in (f"{stem}-binary.tar.gz", binary)),
        *(Way(_cifar(card, file, True), (file,), pickles=True) for file in (f"{stem}-python.tar.gz", python)),
    )


_ways(MNIST, "mnist.npz", Way(_idx(MNIST), IDX))
_ways(FASHION, "fashion_mnist.npz", Way(_idx(FASHION), IDX))
_ways(USPS, "usps.npz")
_ways(MNIST_M, "mnist_m_subset.npz")
_ways(SVHN, "svhn_first1083.npz", Way(_mat(SVHN, "train_32x32.mat", "test_32x32.mat"), ("train_32x32.mat", "test_32x32.mat")))
_ways(CIFAR10, "cifar10_subset.npz", *_cifar_ways(CIFAR10, "cifar-10-batches-bin", "cifar-10-batches-py"))
_ways(CIFAR100, "cifar100_subset.npz", *_cifar_ways(CIFAR100, "cifar-100-binary", "cifar-100-python"))
SYNTH_FILES = ("synth_train_32x32.mat", "synth_test_32x32.mat")
register(Entry(SYNTH, (Way(_mat(SYNTH, *SYNTH_FILES), SYNTH_FILES),)))
register(Entry(DIGITS_FIVE, parts=("mnist", "svhn", "usps", "synth-digits", "mnist-m"), join=_join_digits))


# Pictures whose parties are people or sources.

FEMNIST = Card("femnist", 805263, 62, (1, 28, 28), "Handwritten characters by writer (LEAF, from NIST SD 19), dark on white",
               "NIST SD 19 is a US government work; LEAF is BSD-2-Clause", groups=("writer",), hub="flwrlabs/femnist")
PACS = Card("pacs", 9991, 7, (3, 64, 64), "Photos, paintings, cartoons and sketches of seven kinds (Li et al. 2017), at 64 x 64",
            RESEARCH, groups=("domain",), hub="flwrlabs/pacs")
OFFICE = Card("office-caltech", 2533, 10, (3, 64, 64), "Objects from Amazon, Caltech-256, a DSLR and a webcam (Gong et al. 2012), "
              "at 64 x 64", RESEARCH, groups=("domain",))


def _femnist(found: Found) -> Dataset:
    path = found["femnist_writers.npz"]
    data = read_npz(path)
    made = halves(FEMNIST, path, (data["x_train"], data["y_train"]), (data["x_test"], data["y_test"]))
    writer = np.concatenate([data["writer_train"], data["writer_test"]])
    return _of_groups(made, "writer", groups(path, data["writer_names"].tolist(), writer), "natural(by=writer)")


def _pacs(found: Found) -> Dataset:
    path = found["pacs64_subset.npz"]
    data = read_npz(path)
    made = halves(PACS, path, (data["x_train"], data["y_train"]), (data["x_test"], data["y_test"]))
    of = np.concatenate([data["domain_train"], data["domain_test"]])
    return _of_groups(made, "domain", groups(path, data["domain_names"].tolist(), of), "domain")


def _office(found: Found) -> Dataset:
    path = found["office10_amazon_webcam64.npz"]
    data = read_npz(path, x=("n", "h", "w", 3), y=("n",), domain=("n",), is_test=("n",), domain_names=None)
    made = picture(OFFICE, path, planes(data["x"]), data["y"], data["is_test"].astype(bool))
    mine = groups(path, data["domain_names"].tolist(), data["domain"])
    note = f"office-caltech: only {' and '.join(mine.names)} of its four sources are in {path.name}."
    return _of_groups(made, "domain", mine, "domain", note)


def _of_groups(made: Dataset, by: str, mine: Groups, home: str, *notes: str) -> Dataset:
    return replace(made, groups={by: mine}, home=home, notes=(*made.notes, *notes))


register(Entry(FEMNIST, (Way(_femnist, ("femnist_writers.npz",)),)))
register(Entry(PACS, (Way(_pacs, ("pacs64_subset.npz",)),)))
register(Entry(OFFICE, (Way(_office, ("office10_amazon_webcam64.npz",)),)))
