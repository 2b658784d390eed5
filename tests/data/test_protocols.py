"""Test protocols: the test samples of a party, and those that remain for training and validation."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from comity.data import Dataset, Federation
from comity.data.groups import Groups
from comity.data.protocols import OwnPart, read, redraw_test_part, stratified
from comity.errors import UsageError


def labels(fed: Federation, part: str) -> list[np.ndarray]:
    return [np.bincount(getattr(p, part).y, minlength=fed.classes) for p in fed.parties.values()]


def indices(fed: Federation, *parts: str) -> list[int]:
    return [
        i for share in fed.split.parties.values() for part in parts for i in getattr(share, part)
    ]


@pytest.fixture(scope="module")
def official(digits: Dataset) -> Dataset:
    """The digits with the last 400 as official test samples."""
    mask = torch.arange(len(digits)) >= len(digits) - 400
    return Dataset("official", digits.x, digits.y, 10, official_test=mask)


@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=80),
    st.floats(0.01, 0.99),
    st.integers(0, 1000),
)
def test_stratified_takes_each_class_its_share(y: list[int], fraction: float, seed: int) -> None:
    selected = stratified(np.array(y), fraction, np.random.default_rng(seed))
    for c in set(y):
        size, took = y.count(c), int(selected[np.array(y) == c].sum())
        assert took <= size - 1
        assert took <= fraction * size + 1
        assert took >= min(np.floor(fraction * size), size - 1)
    assert selected.sum() <= round(fraction * len(y))


def test_stratified_is_exact_where_shares_are_whole() -> None:
    y = np.repeat([0, 1, 2], [40, 20, 4])
    selected = stratified(y, 0.25, np.random.default_rng(0))
    assert np.bincount(y[selected]).tolist() == [10, 5, 1]


def test_stratified_ties_fall_by_chance() -> None:
    y = np.repeat(np.arange(10), 2)  # half a sample each
    draws = [y[stratified(y, 0.25, np.random.default_rng(s))] for s in range(200)]
    took = np.bincount(np.concatenate(draws), minlength=10)
    assert took.sum() == 5 * 200
    assert took.min() > 60  # 100 expected of each class


def test_stratified_takes_single_samples_last() -> None:
    y = np.array([0, 1, 2, 3, 3, 3])
    assert all(
        stratified(y, 0.5, np.random.default_rng(s), at_least=1)[:3].sum() == 0 for s in range(20)
    )
    alone = np.arange(4)
    assert stratified(alone, 0.25, np.random.default_rng(0)).sum() == 0
    assert stratified(alone, 0.25, np.random.default_rng(0), at_least=1).sum() == 1
    assert (
        stratified(alone, 0.99, np.random.default_rng(0), at_least=1).sum() == 3
    )  # one is left to train on


@given(
    parties=st.integers(1, 30),
    fraction=st.floats(0.05, 0.9),
    validation=st.sampled_from([0, 0.1, 0.3]),
    seed=st.integers(0, 99),
)
def test_own_uses_every_sample_once(
    digits: Dataset, parties: int, fraction: float, validation: float, seed: int
) -> None:
    fed = digits.partition("dirichlet(alpha=1)", parties, seed, f"own({fraction})", validation)
    assert sorted(indices(fed, "train", "validation", "test")) == list(range(len(digits)))
    assert min(fed.sizes) >= 1
    assert min(len(p.test) for p in fed.parties.values()) >= 1


def test_own_fraction_and_validation_have_the_requested_sizes(digits: Dataset) -> None:
    fed = digits.partition("iid", 5, test="own(0.2)", validation=0.25)
    for party, whole in zip(fed.parties.values(), (360, 360, 359, 359, 359), strict=True):
        assert len(party.test) == round(0.2 * whole)
        assert len(party.validation) == round(0.25 * (whole - len(party.test)))
        assert len(party.train) == whole - len(party.test) - len(party.validation)


def test_own_is_stratified(digits: Dataset) -> None:
    fed = digits.partition("iid", 4, test="own(0.5)", validation=0)
    for train, test in zip(labels(fed, "train"), labels(fed, "test"), strict=True):
        assert abs(train - test).max() <= 1


def test_own_pools_the_official_test_part(official: Dataset) -> None:
    fed = official.partition("iid", 4)
    assert len(indices(fed, "train", "validation", "test")) == len(official)


def test_no_validation(digits: Dataset) -> None:
    for party in digits.partition("iid", 4, validation=0).parties.values():
        assert len(party.validation) == 0
        assert party.validation.x.shape == (0, 1, 8, 8)
        assert party.validation.y.dtype == torch.int64


def test_a_small_party_has_no_validation_part() -> None:
    fed = Federation.from_arrays({"small": ([[0.0], [1.0], [2.0], [3.0]], [0, 0, 1, 1])})
    small = fed.parties["small"]
    assert [len(part) for part in (small.train, small.validation, small.test)] == [3, 0, 1]


def test_common_is_one_set_for_all_and_unshifted(digits: Dataset) -> None:
    fed = digits.partition("pathological|shift(kinds=invert,noise)", 6, test="common")
    first, *others = fed.parties.values()
    assert all(p.test is first.test for p in others)
    assert len(first.test) == round(0.2 * 1797)
    common_test = fed.split.parties["p0"].test
    assert torch.equal(first.test.x, (digits.x[list(common_test)] - 0.5) / 0.5)
    assert torch.equal(first.test.y, digits.y[list(common_test)])
    assert not set(common_test) & set(indices(fed, "train", "validation"))
    assert np.bincount(first.test.y).min() >= 34  # stratified: 0.2 of 174 or more


def test_common_fraction(digits: Dataset) -> None:
    assert len(digits.partition("iid", 3, test="common(0.5)").parties["p0"].test) == round(
        0.5 * 1797
    )


@pytest.mark.parametrize("test", ["common", "matched"])
def test_the_official_test_part_is_used_and_never_trained_on(official: Dataset, test: str) -> None:
    fed = official.partition("dirichlet(alpha=0.5)", 6, test=test)
    assert min(indices(fed, "test")) >= len(official) - 400
    assert sorted(indices(fed, "train", "validation")) == list(range(len(official) - 400))
    if test == "common":
        assert len(fed.parties["p3"].test) == 400


@pytest.mark.parametrize("test", ["matched(size=20)", "matched"])
def test_matched_follows_the_partys_classes(digits: Dataset, test: str) -> None:
    fed = digits.partition("dirichlet(alpha=0.5)", 8, test=test, validation=0)
    for train, tested in zip(labels(fed, "train"), labels(fed, "test"), strict=True):
        assert abs(tested - tested.sum() * train / train.sum()).max() < 1
        if test == "matched(size=20)":
            assert tested.sum() == 20
    for share in fed.split.parties.values():
        assert len(set(share.test)) == len(share.test)
        assert not set(share.test) & set(indices(fed, "train"))


def test_matched_without_size_uses_all_it_can(digits: Dataset) -> None:
    fed = digits.partition("pathological(classes=1)", 10, test="matched", validation=0)
    for train, tested in zip(labels(fed, "train"), labels(fed, "test"), strict=True):
        assert tested.sum() == tested[train.argmax()]
        assert tested.sum() >= 34  # the whole class in the common test set


def test_matched_leaves_out_classes_the_common_test_set_lacks() -> None:
    y = torch.tensor([0, 1] * 20 + [0] * 10)
    data = Dataset("lacking", torch.zeros(50, 1, 2, 2), y, 2, official_test=torch.arange(50) >= 40)
    fed = data.partition("iid", 2, test="matched")
    assert all(p.test.y.tolist() == [0] * 10 for p in fed.parties.values())


def test_matched_without_any_class_in_common_is_refused() -> None:
    data = Dataset(
        "apart",
        torch.zeros(50, 1, 2, 2),
        torch.arange(50) // 40,
        2,
        official_test=torch.arange(50) >= 40,
    )
    with pytest.raises(
        UsageError, match="The common test set has no samples of the classes of party 'p0'; use own"
    ):
        data.partition("iid", 2, test="matched")


@pytest.mark.parametrize("test", ["own(0.25)", "own(0.5)"])
def test_test_settings_do_not_change_ownership(digits: Dataset, test: str) -> None:
    def owned(fed: Federation) -> list[list[int]]:
        return [sorted(s.train + s.validation + s.test) for s in fed.split.parties.values()]

    plain = digits.partition("dirichlet(alpha=0.5)", 6, seed=3)
    assert owned(digits.partition("dirichlet(alpha=0.5)|shift", 6, 3, test, 0.3)) == owned(plain)


def test_shifts_and_validation_do_not_change_the_test_part(digits: Dataset) -> None:
    first = digits.partition("iid", 6, seed=3)
    two = digits.partition("iid|shift", 6, seed=3, validation=0.5)
    assert [s.test for s in first.split.parties.values()] == [
        s.test for s in two.split.parties.values()
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"test": "onw"}, "There is no test protocol 'onw'. Did you mean 'own'?"),
        ({"test": "own(0)"}, "fraction of own must be more than 0 and less than 1, not 0.0."),
        ({"test": "own(1)"}, "fraction of own must be more than 0 and less than 1, not 1.0."),
        ({"test": "own(nan)"}, "fraction of own must be more than 0 and less than 1, not nan."),
        ({"test": "own(half)"}, "fraction of own must be a number, not 'half'."),
        ({"test": "common(2)"}, "fraction of common must be more than 0 and less than 1, not 2.0."),
        ({"test": "matched(size=0)"}, "size of matched must be at least 1, not 0."),
        ({"test": "matched(size=1000)"}, "use size="),
        ({"test": "matched(fraction=1.5)"}, "fraction of matched must be more than 0"),
        ({"validation": 1}, "validation must be at least 0 and less than 1, not 1.0."),
        ({"validation": -0.1}, "validation must be at least 0 and less than 1, not -0.1."),
        ({"validation": float("nan")}, "validation must be at least 0 and less than 1, not nan."),
        ({"validation": "some"}, "validation must be a number, not 'some'."),
        (
            {"parties": 1797},
            "Party 'p0' has 1 sample, but one to train on and one to test on are needed",
        ),
    ],
)
def test_refusals(digits: Dataset, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        digits.partition("iid", **{"parties": 5, **options})


def test_a_fraction_of_an_official_test_part_is_refused(official: Dataset) -> None:
    with pytest.raises(
        UsageError, match=r"common uses the dataset's official test part.*leave out fraction"
    ):
        official.partition("iid", test="common(0.3)")


def test_matched_error_names_the_available_number(digits: Dataset) -> None:
    with pytest.raises(
        UsageError,
        match=r"has (3[0-9]) samples in the class proportions of party 'p0', not 50; "
        r"use size=\1 or less, or a larger fraction",
    ):
        digits.partition("pathological(classes=1)", 10, test="matched(size=50)")


def test_rules_read_their_options() -> None:
    assert repr(read("own(0.3)")) == "Own(fraction=0.3)"
    assert repr(read("matched(40,fraction=0.5)")) == "Matched(size=40, fraction=0.5)"


# --- tail: the last part of each class, in order


def tail(y: list[int], text: str = "tail(0.25)") -> tuple[list[int], list[int]]:
    """The training and test positions of samples with these labels in this order."""
    learn, test = read(text).divide(OwnPart.whole("p", np.array(y)), np.random.default_rng(0))
    return learn.tolist(), test.tolist()


@pytest.mark.parametrize(
    ("y", "text", "learn", "test"),
    [
        ([0] * 8, "tail(0.25)", [0, 1, 2, 3, 4], [6, 7]),
        ([0] * 8, "tail(0.25,gap=0)", [0, 1, 2, 3, 4, 5], [6, 7]),
        ([0] * 8, "tail(0.25,gap=3)", [0, 1, 2], [6, 7]),
        ([0] * 8, "tail(0.5,2)", [0, 1], [4, 5, 6, 7]),
        (
            [0, 1] * 4,
            "tail(0.25)",
            [0, 1, 2, 3, 4],
            [6, 7],
        ),  # the last of each class, without their neighbours
        (
            [0, 0, 0, 0, 1, 1, 1, 1],
            "tail(0.25)",
            [0, 1, 5],
            [3, 7],
        ),  # a neighbour of another class, too
        ([1, 1, 0, 0, 1, 1, 0, 0], "tail(0.25)", [0, 1, 2, 3], [5, 7]),
        ([0] * 8 + [1], "tail(0.25)", [0, 1, 2, 3, 4], [6, 7]),  # too few for a test sample
        ([2] * 12 + [0] * 4, "tail(0.25)", [*range(8), 13], [9, 10, 11, 15]),
        (
            [0] * 10 + [1],
            "tail(0.6,gap=0)",
            [0, 1, 2, 3, 10],
            [4, 5, 6, 7, 8, 9],
        ),  # one of each class remains for training
    ],
)
def test_tail_examples(y: list[int], text: str, learn: list[int], test: list[int]) -> None:
    assert tail(y, text) == (learn, test)


@given(
    st.lists(st.integers(0, 3), min_size=30, max_size=120), st.floats(0.1, 0.5), st.integers(0, 3)
)
def test_tail_takes_the_last_samples_with_a_gap(y: list[int], fraction: float, gap: int) -> None:
    try:
        learn, test = tail(y, f"tail({fraction},gap={gap})")
    except UsageError:
        return
    labels = np.array(y)
    assert not set(learn) & set(test)
    for c in set(y):
        at = np.flatnonzero(labels == c).tolist()
        expected = min(round(fraction * len(at)), len(at) - 1)
        assert [i for i in test if y[i] == c] == at[len(at) - expected :]
    near = {i + step for i in test for step in range(-gap, gap + 1)}
    assert learn == [i for i in range(len(y)) if i not in near | set(test)]


def test_tail_in_a_partition_keeps_the_datas_order_and_no_chance() -> None:
    """The last quarter of each party; another seed changes only the validation part."""
    n = 240
    data = Dataset(
        "steps",
        torch.arange(float(n))[:, None],
        torch.arange(n) // 10 % 2,
        2,
        groups={"who": Groups(("ann", "bob"), np.arange(n) // 120)},
    )
    feds = [
        data.partition("natural", seed=s, test="tail(0.25,gap=2)", validation=0.2) for s in (0, 1)
    ]
    for fed in feds:
        for k, share in enumerate(fed.split.parties.values()):
            labels = data.y.numpy()
            for c in (0, 1):
                class_positions = [i for i in range(120 * k, 120 * k + 120) if labels[i] == c]
                assert [i for i in share.test if labels[i] == c] == class_positions[45:]
            near = {i + step for i in share.test for step in range(-2, 3)}
            assert sorted(share.train + share.validation) == [
                i for i in range(120 * k, 120 * k + 120) if i not in near
            ]
    assert [s.test for s in feds[0].split.parties.values()] == [
        s.test for s in feds[1].split.parties.values()
    ]
    assert feds[0].split.parties["ann"].validation != feds[1].split.parties["ann"].validation


def test_tail_of_shuffled_parts_follows_the_data_not_the_shuffle() -> None:
    fed = Dataset("steps", torch.zeros(80, 2), torch.zeros(80), 1).partition(
        "iid", 2, test="tail(0.25,gap=1)", validation=0
    )
    for share in fed.split.parties.values():
        assert len(share.test) == 10
        assert max(share.train) < min(share.test)


def test_tail_pools_the_official_test_part(official: Dataset) -> None:
    fed = official.partition("iid", 4, test="tail(0.25,gap=0)")
    assert sorted(indices(fed, "train", "validation", "test")) == list(range(len(official)))


def test_tail_of_users_arrays() -> None:
    x, y = np.arange(16.0)[:, None], [0] * 8 + [1] * 8
    fed = Federation.from_arrays({"north": (x, y)}, test="tail(0.25)", validation=0)
    north = fed.parties["north"]
    assert north.test.x[:, 0].tolist() == [6, 7, 14, 15]
    assert north.train.x[:, 0].tolist() == [0, 1, 2, 3, 4, 9, 10, 11, 12]
    with pytest.raises(UsageError, match="have no common test set for 'official'"):
        Federation.from_arrays({"north": (x, y)}, test="official")


@pytest.mark.parametrize(
    ("y", "text"),
    [
        ([0, 1, 2, 3], "tail(0.25)"),  # a quarter of one sample is none
        ([0, 0, 0, 0], "tail(0.25,gap=3)"),  # nothing remains for training
        ([0, 0], "tail(0.9)"),
    ],
)
def test_tail_without_enough_samples_is_refused(y: list[int], text: str) -> None:
    with pytest.raises(
        UsageError,
        match=(
            r"^Party 'p' has too few samples to test on the last [0-9.]+ of each class; use own"
        ),
    ):
        tail(y, text)


# --- official: the official test samples of the party's own source


def sources(n: int = 120, **more: Any) -> Dataset:
    """Three interleaved sources; every fourth sample is an official test sample, of the last source
    every fifth.
    """
    of = np.arange(n) % 3
    is_test = np.where(of < 2, np.arange(n) // 3 % 4 == 0, np.arange(n) // 3 % 5 == 0)
    more.setdefault("groups", {"source": Groups(("ann", "bob", "cyd"), of)})
    return Dataset(
        "sources",
        torch.arange(float(n))[:, None],
        torch.arange(n) // 3 % 2,
        2,
        mean=(0.0,),
        std=(1.0,),
        official_test=torch.from_numpy(is_test),
        **more,
    )


def official_of(data: Dataset, source: int) -> list[int]:
    assert data.official_test is not None
    return [i for i in range(len(data)) if data.official_test[i] and i % 3 == source]


@pytest.mark.parametrize(
    "spec", ["natural", "domain", "domain(parts=3)", "domain(parts=2,take=7)|keep(samples=5)"]
)
def test_official_is_all_of_the_own_source_and_nothing_else(spec: str) -> None:
    data = sources()
    fed = data.partition(spec, test="official", validation=0.2)
    for name, share in fed.split.parties.items():
        source = ("ann", "bob", "cyd").index(name.split("-")[0])
        assert list(share.test) == official_of(data, source)  # the parts of a source share them
        assert fed.parties[name].test.x[:, 0].tolist() == official_of(data, source)
    learned = indices(fed, "train", "validation")
    assert not set(learned) & {i for s in range(3) for i in official_of(data, s)}
    if spec in ("natural", "domain", "domain(parts=3)"):
        assert sorted(learned) == [
            i for i in range(120) if data.official_test is not None and not data.official_test[i]
        ]


def test_official_of_some_parties_leaves_out_the_others() -> None:
    fed = sources().partition("natural", 2, test="official")
    assert set(indices(fed, "test")) == {*official_of(sources(), 0), *official_of(sources(), 1)}


def test_official_by_the_grouping_that_parties_follow() -> None:
    groups = {
        "source": Groups(("ann", "bob", "cyd"), np.arange(120) % 3),
        "half": Groups(("one", "two"), np.arange(120) // 60),
    }
    data = sources(groups=groups)
    fed = data.partition("natural(by=half)", test="official")
    all_official = sorted(i for s in range(3) for i in official_of(data, s))
    assert [list(s.test) for s in fed.split.parties.values()] == [
        [i for i in all_official if i < 60],
        [i for i in all_official if i >= 60],
    ]


@pytest.mark.parametrize("size", [1, 2, 6])
def test_official_size_is_a_stratified_draw(size: int) -> None:
    data = sources(n=600)
    first, same, other = (
        data.partition("domain(parts=2)", seed=s, test=f"official(size={size})") for s in (0, 0, 1)
    )
    for fed in (first, other):
        for name, share in fed.split.parties.items():
            source = ("ann", "bob", "cyd").index(name.split("-")[0])
            assert len(share.test) == size == len(set(share.test))
            assert set(share.test) <= set(official_of(data, source))
            counts = np.bincount(data.y[list(share.test)], minlength=2)
            everything = np.bincount(data.y[official_of(data, source)], minlength=2)
            assert abs(counts - size * everything / everything.sum()).max() <= 1
    assert [s.test for s in first.split.parties.values()] == [
        s.test for s in same.split.parties.values()
    ]
    assert [s.test for s in first.split.parties.values()] != [
        s.test for s in other.split.parties.values()
    ]
    assert (
        first.split.parties["ann-0"].test != first.split.parties["ann-1"].test
    )  # each party has its own draw


def test_official_size_is_capped_at_all_samples() -> None:
    fed = sources().partition("natural", test="official(size=1000)")
    assert [list(s.test) for s in fed.split.parties.values()] == [
        official_of(sources(), k) for k in range(3)
    ]


def test_official_test_samples_have_the_partys_shift() -> None:
    x = torch.rand(120, 1, 4, 4)
    data = Dataset(
        "d",
        x,
        torch.arange(120) % 2,
        2,
        official_test=torch.arange(120) % 4 == 0,
        groups={"who": Groups(("ann", "bob"), np.arange(120) // 60)},
    )
    fed = data.partition("domain(parts=2)|shift(kinds=none,invert)", test="official")
    plain, inverted = fed.parties["ann-0"].test.x, fed.parties["ann-1"].test.x
    assert torch.equal(plain, (x[:60:4] - 0.5) / 0.5)
    assert torch.equal(inverted, (1 - x[:60:4] - 0.5) / 0.5)


def test_official_is_refused_where_it_does_not_apply(digits: Dataset, official: Dataset) -> None:
    with pytest.raises(
        UsageError,
        match=r"^These data have no official test part; use own\(0\.25\), matched or common\.$",
    ):
        digits.partition("iid", 3, test="official")
    with pytest.raises(
        UsageError,
        match=(
            r"^official tests each party on the test samples of its source, but this partition does"
            r" not follow sources"
        ),
    ):
        official.partition("iid", 3, test="official")
    is_test = torch.arange(120) % 3 == 0  # of ann alone
    lacking = replace(sources(), official_test=is_test & (torch.arange(120) > 60))
    with pytest.raises(
        UsageError,
        match=r"^The official test part has no samples of party 'bob'; use own\(0\.25\)\.$",
    ):
        lacking.partition("natural", test="official")
    assert lacking.partition("natural", 1, test="official").names == ["ann"]


def test_rules_of_order_and_source_read_their_options() -> None:
    assert repr(read("tail")) == "Tail(fraction=0.25, gap=1)"
    assert repr(read("tail(0.3,gap=4)")) == "Tail(fraction=0.3, gap=4)"
    assert repr(read("official")) == "Official(size=None, redraw=False)"
    assert repr(read("official(40)")) == "Official(size=40, redraw=False)"
    for text, message in (
        ("tail(0)", "fraction of tail must be more than 0 and less than 1, not 0.0."),
        ("tail(1)", "fraction of tail must be more than 0 and less than 1, not 1.0."),
        ("tail(0.25,gap=-1)", "gap of tail must be at least 0, not -1."),
        ("tail(0.25,gap=some)", "gap of tail must be a whole number, not 'some'."),
        ("official(size=0)", "size of official must be at least 1, not 0."),
        ("official(size=x)", "size of official must be a whole number or none, not 'x'."),
        ("official(0.25)", "size of official must be a whole number or none, not '0.25'."),
        ("offical", "There is no test protocol 'offical'. Did you mean 'official'?"),
    ):
        with pytest.raises(UsageError, match=re.escape(message)):
            read(text)


# --- regressions


def test_tail_leaves_no_neighbour_of_a_test_sample_to_learn_from() -> None:
    learn, test = tail([0] * 8 + [1] * 8 + [0] * 8 + [1] * 8)
    assert not {i + step for i in test for step in (-1, 1)} & set(learn)


def test_tail_leaves_something_to_learn_from_of_each_class() -> None:
    y = [0] * 10 + [1]
    learn, _ = tail(y, "tail(0.6,gap=0)")
    assert {y[i] for i in learn} == {0, 1}


def test_official_size_is_exact() -> None:
    y = torch.cat([torch.arange(20) % 10, torch.arange(20) % 10])
    groups = {"who": Groups(("ann",), np.zeros(40, dtype=np.int64))}
    data = Dataset(
        "d", torch.rand(40, 2), y, 10, official_test=torch.arange(40) >= 20, groups=groups
    )
    assert len(data.partition("natural", test="official(size=15)").parties["ann"].test) == 15


def test_a_gap_beyond_all_samples_is_refused_at_once() -> None:
    began = time.process_time()
    with pytest.raises(UsageError, match="too few samples"):
        tail([0] * 40, "tail(0.25,gap=1000000)")
    assert time.process_time() - began < 0.5


# --- official(redraw): data that were split into training and test by others


def resplit_dataset() -> Dataset:
    """Two sources: the first has official test samples, the second has 40 photos of 1 to 3 digits
    and was split by photo.
    """
    photos = np.repeat(np.arange(40), np.arange(40) % 3 + 1)
    n = len(photos)
    is_test = torch.cat([torch.arange(30) % 3 == 0, torch.from_numpy(photos >= 25)])
    return Dataset(
        "mixed",
        torch.arange(30.0 + n)[:, None],
        torch.arange(30 + n) % 2,
        2,
        official_test=is_test,
        groups={"source": Groups(("makers", "others"), np.repeat([0, 1], [30, n]))},
        cut_by=np.concatenate([np.full(30, -1), photos]),
    )


def test_redraw_depends_on_the_seed_and_keeps_units_together() -> None:
    data = resplit_dataset()
    assert data.official_test is not None
    assert data.cut_by is not None
    official_positions = np.flatnonzero(data.official_test.numpy())
    test_parts = set()
    for seed in range(20):
        fed = data.partition("domain", seed=seed, test="official(redraw=true)", validation=0)
        makers, others = (fed.split.parties[name] for name in ("makers", "others"))
        assert (
            list(makers.test) == official_positions[official_positions < 30].tolist()
        )  # official test samples stay
        assert not {data.cut_by[i] for i in others.train} & {data.cut_by[i] for i in others.test}
        assert sorted(others.train + others.test) == list(range(30, len(data)))
        assert len(others.train) == int(
            (~data.official_test[30:]).sum()
        )  # as many training samples as before
        test_parts.add(others.test)
    assert len(test_parts) == 20
    again = data.partition("domain", seed=3, test="official(redraw=true)")
    assert again.split.parties["others"].test in test_parts
    for seed in range(3):  # without redraw the split does not change
        fed = data.partition("domain", seed=seed, test="official")
        assert (
            list(fed.split.parties["others"].test)
            == official_positions[official_positions >= 30].tolist()
        )


def test_size_applies_to_the_redrawn_part() -> None:
    data = resplit_dataset()
    whole, some = (
        data.partition("domain", seed=5, test=f"official({more}redraw=true)")
        for more in ("", "size=7,")
    )
    assert len(some.split.parties["others"].test) == 7
    assert set(some.split.parties["others"].test) <= set(whole.split.parties["others"].test)


@given(
    sizes=st.lists(st.integers(1, 4), min_size=2, max_size=30),
    seed=st.integers(0, 99),
    tests=st.integers(1, 29),
)
def test_redraw_fills_the_training_part_with_whole_units(
    sizes: list[int], seed: int, tests: int
) -> None:
    cut = np.repeat(np.arange(len(sizes)), sizes)
    official = cut >= max(1, len(sizes) - tests)
    is_test = redraw_test_part(official, cut, np.random.default_rng(seed))
    free = int((~official).sum() - (~is_test).sum())
    assert free >= 0
    assert all(
        free < n for whole, n in enumerate(sizes) if is_test[cut == whole].all()
    )  # no unit of the test part would still fit
    assert all(len(set(is_test[cut == whole])) == 1 for whole in range(len(sizes)))
    assert (~is_test).any()


def test_nothing_to_redraw_is_refused(official: Dataset) -> None:
    with pytest.raises(
        UsageError,
        match=r"redraw needs data whose test part may be redrawn .*; leave out redraw",
    ):
        official.partition("iid", test="official(redraw=true)")
    with pytest.raises(UsageError, match="a unit with samples in both training and test"):
        replace(resplit_dataset(), cut_by=np.zeros(len(resplit_dataset()), np.int64))
    with pytest.raises(UsageError, match="must hold one integer per sample"):
        replace(resplit_dataset(), cut_by=np.zeros(3, np.int64))
