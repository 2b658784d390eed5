"""Missing values are filled from the party's own training data and marked; no party learns values
of another.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from test_splits import assert_same
from torch import Tensor

import comity
from comity.data import Dataset, Federation
from comity.data.groups import Groups
from comity.errors import UsageError

NAN = float("nan")
SITES = ("ann", "bob", "cyd")
PARTS = ("train", "validation", "test")
seeds = st.integers(0, 200)


def dataset(x: Any, **more: Any) -> Dataset:
    n = len(x)
    more.setdefault("groups", {"site": Groups(SITES, np.arange(n) % 3)})
    usual = {"missing": "impute", "default_partition": "natural", "mean": (0.0,), "std": (1.0,)}
    return Dataset("mine", x, torch.arange(n) // 3 % 2, 2, **(usual | more))


def values_with_gaps(n: int = 90, features: int = 5, seed: int = 0, share: float = 0.3) -> Tensor:
    """Random values, a share of which is missing in all features but the first."""
    draw = np.random.default_rng(seed)
    x = draw.normal(2, 3, (n, features)).astype(np.float32)
    is_missing = draw.random((n, features)) < share
    is_missing[:, 0] = False
    return torch.from_numpy(np.where(is_missing, np.float32(NAN), x))


def parts(fed: Federation, name: str) -> list[tuple[Tensor, tuple[int, ...]]]:
    """A party's inputs and their positions in the data."""
    return [(getattr(fed.parties[name], p).x, getattr(fed.split.parties[name], p)) for p in PARTS]


# --- an example


def test_fill_and_marks_of_an_example() -> None:
    """The training rows have 1, 3 and a missing value in the second column, and none in the third."""
    x = torch.tensor(
        [[0, 1, NAN, 5], [0, 3, NAN, 5], [0, NAN, NAN, 5], [0, 9, 4, NAN], [7, NAN, 6, 5]]
    )
    data = dataset(x, groups={}, mean=(0.0, 1.0, 2.0, 3.0), std=(1.0, 2.0, 4.0, 1.0))
    split = data.partition("iid", 1, test="own(0.4)", validation=0).split
    share = replace(split.parties["p0"], train=(0, 1, 2), validation=(3,), test=(4,))
    fed = data.split(replace(split, parties={"p0": share}))
    assert data.indicator_columns == (1, 2, 3)
    assert data.shape == fed.shape == (7,)
    party = fed.parties["p0"]
    # normalised (v - mean) / std: the second column is filled with the mean of 0 and 1, which is 0.5;
    # the third, which was never measured, with 0
    assert party.train.x.tolist() == [
        [0, 0.0, 0, 2, 0, 1, 0],
        [0, 1.0, 0, 2, 0, 1, 0],
        [0, 0.5, 0, 2, 1, 1, 0],
    ]
    assert party.validation.x.tolist() == [[0, 4.0, 0.5, 2, 0, 0, 1]]
    assert party.test.x.tolist() == [[7, 0.5, 1.0, 2, 1, 0, 0]]


# --- properties


@given(seed=seeds, share=st.floats(0, 0.9), spec=st.sampled_from(["natural", "iid", "domain(parts=2)|keep(samples=8)|concept"]),
       test=st.sampled_from(["own(0.25)", "tail(0.3)", "official", "matched(size=2)", "common"]))  # fmt: skip
