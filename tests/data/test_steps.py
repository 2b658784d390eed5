"""Steps after a partition: `keep` takes a number of samples, `concept` permutes labels, and neither
changes anything else.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from test_splits import assert_same

from comity.base.key import Key
from comity.data import Dataset, Federation, Share, Split
from comity.data.groups import Groups
from comity.data.steps import Concept, Keep, Steps
from comity.errors import UsageError
from comity.spec import parse

seeds = st.integers(0, 1000)
sizes_of_classes = st.lists(st.integers(1, 30), min_size=1, max_size=8)


def kept_counts(sizes: list[int], seed: int = 0, **how: Any) -> np.ndarray:
    """How many samples of each class a party with classes of these sizes keeps."""
    y = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(sizes)), sizes))
    learn = 1000 + np.arange(len(y))  # positions in a larger dataset
    everything = np.concatenate([np.zeros(1000, dtype=np.int64), y])
    selected = Keep(**how).select("p", everything, learn, np.random.default_rng(seed))
    assert set(selected) <= set(learn)
    assert len(set(selected)) == len(selected)
    assert sorted(selected) == list(selected)  # in the order of the data
    return np.bincount(everything[selected], minlength=len(sizes))


def training_indices(fed: Federation) -> list[list[int]]:
    return [sorted(s.train + s.validation) for s in fed.split.parties.values()]


def data(n: int = 240, classes: int = 4, **more: Any) -> Dataset:
    """A dataset of random images, which are all different."""
    draw = np.random.default_rng(0)
    x = torch.from_numpy(draw.random((n, 1, 4, 4)))
    more.setdefault("groups", {"who": Groups(("ann", "bob", "cyd"), np.arange(n) // 2 % 3)})
    more.setdefault("official_test", torch.from_numpy(draw.random(n) < 0.3))
    return Dataset("mine", x, torch.from_numpy(draw.integers(0, classes, n)), classes, **more)


# --- keep


@pytest.mark.parametrize(
    ("how", "sizes", "expected"),
    [
        ({"samples": 20}, [40, 20, 20], [10, 5, 5]),
        ({"fraction": 0.25}, [40, 20, 20], [10, 5, 5]),
        ({"fraction": 0.5}, [8, 4, 2], [4, 2, 1]),
        ({"samples": 1}, [9], [1]),
        ({"samples": 9}, [9], [9]),
        ({"fraction": 1}, [3, 1, 1], [3, 1, 1]),
        ({"samples": 5}, [3, 1, 1], [3, 1, 1]),
        ({"fraction": 0.001}, [30], [1]),  # at least one
    ],
)
def test_keep_in_proportion(how: dict[str, Any], sizes: list[int], expected: list[int]) -> None:
    for seed in range(5):
        assert kept_counts(sizes, seed, **how).tolist() == expected


@given(
    sizes=st.lists(st.integers(4, 40), min_size=1, max_size=8),
    fraction=st.floats(0.05, 0.5),
    seed=seeds,
)
def test_keep_is_exact_and_each_class_gives_its_share(
    sizes: list[int], fraction: float, seed: int
) -> None:
    expected = max(1, round(fraction * sum(sizes)))
    for counts in (
        kept_counts(sizes, seed, samples=expected),
        kept_counts(sizes, seed, fraction=fraction),
    ):
        assert counts.sum() == expected
        share = np.array(sizes) * expected / sum(sizes)
        assert (
            abs(counts - share) <= 1.5
        ).all()  # a whole number beside its share; rounding of the total adds half a sample


def test_keep_draws_at_random() -> None:
    """All samples are equally likely; the draw depends on the party's name and the seed."""
    y = np.zeros(40, dtype=np.int64)
    draws = [
        Keep(samples=10).select("p", y, np.arange(40), np.random.default_rng(s)) for s in range(400)
    ]
    often = np.bincount(np.concatenate(draws), minlength=40)
    assert often.sum() == 4000
    assert 60 < often.min() <= often.max() < 145  # 100 expected, a standard deviation of 9
    key = Key.root(0)
    steps = Steps.read([parse("keep(samples=10)")])
    first, same, other, elsewhere = (
        steps.keep(p, y, np.arange(40), k).tolist()
        for p, k in (("p", key), ("p", key), ("q", key), ("p", key.fold(1)))
    )
    assert first == same
    assert first not in (other, elsewhere)


