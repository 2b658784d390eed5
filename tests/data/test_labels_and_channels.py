"""Labels with gaps, words as labels, pictures with channels last, and torch datasets."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, TensorDataset

import comity
from comity.data import Dataset as Pooled
from comity.data import Federation
from comity.errors import UsageError

X: Any = np.random.default_rng(0).random((40, 3)).astype(np.float32)
Y: Any = np.arange(40) % 2
PICTURES: Any = np.random.default_rng(0).random((40, 12, 12, 3)).astype(np.float32)


@pytest.mark.parametrize(
    ("labels", "words"),
    [(Y + 1, "No party has a sample of class 0, but labels reach 2"), (Y * 7, "of class 1, but")],
    ids=["from-1", "gap"],
)
def test_labels_with_gaps_are_refused(labels: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words) as error:
        Federation.from_arrays({"a": (X, labels), "b": (X, labels)})
    assert "return_inverse=True" in str(error.value)
    assert f"classes={labels.max() + 1}" in str(error.value)


def test_gap_is_accepted_with_the_number_of_classes() -> None:
    assert Federation.from_arrays({"a": (X, Y * 7)}, classes=8).classes == 8


def test_class_that_only_another_party_has_is_no_gap() -> None:
    assert Federation.from_arrays({"a": (X, Y), "b": (X, Y * 2)}).classes == 3


def test_words_as_labels_are_refused_with_what_to_do() -> None:
    words = np.array(["ill", "well"])[Y]
    with pytest.raises(UsageError, match=r"holds words \('ill', for instance\).*return_inverse"):
        Federation.from_arrays({"a": (X, words)})


@pytest.mark.parametrize("kind", ["floats", "bytes"])
def test_channels_last_is_refused_with_what_to_do(kind: str) -> None:
    pictures: Any = PICTURES if kind == "floats" else (PICTURES * 255).astype(np.uint8)
    with pytest.raises(UsageError, match=r"12 x 12 x 3.*transpose\(0, 3, 1, 2\)"):
        Pooled("mine", pictures, Y, classes=2)
    with pytest.raises(UsageError, match=r"party 'a' has the shape 12 x 12 x 3"):
        Federation.from_arrays({"a": (pictures, Y)})
    Federation.from_arrays({"a": (pictures.transpose(0, 3, 1, 2), Y)})


def test_narrow_signals_are_no_pictures() -> None:
    """Nine channels, 128 moments, one row."""
    assert Federation.from_arrays({"a": (np.zeros((40, 9, 128, 1)), Y)}).shape == (9, 128, 1)


def test_torch_datasets_are_accepted() -> None:
    data = TensorDataset(torch.from_numpy(X), torch.from_numpy(Y))
    one, other = Federation.from_arrays({"a": data}), Federation.from_arrays({"a": (X, Y)})
    assert one.fingerprint() == other.fingerprint()
    pair = Federation.from_arrays({"a": (data, data)})
    assert len(pair.parties["a"].test) == 40


class Words(Dataset[Any]):
    def __len__(self) -> int:
        return 3

    def __getitem__(self, k: int) -> Any:
        return "a picture", 1


def test_torch_dataset_of_other_things_is_refused() -> None:
    with pytest.raises(UsageError, match=r"party 'a' must have a length, and items \(x, y\)"):
        Federation.from_arrays({"a": Words()})


def test_data_of_other_kinds_are_refused_with_the_call_to_type() -> None:
    data: Any = TensorDataset(torch.from_numpy(X), torch.from_numpy(Y))
    by_party: Any = {"a": data, "b": data}
    for call in (comity.run, comity.compare):
        method: Any = "fedavg" if call is comity.run else ["fedavg"]
        with pytest.raises(UsageError, match=r"each party has one.*from_arrays.*torch.stack"):
            call(method, data)
        with pytest.raises(UsageError, match=r"data takes a name or a path, not a TensorDataset"):
            call(method, data=data)
        with pytest.raises(UsageError, match=r"from_arrays\(datasets\)"):
            call(method, by_party)
    federation: Any = Federation.from_arrays(by_party)
    with pytest.raises(UsageError, match="A federation is given by position"):
        comity.run("fedavg", data=federation)
    with pytest.raises(UsageError, match=r"'mine' is a torch dataset.*zip\(\*dataset\)"):
        Pooled("mine", data, Y, classes=2)


def test_what_the_refusals_say_to_type_works() -> None:
    dataset: Any = TensorDataset(torch.from_numpy(X), torch.from_numpy(Y))
    x, y = zip(*dataset, strict=True)
    pooled = comity.Dataset("mine", torch.stack(x), torch.tensor(y), classes=2)
    assert len(pooled.partition("iid", parties=2).names) == 2
    assert len(comity.Federation.from_arrays({"a": dataset, "b": dataset}).names) == 2


def test_column_of_words_in_a_frame_is_named() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(X, columns=["age", "bmi", "dose"])
    frame["sex"] = np.where(Y == 1, "m", "f")
    with pytest.raises(UsageError, match=r"column 'sex' of party 'a' holds words \('f'") as error:
        Federation.from_arrays({"a": (frame, Y)})
    assert "pandas.get_dummies" in str(error.value)
    frame["sex"] = pandas.Timestamp("2020-01-01")
    with pytest.raises(UsageError, match=r"'sex' of party 'a' holds values of type datetime64"):
        Federation.from_arrays({"a": (frame, Y)})


def test_class_without_samples_in_a_dataset_is_a_warning() -> None:
    """`Dataset(..., classes=11)` with labels 1 to 10."""
    labels: Any = np.arange(60) % 10 + 1
    x: Any = np.random.default_rng(0).random((60, 3))
    data = Pooled("mine", x, labels, classes=11, mean=(0.0,), std=(1.0,))
    (warning,) = data.partition("iid", parties=2).warnings
    assert warning.startswith("mine: no sample has the label 0. 11 classes were declared")
    assert "return_inverse=True" in warning
    full = Pooled("mine", x, labels - 1, classes=10, mean=(0.0,), std=(1.0,))
    assert full.partition("iid", parties=2).warnings == ()
