"""Datasets by name, datasets of a user's file, and checks of datasets."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from comity.data import Dataset, catalogue, load
from comity.errors import UsageError


def test_digits(digits: Dataset) -> None:
    assert digits.x.shape == (1797, 1, 8, 8)
    assert digits.x.dtype == torch.float32
    assert (digits.x.min().item(), digits.x.max().item()) == (0, 1)
    assert digits.y.dtype == torch.int64
    assert digits.y[:10].tolist() == list(range(10))
    assert digits.official_test is None


def test_catalogue_matches_the_datasets() -> None:
    for card in catalogue():
        if not card["here"]:
            continue
        data = load(str(card["name"]))
        entries = {
            "name": data.name,
            "classes": data.classes,
            "shape": data.shape,
            "groups": tuple(data.groups),
            "description": data.description,
            "licence": data.licence,
        }
        assert {name: card[name] for name in entries} == entries
        assert len(data) <= int(str(card["samples"]))  # of some only a part is available
        assert sorted(set(data.y.tolist())) == list(range(data.classes))


def test_ten_parties_by_default_and_normalised_inputs(digits: Dataset) -> None:
    fed = digits.partition("iid")
    assert fed.names == [f"p{i}" for i in range(10)]
    x = fed.parties["p0"].train.x
    assert (x.min().item(), x.max().item()) == (-1, 1)


def test_constants_a_channel() -> None:
    x = torch.full((20, 2, 3, 3), 0.5)
    data = Dataset("two", x, torch.arange(20) % 2, 2, mean=(0.5, 0.25), std=(1.0, 0.5))
    train = data.partition("iid", 2).parties["p0"].train.x
    assert (train[:, 0] == 0).all()
    assert (train[:, 1] == 0.5).all()
    assert Dataset("one", x, data.y, 2, mean=0.5, std=[2]).std == (2.0,)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("digit", "There is no dataset 'digit'. Did you mean 'digits'?"),
        ("", "There is no dataset ''."),
        ("nowhere/mine.py", "There is no file nowhere/mine.py."),
    ],
)
def test_unknown_names(name: str, message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        load(name)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seed": 0.5}, "seed must be a whole number, not '0.5'."),
        ({"parties": "many"}, "parties must be a whole number, not 'many'."),
        ({"parties": -3}, "There must be at least one party, not -3."),
    ],
)
def test_partition_refusals(digits: Dataset, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        digits.partition("iid", **options)


GOOD: dict[str, Any] = {
    "name": "mine",
    "x": torch.zeros(6, 1, 2, 2),
    "y": torch.arange(6) % 3,
    "classes": 3,
}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"x": torch.full((6, 1, 2, 2), 255)},
            "The images of dataset 'mine' have values from 255 to 255; scale them to",
        ),
        ({"x": torch.zeros(5, 1, 2, 2)}, "The x and y of dataset 'mine' must be of one length"),
        (
            {"x": torch.full((6, 1, 2, 2), torch.nan)},
            "The x of dataset 'mine' holds values that are not finite",
        ),
        ({"classes": 2}, "A label of dataset 'mine' is 2, but labels must be less than classes=2"),
        ({"classes": "three"}, "classes must be a whole number, not 'three'."),
        (
            {"std": 0},
            (
                "mean and std of dataset 'mine' must be one number or one per channel, and std more"
                " than 0."
            ),
        ),
        (
            {"mean": (0.1, 0.2)},
            "mean and std of dataset 'mine' must be one number or one per channel",
        ),
        ({"mean": "grey"}, "mean must be a number, not 'grey'."),
        (
            {"official_test": torch.ones(6)},
            "official_test of dataset 'mine' must be a mask with true for some samples",
        ),
        (
            {"official_test": torch.ones(6, dtype=torch.bool)},
            "official_test of dataset 'mine' must be a mask",
        ),
        (
            {"official_test": torch.zeros(5, dtype=torch.bool)},
            "official_test of dataset 'mine' must be a mask",
        ),
        ({"official_test": [5]}, "official_test of dataset 'mine' must be a mask"),
    ],
)
def test_dataset_refusals(change: dict[str, Any], message: str) -> None:
    Dataset(**GOOD)
    with pytest.raises(UsageError, match=re.escape(message)):
        Dataset(**{**GOOD, **change})


def write(folder: Path, text: str) -> str:
    path = folder / "mine.py"
    path.write_text(text)
    return str(path)


def test_a_users_file(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        """
from __future__ import annotations
from dataclasses import dataclass
import numpy as np
from comity.data import Dataset

@dataclass
class Setting:
    samples: int = 30

def load():
    n = Setting().samples
    return Dataset("mine", np.random.default_rng(0).random((n, 1, 4, 4)), np.arange(n) % 3, 3)
""",
    )
    fed = load(path).partition("iid", 3)
    assert (fed.name, fed.classes, fed.shape) == ("mine", 3, (1, 4, 4))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1", "must define load(...)."),
        ("def load(): return 3", "must return a comity.data.Dataset, not a int."),
        ("def load(", "could not be imported: SyntaxError"),
        (
            "import no_such_module_anywhere",
            "could not be imported: ModuleNotFoundError: No module named 'no_such_module_anywhere'",
        ),
        ("def load(): return 1 / 0", "failed: ZeroDivisionError: division by zero"),
        (
            "from comity.data import Dataset\ndef load(): return Dataset('d', [[2.0]], [-1], 1)",
            "run from -1 to -1",
        ),
    ],
)
def test_invalid_users_file_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        load(write(tmp_path, text))
