"""Fairness, AUC and retrieval: by hand, and against scikit-learn."""

from __future__ import annotations

import math

import pytest
import torch
from sklearn.metrics import roc_auc_score
from sklearn.preprocessing import label_binarize

from comity.base.key import Key
from comity.errors import ComityError
from comity.measure.fairness import fairness
from comity.metrics.auc import auc
from comity.metrics.metrics import METRICS
from comity.metrics.retrieval import Embeddings, retrieval


def test_fairness_by_hand():
    scores = fairness([0.5, 1.0, 0.0])
    assert (scores.best, scores.worst, scores.worst_tenth) == (1.0, 0.0, 0.0)
    assert scores.std == pytest.approx(math.sqrt(1 / 6))  # the population's: divided by 3, not by 2
    assert scores.jain == pytest.approx(1.5**2 / (3 * 1.25))


def test_the_worst_tenth_of_twenty_parties_is_two():
    assert fairness(i / 100 for i in range(20)).worst_tenth == pytest.approx(0.005)


@pytest.mark.parametrize(
    ("values", "jain"), [([0.3] * 4, 1.0), ([1.0, 0.0, 0.0, 0.0], 0.25), ([0.0, 0.0], 1.0)]
)
def test_jains_index_at_its_ends(values, jain):
    assert fairness(values).jain == pytest.approx(jain)


def test_nobody_has_no_fairness():
    with pytest.raises(ComityError, match="at least one party"):
        fairness([])


def test_auc_by_hand_with_a_tie():
    # Pairs (positive, negative): 0.8 > 0.4, 0.8 > 0.1, 0.4 = 0.4 counts half, 0.4 > 0.1.
    assert auc(torch.tensor([0.1, 0.4, 0.4, 0.8]), torch.tensor([0, 0, 1, 1])) == pytest.approx(
        3.5 / 4
    )


@pytest.mark.parametrize("levels", [3, 50, 10**6])
def test_auc_is_scikit_learns(levels):
    generator = Key.root(levels).generator()
    scores = torch.randint(levels, (400,), generator=generator).float()
    positive = torch.rand(400, generator=generator) < 0.3
    assert auc(scores, positive) == pytest.approx(roc_auc_score(positive, scores), abs=1e-12)


def test_micro_auc_is_scikit_learns():
    generator = Key.root(1).generator()
    scores, labels = (
        torch.randn(200, 5, generator=generator),
        torch.randint(5, (200,), generator=generator),
    )
    want = roc_auc_score(label_binarize(labels, classes=range(5)), scores, average="micro")
    assert METRICS["auc_micro"].of(scores.double(), labels) == pytest.approx(want, abs=1e-12)


def test_one_class_has_no_auc():
    assert auc(torch.rand(3), torch.ones(3)) is None
    assert auc(torch.rand(3), torch.zeros(3)) is None
    assert METRICS["auc_micro"].of(torch.rand(3, 4), torch.full((3,), 2)) is None


def test_scores_that_are_not_numbers_have_no_order():
    value = auc(torch.tensor([math.nan, 1.0]), torch.tensor([0, 1]))
    assert value is not None
    assert math.isnan(value)


def embeddings(angles, ids, cameras):
    """Features on a circle, of any length: the cosine sorts them by angle."""
    a = torch.tensor(angles)
    features = torch.stack([a.cos(), a.sin()], 1) * torch.arange(1, len(a) + 1)[:, None]
    return Embeddings(features, torch.tensor(ids), torch.tensor(cameras))


def test_average_precision_of_matches_at_ranks_1_and_3():
    query = embeddings([0.0], [7], [0])
    gallery = embeddings([0.1, 0.2, 0.3, 0.4], [7, 8, 7, 9], [1, 1, 2, 0])
    ranking = retrieval(query, gallery)
    assert ranking.map == pytest.approx((1 + 2 / 3) / 2)
    assert (ranking.cmc, ranking.queries) == ({1: 1.0, 5: 1.0}, 1)


def test_the_same_camera_is_left_out_of_the_ranking():
    query = embeddings([0.0], [7], [0])
    gallery = embeddings(
        [0.01, 0.1, 0.2, 0.3, 0.4], [7, 7, 8, 7, 9], [0, 1, 1, 2, 0]
    )  # the nearest is its own camera's
    assert retrieval(query, gallery).map == pytest.approx((1 + 2 / 3) / 2)


def test_another_identity_of_the_same_camera_stays_in():
    ranking = retrieval(
        embeddings([0.0], [7], [0]), embeddings([0.1, 0.2], [8, 7], [0, 1]), ranks=(1, 2)
    )
    assert ranking.map == pytest.approx(0.5)
    assert ranking.cmc == {1: 0.0, 2: 1.0}


def test_queries_without_a_match_do_not_count():
    query = embeddings([0.0, 0.0], [7, 5], [0, 0])
    gallery = embeddings([0.1, 0.2], [7, 5], [1, 0])  # 5 is there from its own camera only
    assert (retrieval(query, gallery).map, retrieval(query, gallery).queries) == (1.0, 1)
    assert retrieval(embeddings([0.0], [1], [0]), gallery).map is None


def test_many_queries_are_ranked_as_one_by_one():
    generator = Key.root(2).generator()
    query, gallery = (
        Embeddings(torch.randn(n, 4, generator=generator), torch.randint(9, (n,), generator=generator),
             torch.randint(3, (n,), generator=generator))
        for n in (700, 60)
    )  # fmt: skip
    alone = [
        retrieval(
            Embeddings(query.features[i, None], query.ids[i, None], query.cameras[i, None]), gallery
        )
        for i in range(700)
    ]
    values = [result.map for result in alone if result.map is not None]
    ranking = retrieval(query, gallery)
    assert ranking.queries == len(values)
    assert ranking.map == pytest.approx(sum(values) / len(values))
