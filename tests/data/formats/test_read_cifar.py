"""CIFAR-10 and CIFAR-100: archives, folders, single files, and untrusted pickles."""

from __future__ import annotations

import gzip
import io
import os
import pickle
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from comity.data.formats import read_cifar_binary, read_cifar_python

TEN = [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]
HUNDRED = ["train", "test"]
Array = np.ndarray[Any, Any]


def images(k: int) -> Array:
    return np.random.default_rng(k).integers(0, 256, (2, 3072), np.uint8)


def record(k: int, classes: int) -> bytes:
    head = (
        np.array([[k], [k + 1]], np.uint8)
        if classes == 10
        else np.array([[k, 50 + k], [k, 99]], np.uint8)
    )
    return np.concatenate([head, images(k)], axis=1).tobytes()


def batch(k: int, classes: int) -> bytes:
    answers = (
        {b"labels": [k, k + 1]}
        if classes == 10
        else {b"fine_labels": [50 + k, 99], b"coarse_labels": [k, k]}
    )
    return pickle.dumps({b"data": images(k)} | answers, protocol=2)


def files(classes: int, python: bool = False) -> dict[str, bytes]:
    names = TEN if classes == 10 else HUNDRED
    return {
        name if python else f"{name}.bin": (batch if python else record)(k, classes)
        for k, name in enumerate(names)
    }


def pack(path: Path, members: dict[str, bytes], folder: str = "cifar/") -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, content in {"readme.html": b"hello", **members}.items():
            info = tarfile.TarInfo(folder + name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def unpack(folder: Path, members: dict[str, bytes]) -> Path:
    folder.mkdir()
    for name, content in members.items():
        (folder / name).write_bytes(content)
    return folder


@pytest.mark.parametrize("python", [False, True], ids=["binary", "python"])
@pytest.mark.parametrize("classes", [10, 100])
@pytest.mark.parametrize("how", ["archive", "folder", "outer folder", "files"])
def test_good(python: bool, classes: Any, how: str, tmp_path: Path) -> None:
    contents = files(classes, python)
    inner = {
        (10, False): "cifar-10-batches-bin",
        (100, False): "cifar-100-binary",
        (10, True): "cifar-10-batches-py",
        (100, True): "cifar-100-python",
    }[classes, python]
    source: Any = (
        pack(tmp_path / "c.tar.gz", contents)
        if how == "archive"
        else unpack(tmp_path / inner, contents)
    )
    if how == "outer folder":
        source = tmp_path
    if how == "files":
        source = [source / name for name in contents]
    cifar = (
        read_cifar_python(source, True, classes) if python else read_cifar_binary(source, classes)
    )
    n = len(contents)
    assert cifar.x.dtype == np.uint8
    assert np.array_equal(
        cifar.x, np.concatenate([images(k) for k in range(n)]).reshape(-1, 3, 32, 32)
    )
    assert cifar.is_test.tolist() == [False] * (2 * n - 2) + [True] * 2
    assert cifar.y.dtype == np.int64
    if classes == 10:
        assert cifar.y.tolist() == [k + i for k in range(n) for i in (0, 1)]
        assert cifar.coarse is None
    else:
        assert cifar.y.tolist() == [50, 99, 51, 99]
        assert cifar.coarse is not None
        assert cifar.coarse.tolist() == [0, 0, 1, 1]


def test_members_that_lead_elsewhere_are_harmless(tmp_path: Path) -> None:
    path = pack(tmp_path / "c.tar.gz", files(10), folder="/../../etc/")
    assert len(read_cifar_binary(path).x) == 12
    assert sorted(p.name for p in tmp_path.iterdir()) == ["c.tar.gz"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"data_batch_4.bin": None}, "has no data_batch_4.bin"),
        ({"data_batch_4.bin": b""}, "0 bytes"),
        ({"data_batch_4.bin": record(3, 10)[:-1]}, "3073 an image"),
        ({"data_batch_4.bin": bytes([10]) + bytes(3072)}, "label 10 in row 1"),
    ],
)
def test_bad_members(
    change: dict[str, bytes | None], words: str, tmp_path: Path, refuses: Any
) -> None:
    contents = {
        name: content for name, content in (files(10) | change).items() if content is not None
    }
    path = pack(tmp_path / "cifar-10-binary.tar.gz", contents)
    with refuses(path, words):
        read_cifar_binary(path)