def test_fill_and_marks_are_those_of_the_partys_training_rows(
    seed: int, share: float, spec: str, test: str
) -> None:
    if test == "official" and spec == "iid":
        return
    x = values_with_gaps(seed=seed, share=share)
    data = dataset(x, official_test=torch.arange(90) % 4 == 0, mean=(1.0,), std=(2.0,))
    try:
        fed = data.partition(spec, 3, seed, test, 0.2)
    except UsageError as why:  # some seeds leave a party fewer samples than keep(samples=8)
        assert "use a smaller keep" in str(why)  # noqa: PT017 - which refusal it is is the point
        return
    is_missing = x.isnan().numpy()
    marked_columns = np.flatnonzero(is_missing.any(0))
    normal = (x.numpy() - np.float32(1)) / np.float32(2)
    assert data.indicator_columns == tuple(marked_columns)
    assert fed.shape == (5 + len(marked_columns),)
    for name in fed.names:
        train = list(fed.split.parties[name].train)
        counts = (~is_missing[train]).sum(0)
        fill = np.where(is_missing[train], 0, normal[train]).sum(0, dtype=np.float64) / np.maximum(
            counts, 1
        )
        for values, positions in parts(fed, name):
            at = list(positions)
            np.testing.assert_allclose(
                values[:, :5], np.where(is_missing[at], fill, normal[at]), atol=1e-5
            )
            assert np.array_equal(values[:, 5:].numpy(), is_missing[at][:, marked_columns])
            is_present = ~is_missing[at]
            assert np.array_equal(
                values[:, :5].numpy()[is_present], normal[at][is_present]
            )  # known values are equal bit for bit


def test_a_column_that_a_party_never_measured_is_zero() -> None:
    """Zero is the fixed `mean`, not a value from the data of another party."""
    x = values_with_gaps(share=0.2)
    x[0::3, 3] = torch.nan  # ann has no values in the fourth column
    fed = dataset(x, mean=(10.0,), std=(2.0,)).partition("natural")
    for values, positions in parts(fed, "ann"):
        assert (values[:, 3] == 0).all()
        assert (values[:, 5 + 2] == 1).all()  # the third mark
        assert len(positions)
    assert all(values[:, 3].abs().max() > 1 for values, _ in parts(fed, "bob"))


def test_a_column_that_only_the_training_part_lacks_is_zero_too() -> None:
    """Values in the party's own validation and test rows are not used."""
    x = values_with_gaps(share=0)
    data = dataset(x)
    split = data.partition("natural").split  # positions do not depend on values
    y = x.clone()
    y[list(split.parties["ann"].train), 2] = torch.nan
    hole = split.parties["ann"].test[0]
    y[hole, 2] = torch.nan
    fed = dataset(y).partition("natural")
    assert fed.split.parties == split.parties
    assert (fed.parties["ann"].train.x[:, 2] == 0).all()
    assert fed.parties["ann"].test.x[0, 2] == 0
    assert torch.equal(fed.parties["ann"].test.x[1:, 2], x[list(split.parties["ann"].test[1:]), 2])


@pytest.mark.parametrize("test", ["own(0.25)", "tail(0.25)", "official"])
@pytest.mark.parametrize("whose", ["bob's", "my test", "my validation"])
def test_fill_depends_on_the_own_training_data_only(whose: str, test: str) -> None:
    x = values_with_gaps()
    is_test = torch.arange(90) % 4 == 0
    first = dataset(x, official_test=is_test).partition(
        "natural", seed=3, test=test, validation=0.2
    )
    share = first.split.parties["ann"]
    rows = {
        "bob's": list(range(1, 90, 3)),
        "my test": list(share.test),
        "my validation": list(share.validation),
    }[whose]
    other = x.clone()
    other[rows] = torch.where(x[rows].isnan(), x[rows], x[rows] * 100 + 7)
    second = dataset(other, official_test=is_test).partition(
        "natural", seed=3, test=test, validation=0.2
    )
    assert second.split.parties == first.split.parties
    for part in PARTS:
        before, after = (getattr(fed.parties["ann"], part).x for fed in (first, second))
        if whose != f"my {part}":
            assert torch.equal(before, after)
            continue
        is_missing = after[:, 5:].bool()  # marks of features 1 to 4
        assert torch.equal(
            before[:, 1:5][is_missing], after[:, 1:5][is_missing]
        )  # missing values are filled as before
        assert not torch.equal(before[:, :5], after[:, :5])
    assert torch.equal(first.parties["cyd"].train.x, second.parties["cyd"].train.x)
    train_rows = list(share.train)
    changed = x.clone()
    changed[train_rows] = torch.where(
        x[train_rows].isnan(), x[train_rows], x[train_rows] + 50
    )  # own training rows do change the fill
    third = dataset(changed, official_test=is_test).partition(
        "natural", seed=3, test=test, validation=0.2
    )
    is_missing = third.parties["ann"].test.x[:, 5:].bool()
    shift = (
        third.parties["ann"].test.x[:, 1:5][is_missing]
        - first.parties["ann"].test.x[:, 1:5][is_missing]
    )
    torch.testing.assert_close(shift, torch.full_like(shift, 50.0))


