"""Partitions: no sample is assigned twice, none is left out, and the properties of each partition."""

from __future__ import annotations

import re
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from comity.data import partition_catalogue, partitions
from comity.data.groups import GROUPED
from comity.data.partitions import PARTITIONS, divide
from comity.errors import UsageError
from comity.spec import parse

SPECS = {
    "iid": "iid",
    "dirichlet": "dirichlet(alpha=1,min=1)",
    "mixture": "mixture(alpha=1)",
    "pathological": "pathological(classes=2)",
    "shard": "shard(per_party=2)",
    "quantity": "quantity(min=2)",
    "lognormal": "lognormal(min=2)",
}
seeds = st.integers(0, 10_000)


def labels(n: int = 600, classes: int = 10, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, classes, n)


def parts(spec: str, y: np.ndarray, parties: int, seed: int = 0) -> list[np.ndarray]:
    positions = []
    for rows in divide(parse(spec), y, {}, parties, np.random.default_rng(seed)).values():
        assert isinstance(rows, np.ndarray)
        positions.append(rows)
    return positions


def assert_disjoint(assigned: list[np.ndarray], y: np.ndarray, parties: int) -> np.ndarray:
    """No sample occurs twice, and there is a non-empty part for each party. Returns all assigned
    samples.
    """
    everything = np.concatenate(assigned)
    assert len(assigned) == parties
    assert min(map(len, assigned)) >= 1
    assert len(np.unique(everything)) == len(everything)
    assert everything.min() >= 0
    assert everything.max() < len(y)
    return everything