@pytest.mark.parametrize(
    "test", ["own(0.25)", "tail(0.25)", "official", "matched(size=9)", "common"]
)
@pytest.mark.parametrize("partition", ["natural", "domain(parts=2)", "iid"])
@pytest.mark.parametrize(
    "keep", ["keep(samples=10)", "keep(fraction=0.5)", "keep(fraction=0.9)|keep(samples=9)"]
)
def test_keep_does_not_change_test_part_and_ownership(partition: str, keep: str, test: str) -> None:
    if test == "official" and partition == "iid":
        pytest.skip("official follows groups")
    whole, some = (
        data().partition(spec, 3, 3, test, 0.2) for spec in (partition, f"{partition}|{keep}")
    )
    assert whole.names == some.names
    assert [s.test for s in whole.split.parties.values()] == [
        s.test for s in some.split.parties.values()
    ]
    for all_of_it, part, share in zip(
        training_indices(whole), training_indices(some), some.split.parties.values(), strict=True
    ):
        assert set(part) <= set(all_of_it)
        expected = {"keep(samples=10)": 10, "keep(fraction=0.5)": round(len(all_of_it) / 2)}.get(
            keep, 9
        )
        assert len(part) == expected
        assert len(share.validation) == pytest.approx(
            0.2 * expected, abs=0.51
        )  # a part of the kept samples
    for name in whole.names:
        assert torch.equal(whole.parties[name].test.x, some.parties[name].test.x)
        assert torch.equal(whole.parties[name].test.y, some.parties[name].test.y)


def test_keep_keeps_each_partys_own_proportions(digits: Dataset) -> None:
    spec = "dirichlet(alpha=0.5)"
    whole, some = (digits.partition(s, 4, validation=0) for s in (spec, f"{spec}|keep(samples=60)"))
    assert [len(p) for p in training_indices(some)] == [60] * 4
    for before, after in zip(whole.counts(), some.counts(), strict=True):
        assert (after - 60 * before / before.sum()).abs().max() <= 1.5


def test_keep_twice_draws_twice() -> None:
    first, second = (
        data().partition(spec, 2)
        for spec in ("iid|keep(samples=40)", "iid|keep(samples=40)|keep(samples=20)")
    )
    assert all(
        set(b) < set(a) and len(b) == 20
        for a, b in zip(training_indices(first), training_indices(second), strict=True)
    )
    straight = data().partition("iid|keep(samples=20)", 2)
    assert training_indices(second) != training_indices(straight)


def test_error_for_keeping_too_many_names_the_party() -> None:
    with pytest.raises(
        UsageError,
        match=r"^With seed 3, party 'p0' has 45 samples to learn from, not 46: use a smaller keep\.$",
    ):
        data().partition("iid|keep(samples=46)", 4, seed=3)
    assert [len(p) for p in training_indices(data().partition("iid|keep(samples=45)", 4))] == [
        45
    ] * 4


# --- concept


def labels(fed: Federation) -> list[tuple[int, ...] | None]:
    return [s.labels for s in fed.split.parties.values()]


@given(groups=st.integers(2, 5), seed=seeds)
def test_concept_is_one_permutation_a_group(groups: int, seed: int) -> None:
    numberings = labels(data(classes=6).partition(f"iid|concept(groups={groups})", 11, seed=seed))
    assert numberings[0] is None
    assert all(names == numberings[i % groups] for i, names in enumerate(numberings))
    for names in numberings[1:groups]:
        assert sorted(names or ()) == list(range(6))
    assert numberings == labels(
        data(classes=6).partition(
            f"dirichlet(alpha=3,min=4)|concept(groups={groups})", 11, seed=seed
        )
    )


def test_concepts_of_many_classes_differ_between_groups_and_seeds() -> None:
    numberings = [
        labels(data(classes=8).partition("iid|concept(groups=4)", 4, seed=s))[1:] for s in range(5)
    ]
    assert len({names for per_seed in numberings for names in per_seed}) == 15  # 8! is large
    assert [Concept().class_numbers(i, 8, Key.root(0)) is None for i in range(5)] == [
        True,
        False,
        True,
        False,
        True,
    ]


@pytest.mark.parametrize(
    "test", ["own(0.25)", "tail(0.25)", "official", "matched(size=9)", "common"]
)
def test_concept_renames_in_all_parts_alike_and_changes_nothing_else(test: str) -> None:
    spec = "natural|keep(samples=30)|shift(kinds=noise,none)"
    plain, renamed = (
        data(classes=5).partition(s, None, 1, test, 0.2) for s in (spec, f"{spec}|concept")
    )
    assert labels(renamed)[0] is labels(renamed)[2] is None
    names = torch.tensor(labels(renamed)[1])
    assert names.tolist() != [0, 1, 2, 3, 4]
    for i, party in enumerate(plain.names):
        for part in ("train", "validation", "test"):
            before, after = (getattr(fed.parties[party], part) for fed in (plain, renamed))
            assert len(before)
            assert torch.equal(before.x, after.x)
            assert torch.equal(after.y, names[before.y] if i == 1 else before.y)
        assert plain.split.parties[party].train == renamed.split.parties[party].train


def test_common_test_set_has_the_labels_of_each_party() -> None:
    fed = data(classes=5).partition("natural|concept", seed=1, test="common")
    ann, bob, _ = fed.parties.values()
    assert torch.equal(ann.test.x, bob.test.x)
    assert torch.equal(bob.test.y, torch.tensor(labels(fed)[1])[ann.test.y])
    assert not torch.equal(bob.test.y, ann.test.y)


