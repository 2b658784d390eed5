"""On which samples a party is tested, and what remains for training and validation."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from comity.data import Dataset, Federation
from comity.data.protocols import read, stratified
from comity.errors import Refusal


def labels(fed: Federation, part: str) -> list[np.ndarray]:
    return [np.bincount(getattr(p, part).y, minlength=fed.classes) for p in fed.parties.values()]


def indices(fed: Federation, *parts: str) -> list[int]:
    return [i for share in fed.split.parties.values() for part in parts for i in getattr(share, part)]


@pytest.fixture(scope="module")
def official(digits: Dataset) -> Dataset:
    """The digits, the last 400 of which are said to be for testing."""
    mask = torch.arange(len(digits)) >= len(digits) - 400
    return Dataset("official", digits.x, digits.y, 10, official_test=mask)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=80), st.floats(0.01, 0.99), st.integers(0, 1000))
def test_stratified_takes_each_class_its_share(y: list[int], fraction: float, seed: int) -> None:
    taken = stratified(np.array(y), fraction, np.random.default_rng(seed))
    for c in set(y):
        size, took = y.count(c), int(taken[np.array(y) == c].sum())
        assert took <= size - 1
        assert took <= fraction * size + 1
        assert took >= min(np.floor(fraction * size), size - 1)
    assert taken.sum() <= round(fraction * len(y))


def test_stratified_is_exact_where_shares_are_whole() -> None:
    y = np.repeat([0, 1, 2], [40, 20, 4])
    taken = stratified(y, 0.25, np.random.default_rng(0))
    assert np.bincount(y[taken]).tolist() == [10, 5, 1]


def test_stratified_ties_fall_by_chance() -> None:
    y = np.repeat(np.arange(10), 2)  # half a sample each
    draws = [y[stratified(y, 0.25, np.random.default_rng(s))] for s in range(200)]
    took = np.bincount(np.concatenate(draws), minlength=10)
    assert took.sum() == 5 * 200
    assert took.min() > 60  # 100 expected of each class


def test_stratified_keeps_single_samples_unless_there_is_nothing_else() -> None:
    y = np.array([0, 1, 2, 3, 3, 3])
    assert all(stratified(y, 0.5, np.random.default_rng(s), at_least=1)[:3].sum() == 0 for s in range(20))
    alone = np.arange(4)
    assert stratified(alone, 0.25, np.random.default_rng(0)).sum() == 0
    assert stratified(alone, 0.25, np.random.default_rng(0), at_least=1).sum() == 1
    assert stratified(alone, 0.99, np.random.default_rng(0), at_least=1).sum() == 3  # one is left to train on


@given(parties=st.integers(1, 30), fraction=st.floats(0.05, 0.9), validation=st.sampled_from([0, 0.1, 0.3]),
       seed=st.integers(0, 99))
def test_own_uses_every_sample_once(
    digits: Dataset, parties: int, fraction: float, validation: float, seed: int
) -> None:
    fed = digits.partition("dirichlet(alpha=1)", parties, seed, f"own({fraction})", validation)
    assert sorted(indices(fed, "train", "validation", "test")) == list(range(len(digits)))
    assert min(fed.sizes) >= 1
    assert min(len(p.test) for p in fed.parties.values()) >= 1


def test_own_fraction_and_validation_are_what_was_asked(digits: Dataset) -> None:
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
    assert [len(p) for p in vars(fed.parties["small"]).values()] == [3, 0, 1]


def test_common_is_one_set_for_all_and_unshifted(digits: Dataset) -> None:
    fed = digits.partition("pathological|shift(kinds=invert,noise)", 6, test="common")
    first, *others = fed.parties.values()
    assert all(p.test is first.test for p in others)
    assert len(first.test) == round(0.2 * 1797)
    held = fed.split.parties["p0"].test
    assert torch.equal(first.test.x, (digits.x[list(held)] - 0.5) / 0.5)
    assert torch.equal(first.test.y, digits.y[list(held)])
    assert not set(held) & set(indices(fed, "train", "validation"))
    assert np.bincount(first.test.y).min() >= 34  # stratified: 0.2 of 174 or more


def test_common_fraction(digits: Dataset) -> None:
    assert len(digits.partition("iid", 3, test="common(0.5)").parties["p0"].test) == round(0.5 * 1797)


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
    data = Dataset("apart", torch.zeros(50, 1, 2, 2), torch.arange(50) // 40, 2, official_test=torch.arange(50) >= 40)
    with pytest.raises(Refusal, match="The common test set has no samples of the classes of party 'p0'; use own"):
        data.partition("iid", 2, test="matched")


@pytest.mark.parametrize("test", ["own(0.25)", "own(0.5)"])
def test_test_settings_do_not_change_who_owns_what(digits: Dataset, test: str) -> None:
    def owned(fed: Federation) -> list[list[int]]:
        return [sorted(s.train + s.validation + s.test) for s in fed.split.parties.values()]

    plain = digits.partition("dirichlet(alpha=0.5)", 6, seed=3)
    assert owned(digits.partition("dirichlet(alpha=0.5)|shift", 6, 3, test, 0.3)) == owned(plain)


def test_shifts_and_validation_do_not_change_the_test_part(digits: Dataset) -> None:
    one = digits.partition("iid", 6, seed=3)
    two = digits.partition("iid|shift", 6, seed=3, validation=0.5)
    assert [s.test for s in one.split.parties.values()] == [s.test for s in two.split.parties.values()]


@pytest.mark.parametrize(("options", "message"), [
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
    ({"parties": 1797}, "Party 'p0' has 1 sample, but one to train on and one to test on are needed"),
])
def test_refusals(digits: Dataset, options: dict[str, Any], message: str) -> None:
    with pytest.raises(Refusal, match=re.escape(message)):
        digits.partition("iid", **{"parties": 5, **options})


def test_a_fraction_of_an_official_test_part_is_refused(official: Dataset) -> None:
    with pytest.raises(Refusal, match=r"common uses the dataset's official test part.*leave out fraction"):
        official.partition("iid", test="common(0.3)")


def test_matched_says_how_many_there_are(digits: Dataset) -> None:
    with pytest.raises(Refusal, match=r"has (3[0-9]) samples in the class proportions of party 'p0', not 50; "
                                      r"use size=\1 or less, or a larger fraction"):
        digits.partition("pathological(classes=1)", 10, test="matched(size=50)")


def test_rules_read_their_options() -> None:
    assert repr(read("own(0.3)")) == "Own(fraction=0.3)"
    assert repr(read("matched(40,fraction=0.5)")) == "Matched(size=40, fraction=0.5)"
