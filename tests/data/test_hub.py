"""The Hugging Face hub, with a fake package `datasets`; and errors without the package or the
network.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from comity.data import load, prepared
from comity.errors import UsageError

RNG = np.random.default_rng(0)


class Image:
    """A feature, recognised by the name of its type, like the next two."""


class ClassLabel:
    def __init__(self, *names: str) -> None:
        self.names = list(names)


class Value:
    def __init__(self, dtype: str) -> None:
        self.dtype = dtype


class Rows:
    """A split: columns by name."""

    def __init__(self, features: Mapping[str, Any], **columns: list[Any]) -> None:
        self.features, self._columns, self.info = features, columns, SimpleNamespace(license="mit")
        self._fingerprint = str(hash(repr(columns)))

    def __getitem__(self, column: str) -> list[Any]:
        return self._columns[column]

    def __len__(self) -> int:
        return len(next(iter(self._columns.values())))


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
    """The datasets of the fake hub by name and configuration; a value that is an exception is
    raised.
    """
    datasets: dict[str, Any] = {}

    def load_dataset(name: str, configuration: str | None = None) -> Any:
        splits = datasets[name if configuration is None else f"{name}:{configuration}"]
        if isinstance(splits, Exception):
            raise splits
        return splits

    package = ModuleType("datasets")
    package.load_dataset = load_dataset  # type: ignore[attr-defined]
    package.__version__ = "4.0.0"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", package)
    monkeypatch.setenv("COMITY_CACHE", str(tmp_path / "cache"))
    return datasets


def photos(n: int, size: tuple[int, int] = (6, 5), grey: bool = False) -> list[Any]:
    image = pytest.importorskip("PIL.Image")
    return [
        image.fromarray(RNG.integers(0, 256, size if grey else (*size, 3), np.uint8))
        for _ in range(n)
    ]


def test_pictures_with_writers(hub: dict[str, Any]) -> None:
    features = {
        "image": Image(),
        "writer_id": Value("string"),
        "hsf_id": Value("int64"),
        "character": ClassLabel("a", "b", "c"),
    }

    def rows(n: int) -> Rows:
        return Rows(
            features,
            image=photos(n),
            writer_id=[f"f{k % 2}" for k in range(n)],
            hsf_id=[0] * n,
            character=[k % 3 for k in range(n)],
        )

    train, test = rows(12), rows(6)
    hub["flwrlabs/femnist"] = {"train": train, "test": test}
    data = load("hub:flwrlabs/femnist")
    assert (data.x.shape, data.x.dtype) == ((18, 3, 6, 5), torch.uint8)
    assert data.x[0].permute(1, 2, 0).tolist() == np.asarray(train["image"][0]).tolist()
    assert (data.classes, data.class_names, data.licence) == (3, ("a", "b", "c"), "mit")
    assert data.official_test is not None
    assert data.official_test.sum() == 6
    assert (data.default_partition, data.groups["writer"].names) == (
        "natural(by=writer)",
        ("f0", "f1"),
    )
    assert data.warnings == (
        (
            "flwrlabs/femnist: the inputs are the pictures of image, the classes those of"
            " character; left out: hsf_id."
        ),
    )
    assert [len(p.test) for p in data.partition("auto", test="official").parties.values()] == [3, 3]


def test_grey_pictures_and_many_sizes(hub: dict[str, Any]) -> None:
    features = {"image": Image(), "label": ClassLabel("a", "b")}
    hub["grey"] = {"train": Rows(features, image=photos(4, grey=True), label=[0, 1, 0, 1])}
    hub["many"] = {
        "train": Rows(features, image=[*photos(2), *photos(2, (9, 9))], label=[0, 1, 0, 1])
    }
    assert load("hub:grey").shape == (1, 6, 5)
    assert load("hub:grey").official_test is None
    many = load("hub:many")
    assert many.shape == (3, 64, 64)
    assert "many: pictures of 2 sizes were resized to 64 x 64." in many.warnings


def test_the_finer_of_two_labels(hub: dict[str, Any]) -> None:
    features = {
        "img": Image(),
        "coarse_label": ClassLabel("a", "b"),
        "fine_label": ClassLabel("w", "x", "y"),
    }
    hub["cifar100"] = {
        "train": Rows(features, img=photos(3), coarse_label=[0, 0, 1], fine_label=[0, 1, 2])
    }
    assert load("hub:cifar100").class_names == ("w", "x", "y")


def test_text_in_a_configuration(hub: dict[str, Any]) -> None:
    features = {"idx": Value("int32"), "text": Value("string"), "label": Value("int64")}
    rows = Rows(features, idx=[1, 2], text=["Hello, world", None], label=[0, 1])
    hub["news:plain"] = {"train": rows, "validation": rows}
    data = load("hub:news:plain")
    assert data.shape == (200,)
    assert (data.x[0] > 0).sum() == 3  # two words and a comma
    assert (data.x[1] == 0).all()
    assert (data.classes, data.mean) == (2, (0.0,))
    assert any("its validation split is the official test part." in note for note in data.warnings)


def test_numbers_and_words_as_classes(hub: dict[str, Any]) -> None:
    features = {
        "age": Value("float64"),
        "sex": Value("bool"),
        "name": Value("string"),
        "target": Value("string"),
    }
    rows = Rows(
        features,
        age=[1.5, None, 3.0],
        sex=[True, False, True],
        name=["x"] * 3,
        target=["no", "yes", "no"],
    )
    hub["table"] = {"train": rows}
    data = load("hub:table")
    assert data.x[0].tolist() == [1.5, 1.0]
    assert (data.missing, data.shape, data.class_names, data.y.tolist()) == (
        "impute",
        (3,),
        ("no", "yes"),
        [0, 1, 0],
    )


def test_prepared_once_and_made_again_when_damaged(
    hub: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = Rows({"a": Value("float32"), "label": ClassLabel("x", "y")}, a=[1.0, 2.0], label=[0, 1])
    hub["o/n"] = {"train": rows}
    first = load("hub:o/n")
    (cached,) = (tmp_path / "cache").iterdir()
    assert cached.name.startswith("hub-o-n-")
    with monkeypatch.context() as patched:
        patched.setattr(prepared, "save", None)
        assert load("hub:o/n").fingerprint() == first.fingerprint()
    (cached / "x.npy").write_bytes(b"")
    assert load("hub:o/n").fingerprint() == first.fingerprint()
    hub["o/n"] = {"train": Rows(rows.features, a=[1.0, 3.0], label=[0, 1])}
    assert load("hub:o/n").fingerprint() != first.fingerprint()


WAYS = ("put its files into a folder and name it with COMITY_DATA", "'comity data import'")
NUMBERS = {"a": Value("float32"), "label": ClassLabel("x", "y")}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (
            ConnectionError("Couldn't reach 'o/n' on the Hub (LocalEntryNotFoundError)"),
            ("cannot be reached for o/n", *WAYS),
        ),
        (
            FileNotFoundError("Dataset 'o/n' doesn't exist on the Hub.\nMore."),
            ("(FileNotFoundError): check the name", *WAYS),
        ),
        (
            ValueError("Config name is missing."),
            ("could not be loaded from the Hugging Face hub (ValueError)", *WAYS),
        ),
        ([1], ("has no splits that Comity can use",)),
        ({}, ("holds no samples",)),
        (
            {"train": Rows({"a": Value("float32")}, a=[1.0])},
            ("no column of classes that Comity recognises; it has a",),
        ),
        (
            {"train": Rows({"label": ClassLabel("x")}, label=[0])},
            ("has no pictures, text or numbers",),
        ),
        (
            {"train": Rows(NUMBERS, a=[1.0], label=[None])},
            ("The column 'label' of o/n has samples without a class",),
        ),
        ({"train": Rows(NUMBERS, a=[1.0, 2.0], label=[0, -1])}, ("has the label -1 in row 2",)),
    ],
)
def test_unusable_dataset_is_refused(
    content: Any, words: tuple[str, ...], hub: dict[str, Any]
) -> None:
    hub["o/n"] = content
    with pytest.raises(UsageError) as caught:
        load("hub:o/n")
    text = str(caught.value)
    assert all(word in text for word in words), text
    assert re.fullmatch(r"[^\n]+\.", text)
    assert not re.search(r"[.!?] +[A-Z]", text)


def test_old_package_version_is_refused(
    hub: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["datasets"], "__version__", "3.6.0")
    with pytest.raises(UsageError, match=r"datasets 3\.6\.0 runs scripts .* 'datasets>=4'"):
        load("hub:ylecun/mnist")


def test_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UsageError) as caught:
        load("hub:ylecun/mnist")
    assert (
        str(caught.value)
        == "ylecun/mnist is on the Hugging Face hub, which needs the package datasets: pip install"
        " 'comity[data]', or put its files into a folder and name it with COMITY_DATA, or import"
        " them with 'comity data import'."
    )
