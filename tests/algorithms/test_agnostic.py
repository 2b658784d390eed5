"""AFL and DRFA: the worst mixture of parties, on quadratics whose answers are known; and the
projection that both need.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from test_reductions import run_method
from torch import Tensor
from toys import OneNumber, assert_near, federation, rounds, rows, samples, server_of, task_of

import comity
from comity.algorithms.afl import Afl
from comity.algorithms.drfa import Drfa
from comity.components.agnostic import Mixture, mean_loss, onto_simplex
from comity.core import Batch, Key, LearningTask, Params, Training

pytestmark = pytest.mark.quick

STEP = Training(lr=0.1, batch=1, epochs=1)


@dataclass(frozen=True)
class Bowl(LearningTask):
    """f(w) = a/2 (w − b)², as a network whose answer is w: it can be evaluated without training."""

    def features(self, theta: Params, x: Tensor, train: bool = False) -> Tensor:
        return theta["body.w"].expand(len(x), 1)

    def head(self, theta: Params, z: Tensor, train: bool = False) -> Tensor:
        return z

    def criterion(self, logits: Tensor, z: Tensor, batch: Batch) -> Tensor:
        a, b = batch.x.unbind(1)
        return (a / 2 * (logits.squeeze(1) - b).square()).mean()


def bowl() -> Bowl:
    return Bowl(OneNumber(), classes=1, cut="body")


def numbers(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


# --- the projection


@pytest.mark.parametrize(
    ("u", "nearest"),
    [
        ((0.2, 0.3, 0.5), (0.2, 0.3, 0.5)),
        ((1.0, 1.0), (0.5, 0.5)),
        ((2.0, 0.0), (1.0, 0.0)),
        ((-3.0,), (1.0,)),
        ((0.0, 0.0, 0.0, 0.0), (0.25, 0.25, 0.25, 0.25)),
        ((0.9, 0.8, -5.0), (0.55, 0.45, 0.0)),
    ],
)
def test_projection_onto_the_simplex(u: tuple[float, ...], nearest: tuple[float, ...]) -> None:
    torch.testing.assert_close(onto_simplex(numbers(*u)), numbers(*nearest))


@given(st.lists(st.floats(-100, 100), min_size=1, max_size=12))
def test_projection_is_the_nearest_point(u: list[float]) -> None:
    """Its optimality conditions: in the simplex, u − x equal where x > 0, and nowhere larger."""
    point = numbers(*u)
    x = onto_simplex(point)
    assert x.min() >= 0
    assert x.sum().item() == pytest.approx(1, abs=1e-9)
    apart = point - x
    theta = apart[x > 0]
    torch.testing.assert_close(theta, theta[:1].expand_as(theta), rtol=0, atol=1e-9)
    assert (apart <= theta.max() + 1e-9).all()


def test_mean_loss_is_that_of_all_samples_however_many_at_a_time() -> None:
    task, data = task_of("mlp2(width=7)", (6,), 3), samples(11, (6,), 3)
    theta = task.init(Key(0))
    whole = torch.nn.functional.cross_entropy(task.logits(theta, data.x), data.y).item()
    assert mean_loss(task, theta, data) == pytest.approx(whole, abs=1e-6)
    assert mean_loss(task, theta, data, rows=4) == pytest.approx(whole, abs=1e-6)


# --- AFL


def test_afl_two_rounds_by_hand() -> None:
    """b = 1 and 3, w = 0: F = (0.5, 4.5), w ← 0.2, λ ← Π(0.55, 0.95) = (0.3, 0.7); then w ←
    0.3·0.28 + 0.7·0.48 = 0.42.
    """
    algorithm = Afl(lam_lr=0.1)
    server, s = server_of(algorithm, bowl(), [rows(1, 1), rows(1, 3)], STEP)
    s = rounds(algorithm, server, s, 1)
    assert s.theta["body.w"].item() == pytest.approx(0.2)
    assert s.lam == pytest.approx([0.3, 0.7])
    s = rounds(algorithm, server, s, 1, first=2)
    assert s.theta["body.w"].item() == pytest.approx(0.42)


def test_afl_finds_the_minimax_point() -> None:
    """w²/2 and 4(w − 3)²/2 are equal at w = 2, where λ = (2/3, 1/3) balances their slopes; FedAvg's
    point is 2.4.
    """
    algorithm = Afl(lam_lr=0.05)
    server, s = server_of(algorithm, bowl(), [rows(1, 0), rows(4, 3)], STEP)
    s = rounds(algorithm, server, s, 300)
    assert s.theta["body.w"].item() == pytest.approx(2, abs=0.01)
    assert s.lam == pytest.approx([2 / 3, 1 / 3], abs=0.01)


def test_afl_forgets_a_party_that_is_never_the_worst() -> None:
    algorithm = Afl(lam_lr=10.0)
    server, s = server_of(algorithm, bowl(), [rows(1, 0), rows(1, 9)], STEP)
    s = rounds(algorithm, server, s, 2)
    assert s.lam == pytest.approx([0, 1])
    assert s.theta["body.w"].item() == pytest.approx(
        0.45 + 0.1 * (9 - 0.45)
    )  # a weight of 0 counts for nothing


def test_afl_without_a_weighted_party_keeps_the_model() -> None:
    algorithm = Afl(lam_lr=0.0)
    server, s = server_of(algorithm, bowl(), [rows(1, 1), rows(1, 3)], STEP, participation=0.5)
    sampled = server.sample(1)[0]
    s = Mixture(s.theta, [float(i != sampled) for i in (0, 1)])
    assert rounds(algorithm, server, s, 1).theta["body.w"].item() == 0


@pytest.mark.parametrize("method", ["afl", "drfa"])
def test_one_party_is_fedavg(method: str) -> None:
    """Up to rounding: its weight is 1 here, and its number of samples in FedAvg."""
    settings: dict[str, Any] = {
        "model": "mlp2(width=7)",
        "rounds": 3,
        "lr": 0.1,
        "batch": 4,
        "engine": "loop",
    }
    ours, theirs = (
        comity.run(text, federation((14,)), **settings).model("p0").theta
        for text in (method, "fedavg")
    )
    assert_near(ours, theirs, atol=1e-6)


def test_afl_that_never_moves_lambda_is_fedavg() -> None:
    child, parent = (
        run_method("afl(lam_lr=0,begin=samples)", "mlp2", 1.0),
        run_method("fedavg", "mlp2", 1.0),
    )
    assert_near(child.model("p0").theta, parent.model("p0").theta, atol=1e-6)


@pytest.mark.parametrize(
    "text", ["afl(lam_lr=1)", "afl(begin=samples)", "drfa(lam_lr=0.5)", "drfa(begin=samples)"]
)
def test_no_option_is_without_effect(text: str) -> None:
    usual, other = (
        run_method(method, "mlp2", 1.0).model("p0").theta["fc1.weight"]
        for method in (text.partition("(")[0], text)
    )
    assert not torch.equal(usual, other)


# --- DRFA


def test_drfa_a_round_by_hand(replies: list[dict[int, Any]]) -> None:
    """All draws fall on party 0 (λ = (1, 0)): w after t steps from 0 is 1 − 0.9^t, and the losses
    of the snapshot raise λ.
    """
    algorithm = Drfa(lam_lr=0.01)
    server, s = server_of(algorithm, bowl(), [rows(1, 1, 4), rows(1, 3, 4)], STEP)
    s = rounds(algorithm, server, Mixture(s.theta, [1.0, 0.0]), 1)
    first_replies, second_replies, losses = replies
    assert first_replies.keys() == second_replies.keys() == {0}  # drawn twice, trained twice
    assert s.theta["body.w"].item() == pytest.approx(1 - 0.9**4)
    snapshots = [1 - 0.9**t for t in (1, 2, 3, 4)]
    at = first_replies[0].snapshot["body.w"].item()
    assert min(abs(at - snapshot) for snapshot in snapshots) < 1e-9
    assert second_replies[0].snapshot["body.w"].item() == pytest.approx(at)
    v = numbers(0.5 * (at - 1) ** 2, 0.5 * (at - 3) ** 2)  # N/m = 1
    assert [losses[i] for i in (0, 1)] == pytest.approx(v.tolist())
    assert s.lam == pytest.approx(onto_simplex(numbers(1, 0) + 4 * 0.01 * v).tolist())


def test_drfa_judges_the_snapshot_also_where_parties_start_from_weights_of_their_own(
    replies: list[dict[int, Any]],
) -> None:
    settings: dict[str, Any] = {
        "model": "mlp2(width=7)",
        "rounds": 1,
        "batch": 4,
        "engine": "loop",
        "init": "own",
    }
    job = comity.run("drfa", federation((9, 14)), **settings).job
    *training_calls, losses = replies
    snapshots = [reply.snapshot for call in training_calls for reply in call.values()]
    w = {k: torch.stack([theta[k] for theta in snapshots]).mean(0) for k in snapshots[0]}
    expected = {
        i: mean_loss(party.task, w, party.data.train) for i, party in enumerate(job.parties)
    }
    assert losses == pytest.approx(expected, abs=1e-6)


def test_drfa_draws_parties_by_lambda_and_snapshots_evenly(replies: list[dict[int, Any]]) -> None:
    algorithm = Drfa(lam_lr=0.0)
    server, s = server_of(algorithm, bowl(), [rows(1, 1, 4)] * 2, STEP, participation=0.5)
    parties, moments, n = Counter[int](), Counter[int](), 300
    for t in range(1, n + 1):
        rounds(algorithm, server, Mixture(s.theta, [0.75, 0.25]), 1, first=t)
        (i, reply), _ = *replies[0].items(), replies[1]
        parties[i] += 1
        moments[
            next(k for k in range(5) if abs(1 - 0.9**k - reply.snapshot["body.w"].item()) < 1e-9)
        ] += 1
        replies.clear()
    assert parties[0] / n == pytest.approx(0.75, abs=4 * (0.75 * 0.25 / n) ** 0.5)
    assert set(moments) == {1, 2, 3, 4}
    assert all(
        count / n == pytest.approx(0.25, abs=4 * (0.25 * 0.75 / n) ** 0.5)
        for count in moments.values()
    )


def test_drfa_scales_the_losses_of_a_sample_of_parties(replies: list[dict[int, Any]]) -> None:
    """v_i = (N/m) F_i for those asked, 0 for the others."""
    algorithm = Drfa(lam_lr=0.01)
    server, s = server_of(algorithm, bowl(), [rows(1, 1), rows(1, 3)], STEP, participation=0.5)
    after = rounds(algorithm, server, s, 1)
    ((evaluator, loss),) = replies[-1].items()
    v = torch.zeros(2, dtype=torch.float64)
    v[evaluator] = 2 * loss
    assert after.lam == pytest.approx(onto_simplex(numbers(*s.lam) + 0.01 * v).tolist())