def test_every_partition_is_in_this_module() -> None:
    assert set(SPECS) == set(PARTITIONS)
    assert {row["name"] for row in partition_catalogue()} == set(PARTITIONS) | set(GROUPED)


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS.keys())
@given(parties=st.integers(1, 20), seed=seeds)
def test_no_sample_twice_and_none_left_out(spec: str, parties: int, seed: int) -> None:
    y = labels(seed=seed)
    everything = assert_disjoint(parts(spec, y, parties, seed), y, parties)
    if not (spec.startswith("pathological") and parties * 2 < 10):
        assert len(everything) == len(y)


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS.keys())
def test_same_seed_same_parts_other_seed_other_parts(spec: str) -> None:
    y = labels()
    first, same, other = (parts(spec, y, 7, seed) for seed in (1, 1, 2))
    assert all(np.array_equal(a, b) for a, b in zip(first, same, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(first, other, strict=True))


@given(parties=st.integers(1, 600), seed=seeds)
def test_iid_sizes_differ_by_one_at_most(parties: int, seed: int) -> None:
    sizes = [len(p) for p in parts("iid", labels(), parties, seed)]
    assert max(sizes) - min(sizes) <= 1


@given(
    parties=st.integers(2, 12),
    alpha=st.floats(0.3, 100),
    least=st.integers(1, 10),
    seed=seeds,
    balanced=st.booleans(),
)
def test_dirichlet_gives_everything_and_at_least_min(
    parties: int, alpha: float, least: int, seed: int, balanced: bool
) -> None:
    y = labels(seed=seed)
    assigned = parts(f"dirichlet(alpha={alpha},min={least},balanced={balanced})", y, parties, seed)
    assert len(assert_disjoint(assigned, y, parties)) == len(y)
    assert min(map(len, assigned)) >= least


def class_table(y: np.ndarray, assigned: list[np.ndarray]) -> np.ndarray:
    return np.array([np.bincount(y[p], minlength=y.max() + 1) for p in assigned])


def test_dirichlet_smaller_alpha_is_more_skewed() -> None:
    y = labels(2000)
    largest = {}
    for alpha in (0.1, 1, 1000):
        table = class_table(y, parts(f"dirichlet({alpha})", y, 10))
        largest[alpha] = (table.max(axis=1) / table.sum(axis=1)).mean()
    assert largest[0.1] > largest[1] > largest[1000]
    assert largest[0.1] > 0.5
    assert largest[1000] < 0.16  # near 1 / 10: all parties alike


@given(
    parties=st.integers(1, 30),
    alpha=st.sampled_from([1e-6, 0.05, 1.0, 1e6]),
    samples=st.integers(1, 20),
    seed=seeds,
)
def test_mixture_parties_have_equal_sizes(
    parties: int, alpha: float, samples: int, seed: int
) -> None:
    y = labels(seed=seed)
    assigned = parts(f"mixture(alpha={alpha},samples={samples})", y, parties, seed)
    assert_disjoint(assigned, y, parties)
    assert {len(p) for p in assigned} == {samples}


def test_mixture_example() -> None:
    """A party draws class shares; where a class has too few samples, other classes fill up."""
    y = np.repeat(np.arange(4), 1000)
    rng = np.random.default_rng(3)
    shares = [rng.dirichlet(np.full(4, 0.5)) for _ in range(3)]
    table = class_table(y, parts("mixture(alpha=0.5,samples=200)", y, 3, 3))
    assert np.abs(table - 200 * np.array(shares)).max() <= 1
    alone = class_table(y, parts("mixture(alpha=0.000001,samples=1500)", y, 1, 0))
    assert (
        sorted(alone[0].tolist())[-1] == 1000
    )  # one class entirely, and the rest from other classes


def test_mixture_smaller_alpha_is_more_skewed() -> None:
    y = labels(2000)
    largest = {
        a: (t.max(axis=1) / 20).mean()
        for a in (0.05, 1, 1000)
        for t in [class_table(y, parts(f"mixture({a},20)", y, 10))]
    }
    assert largest[0.05] > 0.7
    assert largest[0.05] > largest[1] > largest[1000]


def test_dirichlet_balanced_is_more_balanced() -> None:
    y = labels(2000)
    for seed in range(5):
        plain, balanced = (
            np.std([len(p) for p in parts(f"dirichlet(alpha=0.3,min=1,balanced={b})", y, 10, seed)])
            for b in ("false", "true")
        )
        assert balanced < plain


def test_dirichlet_balanced_gives_no_further_class_to_a_full_party() -> None:
    y = np.sort(labels(2000))
    table = class_table(y, parts("dirichlet(alpha=0.3,min=1,balanced=true)", y, 10))
    before = np.cumsum(table, axis=1) - table
    assert (table[before >= 200] == 0).all()
    assert (before >= 200).any()


def test_dirichlet_with_hardly_any_mass_still_ends() -> None:
    y = labels(2000)  # each draw gives a whole class to one party, also to one that is full already
    for seed in range(5):
        with np.errstate(all="raise"):
            assigned = parts("dirichlet(alpha=0.000001,min=1,balanced=true)", y, 3, seed)
        assert len(assert_disjoint(assigned, y, 3)) == len(y)


@given(parties=st.integers(1, 40), classes=st.integers(1, 10), seed=seeds)
def test_pathological_exact_classes_evenly_used(parties: int, classes: int, seed: int) -> None:
    y = labels(1000, seed=seed)
    assigned = parts(f"pathological(classes={classes})", y, parties, seed)
    everything = assert_disjoint(assigned, y, parties)
    table = class_table(y, assigned) > 0
    assert (table.sum(axis=1) == classes).all()
    used = table.sum(axis=0)
    assert used.max() - used.min() <= 1
    assert len(everything) == np.bincount(y)[used > 0].sum()  # all of every class that is used


def test_pathological_amounts_are_unequal_and_pairs_vary() -> None:
    y = labels(5000)
    assigned = parts("pathological(classes=2)", y, 50)
    assert np.std([len(p) for p in assigned]) > 5
    assert (
        len({tuple(np.unique(y[p])) for p in assigned}) > 5
    )  # a single repeated order would give 5


def test_pathological_counts_existing_classes_only() -> None:
    y = labels(100, classes=3) * 2  # labels 0, 2, 4
    assert all(len(np.unique(y[p])) == 3 for p in parts("pathological(classes=3)", y, 4))


@given(parties=st.integers(1, 30), per_party=st.integers(1, 5), seed=seeds)
def test_shard_parties_hold_few_classes(parties: int, per_party: int, seed: int) -> None:
    y = np.repeat(np.arange(10), 60)
    assigned = parts(f"shard(per_party={per_party})", y, parties, seed)
    sizes = [len(p) for p in assigned]
    assert max(sizes) - min(sizes) <= per_party
    if parties * per_party >= 10:  # then a shard is no longer than a class, and touches two at most
        assert max(len(np.unique(y[p])) for p in assigned) <= 2 * per_party


@given(
    classes=st.integers(1, 8), per_class=st.integers(1, 6), per_party=st.integers(1, 4), seed=seeds
)
def test_shards_by_class_hold_one_class_each(
    classes: int, per_class: int, per_party: int, seed: int
) -> None:
    shards = classes * per_class
    if shards % per_party:
        return
    draw = np.random.default_rng(seed)
    sizes = draw.integers(per_class, 40, classes)
    y = draw.permutation(
        np.repeat(3 * np.arange(classes), sizes)
    )  # labels 0, 3, 6, ...: there are no samples of the others
    if per_party > len(y) // (shards // per_party):
        return
    assigned = parts(f"shard(per_party={per_party},by_class=true)", y, shards // per_party, seed)
    assert len(assert_disjoint(assigned, y, shards // per_party)) == len(y)
    counts = np.array([[(y[p] == c).sum() for c in 3 * np.arange(classes)] for p in assigned])
    assert ((counts > 0).sum(axis=1) <= per_party).all()
    low, high = (
        sizes // per_class,
        -(-sizes // per_class),
    )  # the shards of a class are equal but for one sample
    if (low > per_party).all():  # then the number of samples determines the number of shards
        shard_classes = np.array(
            [
                [
                    k
                    for c, n in enumerate(row)
                    for k in range(per_party + 1)
                    if k * low[c] <= n <= k * high[c]
                ]
                for row in counts
            ]
        )
        assert (shard_classes.sum(axis=1) == per_party).all()
        assert (shard_classes.sum(axis=0) == per_class).all()


def test_shards_by_class_example() -> None:
    """Two classes of 4 and 8 in four shards: two of 2 and two of 4."""
    y = np.array([1, 0, 1, 1, 0, 1, 1, 0, 1, 1, 0, 1])
    assigned = parts("shard(per_party=1,by_class=true)", y, 4)
    assert sorted((len(p), set(y[p].tolist()) == {0}) for p in assigned) == [
        (2, True),
        (2, True),
        (4, False),
        (4, False),
    ]
    plain = parts("shard(per_party=1)", y, 4)
    assert [len(p) for p in plain] == [3] * 4  # equal shards, one of which holds both classes
    assert any(len(set(y[p].tolist())) == 2 for p in plain)


def test_shards_by_class_are_dealt_at_random() -> None:
    y = np.repeat(np.arange(10), 20)
    first = [tuple(np.unique(y[parts("shard(2,by_class=true)", y, 10, s)[0]])) for s in range(20)]
    assert len(set(first)) > 10


@given(parties=st.integers(1, 20), classes=st.integers(1, 10), seed=seeds)
def test_pathological_equal_shares_are_equal(parties: int, classes: int, seed: int) -> None:
    y = labels(1000, seed=seed)
    assigned = parts(f"pathological(classes={classes},equal=true)", y, parties, seed)
    everything = assert_disjoint(assigned, y, parties)
    table = class_table(y, assigned)
    assert ((table > 0).sum(axis=1) == classes).all()
    for column in table.T:
        shares = column[column > 0]
        assert len(shares) == 0 or shares.max() - shares.min() <= 1
    assert len(everything) == np.bincount(y)[(table > 0).any(axis=0)].sum()


def test_pathological_equal_changes_the_amounts_not_the_classes() -> None:
    y = labels(1000)
    unequal, equal = (
        class_table(y, parts(f"pathological(classes=2,equal={e})", y, 10))
        for e in ("false", "true")
    )
    assert ((unequal > 0) == (equal > 0)).all()
    assert np.std(unequal.sum(axis=1)) > 3 * np.std(equal.sum(axis=1))


@pytest.mark.parametrize("spec", ["quantity(beta={},min=3)", "lognormal(sigma={},min=3)"])
@given(parties=st.integers(2, 50), seed=seeds, option=st.sampled_from([0.1, 0.5, 2.0]))
def test_sizes_keep_to_min(spec: str, parties: int, seed: int, option: float) -> None:
    assigned = parts(spec.format(option), labels(), parties, seed)
    assert min(map(len, assigned)) >= 3


def test_sizes_follow_their_option() -> None:
    def spread(spec: str) -> float:
        return float(
            np.mean([np.std([len(p) for p in parts(spec, labels(), 10, s)]) for s in range(10)])
        )

    assert spread("quantity(beta=0.2)") > spread("quantity(beta=1)") > spread("quantity(beta=100)")
    assert (
        spread("lognormal(sigma=2)")
        > spread("lognormal(sigma=0.5)")
        > spread("lognormal(sigma=0.01)")
    )
    assert len(parts("lognormal(sigma=100)", labels(), 10)) == 10


@pytest.mark.parametrize(
    ("spec", "parties", "message"),
    [
        ("dirichelt(alpha=1)", 5, "There is no partition 'dirichelt'. Did you mean 'dirichlet'?"),
        ("dirichlet", 5, "dirichlet needs alpha, as in dirichlet(alpha=...)."),
        (
            "dirichlet(alpha=0)",
            5,
            "alpha of dirichlet must be more than 0 and at most 1e+06, not 0.0.",
        ),
        ("dirichlet(alpha=-1)", 5, "alpha of dirichlet must be more than 0"),
        ("dirichlet(alpha=nan)", 5, "alpha of dirichlet must be more than 0"),
        ("dirichlet(alpha=inf)", 5, "alpha of dirichlet must be more than 0"),
        ("dirichlet(alpha=much)", 5, "alpha of dirichlet must be a number, not 'much'."),
        ("mixture(alpha=0)", 5, "alpha of mixture must be more than 0 and at most 1e+06, not 0.0."),
        (
            "mixture(alpha=1,samples=121)",
            5,
            "samples of mixture must be from 1 to 120 for 5 parties and 600 samples, not 121.",
        ),
        ("dirichlet(alpha=1,min=0)", 5, "min of dirichlet must be at least 1, not 0."),
        ("dirichlet(alpha=1,mim=3)", 5, "no option of dirichlet called 'mim'. Did you mean 'min'?"),
        (
            "dirichlet(alpha=1,min=100)",
            7,
            "needs 700 samples for 7 parties, but there are 600; use a smaller min or fewer",
        ),
        ("dirichlet(alpha=0.01)", 50, "use a smaller min, a larger alpha or fewer parties."),
        (
            "pathological(classes=11)",
            5,
            "classes of pathological must be from 1 to 10, as the data have, not 11.",
        ),
        ("pathological(classes=0)", 5, "classes of pathological must be from 1 to 10"),
        ("pathological(classes=2)", 500, "parties would share the"),
        (
            "shard(per_party=0)",
            5,
            "per_party of shard must be from 1 to 120 for 5 parties and 600 samples, not 0.",
        ),
        ("shard(per_party=3)", 300, "per_party of shard must be from 1 to 2"),
        (
            "shard(per_party=3,by_class=true)",
            5,
            "10 classes cannot be divided equally into 15 shards of at least one sample; change "
            "parties or per_party, or use by_class=false.",
        ),
        (
            "shard(per_party=1,by_class=true)",
            600,
            "10 classes cannot be divided equally into 600 shards of at least one sample",
        ),
        (
            "shard(per_party=2,by_class=perhaps)",
            5,
            "by_class of shard must be true or false, not 'perhaps'.",
        ),
        ("shard(per_party=2,by_class=1)", 5, "by_class of shard must be true or false, not '1'."),
        ("pathological(equal=0)", 5, "equal of pathological must be true or false, not '0'."),
        ("pathological(even=true)", 5, "There is no option of pathological called 'even'."),
        ("quantity(beta=0)", 5, "beta of quantity must be more than 0"),
        ("quantity(min=61)", 10, "quantity with min=61 needs 610 samples"),
        ("lognormal(sigma=0)", 5, "sigma of lognormal must be more than 0"),
        (
            "lognormal(sigma=101)",
            5,
            "sigma of lognormal must be more than 0 and at most 100, not 101.0.",
        ),
        ("lognormal(min=61)", 10, "lognormal with min=61 needs 610 samples"),
        ("iid(3)", 5, "iid takes at most 0 values"),
        ("iid", 0, "There must be at least one party, not 0."),
        ("iid", 601, "There are 600 samples to share, too few for 601 parties; use fewer parties."),
    ],
)
def test_refusals(spec: str, parties: int, message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        parts(spec, labels(), parties)


def test_ten_thousand_parties_are_quick() -> None:
    y = labels(200_000)
    began = time.process_time()
    for spec in SPECS.values():
        assert len(parts(spec.replace("alpha=1", "alpha=10"), y, 10_000)) == 10_000
    assert time.process_time() - began < 5  # about one second on one slow core


def test_catalogue_names_options() -> None:
    rows = {row["name"]: row for row in partition_catalogue()}
    assert rows["dirichlet"]["options"] == {"alpha": None, "min": 10, "balanced": False}
    assert rows["iid"]["options"] == {}
    assert rows["shard"]["options"] == {"per_party": 2, "by_class": False}
    assert rows["pathological"]["options"] == {"classes": 2, "equal": False}
    assert rows["natural"]["options"] == {"by": "", "min": 4}
    assert rows["domain"]["options"] == {"by": "", "parts": 1, "take": None}
    assert all(str(row["description"]).endswith(".") for row in rows.values())


def test_custom_partition_is_registered_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partitions, "PARTITIONS", dict(PARTITIONS))

    @partitions.partition
    def first(
        y: np.ndarray, parties: int, rng: np.random.Generator, *, count: int = 3
    ) -> list[np.ndarray]:
        """`count` samples per party, in order."""
        return [np.arange(i * count, (i + 1) * count) for i in range(parties)]

    assert [p.tolist() for p in parts("first(count=2)", labels(), 2)] == [[0, 1], [2, 3]]
