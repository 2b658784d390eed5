"""FedDyn (Acar et al. 2021), Algorithm 1: on quadratics f_i(w) = a_i/2 (w - b_i)^2 that are worked
out by hand, and whole rounds against plain PyTorch.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from plain import Trainer, cross_entropy, first, stream
from test_reductions import assert_same
from torch import Tensor
from toys import assert_near, federation, quadratic, rounds, rows, samples, server_of, task_of

import comity
from comity.algorithms.fedavg import FedAvg
from comity.algorithms.feddyn import FedDyn
from comity.core import Batch, Params, Training

pytestmark = pytest.mark.quick

A, B = (4.0, 1.0), (1.0, 7.0)
OPTIMUM = (4 * 1 + 1 * 7) / 5  # of f_1 + f_2: sum a b / sum a = 2.2
TWO = [rows(a, b) for a, b in zip(A, B, strict=True)]
FOUR = [rows(4, 1), rows(1, 7), rows(2, -3), rows(3, 2)]
TWO_STEPS = Training(lr=0.1, batch=100, steps=2)
SGD = partial(torch.optim.SGD, lr=0.1)


def test_two_quadratics_feddyn_reaches_the_optimum_where_fedavg_stops_short() -> None:
    how = Training(lr=0.1, batch=100, steps=10)
    feddyn, fedavg = FedDyn(alpha=1.0), FedAvg()
    server, s = server_of(feddyn, quadratic(), TWO, how)
    s = rounds(feddyn, server, s, 300)
    assert s.theta["body.w"].item() == pytest.approx(OPTIMUM, abs=1e-9)
    server, theta = server_of(fedavg, quadratic(), TWO, how)
    assert abs(rounds(fedavg, server, theta, 300)["body.w"].item() - OPTIMUM) > 1


def test_two_quadratics_g_ends_as_the_gradients_at_the_optimum() -> None:
    """g_k -> grad f_k(w*) = a_k (w* - b_k) = 4.8 and -4.8, and h -> their mean, 0."""
    feddyn = FedDyn(alpha=1.0)
    server, s = server_of(feddyn, quadratic(), TWO, Training(lr=0.1, batch=100, steps=10))
    s = rounds(feddyn, server, s, 300)
    assert server.state(0).g["body.w"].item() == pytest.approx(4 * (2.2 - 1), abs=1e-6)
    assert server.state(1).g["body.w"].item() == pytest.approx(1 * (2.2 - 7), abs=1e-6)
    assert s.h["body.w"].item() == pytest.approx(0, abs=1e-6)


def test_two_quadratics_with_half_the_parties_a_round() -> None:
    optimum = (4 * 1 + 1 * 7 - 2 * 3 + 3 * 2) / 10
    feddyn = FedDyn(alpha=2.0)
    how = Training(lr=0.1, batch=100, steps=20)
    server, s = server_of(feddyn, quadratic(), FOUR, how, participation=0.5)
    s = rounds(feddyn, server, s, 600)
    assert s.theta["body.w"].item() == pytest.approx(optimum, abs=1e-6)


def test_alg1_first_round_by_hand() -> None:
    """α = 0.5, g = h = 0, two steps of 0.1 from 0; a step is w - 0.1 (a (w - b) + 0.5 w).

    Party 1 (a=4, b=1): 0.4; 0.4 - 0.1 (-2.4 + 0.2) = 0.62.
    Party 2 (a=1, b=7): 0.7; 0.7 - 0.1 (-6.3 + 0.35) = 1.295.
    g_1 = -0.5 · 0.62 = -0.31, g_2 = -0.6475; h = their mean = -0.47875.
    θ = (0.62 + 1.295) / 2 + 0.47875 / 0.5 = 0.9575 + 0.9575 = 1.915.
    """
    feddyn = FedDyn(alpha=0.5)
    server, s = server_of(feddyn, quadratic(), TWO, TWO_STEPS)
    s = rounds(feddyn, server, s, 1)
    assert server.state(0).g["body.w"].item() == pytest.approx(-0.31)
    assert server.state(1).g["body.w"].item() == pytest.approx(-0.6475)
    assert s.h["body.w"].item() == pytest.approx(-0.47875)
    assert s.theta["body.w"].item() == pytest.approx(1.915)


def test_alg1_second_round_by_hand() -> None:
    """From 1.915 with g_1 = -0.31, g_2 = -0.6475 and h = -0.47875; a step is w - 0.1 (a (w - b) -
    g + 0.5 (w - 1.915)).

    Party 1: 1.915 - 0.1 (3.66 + 0.31) = 1.518; 1.518 - 0.1 (2.072 + 0.31 - 0.1985) = 1.29965.
    Party 2: 1.915 - 0.1 (-5.085 + 0.6475) = 2.35875;
    2.35875 - 0.1 (-4.64125 + 0.6475 + 0.221875) = 2.7359375.
    h = -0.47875 - 0.25 (-0.61535 + 0.8209375) = -0.530146875; θ = 2.01779375 + 1.06029375.
    """
    feddyn = FedDyn(alpha=0.5)
    server, s = server_of(feddyn, quadratic(), TWO, TWO_STEPS)
    s = rounds(feddyn, server, s, 2)
    assert server.state(0).g["body.w"].item() == pytest.approx(-0.31 + 0.5 * 0.61535)
    assert server.state(1).g["body.w"].item() == pytest.approx(-0.6475 - 0.5 * 0.8209375)
    assert s.h["body.w"].item() == pytest.approx(-0.530146875)
    assert s.theta["body.w"].item() == pytest.approx(2.01779375 + 1.06029375)


def test_alg1_h_is_divided_by_all_parties_and_the_mean_by_those_that_replied() -> None:
    """|P| = 2 of m = 4; one step of 0.1 from 1.5 moves w by -0.1 a (w - b)."""
    feddyn = FedDyn(alpha=0.5)
    how = Training(lr=0.1, batch=100, steps=1)
    server, s = server_of(feddyn, quadratic(1.5), FOUR, how, participation=0.5)
    i, j = server.sample(1)
    s = rounds(feddyn, server, s, 1)
    move = {0: -0.1 * 4 * 0.5, 1: 0.1 * 1 * 5.5, 2: -0.1 * 2 * 4.5, 3: 0.1 * 3 * 0.5}
    h = -0.5 / 4 * (move[i] + move[j])
    assert s.h["body.w"].item() == pytest.approx(h)
    assert s.theta["body.w"].item() == pytest.approx(1.5 + (move[i] + move[j]) / 2 - h / 0.5)
    for k in set(range(4)) - {i, j}:
        assert server.state(k).g["body.w"].item() == 0


def test_h_is_the_mean_of_all_g() -> None:
    feddyn = FedDyn(alpha=0.3)
    server, s = server_of(feddyn, quadratic(), FOUR, TWO_STEPS, participation=0.5)
    s = rounds(feddyn, server, s, 7)
    mean = sum(server.state(k).g["body.w"].item() for k in range(4)) / 4
    assert s.h["body.w"].item() == pytest.approx(mean)
    assert mean != 0


def in_plain_torch(result: comity.Result, alpha: float, cohorts: list[list[int]]) -> Params:
    """Algorithm 1 with autograd's gradient of the whole objective and torch's SGD."""
    parties = len(result.job.parties)
    theta = first(result)
    g = [{k: torch.zeros_like(v) for k, v in theta.items()} for _ in range(parties)]
    h = {k: torch.zeros_like(v) for k, v in theta.items()}
    for t, cohort in enumerate(cohorts, start=1):
        models: dict[int, Params] = {}
        for k in cohort:

            def objective(
                w: Params, batch: Batch, linear: Params = g[k], start: Params = theta
            ) -> Tensor:
                inner = sum((linear[n] * w[n]).sum() for n in w)
                square = sum((w[n] - start[n]).square().sum() for n in w)
                return cross_entropy(w, batch) - inner + alpha / 2 * square

            models[k] = Trainer(theta, SGD).train(stream(result, k, t, "local"), objective)
            g[k] = {n: g[k][n] - alpha * (models[k][n] - theta[n]) for n in theta}
        change = {n: sum(w[n] - theta[n] for w in models.values()) for n in theta}
        h = {n: h[n] - alpha / parties * change[n] for n in theta}
        mean = {n: sum(w[n] for w in models.values()) / len(models) for n in theta}
        theta = {n: mean[n] - h[n] / alpha for n in theta}
    return theta


@pytest.mark.parametrize("participation", [1.0, 0.5])
@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_whole_rounds_are_those_of_plain_pytorch(engine: Any, participation: float) -> None:
    result = comity.run(
        "feddyn(alpha=0.1)",
        federation((9, 14, 6, 11)),
        model="mlp2(width=7)",
        rounds=4,
        lr=0.1,
        batch=4,
        epochs=2,
        engine=engine,
        participation=participation,
    )
    cohorts = [result.job.cohort(t) for t in range(1, 5)]
    expected = in_plain_torch(result, 0.1, cohorts)
    for name in result.job.info.names:
        assert_near(result.model(name).theta, expected, atol=1e-6)


def test_alpha_0_is_fedavg_of_equally_large_parties() -> None:
    """Bit for bit: FedDyn's mean is uniform, and so is FedAvg's where all sizes are equal."""
    how: dict[str, Any] = {
        "model": "mlp2(width=7)",
        "rounds": 3,
        "lr": 0.1,
        "batch": 4,
        "engine": "loop",
    }
    fed = federation((8, 8, 8, 8))
    assert_same(comity.run("feddyn(alpha=0)", fed, **how), comity.run("fedavg", fed, **how))


def test_every_party_starts_from_what_the_server_sent() -> None:
    with pytest.raises(comity.UsageError, match="feddyn measures h from the weights"):
        comity.run("feddyn", federation((8, 8)), rounds=1, init="own")


def test_buffers_are_averages_of_the_parties(replies: list[dict[int, Any]]) -> None:
    """BatchNorm's statistics have no g and no h, so a variance never becomes negative."""
    feddyn = FedDyn(alpha=0.5)
    task = task_of("fedbn-cnn(scale=0.03)", (1, 8, 8), 3)
    data = [samples(8, (1, 8, 8), 3, seed=i) for i in range(2)]
    server, s = server_of(feddyn, task, data, Training(lr=0.1, batch=4))
    s = rounds(feddyn, server, s, 1)
    first, second = (reply.theta for reply in replies[0].values())
    mean = {name: (value + second[name]) / 2 for name, value in first.items()}
    buffers = [name for name in mean if "~" in name]
    assert buffers
    for name in buffers:
        torch.testing.assert_close(s.theta[name], mean[name])
    assert not torch.allclose(s.theta["conv1.weight"], mean["conv1.weight"])
