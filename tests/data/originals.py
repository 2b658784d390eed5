"""Small files in the layouts of the original datasets."""

from __future__ import annotations

import bz2
import gzip
import json
import pickle
import struct
import tarfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from scipy.io import savemat

RNG = np.random.default_rng(0)
OFFICE = (
    "back_pack",
    "bike",
    "calculator",
    "headphones",
    "keyboard",
    "laptop_computer",
    "monitor",
    "mouse",
    "mug",
    "projector",
)
DOMAINNET = (
    "bird",
    "feather",
    "headphones",
    "ice_cream",
    "teapot",
    "tiger",
    "whale",
    "windmill",
    "wine_glass",
    "zebra",
)
PACS = ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person")
MARKET = "Market-1501-v15.09.15"


def photo(path: Path, size: tuple[int, int] = (8, 8), shade: int | None = None) -> None:
    """A small image, of noise or of one shade."""
    image = pytest.importorskip("PIL.Image")
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = (
        RNG.integers(0, 256, (*size, 3), np.uint8)
        if shade is None
        else np.full((*size, 3), shade, np.uint8)
    )
    image.fromarray(pixels).save(path, "PNG" if path.suffix == ".png" else "JPEG")


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def idx(folder: Path, train: str, test: str, labels: list[int]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for part in (train, test):
        images = (
            struct.pack(">IIII", 2051, len(labels), 28, 28)
            + RNG.integers(0, 256, len(labels) * 784, np.uint8).tobytes()
        )
        answers = struct.pack(">II", 2049, len(labels)) + bytes(labels)
        (folder / f"{part}-images-idx3-ubyte.gz").write_bytes(gzip.compress(images))
        (folder / f"{part}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(answers))


def mnist(root: Path) -> None:
    idx(root / "MNIST" / "raw", "train", "t10k", [0, 9])


def fashion(root: Path) -> None:
    idx(root / "FashionMNIST" / "raw", "train", "t10k", [0, 9])


def emnist_letters(root: Path) -> None:
    idx(root, "emnist-letters-train", "emnist-letters-test", [1, 26])


def usps(root: Path, labels: tuple[int, ...] = (1, 10), value: float = -1) -> None:
    for name in ("usps.bz2", "usps.t.bz2"):
        lines = [
            f"{label} " + " ".join(f"{k}:{value if k < 5 else 1}" for k in range(1, 257))
            for label in labels
        ]
        (root / name).write_bytes(bz2.compress("\n".join(lines).encode()))


def mnist_m(root: Path) -> None:
    for part in ("train", "test"):
        for k in range(2):
            photo(root / "mnist_m" / f"mnist_m_{part}" / f"0000000{k}.png", (32, 32))
        write(root / "mnist_m" / f"mnist_m_{part}_labels.txt", "00000000.png 3\n00000001.png 9\n")


def mats(prefix: str) -> Callable[[Path], None]:
    def make(root: Path) -> None:
        for part in ("train", "test"):
            x = RNG.integers(0, 256, (32, 32, 3, 2), np.uint8)
            savemat(root / f"{prefix}{part}_32x32.mat", {"X": x, "y": np.array([[10], [3]])})

    return make


def leaf(root: Path) -> None:
    for part in ("train", "test"):
        data = {
            who: {"x": [[k / 255] * 784], "y": [k]}
            for k, who in enumerate(("f0001_41", "f0002_11"))
        }
        write(
            root / "femnist" / "data" / part / "all_data_0.json",
            json.dumps({"users": list(data), "num_samples": [1, 1], "user_data": data}),
        )


def tiny(root: Path) -> None:
    for kind in ("n01443537", "n01629819"):
        photo(root / "tiny-imagenet-200" / "train" / kind / "images" / f"{kind}_0.JPEG", (64, 64))
        write(
            root / "tiny-imagenet-200" / "train" / kind / f"{kind}_boxes.txt",
            f"{kind}_0.JPEG\t0\t1\t2\t3\n",
        )
    photo(root / "tiny-imagenet-200" / "val" / "images" / "val_0.JPEG", (64, 64))
    write(
        root / "tiny-imagenet-200" / "val" / "val_annotations.txt",
        "val_0.JPEG\tn01629819\t0\t32\t44\t62\n",
    )


def cub(root: Path) -> None:
    names = [f"{k:03}.Bird_{k}/Bird_{k}_0001.jpg" for k in (1, 2, 200)]
    for name in names:
        photo(root / "CUB_200_2011" / "images" / name, (20, 30))
    write(
        root / "CUB_200_2011" / "images.txt",
        "".join(f"{k + 1} {name}\n" for k, name in enumerate(names)),
    )
    write(root / "CUB_200_2011" / "image_class_labels.txt", "1 1\n2 2\n3 200\n")
    write(root / "CUB_200_2011" / "train_test_split.txt", "1 1\n2 0\n3 1\n")


def sources(folder: str, names: tuple[str, ...], kinds: tuple[str, ...]) -> Callable[[Path], None]:
    """Five pictures of each kind from each source."""

    def make(root: Path) -> None:
        for source in names:
            for k, kind in enumerate(kinds):
                for n in range(5):
                    photo(root / folder / source / kind / f"{n}.jpg", shade=10 * k)

    return make


def domainnet(root: Path) -> None:
    """Two sources with the official lists, one of eleven classes (a zoo is not among FedBN's ten)."""
    for source in ("clipart", "sketch"):
        for part in ("train", "test"):
            lines = []
            for number, kind in enumerate((*DOMAINNET, "zoo")):
                name = f"{source}/{kind}/{source}_{part}.jpg"
                photo(root / "domainnet" / name)
                lines.append(f"{name} {number}\n")
            write(root / "domainnet" / f"{source}_{part}.txt", "".join(lines))


def market(root: Path) -> None:
    for part, names in {
        "bounding_box_train": ["0002_c1s1_000451_03", "0002_c2s1_000301_01", "0007_c1s6_028546_01"],
        "query": ["0001_c1s1_001051_00", "0003_c3s3_064744_00"],
        "bounding_box_test": [
            "-1_c1s1_4_03",
            "0000_c1s1_1_01",
            "0001_c1s1_9_00",
            "0001_c4s1_0_00",
            "0003_c1s1_0_00",
        ],
    }.items():
        for name in names:
            photo(
                root / MARKET / part / f"{name}.jpg",
                (128, 64),
                shade=30 * abs(int(name.split("_")[0])),
            )
        write(root / MARKET / part / "Thumbs.db", "junk")


def msmt(root: Path) -> None:
    lists = {
        "train": ("train", 0),
        "val": ("train", 1),
        "query": ("test", 0),
        "gallery": ("test", 0),
    }
    for k, (name, (folder, who)) in enumerate(lists.items()):
        file = f"{who:04}/{who:04}_000_{k + 1:02}_0303morning_0008_0.jpg"
        photo(root / "MSMT17_V1" / folder / file, (40, 20))
        write(root / "MSMT17_V1" / f"list_{name}.txt", f"{file} {who}\n")


def veri(root: Path) -> None:
    for part, names in {
        "image_train": ["0001_c001_00016450_0", "0006_c020_00016460_0"],
        "image_query": ["0002_c002_00030600_0"],
        "image_test": ["0002_c003_00030640_0", "0005_c003_00000000_0"],
    }.items():
        for name in names:
            photo(root / "VeRi" / part / f"{name}.jpg", (30, 30))


def eicu(
    root: Path, shape: tuple[int, ...] = (3, 200, 442), y: tuple[float, ...] = (0, 1, 0)
) -> None:
    (root / "eicu").mkdir(exist_ok=True)
    for hospital in ("north", "south"):
        np.savez_compressed(
            root / "eicu" / f"{hospital}.npz", x=np.zeros(shape, np.float32), y=np.array(y)
        )


def har(root: Path) -> None:
    for part, subject in (("train", 1), ("test", 2)):
        folder = root / "UCI HAR Dataset" / part
        for signal in [
            f"{kind}_{axis}" for kind in ("body_acc", "body_gyro", "total_acc") for axis in "xyz"
        ]:
            write(folder / "Inertial Signals" / f"{signal}_{part}.txt", (" 0.5" * 128 + "\n") * 2)
        write(folder / f"y_{part}.txt", "1\n6\n")
        write(folder / f"subject_{part}.txt", f"{subject}\n{subject}\n")


def adult(root: Path) -> None:
    row = (
        "39, State-gov, 77516, {}, 13, Divorced, Adm-clerical, Not-in-family, White, Male, 2174, 0,"
        " 40, United-States, {}\n"
    )
    write(root / "adult.data", row.format("Bachelors", "<=50K") + row.format("Doctorate", ">50K"))
    write(root / "adult.test", "|1x3 Cross validator\n" + row.format("Doctorate", "<=50K."))


def agnews(root: Path) -> None:
    for part in ("train", "test"):
        write(
            root / "ag_news_csv" / f"{part}.csv",
            '"3","Wall St.","Short-sellers"\n"1","Iraq","Oil"\n',
        )


def pickled(root: Path) -> None:
    with tarfile.open(root / "cifar-10-python.tar.gz", "w:gz") as archive:
        for name in (*(f"data_batch_{k}" for k in range(1, 6)), "test_batch"):
            content = pickle.dumps({b"data": np.zeros((2, 3072), np.uint8), b"labels": [0, 9]})
            member = tarfile.TarInfo(f"cifar-10-batches-py/{name}")
            member.size = len(content)
            archive.addfile(member, BytesIO(content))
