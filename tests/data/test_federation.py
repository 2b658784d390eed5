"""Federations from a user's arrays: their parts, counts and fingerprints."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch

from comity.data import Dataset, Federation, Samples
from comity.errors import UsageError


def pair(
    n: int = 20, width: int = 3, classes: int = 2, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, width)), np.arange(n) % classes


def test_every_sample_once_and_unchanged() -> None:
    x, y = pair()
    fed = Federation.from_arrays({"north": (x, y), "south": pair(40, seed=1)})
    assert fed.names == ["north", "south"]
    assert fed.sizes == [13, 27]
    assert (fed.name, fed.classes, fed.shape) == ("arrays", 2, (3,))
    north, share = fed.parties["north"], fed.split.parties["north"]
    assert sorted(share.train + share.validation + share.test) == list(range(20))
    for part in ("train", "validation", "test"):
        at = list(getattr(share, part))
        assert torch.equal(getattr(north, part).x, torch.tensor(x, dtype=torch.float32)[at])
        assert getattr(north, part).y.tolist() == y[at].tolist()
    assert len(north.test) == 5


def test_arrays_tensors_and_lists_are_equivalent() -> None:
    x, y = np.arange(40).reshape(20, 2), np.arange(20) % 2
    kinds: list[tuple[Any, Any]] = [
        (x, y),
        (torch.tensor(x), torch.tensor(y)),
        (x.tolist(), y.tolist()),
        (x.astype("float64"), y.astype("float32")),
        (torch.tensor(x, dtype=torch.float16, requires_grad=True), y.astype(bool)),
        (np.asfortranarray(x), y),
    ]
    feds = [Federation.from_arrays({"a": kind}) for kind in kinds]
    assert len({fed.fingerprint() for fed in feds}) == 1
    assert feds[0].parties["a"].train.x.dtype == torch.float32
    assert feds[0].parties["a"].train.y.dtype == torch.int64


def test_the_users_arrays_are_copied() -> None:
    x, y = pair()
    x = x.astype(np.float32)
    fed = Federation.from_arrays({"north": ((x, y), (x, y))})
    before = fed.fingerprint()
    x[:] = 0
    assert fed.fingerprint() == before


def test_arrays_with_a_test_set() -> None:
    train, test = pair(20), pair(7, seed=1)
    fed = Federation.from_arrays({"north": (train, test)}, validation=0.2)
    party, share = fed.parties["north"], fed.split.parties["north"]
    assert torch.equal(party.test.x, torch.tensor(test[0], dtype=torch.float32))
    assert party.test.y.tolist() == test[1].tolist()
    assert share.test == tuple(range(20, 27))
    assert (len(party.train), len(party.validation)) == (16, 4)


def test_a_partys_split_does_not_depend_on_the_others() -> None:
    alone = Federation.from_arrays({"south": pair(40, seed=1)})
    both = Federation.from_arrays({"north": pair(), "south": pair(40, seed=1)})
    assert alone.split.parties["south"] == both.split.parties["south"]


def test_seed_changes_the_split() -> None:
    first, same, other = (Federation.from_arrays({"north": pair()}, seed=s) for s in (0, 0, 1))
    assert first.split == same.split
    assert first.split.parties != other.split.parties


def test_counts() -> None:
    x, y = pair(40, classes=4)
    fed = Federation.from_arrays(
        {"north": (x, y), "south": (x[:10], y[:10] * 0)}, classes=6, validation=0
    )
    north, south = fed.counts().tolist()
    assert north == np.bincount(y[list(fed.split.parties["north"].train)], minlength=6).tolist()
    assert sorted(north) == [0, 0, 7, 7, 8, 8]
    assert south == [8, 0, 0, 0, 0, 0]
    assert fed.sizes == [30, 8]


def test_fingerprint_notices_values_labels_names_and_order(digits: Dataset) -> None:
    x, y = pair()

    def mark(**parties: Any) -> str:
        return Federation.from_arrays(parties).fingerprint()

    other_x, other_y = x.copy(), y.copy()
    other_x[3, 1] += 1e-3
    other_y[[2, 3]] = other_y[[3, 2]]
    marks = {
        mark(a=(x, y), b=(x, y)),
        mark(a=(other_x, y), b=(x, y)),
        mark(a=(x, other_y), b=(x, y)),
        mark(a=(x, y), c=(x, y)),
        mark(b=(x, y), a=(x, y)),
    }
    assert len(marks) == 5
    assert mark(a=(x, y)) == mark(a=(x, y))
    assert digits.partition("iid", 3).fingerprint() == digits.partition("iid", 3).fingerprint()
    assert (
        digits.partition("iid", 3, test="common").fingerprint()
        != digits.partition("iid", 3).fingerprint()
    )


def test_fingerprint_is_stable() -> None:
    fed = Federation.from_arrays({"a": ([[0.0], [1.0], [2.0], [3.0]], [0, 1, 0, 1])}, validation=0)
    again = Federation.from_arrays(
        {"a": ([[0.0], [1.0], [2.0], [3.0]], [0, 1, 0, 1])}, validation=0
    )
    assert fed.fingerprint() == again.fingerprint()
    assert re.fullmatch("[0-9a-f]{32}", fed.fingerprint())


def test_take_copies() -> None:
    samples = Samples(torch.arange(6.0).reshape(3, 2), torch.tensor([0, 1, 2]))
    selection = samples.take([2, 0])
    assert selection.y.tolist() == [2, 0]
    selection.x.zero_()
    assert samples.x.sum() == 15


X, Y = pair()
BAD_X = X.copy()
BAD_X[4, 1] = np.nan


@pytest.mark.parametrize(
    ("parties", "message"),
    [
        ({}, "A federation needs a dict with at least one party"),
        ([(X, Y)], "A federation needs a dict with at least one party"),
        (
            {"north": (BAD_X, Y)},
            "The x of party 'north' holds values that are not finite (first in sample 4)",
        ),
        (
            {"north": (X * np.inf, Y)},
            "The x of party 'north' holds values that are not finite (first in sample 0)",
        ),
        ({"north": (X * 1e300, Y)}, "The x of party 'north' holds values that are not finite"),
        ({"north": (X, Y[:-1])}, "must be of one length, but their shapes are (20, 3) and (19,)."),
        (
            {"north": (X, Y - 1)},
            "The labels of party 'north' run from -1 to 0; number the classes 0, 1, 2, ...",
        ),
        ({"north": (X, Y + 0.5)}, "The labels of party 'north' must be whole numbers"),
        ({"north": (X, Y * np.nan)}, "The labels of party 'north' must be whole numbers"),
        ({"north": (X, Y + np.inf)}, "The labels of party 'north' must be whole numbers"),
        ({"north": (X, Y + 1e18)}, "number the classes 0, 1, 2, ..."),
        ({"north": (X, Y + 100)}, "The labels reach 101, but there are fewer samples than that"),
        (
            {"north": (X, Y[:, None])},
            "The y of party 'north' must hold one label a sample, but its shape is (20, 1).",
        ),
        (
            {"north": (X, ["a"] * 20)},
            "The y of party 'north' holds words ('a', for instance)",
        ),
        (
            {"north": (X + 1j, Y)},
            (
                "x of party 'north' must be an array of numbers, but it holds values of type"
                " complex128."
            ),
        ),
        (
            {"north": ([[1.0], [1.0, 2.0]], [0, 1])},
            "The x of party 'north' must be an array of numbers with rows of equal",
        ),
        (
            {"north": (X[:, 0], Y)},
            "must hold a row of numbers for each sample, but its shape is (20,); reshape",
        ),
        (
            {"north": (X[:, :0], Y)},
            "The x of party 'north' must hold a row of numbers for each sample",
        ),
        ({"north": (3.0, Y)}, "The x and y of party 'north' must be of one length"),
        (
            {"north": (X[:0], Y[:0])},
            "There are no samples in party 'north'; leave it out or give it some.",
        ),
        (
            {"north": (X, Y), "south": (X[:, :2], Y)},
            "A sample of party 'south' has shape (2,), but one of party 'north' has (3,)",
        ),
        (
            {"north": ((X, Y), (X[:, :2], Y))},
            (
                "A sample of its test part has shape (2,), but one of the training part of party"
                " 'north' has (3,)"
            ),
        ),
        (
            {"north": ((X, Y), (X[:0], Y[:0]))},
            "There are no samples in the test part of party 'north'",
        ),
        (
            {"north": ((X, Y), (BAD_X, Y))},
            "The x of the test part of party 'north' holds values that are not finite",
        ),
        (
            {"north": (X[:1], Y[:1])},
            "Party 'north' has 1 sample, but one to train on and one to test on are needed",
        ),
        ({"north": X}, "Party 'north' must give (x, y), or ((x, y), (x_test, y_test))."),
        ({"north": (X, Y, Y)}, "Party 'north' must give (x, y)"),
        ({"": (X, Y)}, "A party cannot be called ''"),
        (
            {"server": (X, Y)},
            "A party cannot be called 'server', which stands for the server; choose another name.",
        ),
        ({7: (X, Y)}, "A party cannot be called 7"),
        *[
            ({name: (X, Y)}, f"A party cannot be called {name!r}; use up to 64 letters")
            for name in (
                "a,b",
                "a/b",
                "a\nb",
                "a\n",
                'a"b',
                "a'b",
                "..",
                " a",
                "a ",
                "-a",
                "a\\b",
                "a\0b",
                "a" * 65,
            )
        ],
    ],
)
def test_from_arrays_refuses(parties: Any, message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        Federation.from_arrays(parties)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"test": "common"},
            (
                "Parties that bring their own arrays have no common test set for 'common'; use"
                " own(...)"
            ),
        ),
        ({"test": "matched(size=3)"}, "have no common test set for 'matched(size=3)'"),
        ({"test": "own(2)"}, "fraction of own must be more than 0"),
        ({"validation": 1.5}, "validation must be at least 0 and less than 1, not 1.5."),
        ({"seed": "one"}, "seed must be a whole number, not 'one'."),
        ({"classes": 1}, "Party 'north' has the label 1, but labels must be less than classes=1."),
        ({"classes": 2.5}, "classes must be a whole number, not '2.5'."),
    ],
)
def test_from_arrays_refuses_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        Federation.from_arrays({"north": (X, Y)}, **options)


@pytest.mark.parametrize("name", ["north", "p0", "Zürich", "St. Mary-2", "a", "site_1"])
def test_good_names(name: str) -> None:
    assert Federation.from_arrays({name: (X, Y)}).names == [name]
