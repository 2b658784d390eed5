"""A saved split builds the same federation again, and a damaged or foreign one is refused."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from comity.data import Dataset, Federation, Split
from comity.errors import UsageError


def assert_same(first: Federation, second: Federation) -> None:
    assert first.names == second.names
    assert first.split == second.split
    for name in first.names:
        for part in ("train", "validation", "test"):
            a, b = getattr(first.parties[name], part), getattr(second.parties[name], part)
            assert torch.equal(a.x, b.x)
            assert torch.equal(a.y, b.y)
    assert first.fingerprint() == second.fingerprint()


@pytest.mark.parametrize("test", ["own(0.3)", "matched(size=20)", "matched", "common"])
@pytest.mark.parametrize(
    "spec", ["dirichlet(alpha=0.5)", "pathological(classes=2)|shift|shift(kinds=noise,none)"]
)
def test_round_trip(digits: Dataset, tmp_path: Path, spec: str, test: str) -> None:
    fed = digits.partition(spec, 7, seed=11, test=test, validation=0.2)
    path = tmp_path / "split.json"
    path.write_text(fed.split.to_json())
    assert Split.from_json(fed.split.to_json()) == fed.split
    assert_same(fed, digits.split(path))
    assert_same(fed, digits.split(fed.split))
    assert_same(fed, digits.partition(str(path)))
    assert_same(fed, digits.partition(str(path), parties=7, seed=99, test="common"))


def test_content_of_the_file(digits: Dataset) -> None:
    text = digits.partition(
        "dirichlet( alpha = 0.5 )|shift(kinds=none,invert)", 2, seed=4
    ).split.to_json()
    saved_split = json.loads(text)
    assert saved_split["partition"] == "dirichlet(alpha=0.5)|shift(kinds=none,invert)"
    assert (
        saved_split["dataset"],
        saved_split["seed"],
        saved_split["test"],
        saved_split["validation"],
    ) == (
        "digits",
        4,
        "own(0.25)",
        0.1,
    )
    assert [p["shift"] for p in saved_split["parties"].values()] == ["none", "invert"]
    assert sorted(
        i
        for p in saved_split["parties"].values()
        for k in ("train", "validation", "test")
        for i in p[k]
    ) == [*range(1797)]


def test_split_of_own_arrays_round_trips() -> None:
    split = Federation.from_arrays({"Zürich": ([[0.0], [1.0], [2.0], [3.0]], [0, 1, 0, 1])}).split
    assert Split.from_json(split.to_json()) == split


@pytest.mark.parametrize("seed", [0, 1])
def test_a_partition_is_the_same_every_time(digits: Dataset, seed: int) -> None:
    assert_same(*(digits.partition("dirichlet(alpha=0.3)|shift", 8, seed) for _ in range(2)))


def test_seeds_differ(digits: Dataset) -> None:
    assert (
        digits.partition("iid", 4, 0).split.parties != digits.partition("iid", 4, 1).split.parties
    )


def test_split_does_not_drift() -> None:
    """A seed gives the same split in later versions."""
    data = Dataset("tiny", torch.zeros(12, 1, 2, 2), torch.arange(12) % 3, 3)
    split = data.partition("dirichlet(alpha=1,min=2)", 2, seed=0, validation=0.3).split
    assert {n: (s.train, s.validation, s.test) for n, s in split.parties.items()} == {
        "p0": ((0, 2, 4, 10, 11), (8, 9), (5, 6)),
        "p1": ((1, 3), (), (7,)),
    }


@pytest.fixture
def saved_split(digits: Dataset) -> dict[str, Any]:
    return dict(json.loads(digits.partition("iid", 3).split.to_json()))


def change(saved_split: dict[str, Any], path: str, value: object) -> None:
    *way, last = path.split(".")
    for step in way:
        saved_split = saved_split[step]
    saved_split[last] = value


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (
            "fingerprint",
            "0",
            "The split was made for other data (dataset 'digits'), not for 'digits' as it is here",
        ),
        (
            "seed",
            "zero",
            (
                "is not a split written by Comity (seed: Input should be a valid integer); use the"
                " split.json"
            ),
        ),
        ("seed", True, "is not a split written by Comity (seed: "),
        ("parties", {}, "The split names no parties"),
        ("parties", [], "is not a split written by Comity (parties: "),
        (
            "parties.p1.train",
            [1797],
            "The split gives party 'p1' sample 1797, but the dataset has samples 0 to 1796.",
        ),
        ("parties.p1.test", [-1], "The split gives party 'p1' sample -1"),
        ("parties.p1.test", [0.5], "is not a split written by Comity (parties.p1.test.0: "),
        (
            "parties.p1.test",
            [],
            "The split leaves party 'p1' without training or without test samples.",
        ),
        (
            "parties.p1.train",
            [],
            "The split leaves party 'p1' without training or without test samples.",
        ),
        ("parties.p1.shift", "turn", "There is no kind of shift 'turn'"),
        ("parties.p1.shift", 3, "is not a split written by Comity (parties.p1.shift: "),
        ("test", "mine", "There is no test protocol 'mine'"),
        (
            "parties.a/b",
            {"train": [0], "validation": [], "test": [1]},
            "A party cannot be called 'a/b'",
        ),
    ],
)
def test_damaged_splits_are_refused(
    digits: Dataset, saved_split: dict[str, Any], path: str, value: object, message: str
) -> None:
    change(saved_split, path, value)
    with pytest.raises(UsageError, match=re.escape(message)):
        digits.split(Split.from_json(json.dumps(saved_split)))


def test_training_on_test_samples_is_refused(digits: Dataset, saved_split: dict[str, Any]) -> None:
    parties = saved_split["parties"]
    parties["p1"]["train"].append(parties["p0"]["test"][0])
    with pytest.raises(
        UsageError, match="The split tests party 'p0' on a sample that is trained on"
    ):
        digits.split(Split.from_json(json.dumps(saved_split)))


def test_training_samples_used_twice_are_refused(
    digits: Dataset, saved_split: dict[str, Any]
) -> None:
    parties = saved_split["parties"]
    parties["p1"]["validation"].append(parties["p0"]["train"][0])
    with pytest.raises(UsageError, match="The split uses a training sample of party 'p0' twice"):
        digits.split(Split.from_json(json.dumps(saved_split)))


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"dataset": "digits"}', "\x00"])
def test_other_json_is_refused(digits: Dataset, tmp_path: Path, text: str) -> None:
    file = tmp_path / "split.json"
    file.write_text(text)
    with pytest.raises(UsageError, match="is not a split written by Comity") as caught:
        digits.split(file)
    assert str(file) in str(caught.value)


def test_unreadable_files_are_refused(digits: Dataset, tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match=r"The split file '.*none\.json' cannot be read; check its path"
    ):
        digits.partition(str(tmp_path / "none.json"))
    with pytest.raises(UsageError, match="cannot be read"):
        digits.split(tmp_path)
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="cannot be read"):
        digits.split(tmp_path / "binary.json")


def test_a_split_of_other_data_is_refused(digits: Dataset) -> None:
    other = Dataset("other", 1 - digits.x, digits.y, 10)
    with pytest.raises(
        UsageError, match=r"The split was made for other data .dataset 'other'., not for 'digits'"
    ):
        digits.split(other.partition("iid", 3).split)
    with pytest.raises(UsageError, match="other data"):  # other constants would give other tensors
        digits.split(replace(digits, mean=(0.0,)).partition("iid", 3).split)


def test_another_number_of_parties_is_refused(digits: Dataset, tmp_path: Path) -> None:
    path = tmp_path / "split.json"
    path.write_text(digits.partition("iid", 3).split.to_json())
    with pytest.raises(UsageError, match=r"The split '.*split\.json' has 3 parties, not 4"):
        digits.partition(str(path), parties=4)