@pytest.mark.parametrize("test", ["own(0.25)", "common", "official"])
def test_a_saved_split_remembers_the_names(tmp_path: Path, test: str) -> None:
    spec = "natural|concept(groups=3)|keep(samples=20)|shift(kinds=texture,noise)"
    fed = data(classes=5).partition(spec, seed=8, test=test)
    text = fed.split.to_json()
    assert [p["labels"] is None for p in json.loads(text)["parties"].values()] == [
        True,
        False,
        False,
    ]
    (tmp_path / "split.json").write_text(text)
    assert_same(fed, data(classes=5).partition(str(tmp_path / "split.json")))
    assert Split.from_json(text) == fed.split


def test_split_without_concepts_is_read(digits: Dataset) -> None:
    saved = json.loads(digits.partition("iid", 3).split.to_json())
    for party in saved["parties"].values():
        del party["labels"]
    assert_same(digits.split(Split.from_json(json.dumps(saved))), digits.partition("iid", 3))
    assert Share((0,), (), (1,)).labels is None


# --- steps in general


@pytest.mark.parametrize(
    "step",
    [
        "keep(samples=9)",
        "concept",
        "shift(kinds=noise,thin)",
        "shift|keep(fraction=0.5)|concept(3)",
    ],
)
def test_a_step_that_comes_first_follows_iid(step: str) -> None:
    first, explicit = (data().partition(spec, 4, seed=2) for spec in (step, f"iid|{step}"))
    assert_same(first, explicit)
    assert first.split.partition == f"iid|{step}"


def test_the_order_of_different_steps_does_not_matter() -> None:
    first, second = (data().partition(spec, 4) for spec in (
        "iid|keep(samples=20)|concept|shift(kinds=noise)", "iid|shift(kinds=noise)|concept|keep(samples=20)",
    ))  # fmt: skip
    assert first.split.parties == second.split.parties
    assert all(
        torch.equal(first.parties[n].train.x, second.parties[n].train.x) for n in first.names
    )


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            "iid|keep",
            "keep takes either samples or fraction, as in keep(samples=200) or keep(fraction=0.2).",
        ),
        ("iid|keep(samples=3,fraction=0.5)", "keep takes either samples or fraction"),
        ("iid|keep(samples=0)", "samples of keep must be at least 1, not 0."),
        ("iid|keep(samples=-3)", "samples of keep must be at least 1, not -3."),
        ("iid|keep(samples=1.5)", "samples of keep must be a whole number or none, not '1.5'."),
        ("iid|keep(fraction=0)", "fraction of keep must be more than 0 and at most 1, not 0.0."),
        ("iid|keep(fraction=1.1)", "fraction of keep must be more than 0 and at most 1, not 1.1."),
        ("iid|keep(fraction=nan)", "fraction of keep must be more than 0 and at most 1, not nan."),
        ("iid|keep(part=0.5)", "There is no option of keep called 'part'."),
        ("iid|concept(groups=1)", "groups of concept must be at least 2, not 1."),
        ("iid|concept(groups=x)", "groups of concept must be a whole number, not 'x'."),
        ("iid|concept|concept(groups=3)", "A partition can have one concept step."),
        (
            "iid|kep(samples=3)",
            "There is no step after a partition called 'kep'. Did you mean 'keep'?",
        ),
        ("iid|iid", "There is no step after a partition called 'iid'."),
        ("kep(samples=3)", "There is no partition 'kep'."),
    ],
)
def test_refusals(spec: str, message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        data().partition(spec, 4)


# --- regressions


@given(sizes=sizes_of_classes, share=st.floats(0, 1), seed=seeds)
@example([90, 10], 0.99, 0)
@example([2] * 10, 0.75, 0)
@example([50, 1, 1, 1, 1], 0.5, 0)
@example([100] + [1] * 100, 0.75, 0)
def test_keep_is_exact(sizes: list[int], share: float, seed: int) -> None:
    expected = max(1, round(share * sum(sizes)))
    assert kept_counts(sizes, seed, samples=expected).sum() == expected


def test_keeping_nearly_all_keeps_rare_classes_as_often_as_others() -> None:
    counts = np.sum([kept_counts([20, 1], seed, fraction=0.9) for seed in range(50)], axis=0)
    assert counts[1] > 0


@pytest.mark.parametrize(("classes", "groups"), [(2, 2), (3, 3)])
def test_every_group_has_a_concept_of_its_own(classes: int, groups: int) -> None:
    for seed in range(20):
        numberings = [
            names or tuple(range(classes))
            for names in labels(
                data(classes=classes).partition(f"iid|concept(groups={groups})", groups, seed=seed)
            )
        ]
        assert len(set(numberings)) == groups


@pytest.mark.parametrize(
    "wrong", [[0], [], [4, 0, 1, 2], [-1, 0, 1, 2], [0, 0, 1, 2], [0, 1, 2, 3, 4]]
)
def test_a_split_with_wrong_names_is_refused(wrong: list[int]) -> None:
    saved = json.loads(data().partition("iid|concept", 2).split.to_json())
    saved["parties"]["p1"]["labels"] = wrong
    with pytest.raises(UsageError):
        data().split(Split.from_json(json.dumps(saved)))
