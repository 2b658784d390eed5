"""SCAFFOLD (Karimireddy et al. 2020), Algorithm 1, on quadratics f_i(w) = a_i/2 (w - b_i)^2 that
are worked out by hand.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from toys import federation, quadratic, rounds, rows, server_of

import comity
from comity.algorithms.fedavg import FedAvg
from comity.algorithms.scaffold import Scaffold
from comity.core import Training

pytestmark = pytest.mark.quick

ETA, K = 0.1, 10
A, B = (4.0, 1.0), (1.0, 7.0)
OPTIMUM = (4 * 1 + 1 * 7) / 5  # of f_1 + f_2: sum a b / sum a = 2.2
HOW = Training(lr=ETA, batch=100, steps=K)
TWO = [rows(a, b) for a, b in zip(A, B, strict=True)]


def fedavg_fixed_point() -> float:
    """K steps take w to b + q (w - b) with q = (1 - eta a)^K; the fixed point of the average is sum
    (1-q) b / sum (1-q).
    """
    q = [(1 - ETA * a) ** K for a in A]
    return sum((1 - q_i) * b for q_i, b in zip(q, B, strict=True)) / sum(1 - q_i for q_i in q)


def test_two_quadratics_fedavg_stops_short_of_the_optimum() -> None:
    fedavg = FedAvg()
    server, s = server_of(fedavg, quadratic(), TWO, HOW)
    w = rounds(fedavg, server, s, 200)["body.w"].item()
    assert w == pytest.approx(3.3752, abs=1e-4)  # the closed form's value
    assert w == pytest.approx(fedavg_fixed_point(), abs=1e-9)
    assert abs(w - OPTIMUM) > 1


def test_two_quadratics_scaffold_reaches_the_optimum() -> None:
    scaffold = Scaffold()
    server, s = server_of(scaffold, quadratic(), TWO, HOW)
    s = rounds(scaffold, server, s, 200)
    assert s.theta["body.w"].item() == pytest.approx(OPTIMUM, abs=1e-9)


def test_two_quadratics_control_variates_end_as_gradients_at_the_optimum() -> None:
    """c_i -> grad f_i(w*) = a_i (w* - b_i) = 4.8 and -4.8, and c -> their mean, 0."""
    scaffold = Scaffold()
    server, s = server_of(scaffold, quadratic(), TWO, HOW)
    s = rounds(scaffold, server, s, 300)
    assert server.state(0).c["body.w"].item() == pytest.approx(4 * (2.2 - 1), abs=1e-6)
    assert server.state(1).c["body.w"].item() == pytest.approx(1 * (2.2 - 7), abs=1e-6)
    assert s.c["body.w"].item() == pytest.approx(0, abs=1e-6)


def test_two_quadratics_scaffold_with_half_the_parties_a_round() -> None:
    """Four parties, two drawn each round: c is (1/N) sum over all N, and the optimum is still
    reached.
    """
    four = [rows(4, 1), rows(1, 7), rows(2, -3), rows(3, 2)]
    optimum = (4 * 1 + 1 * 7 - 2 * 3 + 3 * 2) / 10
    scaffold = Scaffold(server_lr=0.5)
    server, s = server_of(
        scaffold, quadratic(), four, Training(lr=0.05, batch=100, steps=5), participation=0.5
    )
    s = rounds(scaffold, server, s, 400)
    assert s.theta["body.w"].item() == pytest.approx(optimum, abs=1e-4)


def test_alg1_l10_l12_l16_l17_first_round_by_hand() -> None:
    """x = 0, c = c_i = 0, two steps of 0.1: y_1 = 0 -> 0.4 -> 0.64 (a=4, b=1), y_2 = 0 -> 0.7 ->
    1.33 (a=1, b=7).

    l.12: c_i = (x - y_i) / (K eta) = -3.2 and -6.65.
    l.16: x = (0.64 + 1.33) / 2.
    l.17: c = (-3.2 - 6.65) / 2.
    """
    scaffold = Scaffold()
    server, s = server_of(scaffold, quadratic(), TWO, Training(lr=0.1, batch=100, steps=2))
    s = rounds(scaffold, server, s, 1)
    assert server.state(0).c["body.w"].item() == pytest.approx(-3.2)
    assert server.state(1).c["body.w"].item() == pytest.approx(-6.65)
    assert s.theta["body.w"].item() == pytest.approx(0.985)
    assert s.c["body.w"].item() == pytest.approx(-4.925)


def test_alg1_l10_l12_second_round_by_hand() -> None:
    """x = 0.985, c = -4.925, c_1 = -3.2, c_2 = -6.65 from the first round; a step is y - 0.1 (a (y
    - b) - c_i + c).

    Party 1, correction -c_1 + c = -1.725:
    0.985 - 0.1 (-0.06 - 1.725) = 1.1635; 1.1635 - 0.1 (0.654 - 1.725) = 1.2706.
    Party 2, correction -c_2 + c = 1.725:
    0.985 - 0.1 (-6.015 + 1.725) = 1.414; 1.414 - 0.1 (-5.586 + 1.725) = 1.8001.
    l.12: c_1 = -3.2 + 4.925 + (0.985 - 1.2706)/0.2 = 0.297;
    c_2 = -6.65 + 4.925 + (0.985 - 1.8001)/0.2 = -5.8005.
    """
    scaffold = Scaffold()
    server, s = server_of(scaffold, quadratic(), TWO, Training(lr=0.1, batch=100, steps=2))
    s = rounds(scaffold, server, s, 2)
    assert server.state(0).c["body.w"].item() == pytest.approx(0.297)
    assert server.state(1).c["body.w"].item() == pytest.approx(-5.8005)
    assert s.theta["body.w"].item() == pytest.approx((1.2706 + 1.8001) / 2)
    assert s.c["body.w"].item() == pytest.approx(
        (0.297 - 5.8005) / 2
    )  # c + mean of the changes = mean of the new


def test_alg1_l16_l17_with_half_the_parties_and_a_server_step() -> None:
    """l.16 takes the mean over S, l.17 divides by N: with |S| = 2 of N = 4, x moves by eta_g mean,
    c by half the mean.
    """
    four = [rows(4, 1), rows(1, 7), rows(2, -3), rows(3, 2)]
    scaffold = Scaffold(server_lr=0.25)
    server, s = server_of(
        scaffold, quadratic(1.5), four, Training(lr=0.1, batch=100, steps=1), participation=0.5
    )
    i, j = server.sample(1)
    s = rounds(scaffold, server, s, 1)
    gradient = {0: 4 * (1.5 - 1), 1: 1 * (1.5 - 7), 2: 2 * (1.5 + 3), 3: 3 * (1.5 - 2)}
    mean = (gradient[i] + gradient[j]) / 2
    assert s.theta["body.w"].item() == pytest.approx(1.5 - 0.25 * 0.1 * mean)
    assert s.c["body.w"].item() == pytest.approx(mean * 2 / 4)
    for k in set(range(4)) - {i, j}:
        assert server.state(k).c["body.w"].item() == 0


def test_alg1_l16_averages_uniformly_whatever_the_sample_counts() -> None:
    """9 and 1 samples; one step from 0: y = 0.4 and 0.7, x = 0.55 (FedAvg would say 0.43)."""
    scaffold = Scaffold()
    uneven = [rows(4, 1, count=9), rows(1, 7, count=1)]
    server, s = server_of(scaffold, quadratic(), uneven, Training(lr=0.1, batch=100, steps=1))
    assert rounds(scaffold, server, s, 1).theta["body.w"].item() == pytest.approx(0.55)


def test_alg1_l12_counts_each_partys_own_steps() -> None:
    """Epochs over 3 and 1 batches make K_1 = 3, K_2 = 1: c_1 = (0 - 0.784)/0.3, c_2 = (0 -
    0.7)/0.1.
    """
    scaffold = Scaffold()
    server, s = server_of(
        scaffold, quadratic(), [rows(4, 1, count=3), rows(1, 7)], Training(lr=0.1, batch=1)
    )
    rounds(scaffold, server, s, 1)
    assert server.state(0).c["body.w"].item() == pytest.approx(-(1 - 0.6**3) / 0.3)
    assert server.state(1).c["body.w"].item() == pytest.approx(-7.0)


def test_alg1_l12_a_party_without_a_step_changes_nothing() -> None:
    """drop_last with fewer samples than a batch: y = x and c_i stays, without a division by K = 0."""
    scaffold = Scaffold()
    data = [rows(4, 1, count=2), rows(1, 7, count=1)]
    server, s = server_of(scaffold, quadratic(), data, Training(lr=0.1, batch=2, min_batch=2))
    s = rounds(scaffold, server, s, 1)
    assert server.state(1).c["body.w"].item() == 0
    assert s.theta["body.w"].item() == pytest.approx(0.4 / 2)
    assert s.c["body.w"].item() == pytest.approx(-4.0 / 2)


@pytest.mark.parametrize("optimizer", ["sgd(momentum=0.9)", "adam"])
@pytest.mark.parametrize("method", ["scaffold", "scaffold+dbe"])
def test_option_ii_assumes_plain_sgd(method: str, optimizer: str) -> None:
    with pytest.raises(comity.UsageError, match="SGD"):
        comity.run(method, federation((6, 7)), rounds=1, optimizer=optimizer, engine="loop")


@pytest.mark.parametrize(("bn", "without"), [("all", "~"), ("params_only", "~"), ("none", ".bn.")])
def test_control_variates_cover_shared_parameters_without_buffers(bn: Any, without: str) -> None:
    """Running statistics have no gradient; BatchNorm values that stay at the party are not part of
    the drift.
    """
    fed = federation((12, 14), shape=(1, 8, 8))
    job = comity.run(
        "scaffold", fed, model="fedbn-cnn(scale=0.03)", bn=bn, rounds=1, batch=4, engine="loop"
    ).job
    key, expected = job.root.fold("init"), {k for k in job.info.task.shapes if without not in k}
    assert set(job.algorithm.init_server(key, job.info).c) == expected
    assert set(job.algorithm.init_party(key, job.parties[0]).c) == expected


@pytest.mark.parametrize("server_lr", [0.5, 1.0, 4.0])
def test_section0_running_statistics_are_averages_whatever_the_server_step(
    server_lr: float, replies: list[Any]
) -> None:
    """l.16 steps parameters; running means and variances are averages, and a variance stays
    positive.
    """
    fed = federation((12, 14), shape=(1, 8, 8))
    result = comity.run(
        "scaffold",
        fed,
        model="fedbn-cnn(scale=0.03)",
        rounds=1,
        batch=4,
        lr=0.001,
        server_lr=server_lr,
        engine="loop",
    )
    (training_replies,) = [call for call in replies if hasattr(call[0], "dc")]
    buffers = [name for name in result.job.info.task.shapes if "~" in name]
    assert buffers
    for name in buffers:
        mean = (
            training_replies[0].theta[name].double() + training_replies[1].theta[name].double()
        ) / 2
        torch.testing.assert_close(result.model("p0").theta[name].double(), mean, rtol=0, atol=1e-6)