def test_hundred_wrong_label_and_wrong_kind(tmp_path: Path, refuses: Any) -> None:
    path = pack(tmp_path / "c.tar.gz", files(100) | {"test.bin": bytes([20]) + bytes(3073)})
    with refuses(path, "coarse label 20 in row 1", "test.bin"):
        read_cifar_binary(path, 100)
    with refuses(path, "has no data_batch_1.bin", "cifar-10-binary.tar.gz"):
        read_cifar_binary(path, 10)


def test_a_folder_that_lacks_a_file(tmp_path: Path, refuses: Any) -> None:
    folder = unpack(tmp_path / "b", files(10))
    (folder / "test_batch.bin").unlink()
    with refuses(folder, "has no test_batch.bin"):
        read_cifar_binary(folder)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda content: content[: len(content) // 2],
        lambda content: content[:-4],
        lambda content: content[:-8] + bytes(8),
        lambda content: gzip.compress(gzip.decompress(content)[:9000]),
        lambda content: gzip.compress(b"not a tar" * 200),
        lambda content: b"not gzip",
    ],
    ids=["half", "tail", "checksum", "half tar", "no tar", "no gzip"],
)
def test_damaged_archives(spoil: Any, tmp_path: Path, refuses: Any) -> None:
    path = pack(tmp_path / "c.tar.gz", files(10))
    path.write_bytes(spoil(path.read_bytes()))
    with refuses(path, "get a new copy"):
        read_cifar_binary(path)


def test_a_member_that_claims_to_be_huge(tmp_path: Path, refuses: Any) -> None:
    info = tarfile.TarInfo("data_batch_1.bin")
    info.size = 1 << 40
    path = tmp_path / "c.tar"
    path.write_bytes(info.tobuf() + bytes(1024))
    with refuses(path, "larger than any file"):
        read_cifar_binary(path)


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch EVIL",)


class TestPickles:
    @pytest.mark.parametrize("classes", [10, 100])
    def test_without_trust_nothing_is_opened(
        self, classes: Any, tmp_path: Path, refuses: Any
    ) -> None:
        path = tmp_path / "cifar-python.tar.gz"  # not even there
        name = f"cifar{classes}"
        with refuses(
            path,
            "pickle",
            f"cifar-{classes}-binary.tar.gz",
            f"comity data prepare {name} --trust-pickle",
        ):
            read_cifar_python(path, False, classes)

    def test_trust_is_for_arrays_only(
        self, tmp_path: Path, refuses: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        path = tmp_path / "data_batch_1"
        path.write_bytes(pickle.dumps({b"data": Evil()}))
        with refuses(path, "system", "no file of CIFAR does"):
            read_cifar_python(path, True)
        assert not (tmp_path / "EVIL").exists()

    @pytest.mark.parametrize(
        ("content", "words"),
        [
            (b"not a pickle", "damaged"),
            (batch(0, 10)[:-20], "damaged"),
            (pickle.dumps([1, 2]), "no images"),
            (pickle.dumps({b"data": images(0)[:, :-1], b"labels": [0, 1]}), "no images"),
            (pickle.dumps({b"data": images(0).astype(float), b"labels": [0, 1]}), "no images"),
            (pickle.dumps({b"data": images(0)}), "no list of numbers called labels"),
            (pickle.dumps({b"data": images(0), b"labels": [0, [1]]}), "no list of numbers"),
            (pickle.dumps({b"data": images(0), b"labels": [0, 0.5]}), "no list of numbers"),
            (pickle.dumps({b"data": images(0), b"labels": [0, 10]}), "label 10 in row 2"),
            (pickle.dumps({b"data": images(0), b"labels": [0]}), "2 images but 1 labels"),
        ],
    )
    def test_bad_batches(self, content: bytes, words: str, tmp_path: Path, refuses: Any) -> None:
        path = tmp_path / "test_batch"
        path.write_bytes(content)
        with refuses(path, words):
            read_cifar_python(path, True)
