"""Plain models equal scikit-learn's on the same rows, also where a party lacks classes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import GridSearchCV, PredefinedSplit
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from comity.base.key import Key
from comity.base.samples import PartyData, Samples
from comity.components.plain_models import PENALTIES, fit
from comity.components.portable_models import build_portable, portable
from comity.data.protocols import TRAINING_FOLDS, training_folds


def draw(rows: int, classes: int, seed: int = 0) -> Samples:
    """Samples whose label follows from a sum of the inputs, with noise."""
    random = np.random.default_rng(seed)
    x = random.normal(size=(rows, 4)).astype(np.float32)
    score = x @ np.array([1.0, -2.0, 0.5, 0.0]) + random.normal(size=rows)
    if not classes:
        return Samples(torch.from_numpy(x), torch.from_numpy(score.astype(np.float32)))
    y = np.digitize(score, np.quantile(score, np.arange(1, classes) / classes))
    return Samples(torch.from_numpy(x), torch.from_numpy(y.astype(np.int64)))


def party(train: Samples) -> PartyData:
    return PartyData(train, train.take([]), train.take([]))


@pytest.mark.parametrize("classes", [0, 2, 3])
def test_linear_is_the_regression_that_a_grid_search_of_scikit_learn_finds(classes: int) -> None:
    train, new = draw(60, classes), draw(20, classes, seed=1)
    folds = np.arange(60) % 5  # of equal sizes, so that a mean over folds is one over samples
    model = LogisticRegression(max_iter=1000) if classes else Ridge()
    grid = (
        {"logisticregression__C": [1 / penalty for penalty in PENALTIES]}
        if classes
        else {"ridge__alpha": list(PENALTIES)}
    )
    search = GridSearchCV(
        make_pipeline(StandardScaler(), model),
        grid,
        scoring="neg_log_loss" if classes else "neg_mean_squared_error",
        cv=PredefinedSplit(folds),
    ).fit(train.x.double().numpy(), train.y.numpy())
    ours = fit("plain-linear", train, classes, folds)
    (best,) = search.best_params_.values()
    assert ours.penalty == pytest.approx(1 / best if classes else best)
    given, expected = ours.logits(new.x), search.predict(new.x.double().numpy())
    given = given.argmax(1) if classes else given[:, 0]
    np.testing.assert_allclose(given.numpy(), expected, rtol=1e-9)


def test_boosting_is_that_of_scikit_learn() -> None:
    train, new = draw(80, 2), draw(20, 2, seed=1)
    expected = HistGradientBoostingClassifier(min_samples_leaf=8, early_stopping=False)
    expected.fit(train.x.double().numpy(), train.y.numpy())
    ours = fit("plain-boosting", train, 2, np.arange(80) % 5)
    log_odds = ours.logits(new.x)[:, 1] - ours.logits(new.x)[:, 0]
    np.testing.assert_allclose(
        log_odds.numpy(), expected.decision_function(new.x.double().numpy()), rtol=1e-6
    )


def test_held_out_predictions_are_of_models_that_have_not_seen_the_sample() -> None:
    train = draw(40, 2)
    folds = np.arange(40) % 4
    before = fit("plain-boosting", train, 2, folds).out_of_fold
    flipped = train.y.clone()
    flipped[0] = 1 - flipped[0]  # a sample of fold 0
    after = fit("plain-boosting", Samples(train.x, flipped), 2, folds).out_of_fold
    assert torch.equal(before[folds == 0], after[folds == 0])
    assert not torch.equal(before[folds != 0], after[folds != 0])


@pytest.mark.parametrize("kind", ["plain-linear", "plain-boosting"])
def test_a_class_that_a_party_lacks_is_never_predicted(kind: str) -> None:
    train = draw(60, 3)
    two = train.take(np.flatnonzero(train.y.numpy() != 1))
    model = fit(kind, two, 3, np.arange(len(two)) % 5)
    logits = model.logits(train.x)
    assert logits.isfinite().all()
    assert set(logits.argmax(1).tolist()) == {0, 2}
    assert model.out_of_fold.isfinite().all()


@pytest.mark.parametrize("kind", ["plain-linear", "plain-boosting"])
@pytest.mark.parametrize("rows", [1, 7])
def test_a_party_of_one_class_predicts_it(kind: str, rows: int) -> None:
    train = Samples(draw(rows, 2).x, torch.ones(rows, dtype=torch.int64))
    folds = training_folds(party(train), Key.root(0))
    model = fit(kind, train, 2, folds)
    assert model.logits(draw(9, 2).x).argmax(1).tolist() == [1] * 9
    assert len(model.out_of_fold) == rows


def test_equal_data_give_equal_bits() -> None:
    train = draw(60, 3)
    folds = training_folds(party(train), Key.root(0))
    for kind in ("plain-linear", "plain-boosting"):
        first, second = (fit(kind, train, 3, folds) for _ in range(2))
        assert torch.equal(first.out_of_fold, second.out_of_fold)
        assert torch.equal(first.logits(train.x), second.logits(train.x))


def test_folds_are_stratified_and_keep_patients_together() -> None:
    train = draw(50, 2)
    folds = training_folds(party(train), Key.root(0))
    counts = np.array([np.bincount(train.y[folds == k], minlength=2) for k in range(5)])
    assert counts.max(0).tolist() == counts.min(0).tolist() == [5, 5]
    patients = torch.arange(50) // 3
    of_patients = training_folds(
        PartyData(train, train.take([]), train.take([]), patients=patients), Key.root(0)
    )
    assert all(len(set(of_patients[patients.numpy() == k].tolist())) == 1 for k in range(17))
    assert len(set(of_patients.tolist())) == TRAINING_FOLDS


@pytest.mark.parametrize("kind", ["plain-linear", "plain-boosting"])
@pytest.mark.parametrize("classes", [0, 2, 3])
def test_as_a_network_a_plain_model_predicts_the_same(kind: str, classes: int) -> None:
    train, new = draw(90, classes), draw(200, classes, seed=1)
    ours = fit(kind, train, classes, np.arange(90) % 5).logits
    name, theta = portable(ours, 4)
    network = build_portable(name, (4,), classes)
    logits = network.run(theta, new.x, False, 0, len(network.stages)).double()
    torch.testing.assert_close(logits, ours(new.x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["plain-linear", "plain-boosting"])
@pytest.mark.parametrize("seen", [(1,), (0, 2), (1, 2, 3)])
def test_a_network_never_predicts_a_class_that_was_not_in_training(
    kind: str, seen: tuple[int, ...]
) -> None:
    train, new = draw(60, len(seen) if len(seen) > 1 else 2), draw(50, 2, seed=1)
    train = Samples(train.x, torch.tensor([*seen, *seen])[train.y])
    ours = fit(kind, train, 4, np.arange(60) % 5).logits
    name, theta = portable(ours, 4)
    network = build_portable(name, (4,), 4)
    chance = network.run(theta, new.x, False, 0, len(network.stages)).softmax(1).double()
    assert set(chance.argmax(1).tolist()) <= set(seen)
    torch.testing.assert_close(chance, ours(new.x).softmax(1), rtol=1e-4, atol=1e-4)