def test_a_common_test_set_is_filled_by_each_party_for_itself() -> None:
    x = values_with_gaps()
    for i, add in enumerate((0, 100, -100)):
        x[i::3] += add
    is_test = torch.arange(90) % 4 == 0
    fed = dataset(x, official_test=is_test).partition("natural", test="common")
    ann, bob, cyd = (fed.parties[n].test.x for n in SITES)
    is_missing = ann[:, 5:].bool()
    assert is_missing.any()
    assert torch.equal(ann[:, 5:], bob[:, 5:])
    assert torch.equal(ann[:, 1:5][~is_missing], bob[:, 1:5][~is_missing])
    assert (bob[:, 1:5][is_missing] - ann[:, 1:5][is_missing] > 50).all()
    assert (cyd[:, 1:5][is_missing] - ann[:, 1:5][is_missing] < -50).all()


@pytest.mark.parametrize("test", ["own(0.25)", "common"])
def test_preprocessing_of_new_values_is_the_same(test: str) -> None:
    """A party's preprocessing of the same rows gives equal inputs bit for bit, and needs only its
    own fills.
    """
    x = values_with_gaps()
    fed = dataset(x, mean=(1.0, 2.0, 3.0, 4.0, 5.0), std=(0.3,)).partition("natural", test=test)
    for name in SITES:
        how = fed.preprocess.for_party(name)
        assert set(how.fills) == {name}
        for values, positions in parts(fed, name):
            assert torch.equal(how(x[list(positions)]), values)
    assert fed.preprocess.for_party("ann").fills != fed.preprocess.for_party("bob").fills


# --- complete data and other kinds of data


def test_where_nothing_is_missing_nothing_is_added() -> None:
    x = values_with_gaps(share=0)
    first, second = (dataset(x, missing=m) for m in ("impute", "refuse"))
    assert first.indicator_columns == second.indicator_columns == ()
    assert first.shape == (5,)
    assert_equal_but_for_the_split(first.partition("natural"), second.partition("natural"))


def assert_equal_but_for_the_split(first: Federation, second: Federation) -> None:
    for name in second.names:
        for (a, _), (b, _) in zip(parts(first, name), parts(second, name), strict=True):
            assert torch.equal(a, b)


def test_images_of_bytes_have_no_missing_values() -> None:
    x = torch.randint(0, 256, (60, 1, 4, 4), dtype=torch.uint8)
    first, second = (dataset(x, missing=m) for m in ("impute", "refuse"))
    assert first.shape == (1, 4, 4)
    assert_equal_but_for_the_split(
        first.partition("natural|shift(kinds=noise)"),
        second.partition("natural|shift(kinds=noise)"),
    )


@pytest.mark.parametrize(
    "how",
    [
        np.asarray,
        lambda x: np.asarray(x, dtype=np.float64),
        lambda x: x.tolist(),
        lambda x: x.half(),
    ],
)
def test_numeric_types_are_accepted(how: Any) -> None:
    x = values_with_gaps().half().float()
    first, second = dataset(x), dataset(how(x))
    assert second.x.dtype == torch.float32
    assert first.fingerprint() == second.fingerprint()


def test_dataset_keeps_its_missing_values() -> None:
    x = values_with_gaps()
    data = dataset(x)
    assert torch.equal(data.x.isnan(), x.isnan())
    data.partition("natural")
    assert torch.equal(data.x.isnan(), x.isnan())
    assert data.x is not x


# --- saved splits


