"""Cross-validation: the test protocol `folds(K)`."""

from __future__ import annotations

import numpy as np
import pytest

import comity
from comity.data import Federation
from comity.data.protocols import folds_of
from comity.errors import UsageError


def federations(partition: str, seeds: range, folds: int = 4) -> list[Federation]:
    data = comity.load("digits")
    return [
        data.partition(partition, parties=3, seed=seed, test=f"folds({folds})") for seed in seeds
    ]


def own_samples(federation: Federation) -> dict[str, set[int]]:
    return {
        name: {*part.train, *part.validation, *part.test}
        for name, part in federation.split.parties.items()
    }


@pytest.mark.parametrize("partition", ["iid", "dirichlet(alpha=0.3)"])
def test_consecutive_seeds_test_on_every_sample_once(partition: str) -> None:
    folds = federations(partition, range(4))
    parties = own_samples(folds[0])
    assert all(own_samples(fold) == parties for fold in folds)
    for name, samples in parties.items():
        tested = [position for fold in folds for position in fold.split.parties[name].test]
        assert sorted(tested) == sorted(samples)


def test_folds_are_stratified_and_of_equal_size() -> None:
    for fold in federations("iid", range(4)):
        for data in fold.parties.values():
            whole = len(data.train) + len(data.validation) + len(data.test)
            assert abs(len(data.test) - whole / 4) < 1
            counts = np.bincount(data.test.y, minlength=10)
            every = counts + np.bincount(data.train.y, minlength=10)
            every += np.bincount(data.validation.y, minlength=10)
            assert np.abs(counts - every / 4).max() <= 1


def test_the_next_seeds_draw_other_folds() -> None:
    first, second = federations("iid", range(0, 1))[0], federations("iid", range(4, 5))[0]
    assert first.split.parties["p0"].test != second.split.parties["p0"].test


def test_a_saved_split_of_a_fold_gives_the_same_data() -> None:
    fold = comity.load("digits").partition("iid|shift(noise)", parties=2, seed=6, test="folds(4)")
    again = comity.load("digits").split(fold.split)
    assert again.fingerprint() == fold.fingerprint()


def test_noise_of_a_sample_is_the_same_in_all_folds() -> None:
    data = comity.load("digits")
    folds = [
        data.partition("iid|shift(noise)", parties=2, seed=seed, test="folds(2)") for seed in (0, 1)
    ]
    trained, tested = folds[0].parties["p0"], folds[1].parties["p0"]
    where = folds[0].split.parties["p0"].train.index(folds[1].split.parties["p0"].test[0])
    assert (trained.train.x[where] == tested.test.x[0]).all()


def test_arrays_in_a_federation_are_divided_into_folds() -> None:
    rng = np.random.default_rng(0)
    arrays = {
        name: (rng.normal(size=(40, 3)).astype(np.float32), np.arange(40) % 2) for name in "ab"
    }
    federation = Federation.from_arrays(arrays)
    folds = [federation.under_folds("folds(5)", seed) for seed in range(5)]
    tested = np.concatenate([fold.parties["a"].test.x.numpy() for fold in folds])
    assert sorted(map(tuple, tested)) == sorted(map(tuple, arrays["a"][0]))
    made_so = Federation.from_arrays(arrays, test="folds(5)", seed=3)
    assert made_so.fingerprint() == folds[3].fingerprint()


def test_a_federation_with_a_common_test_set_is_refused() -> None:
    federation = comity.load("digits").partition("iid", parties=2, test="common")
    with pytest.raises(UsageError, match="made with test='common': make it with test='folds"):
        federation.under_folds("folds(5)", 0)


def test_a_party_with_fewer_samples_than_folds_is_refused() -> None:
    with pytest.raises(UsageError, match="too few for 9 folds"):
        Federation.from_arrays({"a": (np.zeros((8, 2)), np.arange(8) % 2)}, test="folds(9)")


@pytest.mark.parametrize(
    ("text", "message"),
    [("folds(1)", "at least two"), ("folds(5,fold=2)", "give 5 seeds in place of fold")],
)
def test_nonsense_is_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        folds_of(text)
