"""Fréchet distance, separability and drift, in cases with a known answer."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.linalg
import torch

from comity.base.key import Key
from comity.errors import ComityError
from comity.measure.drift import between_parties, over_training
from comity.measure.frechet import RIDGE, Gaussian, distance, distances_to_union, frechet, pairwise
from comity.measure.separability import proxy_a, separability


def normal(n: int, d: int, seed: int) -> torch.Tensor:
    return torch.randn(n, d, generator=Key.root(seed).generator())


def white(n: int, d: int, seed: int) -> torch.Tensor:
    """Samples whose mean is 0 and whose covariance is I, exactly."""
    x = normal(n, d, seed).double()
    x = x - x.mean(0)
    return x @ torch.linalg.inv(torch.linalg.cholesky(x.T @ x / (n - 1)).T)


def test_identical_sets_are_at_distance_zero():
    x = normal(50, 8, 0)
    assert frechet(x, x) == pytest.approx(0, abs=1e-6)
    wide = normal(10, 40, 0)
    assert frechet(wide, wide) == pytest.approx(0, abs=1e-6)


def test_a_shift_costs_its_square_and_a_scale_d_times_a_minus_1_squared():
    x, m = white(60, 5, 1), torch.tensor([3.0, 0, 4, 0, 0]).double()
    assert frechet(x, white(90, 5, 2) + m) == pytest.approx(25)
    assert frechet(x, 3 * white(90, 5, 2)) == pytest.approx(5 * (3 - 1) ** 2)


def test_covariances_that_do_not_commute_as_by_the_matrix_root():
    a, b = normal(80, 4, 3) @ normal(4, 4, 4), normal(70, 4, 5) @ normal(4, 4, 6) + 1
    s1, s2 = np.cov(a.double().numpy().T), np.cov(b.double().numpy().T)
    root = scipy.linalg.sqrtm(s1 @ s2)
    want = float((a.mean(0) - b.mean(0)).double().square().sum()) + np.trace(
        s1 + s2 - 2 * root.real
    )
    assert frechet(a, b) == pytest.approx(want, rel=1e-6)


def test_wide_features_are_turned_into_few_dimensions_without_loss():
    a, b = normal(6, 30, 7).double(), normal(9, 30, 8).double() + 0.5
    direct = distance(Gaussian.of(a), Gaussian.of(b))
    assert torch.allclose(Gaussian.of(a).cov, torch.cov(a.T) + RIDGE * torch.eye(30))
    assert frechet(a, b) == pytest.approx(direct, rel=1e-9)


def test_each_party_against_the_union_of_all():
    sets = [white(40, 2, k) + torch.tensor([shift, 0.0]) for k, shift in enumerate((-1.0, 1.0))]
    distances = distances_to_union(sets)
    union = torch.cat(sets)
    assert distances.per_party == pytest.approx([frechet(s, union) for s in sets])
    assert distances.mean == pytest.approx(sum(distances.per_party) / 2)
    # The union's mean is 0; along the shift its variance is (78 + 80)/79 = 2 instead of 1, across
    # it 78/79.
    want = 1 + (math.sqrt(2) - 1) ** 2 + (math.sqrt(78 / 79) - 1) ** 2
    assert distances.mean == pytest.approx(want, rel=1e-6)
    assert distances.std == pytest.approx(0, abs=1e-6)


def test_pairs_make_a_symmetric_matrix():
    sets = [white(30, 3, k) * scale for k, scale in enumerate((1.0, 2.0, 4.0))]
    matrix = pairwise(sets)
    assert torch.equal(matrix, matrix.T)
    assert torch.allclose(
        matrix, torch.tensor([[0.0, 3, 27], [3, 0, 12], [27, 12, 0]]).double(), atol=1e-6
    )


def test_matched_representations_cannot_be_told_apart():
    sets = [normal(200, 6, k) for k in range(4)]
    probe = separability(sets, Key.root(0))
    assert probe.chance == 0.25
    assert abs(probe.accuracy - 0.25) < 0.1
    assert abs(probe.balanced - 0.25) < 0.1
    assert probe.cross_entropy == pytest.approx(probe.log_n, abs=0.02)
    assert probe.entropy == pytest.approx(math.log(4))


def test_distant_representations_are_always_told_apart():
    sets = [normal(60, 3, k) + 20 * k for k in range(3)]
    probe = separability(sets, Key.root(0))
    assert (probe.accuracy, probe.balanced) == (1.0, 1.0)
    assert probe.cross_entropy < 0.5 * probe.log_n
    assert torch.allclose(proxy_a(sets, Key.root(0)), 2 * (1 - torch.eye(3)).double())


def test_parties_of_unequal_size_have_their_own_chance():
    probe = separability([normal(300, 4, 0), normal(100, 4, 1)], Key.root(0))
    assert probe.chance == pytest.approx(0.75)
    assert probe.entropy == pytest.approx(-(0.75 * math.log(0.75) + 0.25 * math.log(0.25)))
    assert probe.cross_entropy == pytest.approx(probe.entropy, abs=0.04)
    assert abs(probe.balanced - 0.5) < 0.1
    assert probe.accuracy == pytest.approx(0.75, abs=0.05)


def test_a_probe_begins_with_the_parties_shares():
    probe = separability([normal(300, 4, 0), normal(100, 4, 1)], Key.root(0), steps=1)
    assert probe.cross_entropy == pytest.approx(probe.entropy, abs=0.01)


def test_a_hidden_layer_sees_what_a_linear_probe_does_not():
    sets = [normal(300, 2, 0), 5 * normal(300, 2, 1)]  # one inside the other
    assert separability(sets, Key.root(0)).balanced < 0.65
    assert separability(sets, Key.root(0), hidden=(32,)).balanced > 0.85


def test_proxy_a_of_matched_unequal_and_partly_apart_pairs():
    sets = [normal(300, 2, 0), normal(100, 2, 1), normal(300, 2, 2) + torch.tensor([2.0, 0.0])]
    matrix = proxy_a(sets, Key.root(0))
    assert torch.equal(matrix, matrix.T)
    assert abs(float(matrix[0, 1])) < 0.4
    # Means two spreads apart: the best threshold errs with Φ(−1) = 0.159.
    assert float(matrix[0, 2]) == pytest.approx(2 * (1 - 2 * 0.1587), abs=0.25)


def test_more_pairs_than_one_stack_holds():
    sets = [normal(12, 2, k) + (20 if k == 0 else 0) for k in range(13)]  # 78 pairs
    matrix = proxy_a(sets, Key.root(0))
    assert (matrix[0, 1:] == 2).all()
    assert matrix[1:, 1:].mean() < 1


def test_one_party_cannot_be_told_from_itself():
    with pytest.raises(ComityError, match="two parties"):
        separability([normal(9, 2, 0)], Key.root(0))


Z = torch.tensor([[-1.0, 0], [-1, 2], [3, 0], [3, 2], [9, 9]])
Y, OWNER = torch.tensor([0, 0, 0, 0, 1]), torch.tensor([0, 0, 1, 1, 1])


def test_drift_between_parties_by_hand():
    drift = between_parties(
        Z, Y, OWNER
    )  # class 0: centroids (−1, 1) and (3, 1), common (1, 1); class 1 has one party only
    assert drift is not None
    assert drift.distance == pytest.approx(2)
    assert drift.spread == pytest.approx(
        math.sqrt(4 / 2)
    )  # four squares of 1, five samples less three centroids
    assert drift.relative == pytest.approx(math.sqrt(2))
    assert drift.chance == pytest.approx(math.sqrt(1 / 2 - 1 / 4))
    scaled = between_parties(7 * Z + 3, Y, OWNER)
    assert scaled is not None
    assert scaled.relative == pytest.approx(drift.relative)


def test_parties_that_differ_in_nothing_drift_by_chance_alone():
    drift = between_parties(normal(600, 100, 0), torch.arange(600) % 5, torch.arange(600) // 30 % 7)
    assert drift is not None
    assert drift.relative == pytest.approx(drift.chance, rel=0.05)


def test_no_drift_between_parties_without_a_common_class():
    assert between_parties(Z, torch.arange(5), torch.arange(5)) is None


def test_drift_over_training_by_hand():
    after = Z + torch.tensor([[3.0, 4], [3, 4], [0, 0], [0, 0], [0, 1]])
    drift = over_training(Z, after, Y, OWNER)
    assert drift.distance == pytest.approx((5 + 0 + 1) / 3)
    assert drift.spread == pytest.approx(math.sqrt(2))
    assert over_training(Z, Z, Y, OWNER).distance == 0


def test_classes_of_one_sample_have_no_spread():
    drift = over_training(Z, Z + 1, torch.arange(5), OWNER)
    assert (drift.spread, drift.relative) == (None, None)


def test_drift_needs_labels():
    with pytest.raises(ComityError, match="label"):
        over_training(Z, Z, Y[:2], OWNER)