@pytest.mark.parametrize(
    "test", ["own(0.25)", "tail(0.25)", "official", "matched(size=2)", "common"]
)
@pytest.mark.parametrize("spec", ["natural", "domain(parts=2)|keep(samples=9)|concept"])
def test_a_saved_split_builds_the_same(spec: str, test: str, tmp_path: Path) -> None:
    data = dataset(values_with_gaps(), official_test=torch.arange(90) % 4 == 0)
    fed = data.partition(spec, seed=6, test=test)
    (tmp_path / "split.json").write_text(fed.split.to_json())
    again = data.partition(str(tmp_path / "split.json"))
    assert_same(fed, again)
    assert fed.shape == again.shape


def test_fingerprint_depends_on_missing_values_and_their_treatment() -> None:
    x = values_with_gaps()
    y = x.clone()
    y[0, 0] = torch.nan
    data = dataset(x)
    assert dataset(x.clone()).fingerprint() == data.fingerprint()
    assert dataset(y).fingerprint() != data.fingerprint()
    full = values_with_gaps(share=0)
    for groups in ({}, {"site": Groups(SITES, np.arange(90) % 3)}):
        impute, refuse = (
            dataset(full, missing=m, groups=groups).fingerprint() for m in ("impute", "refuse")
        )
        assert impute != refuse


@pytest.mark.parametrize("engine", ["loop", "process"])
def test_run_learns_from_marks(engine: Any, tmp_path: Path) -> None:
    """The label is whether a value is missing, so only the marks allow to learn it."""
    x = torch.zeros(120, 2)
    y = torch.arange(120) // 3 % 2
    x[y == 1, 1] = torch.nan
    fed = replace(dataset(x), y=y).partition("natural")
    assert fed.shape == (3,)
    result = comity.run(
        "fedavg", fed, model="linear", rounds=5, lr=0.5, engine=engine, out=tmp_path / engine
    )
    assert result.summary["accuracy"]["mean"] == 1


# --- refusals


@pytest.mark.parametrize(
    ("x", "missing", "message"),
    [
        (
            values_with_gaps(),
            "refuse",
            (
                "The x of dataset 'mine' holds values that are not finite (first in sample 0);"
                " remove or fill them."
            ),
        ),
        (
            torch.full((90, 2), float("inf")),
            "impute",
            "holds values that are not finite (first in sample 0)",
        ),
        (torch.full((90, 2), float("-inf")), "impute", "holds values that are not finite"),
        (np.full((90, 2), 1e300), "impute", "holds values that are not finite"),
    ],
)
def test_refusals(x: Any, missing: str, message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        dataset(x, missing=missing)


# --- regressions


def test_unknown_missing_option_is_refused() -> None:
    with pytest.raises(UsageError):
        dataset(values_with_gaps(share=0), missing="imput")


def test_signals_are_refused_or_get_one_mark_a_channel() -> None:
    x = torch.rand(90, 3, 8)
    x[0, 1, 2] = x[1, 1, 5] = torch.nan
    try:
        data = dataset(x)
    except UsageError:
        return
    assert len(set(data.indicator_columns)) == len(data.indicator_columns)


@pytest.mark.parametrize("x", [
    np.random.default_rng(0).random((90, 1, 4, 4))[..., ::-1],  # blue, green, red
    np.random.default_rng(0).random((90, 4)).astype(">f4"),  # another byte order
], ids=["backwards", "big-endian"])  # fmt: skip
def test_reversed_and_big_endian_arrays_are_accepted(x: Any) -> None:
    assert len(dataset(x, missing="refuse")) == 90


@pytest.mark.parametrize(
    "x", [[[1.0], [1.0, 2.0]], [["a"], ["b"]], [[None], [1.0]], np.array([[None], [1.0]])], ids=str
)
@pytest.mark.parametrize("missing", ["refuse", "impute"])
def test_arrays_that_are_not_numeric_are_refused(x: Any, missing: str) -> None:
    with pytest.raises(UsageError):
        Dataset("mine", x, [0, 1], 2, missing=missing)  # type: ignore[arg-type]
