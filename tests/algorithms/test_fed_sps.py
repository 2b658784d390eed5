"""Fed-SPS (anonymous, ICLR): eqs. 7-9 and Algorithm 1 (T and its dual), eqs. 12 and 13, Algorithm
2, special cases, options.

Expected values come from hand calculation, or from plain torch in the second section; nothing there
calls the method.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, is_dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from toys import (
    LoopServer,
    batch_of,
    federation,
    noise,
    party_of,
    rounds,
    run_call,
    samples,
    server_of,
    task_of,
)

import comity
from comity.algorithms.fed_sps import FedSps, FedSpsState
from comity.algorithms.solo import Solo
from comity.base.call import PartyResult
from comity.base.key import BatchKey
from comity.base.record import unseal
from comity.components.attack import next_lambda
from comity.components.choice import moving_average, peer_chances
from comity.components.overlap import Help
from comity.components.peer import Group
from comity.core import (
    Empty,
    Key,
    LearningTask,
    Model,
    Params,
    PartyData,
    Samples,
    Sealed,
    Training,
)
from comity.engines.loop import LoopEngine
from comity.runs import checkpoint
from comity.runs.server_run import Quiet
from comity.studies import plan

pytestmark = pytest.mark.quick

Scaled = tuple[tuple[float, ...], tuple[float, ...]]
SHAPE, CLASSES = (6,), 3
ATTACK = 5  # steps of an attack
ATTACKED = ATTACK + 2
SMALL = "mlp2(width=5)"
FULL = Training(lr=0.2, batch=100)  # one step a round


def mlp() -> LearningTask:
    return task_of(SMALL, SHAPE, CLASSES)


@cache
def three() -> tuple[Samples, ...]:
    """Three parties of different sizes with shifted inputs."""
    data = [samples(n, SHAPE, CLASSES, seed=i + 1) for i, n in enumerate((17, 11, 23))]
    return tuple(Samples(s.x + 0.4 * i, s.y) for i, s in enumerate(data))


def named_federation(
    parts: Sequence[Samples] = (), names: Sequence[str] = ("north", "south", "east")
) -> comity.Federation:
    """The three parties with names and test sets, without validation samples."""
    test = samples(6, SHAPE, CLASSES, seed=9)
    parties = {
        n: ((p.x, p.y), (test.x, test.y)) for n, p in zip(names, parts or three(), strict=True)
    }
    return comity.Federation.from_arrays(parties, validation=0.0, classes=CLASSES)


def models(server: LoopServer, n: int = 3) -> list[Params]:
    return [server.state(i).h for i in range(n)]


def assert_close(ours: Params, theirs: Params, atol: float = 1e-5) -> None:
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        torch.testing.assert_close(
            ours[name], value, rtol=0, atol=atol, msg=partial("{}: {}".format, name)
        )


def assert_same(ours: Params, theirs: Params) -> None:
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[k], v) for k, v in theirs.items())


def differ(ours: Params, theirs: Params) -> float:
    """The largest gap between two models."""
    return max((ours[k] - v).abs().max().item() for k, v in theirs.items())


# --- the method once more, in plain torch


def answers(theta: Params, x: Tensor) -> Tensor:
    """A perceptron of as many layers as there are weights."""
    x = x.flatten(1)
    layers = sorted(k.removesuffix(".weight") for k in theta if k.endswith(".weight"))
    for layer in layers:
        x = F.linear(x, theta[f"{layer}.weight"], theta[f"{layer}.bias"])
        x = x if layer == layers[-1] else x.relu()
    return x


def each_loss(theta: Params, x: Tensor, y: Tensor) -> Tensor:
    return -answers(theta, x).log_softmax(1).gather(1, y[:, None]).squeeze(1)


def grad_of(value: Callable[[Params], Tensor], theta: Params) -> Params:
    free = {k: v.detach().clone().requires_grad_() for k, v in theta.items()}
    return dict(zip(free, torch.autograd.grad(value(free), list(free.values())), strict=True))


def mean_grad(theta: Params, x: Tensor, y: Tensor) -> Params:
    return grad_of(lambda h: each_loss(h, x, y).mean(), theta)


def gradient_step(theta: Params, lr: float, *terms: tuple[float, Params]) -> Params:
    """θ − lr · Σ weight · gradient."""
    return {k: v - lr * sum(weight * g[k] for weight, g in terms) for k, v in theta.items()}


def pgd_of(
    theta: Params,
    data: Samples,
    epsilon: float = 0.03,
    low: float | None = None,
    high: float | None = None,
) -> Tensor:
    """Five steps of 0.01 · sign, each followed by the projection to the ball and to the range of
    the data.
    """
    least, most = (
        data.x.min().item() if low is None else low,
        data.x.max().item() if high is None else high,
    )
    z = data.x.clone()
    for _ in range(5):
        z.requires_grad_()
        (slope,) = torch.autograd.grad(each_loss(theta, z, data.y).mean(), z)
        z = torch.min(
            torch.max(z.detach() + 0.01 * slope.sign(), data.x - epsilon), data.x + epsilon
        ).clamp(least, most)
    return z


def eq12_mask(theta: Params, data: Samples, bad: Tensor) -> Tensor:
    """Eq. 12's condition."""
    return each_loss(theta, bad, data.y) - each_loss(theta, data.x, data.y) > 0


def round_of(
    h: list[Params], data: Sequence[Samples], lr: float, alpha: float, beta: float
) -> tuple[list[Params], list[list[float]], list[list[Params]]]:
    """One round of Algorithm 2 with full batches: new models, the share of j's samples in ODA_ij,
    and their gradients.
    """
    bad = [pgd_of(h_j, d) for h_j, d in zip(h, data, strict=True)]
    new, share, grads = [], [], []
    for i, h_i in enumerate(h):
        oda = [eq12_mask(h_i, d, b) for d, b in zip(data, bad, strict=True)]
        g = [
            (
                mean_grad(h_i, b[s], d.y[s])
                if s.any()
                else {k: torch.zeros_like(v) for k, v in h_i.items()}
            )
            for d, b, s in zip(data, bad, oda, strict=True)
        ]
        peers = [(beta / (len(h) - 1), g[j]) for j in range(len(h)) if j != i]
        own = (
            (1.0, mean_grad(h_i, data[i].x, data[i].y)),
            (alpha, mean_grad(h_i, bad[i], data[i].y)),
        )
        new.append(gradient_step(h_i, lr, *own, *peers))
        share.append([s.double().mean().item() for s in oda])
        grads.append(g)
    return new, share, grads


# --- a loss that is linear in x: log(1 + e^(40 + w·x)) = 40 + w·x, to the last bit, for label 0


def line(*w: float) -> Params:
    return {
        "fc.weight": torch.stack([torch.zeros(len(w)), torch.tensor(w)]),
        "fc.bias": torch.tensor([0.0, 40.0]),
    }


def multiplier(lam: float) -> Tensor:
    return torch.tensor(lam, dtype=torch.float64)


AS_IT_IS: Scaled = ((0.0,), (1.0,))


def attack_result(
    fed: FedSps, w: tuple[float, ...], x: Tensor, lam: float, key: Key, scaled: Scaled = AS_IT_IS
) -> tuple[Tensor, float]:
    """Where T puts x, and λ after it."""
    task, y = task_of("linear", tuple(x.shape[1:]), 2), torch.zeros(len(x), dtype=torch.int64)
    T, data = fed.attacker(), Samples(x, y)
    party_data = PartyData(data, data, data, scaled=scaled)
    z, after = T(task, line(*w), x, y, T.noise(x, key), multiplier(lam), fed.range_of(party_data))
    return z, after.item()


def linear_case(
    fed: FedSps, w: tuple[float, ...], x: Tensor, calls: int = 1, lam: float | None = None
) -> tuple[Tensor, float]:
    """Where T puts x in its last call, and λ after it."""
    lam = fed.lambda0 if lam is None else lam
    for n in range(calls):
        z, lam = attack_result(fed, w, x, lam, Key(n))
    return z, lam


W = (3.0, -4.0, 0.0)  # of length 5


def wasserstein(**options: Any) -> FedSps:
    return FedSps(attack="wasserstein", **({"clamp": "none"} | options))


# --- Algorithm 1 and eqs. 7-9: T


def test_spec2_pgd_on_a_linear_loss_is_x_plus_eps_sign_w() -> None:
    """5 · 0.01 > 0.03, so every value with a slope arrives at the border, exactly."""
    x = noise(8, 3)
    z, _ = linear_case(FedSps(clamp="none"), W, x)
    assert torch.equal(z, x + 0.03 * torch.tensor([1.0, -1.0, 0.0]))


def test_spec2_pgd_on_images() -> None:
    x = noise(4, 1, 2, 2)
    z, _ = linear_case(FedSps(clamp="none"), (1.0, -2.0, 0.0, 5.0), x)
    assert torch.equal(z, x + 0.03 * torch.tensor([[[1.0, -1.0], [0.0, 1.0]]]))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("r", "lambda0", "alpha_lambda"), [(1.0, 1.0, 0.5), (1.0, 8.0, 0.5), (0.5, 8.0, 4.0)]
)
def test_spec2_eq7_wasserstein_on_a_linear_loss(
    r: float, lambda0: float, alpha_lambda: float
) -> None:
    """Budget r²: λ → |w|/(2r), the displacement is r·w/|w|, and both sides of eq. 7 are w·x + r|w|."""
    x, w = noise(8, 3), torch.tensor(W)
    fed = wasserstein(epsilon=r, lambda0=lambda0, lambda_lr=alpha_lambda, attack_steps=25)
    z, lam = linear_case(fed, W, x, calls=40)
    assert lam == pytest.approx(5 / (2 * r), rel=1e-3)
    torch.testing.assert_close(z - x, (r * w / 5).expand(8, 3), rtol=0, atol=1e-3 * r)
    robust = (x @ w).mean().item() + 5 * r
    primal = (z @ w).mean().item()
    dual = lam * r**2 + ((z @ w) - lam * (z - x).square().sum(1)).mean().item()
    assert primal == pytest.approx(robust, abs=5e-3)
    assert dual == pytest.approx(robust, abs=5e-3)


def test_spec2_wasserstein_on_images() -> None:
    """The distance of an image is over all its values: r·w/|w| with |w| = 4."""
    x = noise(6, 1, 2, 2)
    z, lam = linear_case(
        wasserstein(epsilon=1.0, lambda_lr=0.5, attack_steps=30),
        (2.0, -2.0, 2.0, -2.0),
        x,
        calls=30,
    )
    assert lam == pytest.approx(2.0, rel=1e-3)
    torch.testing.assert_close(
        z - x, torch.tensor([[[0.5, -0.5], [0.5, -0.5]]]).expand(6, 1, 2, 2), rtol=0, atol=1e-3
    )


@pytest.mark.parametrize(("options", "n", "eta"), [
    ({}, 15, 0.1), ({"attack_steps": 4}, 4, 0.1), ({"attack_lr": 0.02}, 15, 0.02),
    ({"attack_steps": 2, "attack_lr": 0.3}, 2, 0.3),
])  # fmt: skip
@pytest.mark.parametrize("lam", [0.5, 3.0])
def test_eq9_wasserstein_steps_and_their_size(
    options: dict[str, Any], n: int, eta: float, lam: float
) -> None:
    """z − x ← (z − x + ηw)/(1 + 2λη), n times: (1 − (1 + 2λη)^−n) w/(2λ); the default is 15 of 0.1."""
    x = noise(8, 3)
    z, _ = linear_case(wasserstein(**options), W, x, lam=lam)
    expected = (1 - (1 + 2 * lam * eta) ** -n) * torch.tensor(W) / (2 * lam)
    torch.testing.assert_close(z - x, expected.expand(8, 3), rtol=0, atol=5e-4)


@pytest.mark.parametrize(("options", "step"), [
    ({}, 0.05), ({"attack_steps": 7}, 0.07), ({"attack_lr": 0.03}, 0.15), ({"attack_steps": 2, "attack_lr": 0.3}, 0.6),
    ({"epsilon": 0.02}, 0.02), ({"epsilon": 0.0}, 0.0),
])  # fmt: skip
def test_pgd_steps_and_their_size(options: dict[str, Any], step: float) -> None:
    """Inside a large ball, n steps of η; the default is 5 of 0.01."""
    x = noise(8, 3)
    z, _ = linear_case(FedSps(**{"epsilon": 100.0, "clamp": "none", **options}), W, x)
    torch.testing.assert_close(
        z - x, (step * torch.tensor([1.0, -1.0, 0.0])).expand(8, 3), rtol=0, atol=1e-6
    )


def test_alg1_each_sample_follows_its_own_loss_whatever_the_batch() -> None:
    """The ascent is on each sample's loss, not on a mean over the batch: twice the batch, the same
    z.
    """
    x = noise(8, 3)
    z, _ = linear_case(wasserstein(), W, x)
    both, _ = linear_case(wasserstein(), W, torch.cat([x, x]))
    torch.testing.assert_close(both[:8], z, rtol=0, atol=1e-3)


@pytest.mark.parametrize(
    "options", [{}, {"attack": "wasserstein"}, {"attack": "wasserstein", "cost": "l2"}], ids=str
)
def test_alg1_the_attack_is_a_function_of_its_arguments(options: dict[str, Any]) -> None:
    """Repeated calls give the same result and write to none of their arguments: samples, weights
    and λ.
    """
    x, y, h, lam = three()[0].x, three()[0].y, mlp().init(Key(1)), multiplier(0.01)
    fed = FedSps(**options)
    T, start = fed.attacker(), 1e-4 * noise(*x.shape)
    before = {"x": x.clone(), "start": start.clone()} | {k: v.clone() for k, v in h.items()}
    party_data = party_of(mlp(), Samples(x, y), FULL).data
    (z, after), (again, after_again) = (
        T(mlp(), h, x, y, start, lam, fed.range_of(party_data)) for _ in range(2)
    )
    assert torch.equal(z, again)
    assert torch.equal(after, after_again)
    assert differ({"x": z}, {"x": x}) > 1e-3
    assert (after.item() == 0.01) == (fed.attack == "pgd")
    assert lam.item() == 0.01
    assert_same({"x": x, "start": start} | h, before)


@pytest.mark.parametrize(("options", "scale"), [
    ({}, 0.0), ({"code_compat": True}, 1e-3),
    ({"attack": "wasserstein"}, 1e-4), ({"attack": "wasserstein", "code_compat": True}, 1e-4),
])  # fmt: skip
def test_alg1_where_the_attack_begins_is_drawn_for_each_batch(
    options: dict[str, Any], scale: float
) -> None:
    """PGD begins at x, the public code 0.001 beside it, Algorithm 1 where ‖z − x‖ has a slope; each
    batch begins elsewhere.
    """
    fed = FedSps(**options)
    data = Samples(torch.zeros(50, 60), torch.zeros(50, dtype=torch.int64))
    batches = [(0, Key(1)), (0, Key(1)), (1, Key(1)), (0, Key(2))]
    nothing: Any = None  # where an attack begins does not depend on received messages
    starts = [
        fed.noise(replace(batch_of(data), number=n), BatchKey(key.bits, n), nothing)
        for n, key in batches
    ]
    if not scale:
        assert starts == [None] * 4
        return
    first, again, next_batch, other_key = (start for start in starts if start is not None)
    assert all(
        start.std().item() == pytest.approx(scale, rel=0.06)
        for start in (first, again, next_batch, other_key)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, next_batch)
    assert not torch.equal(first, other_key)


def test_alg1_l5_lambda_by_hand() -> None:
    """λ ← max(0, λ − α_λ (budget − mean d)): d = (1, 3)."""
    d = torch.tensor([1.0, 3.0])
    lam = multiplier(1.0)
    assert next_lambda(lam, 0.1, 1.5, d).item() == pytest.approx(
        1.05
    )  # farther than allowed: λ rises
    assert next_lambda(lam, 0.1, 4.0, d).item() == pytest.approx(0.8)  # nearer: λ falls
    assert next_lambda(lam, 0.1, 2.0, d).item() == pytest.approx(1.0)
    assert next_lambda(lam, 0.1, 100.0, d).item() == 0.0


@pytest.mark.parametrize(("cost", "epsilon", "up"), [
    ("l2sq", 0.5, True), ("l2sq", 2.3, True), ("l2sq", 2.4, False), ("l2sq", 3.0, False), ("l2", 0.5, True), ("l2", 9.0, False),
])  # fmt: skip
def test_alg1_l5_lambda_moves_to_the_budget(cost: str, epsilon: float, up: bool) -> None:
    """At λ = 1, 15 steps of 0.1: |z − x| is 2.5 · (1 − 1.2^−15) = 2.338 with a square (budget ε²),
    1.5 · (5 − 1) without.
    """
    _, lam = linear_case(wasserstein(cost=cost, epsilon=epsilon), W, noise(8, 3), lam=1.0)
    d = {"l2sq": 2.338**2, "l2": 6.0}[cost]
    assert lam == pytest.approx(1 + 0.1 * (d - epsilon ** (2 if cost == "l2sq" else 1)), abs=0.02)
    assert (lam > 1) == up


def test_alg1_l5_lambda_is_never_negative() -> None:
    _, lam = linear_case(wasserstein(epsilon=100.0, lambda_lr=1.0), W, noise(8, 3), calls=3)
    assert lam == 0.0


@pytest.mark.parametrize("alpha_lambda", [0.0, 0.1, 0.7])
def test_lambda0_and_lambda_lr_in_a_round(alpha_lambda: float) -> None:
    """l.6 calls T once a round; at a steep linear loss λ_1 = λ_0 + α_λ (d − ε²) with d known, and
    the party remembers it.
    """
    n, lam0, eta = 15, 2.0, 0.1
    task = task_of("linear", (3,), 2)
    data = Samples(noise(8, 3), torch.zeros(8, dtype=torch.int64))
    fed = wasserstein(lambda0=lam0, lambda_lr=alpha_lambda, epsilon=0.5)
    assert fed.init_party(Key(0), party_of(task, data, FULL)).lam == lam0
    lam = lam0
    for _ in range(3):
        party = replace(party_of(task, data, FULL), inbox={1: Model(line(*W))})
        state, _ = run_call(fed.assist(FedSpsState(line(*W), lam, {}, {}), Empty(), party, Key(3)))
        d = (5 / (2 * lam) * (1 - (1 + 2 * lam * eta) ** -n)) ** 2
        assert state.lam == pytest.approx(lam + alpha_lambda * (d - 0.25), abs=2e-3)
        assert (state.lam == lam) == (alpha_lambda == 0)
        lam = state.lam


def test_lambda_is_kept_from_round_to_round_and_pgd_leaves_it() -> None:
    for attack in ("pgd", "wasserstein"):
        fed = FedSps(attack=attack, lambda0=3.0, epsilon=2.0, alpha=0.0)
        server, s = server_of(fed, mlp(), three(), FULL)
        assert [server.state(i).lam for i in range(3)] == [3.0] * 3
        s = rounds(fed, server, s, 1)
        first = [server.state(i).lam for i in range(3)]
        rounds(fed, server, s, 1, first=2)
        second = [server.state(i).lam for i in range(3)]
        if attack == "pgd":
            assert second == [3.0] * 3
        else:  # ε² = 4 is far more than these slopes reach: 0.1 · 4 less each round
            assert first == pytest.approx([2.6] * 3, abs=0.01)
            assert second == pytest.approx([2.2] * 3, abs=0.02)


def test_the_own_term_updates_lambda_too() -> None:
    """α > 0: T runs once for the peers and once for each of the two local batches."""
    fed = FedSps(attack="wasserstein", lambda0=3.0, epsilon=2.0, alpha=0.1)
    server, s = server_of(
        fed,
        mlp(),
        [samples(8, SHAPE, CLASSES, seed=i) for i in range(3)],
        Training(lr=0.01, batch=4),
    )
    rounds(fed, server, s, 1)
    assert [server.state(i).lam for i in range(3)] == pytest.approx([3 - 3 * 0.4] * 3, abs=0.02)


def test_cost_l2_with_a_wide_budget() -> None:
    """‖·‖ with budget r has the same robust value, w·x + r|w|; λ hovers just below |w| = 5."""
    x, w = noise(8, 3), torch.tensor(W)
    fed = wasserstein(cost="l2", epsilon=1.0, lambda_lr=0.3)
    lam, reached = 1.0, []
    for n in range(150):
        z, lam = attack_result(fed, W, x, lam, Key(n))
        reached.append((z - x).mean(0))
    assert 4.0 < lam < 5.1
    torch.testing.assert_close(torch.stack(reached[50:]).mean(0), w / 5, rtol=0, atol=0.1)


def test_cost_l2_with_the_default_budget_stays_within_it() -> None:
    """ε = 0.03: beyond λ = |w| = 5 the best z is x itself, so λ has no reason to grow from 6, nor
    samples to leave.
    """
    x = noise(4, 3)
    z, lam = linear_case(wasserstein(cost="l2", lambda_lr=1.0), W, x, calls=60, lam=6.0)
    assert lam < 6.5
    assert (z - x).norm(dim=1).mean() < 0.06


THREE: Scaled = ((0.5, 0.4, 0.3), (0.5, 0.25, 0.2))  # mean and std of three channels


def test_units_pixel_is_one_over_std_by_channel() -> None:
    """x = (pixel − mean)/std: 0.03 of a pixel is 0.03/std, and pixels of 0 and 1 are −mean/std and
    (1 − mean)/std.
    """
    x = 0.1 * noise(4, 3, 2, 1)
    w = (1.0, -2.0, 3.0, 4.0, -5.0, 0.0)
    z, _ = attack_result(FedSps(units="pixel", clamp="none"), w, x, 1.0, Key(0), THREE)
    sign = torch.tensor(w).sign().view(3, 2, 1)
    torch.testing.assert_close(
        z, x + torch.tensor([0.06, 0.12, 0.15]).view(3, 1, 1) * sign, rtol=0, atol=1e-6
    )
    wide, _ = attack_result(
        FedSps(units="pixel", clamp="unit", epsilon=9.0, attack_lr=9.0), w, x, 1.0, Key(0), THREE
    )
    black, white = (
        torch.tensor([-1.0, -1.6, -1.5]).view(3, 1, 1),
        torch.tensor([1.0, 2.4, 3.5]).view(3, 1, 1),
    )
    expected = torch.where(sign > 0, white, torch.where(sign < 0, black, x))
    torch.testing.assert_close(wide, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("cost", ["l2sq", "l2"])
def test_units_pixel_wasserstein_is_algorithm_1_on_pixels(cost: Literal["l2sq", "l2"]) -> None:
    """The same attack on pixels (x · std, slope w/std), taken back: samples and λ."""
    x, w, std = noise(5, 3, 1, 1), torch.tensor([3.0, -4.0, 2.0]), torch.tensor(THREE[1])
    fed = wasserstein(cost=cost, epsilon=0.5)
    pixel_z, lam = attack_result(fed, tuple((w / std).tolist()), x * std.view(3, 1, 1), 0.7, Key(1))
    z, ours = attack_result(replace(fed, units="pixel"), tuple(w.tolist()), x, 0.7, Key(1), THREE)
    torch.testing.assert_close(z, pixel_z / std.view(3, 1, 1), rtol=0, atol=2e-3)
    assert ours == pytest.approx(lam, rel=1e-4)
    assert differ({"z": z}, {"z": x}) > 0.1


def test_units_pixel_in_a_run_is_twice_as_far_where_std_is_a_half() -> None:
    """Digits are normalised by 0.5 and 0.5, which doubles exactly: 0.03 of a pixel is 0.06 of an
    input, bit for bit.
    """
    how: dict[str, Any] = {
        "data": "digits",
        "partition": "iid|keep(samples=30)",
        "parties": 3,
        "model": SMALL,
        "rounds": 2,
        "engine": "loop",
    }
    ends = [
        comity.run("fed-sps", **how, **options)
        for options in ({"units": "pixel"}, {"epsilon": 0.06, "attack_lr": 0.02}, {})
    ]  # fmt: skip
    assert ends[0].job.parties[0].data.scaled == ((0.5,), (0.5,))
    for name in ends[0].job.info.names:
        assert_same(ends[0].model(name).theta, ends[1].model(name).theta)
        assert differ(ends[0].model(name).theta, ends[2].model(name).theta) > 0


def test_units_pixel_is_for_images() -> None:
    with pytest.raises(comity.UsageError, match="units=pixel is for images"):
        comity.run(
            "fed-sps", named_federation(), model=SMALL, rounds=1, engine="loop", units="pixel"
        )


def test_clamp() -> None:
    """Two values at the ends of the data and one within: x + 0.03·sign(w) stops at the range that
    is asked for.
    """
    x = torch.tensor([[2.0, -1.0, 0.5], [0.99, 0.01, 0.5]])
    free = x + 0.03 * torch.tensor([1.0, -1.0, 1.0])
    expected: dict[Literal["none", "data", "unit"], Tensor] = {
        "none": free,
        "data": free.clamp(-1.0, 2.0),
        "unit": free.clamp(0.0, 1.0),
    }
    for clamp, wish in expected.items():
        z, _ = linear_case(FedSps(clamp=clamp), (1.0, -1.0, 1.0), x)
        torch.testing.assert_close(z, wish, rtol=0, atol=1e-6)
    z, _ = linear_case(FedSps(attack="wasserstein", clamp="unit"), (1.0, -1.0, 1.0), x)
    assert z.min() >= 0
    assert z.max() <= 1


def test_clamp_data_is_the_range_of_all_of_a_partys_data() -> None:
    """Not of the few samples perturbed: those lie within (−5, 5), and so does what becomes of them."""
    task, data = (
        task_of("linear", (1,), 2),
        Samples(torch.tensor([[-5.0], [0.0], [0.1], [0.2], [5.0]]), torch.zeros(5).long()),
    )
    party = replace(party_of(task, data, Training(batch=1)), inbox={1: Model(line(1.0))})
    fed = FedSps(mode="samples", select="all", epsilon=0.5, attack_lr=0.5)
    values = set()
    for n in range(40):
        _, sealed_messages = run_call(
            fed.assist(FedSpsState(line(1.0), 1.0, {}, {}), Empty(), party, Key(n))
        )
        ((_, sealed),) = sealed_messages.items()
        values.add(round(unseal(sealed).x.item(), 4))
    assert values == {-4.5, 0.5, 0.6, 0.7, 5.0}


def test_the_labels_stay() -> None:
    reply = help_replies(
        FedSps(mode="samples", select="all"),
        mlp().init(Key(1)),
        {7: mlp().init(Key(2))},
        three()[0],
        mlp(),
    )[7]
    assert reply.y is not None
    assert reply.y.tolist() == three()[0].y.tolist()


# --- eq. 12


def help_replies(
    fed: FedSps,
    h: Params,
    askers: dict[int, Params],
    data: Samples,
    task: LearningTask,
    how: Training = FULL,
    first: Params | None = None,
) -> dict[int, Help]:
    """The replies of a party with this model and data to each asker."""
    party = replace(
        party_of(task, data, how), inbox={i: Model(theirs) for i, theirs in askers.items()}
    )
    _, sealed_messages = run_call(
        fed.assist(FedSpsState(h, fed.lambda0, {}, first or {}), Empty(), party, Key(5))
    )
    return {i: unseal(sealed) for i, sealed in sealed_messages.items()}


def test_eq12_by_hand_and_asymmetric() -> None:
    """w_i = (3, −1), w_j = (1, 2): j's samples move by ε(1, 1) and raise i's loss by 2ε; i's by
    ε(1, −1), j's loss falls by ε.
    """
    task = task_of("linear", (2,), 2)
    data = Samples(noise(6, 2), torch.zeros(6, dtype=torch.int64))
    i, j = line(3.0, -1.0), line(1.0, 2.0)
    fed = FedSps(clamp="none")
    ij, ji = (
        help_replies(fed, j, {0: i}, data, task)[0],
        help_replies(fed, i, {1: j}, data, task)[1],
    )
    assert (ij.count, ij.overlap) == (6, 1.0)
    assert (ji.count, ji.overlap, ji.loss) == (0, 0.0, 0.0)
    assert all(not g.any() for g in ji.grads.values())
    bad = data.x + 0.03
    assert ij.loss == pytest.approx((40 + bad @ torch.tensor([3.0, -1.0])).mean().item(), rel=1e-6)
    assert ij.grads["fc.weight"][1].tolist() == pytest.approx(
        bad.mean(0).tolist(), abs=1e-5
    )  # d (40 + w·x) / dw


@pytest.mark.parametrize("select", ["strict", "geq", "all"])
def test_eq12_selection_by_torch(select: Literal["strict", "geq", "all"]) -> None:
    """j's perturbed samples, those of them that raise the asker's loss, their mean loss, share and
    gradient.
    """
    j, asker, data = mlp().init(Key(1)), mlp().init(Key(2)), three()[2]
    reply = help_replies(FedSps(select=select), j, {4: asker}, data, mlp())[4]
    bad = pgd_of(j, data)
    gap = each_loss(asker, bad, data.y) - each_loss(asker, data.x, data.y)
    assert 0 < (gap > 0).sum() < (gap >= 0).sum() < len(data), "the test needs some dead units"
    mask = {"strict": gap > 0, "geq": gap >= 0, "all": torch.ones_like(gap, dtype=torch.bool)}[
        select
    ]
    assert (reply.count, reply.overlap) == (
        int(mask.sum()),
        pytest.approx(mask.double().mean().item()),
    )
    assert reply.loss == pytest.approx(
        each_loss(asker, bad[mask], data.y[mask]).mean().item(), abs=1e-5
    )
    assert_close(reply.grads, mean_grad(asker, bad[mask], data.y[mask]))
    assert reply.x is None
    assert reply.y is None


def test_select_geq_takes_what_did_not_change() -> None:
    """At ε = 0 no loss changes: strict takes none, geq and all take everything."""
    counts = {}
    for select in ("strict", "geq", "all"):
        fed = FedSps(select=select, epsilon=0.0)
        counts[select] = help_replies(
            fed, mlp().init(Key(1)), {4: mlp().init(Key(2))}, three()[2], mlp()
        )[4].count
    assert counts == {"strict": 0, "geq": 23, "all": 23}


def test_eq12_equal_models_select_every_sample_whose_own_loss_rose() -> None:
    """A trained j, large steps: some of its own samples do not get worse, and exactly the others
    are in the overlap.
    """
    data, j = three()[2], mlp().init(Key(1))
    fed = FedSps(attack_lr=2.0, epsilon=3.0, attack_steps=1, clamp="none", mode="samples")
    reply = help_replies(fed, j, {4: j}, data, mlp())[4]
    (slope,) = torch.autograd.grad(each_loss(j, data.x.requires_grad_(), data.y).mean(), data.x)
    data.x.requires_grad_(False)
    bad = data.x + 2.0 * slope.sign()
    rose = eq12_mask(j, data, bad)
    assert 0 < rose.sum() < len(data)
    torch.testing.assert_close(reply.x, bad[rose], rtol=0, atol=1e-5)
    assert reply.y is not None
    assert reply.y.tolist() == data.y[rose].tolist()


def test_eq12_each_asker_is_answered_for_its_own_model() -> None:
    j, asker, other_asker = (mlp().init(Key(n)) for n in (1, 2, 3))
    both = help_replies(FedSps(), j, {4: asker, 5: other_asker}, three()[2], mlp())
    assert_same(both[4].grads, help_replies(FedSps(), j, {4: asker}, three()[2], mlp())[4].grads)
    assert differ(both[4].grads, both[5].grads) > 1e-3


@pytest.mark.parametrize(
    ("overlap_batch", "batch", "count"),
    [(0, 4, 4), (0, 100, 11), (7, 4, 7), (3, 100, 3), (50, 4, 11)],
)
def test_l5_overlap_batch(overlap_batch: int, batch: int, count: int) -> None:
    """As many different samples of the party as the option says; 0 means a mini-batch, and the
    party has 11.
    """
    fed = FedSps(mode="samples", select="all", overlap_batch=overlap_batch)
    reply = help_replies(
        fed, mlp().init(Key(1)), {4: mlp().init(Key(2))}, three()[1], mlp(), Training(batch=batch)
    )[4]
    assert reply.x is not None
    assert reply.y is not None
    assert reply.count == len(reply.x) == len(reply.y) == count
    nearest = torch.cdist(reply.x, three()[1].x, p=torch.inf)
    assert nearest.min(1).values.max() <= 0.0301
    assert len(set(nearest.argmin(1).tolist())) == count


def test_l5_another_batch_each_round() -> None:
    fed = FedSps(mode="samples", select="all", overlap_batch=3)
    party = replace(party_of(mlp(), three()[2], FULL), inbox={4: Model(mlp().init(Key(2)))})
    batches_seen = set()
    for n in range(6):
        _, sealed_messages = run_call(
            fed.assist(FedSpsState(mlp().init(Key(1)), 1.0, {}, {}), Empty(), party, Key(n))
        )
        batches_seen.add(
            tuple(
                sorted(torch.cdist(unseal(sealed_messages[4]).x, three()[2].x).argmin(1).tolist())
            )
        )
    assert len(batches_seen) > 1


def test_gradients_are_taken_in_evaluation_mode_and_nothing_is_touched() -> None:
    """With BatchNorm: running statistics are used, and neither the asker's nor j's move."""
    task = task_of("fedbn-cnn(scale=0.06)", (1, 8, 8), CLASSES)
    data = samples(12, (1, 8, 8), CLASSES)
    theta = {
        k: v + 0.1 * noise(*v.shape, seed=7).abs() if "~" in k else v
        for k, v in task.init(Key(2)).items()
    }
    own_model = task.init(Key(1))
    before = [{k: v.clone() for k, v in t.items()} for t in (own_model, theta)]
    reply = help_replies(FedSps(select="all", epsilon=0.0), own_model, {4: theta}, data, task)[4]
    names = [k for k in theta if "~" not in k]
    free = theta | {k: theta[k].clone().requires_grad_() for k in names}
    grads = torch.autograd.grad(
        F.cross_entropy(task.logits(free, data.x), data.y), [free[k] for k in names]
    )
    assert_close(reply.grads, dict(zip(names, grads, strict=True)), atol=1e-6)
    assert_same(own_model, before[0])
    assert_same(theta, before[1])


def test_private_names_do_not_cross_and_are_js_own() -> None:
    """bn=none: i's model comes without BatchNorm, j puts its own in, and no gradient of it goes
    back.
    """
    task = task_of("fedbn-cnn(scale=0.06)", (1, 8, 8), CLASSES)
    task = task.keeping(task.norm_names)
    data = samples(12, (1, 8, 8), CLASSES)
    asker = {k: v for k, v in task.init(Key(2)).items() if k not in task.private}
    own_model = {
        k: v + 0.3 * noise(*v.shape, seed=7).abs() if k in task.private else v
        for k, v in task.init(Key(1)).items()
    }
    reply = help_replies(FedSps(select="all", epsilon=0.0), own_model, {4: asker}, data, task)[4]
    free = {k: v.clone().requires_grad_() for k, v in asker.items()}
    whole = free | {k: own_model[k] for k in task.private}
    grads = torch.autograd.grad(
        F.cross_entropy(task.logits(whole, data.x), data.y), list(free.values())
    )
    assert_close(reply.grads, dict(zip(free, grads, strict=True)), atol=1e-6)
    _, sealed_models = run_call(
        FedSps().send(
            FedSpsState(own_model, 1.0, {}, {}), Group([1]), party_of(task, data, FULL), Key(0)
        )
    )
    assert set(sealed_models) == {1}
    assert_same(
        unseal(sealed_models[1]).theta,
        {k: v for k, v in own_model.items() if k not in task.private},
    )


# --- eq. 13


def help_of(grads: Params, count: int = 1, overlap: float = 0.5) -> Help:
    return Help(grads, None, None, 1.0, count, overlap)


def local_step(
    fed: FedSps, helps: dict[int, Help], how: Training = FULL, validation: Samples | None = None
) -> tuple[Params, FedSpsState]:
    """The first model, and a party's state after a local training with these messages from peers."""
    task, h = mlp(), mlp().init(Key(1))
    party = replace(party_of(task, three()[0], how), inbox=helps)
    if validation is not None:
        party = replace(party, data=PartyData(three()[0], validation, party.data.test))
    state, _ = run_call(
        fed.local(FedSpsState(h, 1.0, {}, h if fed.code_compat else {}), Empty(), party, Key(5))
    )
    return h, state


def noisy(h: Params, seed: int) -> Params:
    return {k: noise(*v.shape, seed=seed + n) for n, (k, v) in enumerate(h.items())}


@pytest.mark.parametrize(("reduce", "weights"), [
    ("mean", (0.5, 0.5)), ("sum", (1.0, 1.0)), ("pool", (0.25, 0.75)),
])  # fmt: skip
def test_eq13_reduce_by_hand(
    reduce: Literal["mean", "sum", "pool"], weights: tuple[float, float]
) -> None:
    """Peers with 2 and 6 selected samples: (g + g')/2, g + g', (2g + 6g')/8."""
    g, other = noisy(mlp().init(Key(1)), 10), noisy(mlp().init(Key(1)), 20)
    h, state = local_step(
        FedSps(alpha=0.0, beta=0.7, reduce=reduce), {3: help_of(g, 2), 8: help_of(other, 6)}
    )
    own = mean_grad(h, three()[0].x, three()[0].y)
    assert_close(
        state.h, gradient_step(h, 0.2, (1.0, own), (0.7 * weights[0], g), (0.7 * weights[1], other))
    )


@pytest.mark.parametrize("reduce", ["mean", "sum", "pool"])
def test_eq13_peers_without_overlap(reduce: Literal["mean", "sum", "pool"]) -> None:
    """Nothing was found: gradients of zero, and a pool of no samples does not divide by zero."""
    nothing = {k: torch.zeros_like(v) for k, v in mlp().init(Key(1)).items()}
    h, state = local_step(
        FedSps(alpha=0.0, reduce=reduce),
        {3: help_of(nothing, 0, 0.0), 8: help_of(nothing, 0, 0.0)},
    )
    assert_close(
        state.h, gradient_step(h, 0.2, (1.0, mean_grad(h, three()[0].x, three()[0].y))), atol=1e-6
    )


def test_eq13_mean_is_over_the_peers_asked() -> None:
    """A peer without overlap counts: (g + 0)/2; in the pool it does not: g."""
    g = noisy(mlp().init(Key(1)), 10)
    nothing = {k: torch.zeros_like(v) for k, v in g.items()}
    weights: dict[Literal["mean", "pool"], float] = {"mean": 0.25, "pool": 0.5}
    for reduce, weight in weights.items():
        h, state = local_step(
            FedSps(alpha=0.0, beta=0.5, reduce=reduce), {3: help_of(g, 4), 8: help_of(nothing, 0)}
        )
        assert_close(
            state.h,
            gradient_step(h, 0.2, (1.0, mean_grad(h, three()[0].x, three()[0].y)), (weight, g)),
        )


@pytest.mark.parametrize("collab_steps", [1, 3])
def test_l12_l14_a_gradient_acts_once(collab_steps: int) -> None:
    """Two epochs of one batch: a gradient that peers sent is of the weights they got, so it acts in
    the first step alone.
    """
    g = noisy(mlp().init(Key(1)), 10)
    fed = FedSps(alpha=0.0, beta=0.7, collab_steps=collab_steps)
    h, state = local_step(fed, {3: help_of(g)}, replace(FULL, epochs=2))
    x, y = three()[0].x, three()[0].y
    after = gradient_step(h, 0.2, (1.0, mean_grad(h, x, y)), (0.7, g))
    assert_close(state.h, gradient_step(after, 0.2, (1.0, mean_grad(after, x, y))))


@pytest.mark.parametrize(
    ("reduce", "weights"), [("mean", (0.5, 0.5)), ("sum", (1.0, 1.0)), ("pool", (0.4, 0.6))]
)
def test_samples_at_hand_give_a_new_gradient_in_every_collaborative_step(
    reduce: Literal["mean", "sum", "pool"], weights: tuple[float, float]
) -> None:
    """Peers gave 4 and 6 samples, which stay; two collaborative steps and one more: their gradient
    is of the present weights.
    """
    first_data, second_data = (
        samples(4, SHAPE, CLASSES, seed=41),
        samples(6, SHAPE, CLASSES, seed=42),
    )
    helps = {
        3: Help({}, first_data.x, first_data.y.int(), 1.0, 4, 0.5),
        8: Help({}, second_data.x, second_data.y.int(), 1.0, 6, 0.5),
    }
    fed = FedSps(alpha=0.0, beta=0.7, mode="samples", reduce=reduce, collab_steps=2)
    first, state = local_step(fed, helps, replace(FULL, epochs=2))
    h, (x, y) = first, (three()[0].x, three()[0].y)
    for step in range(3):
        theirs = [
            (0.7 * w, mean_grad(h, d.x, d.y))
            for w, d in zip(weights, (first_data, second_data), strict=True)
        ]
        h = gradient_step(h, 0.2, (1.0, mean_grad(h, x, y)), *(theirs if step < 2 else ()))
    assert_close(state.h, h)


@pytest.mark.parametrize("tune", ["round", "off"])
def test_collab_steps_are_exchanges_whose_gradients_are_new(tune: Literal["round", "off"]) -> None:
    """Full batches, one epoch: three collaborative steps are three of Algorithm 2's rounds, by
    torch; overlaps are means.
    """
    fed = FedSps(alpha=0.3, beta=0.7, collab_steps=3, tune=tune)
    server, s = server_of(fed, mlp(), three(), FULL)
    rounds(fed, server, s, 1)
    h, shares = [mlp().init(Key.root(0).fold("init"))] * 3, []
    for _ in range(3):
        h, share, _ = round_of(h, three(), 0.2, 0.3, 0.7)
        shares.append(share)
    for ours, theirs in zip(models(server), h, strict=True):
        assert_close(ours, theirs)
    metrics = {(n.party, n.metric): n.value for n in server.notes}
    assert len(metrics) == len(server.notes) == 6
    for i in range(3):
        for j in {0, 1, 2} - {i}:
            mean = sum(share[i][j] for share in shares) / 3
            assert metrics[f"p{i}", f"overlap/p{j}"] == pytest.approx(mean, abs=1e-6)


def test_collab_steps_then_the_epochs_that_tune() -> None:
    """Two collaborative steps, the second of them the first of two epochs of one batch: three
    steps, the last without peers.
    """
    fed = FedSps(alpha=0.3, beta=0.7, collab_steps=2)
    server, s = server_of(fed, mlp(), three(), replace(FULL, epochs=2))
    rounds(fed, server, s, 1)
    h = [mlp().init(Key.root(0).fold("init"))] * 3
    for beta in (0.7, 0.7, 0.0):
        h, _, _ = round_of(h, three(), 0.2, 0.3, beta)
    for ours, theirs in zip(models(server), h, strict=True):
        assert_close(ours, theirs)


def test_collab_steps_keep_their_momentum_where_optimizers_do() -> None:
    """v ← 0.5 v + g over the collaborative steps of two rounds: all are trainings of one party
    function, whose moments the party keeps.
    """
    ends = []
    for steps, t in ((2, 2), (1, 4)):
        fed = FedSps(alpha=0.0, beta=0.7, collab_steps=steps, tune="off")
        server, s = server_of(fed, mlp(), three(), replace(FULL, momentum=0.5, keep=True))
        rounds(fed, server, s, t)
        ends.append(models(server))
    h, v = (
        [mlp().init(Key.root(0).fold("init"))] * 3,
        [{k: torch.zeros_like(w) for k, w in mlp().init(Key(0)).items()}] * 3,
    )
    for _ in range(4):
        new, _, _ = round_of(h, three(), 1.0, 0.0, 0.7)
        v = [{k: 0.5 * u[k] + (a[k] - b[k]) for k in u} for u, a, b in zip(v, h, new, strict=True)]
        h = [gradient_step(a, 0.2, (1.0, u)) for a, u in zip(h, v, strict=True)]
    for ours, others, theirs in zip(*ends, h, strict=True):
        assert_close(ours, theirs)
        assert_close(others, theirs)


@pytest.mark.parametrize(("options", "how", "warns"), [
    ({}, {"momentum": 0.5}, False),
    ({"collab_steps": 2}, {}, False),
    ({"collab_steps": 2}, {"momentum": 0.5}, True),
    ({"collab_steps": 2}, {"optimizer": "adam"}, True),
    ({"collab_steps": 2}, {"momentum": 0.5, "keep": True}, False),
    ({"tune": "end"}, {"momentum": 0.5}, True),
], ids=str)  # fmt: skip
def test_a_warning_where_collaborative_steps_lose_moments(
    options: dict[str, Any], how: dict[str, Any], warns: bool
) -> None:
    info = server_of(FedSps(), mlp(), three(), replace(FULL, **how))[0].info
    assert bool(FedSps(**options).accounting.warnings(info)) == warns


def test_the_removed_option_peer_steps_names_its_replacement() -> None:
    for text in ("fed-sps(peer_steps=every)", "fed-sps(peer_steps=first)"):
        with pytest.raises(comity.UsageError, match="Did you mean 'collab_steps'"):
            comity.run(text, named_federation(), model=SMALL, rounds=1)


def batchnorm_task() -> tuple[LearningTask, Samples]:
    """A network with BatchNorm, and images."""
    return task_of("fedbn-cnn(scale=0.06)", (1, 8, 8), CLASSES), samples(12, (1, 8, 8), CLASSES)


def alone_with(fed: FedSps, task: LearningTask, data: Samples, how: Training) -> Params:
    party = party_of(task, data, how)
    return run_call(fed.local(fed.init_party(Key(1), party), Empty(), party, Key(5)))[0].h


def test_alpha_mode_eval_takes_running_values_and_leaves_them() -> None:
    """One step by autograd: ∇ of the training loss, and α ∇ of the perturbed samples' in evaluation
    mode; ε = 0, so T is x.
    """
    task, data = batchnorm_task()
    ends = {
        mode: alone_with(FedSps(alpha=0.8, beta=0.0, epsilon=0.0, alpha_mode=mode), task, data, FULL)
        for mode in ("train", "eval")
    }  # fmt: skip
    alone = alone_with(FedSps(alpha=0.0, beta=0.0), task, data, FULL)
    theta = {k: v.clone() for k, v in task.init(Key(1)).items()}
    names = [k for k in theta if "~" not in k]
    free = theta | {k: theta[k].clone().requires_grad_() for k in names}
    value = task.loss(free, batch_of(data))
    value = value + 0.8 * F.cross_entropy(task.logits(free, data.x), data.y)
    grads = dict(zip(names, torch.autograd.grad(value, [free[k] for k in names]), strict=True))
    assert_close(
        {k: ends["eval"][k] for k in names}, {k: theta[k] - 0.2 * g for k, g in grads.items()}
    )
    buffers = [k for k in theta if "~" in k]
    assert_same({k: ends["eval"][k] for k in buffers}, {k: alone[k] for k in buffers})
    assert (
        differ(
            {k: ends["train"][k].float() for k in buffers}, {k: alone[k].float() for k in buffers}
        )
        > 1e-3
    )


def test_alpha_mode_has_no_effect_without_mode_dependent_layers() -> None:
    ends = [
        alone_with(FedSps(alpha=0.8, beta=0.0, alpha_mode=mode), mlp(), three()[0], FULL)
        for mode in ("train", "eval")
    ]
    assert_same(*ends)


def test_eq13_alpha_term_follows_the_present_model() -> None:
    """Two steps: the second step's own samples are perturbed against the model as it is by then."""
    x, y = three()[0].x, three()[0].y
    first, state = local_step(
        FedSps(alpha=0.8, epsilon=0.5, attack_lr=0.2, clamp="none"), {}, replace(FULL, epochs=2)
    )
    h = first
    for _ in range(2):
        z = x.clone()
        for _ in range(5):
            z.requires_grad_()
            (slope,) = torch.autograd.grad(each_loss(h, z, y).mean(), z)
            z = torch.min(torch.max(z.detach() + 0.2 * slope.sign(), x - 0.5), x + 0.5)
        h = gradient_step(h, 0.2, (1.0, mean_grad(h, x, y)), (0.8, mean_grad(h, z, y)))
    assert_close(state.h, h)


def test_spec5_gradient_and_samples_give_the_same_update() -> None:
    task, how = mlp(), Training(lr=0.1, batch=6, epochs=2)
    ends = []
    for mode in ("gradient", "samples"):
        fed = FedSps(alpha=0.2, beta=0.9, mode=mode, reduce="pool")
        server, s = server_of(fed, task, three(), how)
        rounds(fed, server, s, 3)
        ends.append(models(server))
    for ours, theirs in zip(*ends, strict=True):
        assert_close(ours, theirs, atol=1e-6)
    assert differ(ends[0][0], ends[0][1]) > 1e-3


# --- special cases


@pytest.mark.parametrize(
    "how", [Training(lr=0.1, batch=4, momentum=0.9, epochs=2), Training("adam", lr=0.01, batch=5)]
)
def test_spec1_alpha_beta_0_is_solo_bit_for_bit_and_silent(how: Training) -> None:
    fed, solo = FedSps(alpha=0.0, beta=0.0), Solo()
    server, s = server_of(fed, mlp(), three(), how, participation=0.7)
    alone, r = server_of(solo, mlp(), three(), how, participation=0.7)
    rounds(fed, server, s, 3)
    rounds(solo, alone, r, 3)
    for i in range(3):
        assert_same(server.state(i).h, alone.state(i))
    assert not server.ledger.rows
    assert not server.notes


def test_spec1_alpha_without_beta_sends_nothing_and_is_eq5() -> None:
    """Eq. 5: loss + α · robust loss, by torch."""
    fed = FedSps(alpha=0.4, beta=0.0)
    server, s = server_of(fed, mlp(), three(), FULL)
    rounds(fed, server, s, 2)
    assert not server.ledger.rows
    for i, d in enumerate(three()):
        h = mlp().init(Key.root(0).fold("init"))
        for _ in range(2):
            h = gradient_step(
                h, 0.2, (1.0, mean_grad(h, d.x, d.y)), (0.4, mean_grad(h, pgd_of(h, d), d.y))
            )
        assert_close(server.state(i).h, h)


def test_spec3_epsilon_0_strict_is_local_training() -> None:
    fed, solo, how = FedSps(alpha=0.0, beta=5.0, epsilon=0.0), Solo(), Training(lr=0.1, batch=4)
    server, s = server_of(fed, mlp(), three(), how)
    alone, r = server_of(solo, mlp(), three(), how)
    rounds(fed, server, s, 2)
    rounds(solo, alone, r, 2)
    for i in range(3):
        assert_same(server.state(i).h, alone.state(i))
    assert {n.value for n in server.notes} == {0.0}
    assert len(server.notes) == 12


def test_spec3_epsilon_0_geq_is_gradient_descent_on_the_sum_of_mean_losses() -> None:
    """C.2's FedAvg: common start, full batches, plain SGD, all parties, Σ_j, β = 1, α = 0."""
    fed = FedSps(alpha=0.0, beta=1.0, epsilon=0.0, select="geq", reduce="sum")
    server, s = server_of(fed, mlp(), three(), FULL)
    theta = mlp().init(Key.root(0).fold("init"))
    first = theta
    for t in range(1, 7):
        s = rounds(fed, server, s, 1, first=t)
        theta = gradient_step(theta, 0.2, *[(1.0, mean_grad(theta, d.x, d.y)) for d in three()])
        for h in models(server):
            assert_close(h, theta, atol=2e-6)
    assert differ(first, theta) > 0.1
    assert {n.value for n in server.notes} == {1.0}


def test_spec3_geq_reduce_mean_is_the_mean_of_the_peers() -> None:
    """As above with β = 1 and a mean: own gradient plus half the sum of the two peers'."""
    fed = FedSps(alpha=0.0, beta=1.0, epsilon=0.0, select="geq")
    server, s = server_of(fed, mlp(), three(), FULL)
    rounds(fed, server, s, 1)
    theta = mlp().init(Key.root(0).fold("init"))
    g = [mean_grad(theta, d.x, d.y) for d in three()]
    for i, h in enumerate(models(server)):
        assert_close(
            h, gradient_step(theta, 0.2, *[(1.0 if i == j else 0.5, g[j]) for j in range(3)])
        )


# --- Algorithm 2


@cache
def whole() -> comity.Result:
    """Two rounds of three parties, full batches, one epoch."""
    return comity.run(
        "fed-sps", named_federation(), model=SMALL, rounds=2, batch=100, lr=0.5, engine="loop",
        alpha=0.3, beta=0.7,
    )  # fmt: skip


def test_alg2_two_rounds_by_torch() -> None:
    h, shares = [mlp().init(Key.root(0).fold("init"))] * 3, []
    for _ in range(2):
        h, share, _ = round_of(h, three(), 0.5, 0.3, 0.7)
        shares.append(share)
    names = ("north", "south", "east")
    for name, theirs in zip(names, h, strict=True):
        assert_close(whole().model(name).theta, theirs)
    rows = {(m.round, m.party, m.metric): m.value for m in whole().metrics if m.split == "train"}
    assert len(rows) == 2 * 3 * 2
    for t in (1, 2):
        for i, north in enumerate(names):
            for j, south in enumerate(names):
                if i != j:
                    assert rows[t, north, f"overlap/{south}"] == pytest.approx(
                        shares[t - 1][i][j], abs=1e-6
                    )


def test_alg2_overlaps_are_shares_and_asymmetric() -> None:
    rows = {
        (m.party, m.metric): m.value for m in whole().metrics if m.split == "train" and m.round == 2
    }
    assert all(0 <= value <= 1 for value in rows.values())
    assert rows["north", "overlap/south"] != rows["south", "overlap/north"]
    assert any(0 < value < 1 for value in rows.values())
    assert not [m for m in whole().metrics if m.metric == f"overlap/{m.party}"]


def test_eq12_at_the_common_start_the_overlap_is_the_share_of_ones_own_losses_that_rose() -> None:
    """h^i = h^j in round 1: ODA_ij does not depend on i."""
    theta = mlp().init(Key.root(0).fold("init"))
    rows = {
        (m.party, m.metric): m.value for m in whole().metrics if m.split == "train" and m.round == 1
    }
    for j, name in enumerate(("north", "south", "east")):
        own = eq12_mask(theta, three()[j], pgd_of(theta, three()[j])).double().mean().item()
        assert [
            v for (_, metric), v in rows.items() if metric == f"overlap/{name}"
        ] == pytest.approx([own, own], abs=1e-6)


@pytest.mark.slow
def test_spec7_order_of_calls_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parties run and reply in reverse: the same bits, the peers drawn and the noise included."""
    function = LoopEngine.run
    order = []

    def backwards(
        self: LoopEngine, call: Any, messages: Any, sealed_messages: Any
    ) -> Iterator[tuple[int, PartyResult]]:
        for i, answer in function(self, call, dict(reversed(messages.items())), sealed_messages):
            order.append(i)
            yield i, answer

    for options in (
        {"attack": "wasserstein"},
        {"peers": 1},
        {"code_compat": True, "reduce": "pool"},
    ):
        ends = []
        for patched in (False, True):
            with monkeypatch.context() as patch:
                if patched:
                    patch.setattr(LoopEngine, "run", backwards)
                fed = FedSps(beta=0.8, **options)
                server, s = server_of(fed, mlp(), three(), Training(lr=0.1, batch=6))
                rounds(fed, server, s, 3)
            ends.append(([server.state(i) for i in range(3)], server.notes))
        for ours, theirs in zip(ends[0][0], ends[1][0], strict=True):
            assert_same(ours.h, theirs.h)
            assert (ours.lam, ours.scores) == (theirs.lam, theirs.scores)
        assert ends[0][1] == ends[1][1]
    assert order[:3] == [2, 1, 0]


def test_spec7_numbers_of_parties_do_not_matter() -> None:
    """The same parties under other numbers: the same models."""
    order = (2, 0, 1)
    ends = []
    for data in (three(), [three()[k] for k in order]):
        fed = FedSps(alpha=0.3, beta=0.8, reduce="pool")
        server, s = server_of(fed, mlp(), data, FULL)
        rounds(fed, server, s, 3)
        ends.append(models(server))
    for at, k in enumerate(order):
        assert_close(ends[1][at], ends[0][k], atol=2e-6)


def test_alg2_only_those_drawn_take_part() -> None:
    fed = FedSps()
    data = [samples(8, SHAPE, CLASSES, seed=i) for i in range(4)]
    server, s = server_of(fed, mlp(), data, FULL, participation=0.5)
    before = models(server, 4)
    s = rounds(fed, server, s, 1)
    cohort = server.sample(1)
    assert len(cohort) == 2
    for i in range(4):
        assert (differ(before[i], server.state(i).h) > 0) == (i in cohort)
    names = {f"p{i}" for i in cohort}
    assert {row.src for row in server.ledger.rows} - {"server"} == names
    assert {(n.party, n.metric) for n in server.notes} == {
        (a, f"overlap/{b}") for a in names for b in names if a != b
    }


@pytest.mark.sweep("gradient")
@pytest.mark.filterwarnings("ignore:.*near-copies")
@pytest.mark.parametrize("mode", ["gradient", "samples"])
@pytest.mark.parametrize(("tune", "collab_steps", "per_round", "after"), [
    ("round", 1, 4, 0), ("off", 1, 1, 0), ("end", 1, 1, 4), ("round", 3, 6, 0), ("off", 3, 3, 0), ("end", 3, 3, 4),
])  # fmt: skip
def test_l14_tune_steps(
    tune: str, collab_steps: int, per_round: int, after: int, mode: str
) -> None:
    """20 samples in batches of 10, two epochs: 4 steps a training, the first collaborative; three
    parties, three rounds.

    Every step takes ATTACKED gradients: five for the attack, the batch and its attacked copy. A
    collaborative step takes five more for an attack, and one for each of two peers.
    """
    fed = federation((20, 20, 20))
    how: dict[str, Any] = {"model": SMALL, "rounds": 3, "epochs": 2, "engine": "loop"}
    result = comity.run("fed-sps", fed, **how, tune=tune, collab_steps=collab_steps, mode=mode)
    attacks = collab_steps if mode == "gradient" else 1  # samples are attacked and sent once
    in_a_round = ATTACKED * per_round + ATTACK * attacks + 2 * collab_steps
    assert result.summary["steps"] == 3 * (3 * in_a_round + ATTACKED * after)
    splits = {m.split for m in result.metrics if m.metric == "accuracy"}
    assert ("test-unfinished" in splits) == (tune == "end")
    if tune == "end":
        assert {(m.round, m.party) for m in result.metrics if m.split == "test-unfinished"} == {
            (3, f"p{i}") for i in range(3)
        }


def test_l14_tune_end_is_off_and_then_one_local_training_with_the_own_terms() -> None:
    """By torch, from where `off` stops: one step (a full batch) on eq. 5."""
    ends = {}
    for tune in ("off", "end"):
        ends[tune] = comity.run(
            "fed-sps", named_federation(), model=SMALL, rounds=2, batch=100, lr=0.3, engine="loop",
            alpha=0.3, tune=tune,
        )  # fmt: skip
    for name, d in zip(("north", "south", "east"), three(), strict=True):
        h = ends["off"].model(name).theta
        expected = gradient_step(
            h, 0.3, (1.0, mean_grad(h, d.x, d.y)), (0.3, mean_grad(h, pgd_of(h, d), d.y))
        )
        assert_close(ends["end"].model(name).theta, expected)
    evaluations = []
    for tune, split in (("off", "test"), ("end", "test-unfinished")):
        rows = [m for m in ends[tune].metrics if (m.round, m.split) == (2, split)]
        evaluations.append([m.value for m in rows if m.metric in ("accuracy", "loss")])
    assert evaluations[0] == evaluations[1]
    assert len(evaluations[0]) == 6


def test_l14_newcomers_are_tuned_too() -> None:
    """3 · (2 · 1 + 2) steps of the parties; the newcomer's step, and its warm-up of three epochs of
    two batches.
    """
    fed = federation((20, 20, 20, 20))
    result = comity.run(
        "fed-sps", fed, model=SMALL, rounds=2, engine="loop", newcomers=1, join_epochs=3, tune="end"
    )
    assert result.summary["steps"] >= 12 + 6


def test_newcomers_ask_all_parties() -> None:
    fed = federation((20, 20, 20, 20))
    result = comity.run(
        "fed-sps", fed, model=SMALL, rounds=1, engine="loop", newcomers=1, join_epochs=3
    )
    rows = {(row.src, row.dst) for row in result.ledger if row.round == 2 and row.kind == "peer"}
    assert rows == {(a, b) for i in range(3) for a, b in (("p3", f"p{i}"), (f"p{i}", "p3"))}
    with_newcomer = 3 * ATTACK + 3  # each party attacks a batch, the newcomer takes their gradients
    assert result.summary["steps"] == 3 * (2 * ATTACKED + ATTACK + 2) + 6 * ATTACKED + with_newcomer


def test_newcomers_collaborate_as_often() -> None:
    """Two exchanges with each of three parties, as the closed form says."""
    fed = federation((20, 20, 20, 20))
    result = comity.run(
        "fed-sps",
        fed,
        model="mlp2(width=7)",
        rounds=1,
        engine="loop",
        newcomers=1,
        join_epochs=3,
        collab_steps=2,
    )
    peer_bytes = sum(row.bytes for row in result.ledger if row.round == 2 and row.kind == "peer")
    assert (
        peer_bytes
        == result.job.algorithm.accounting.join_traffic(result.job.info).peer
        == 2 * 3 * (2 * WIDTH7 + 12)
    )
    with_newcomer = 2 * (3 * ATTACK + 3)
    assert (
        result.summary["steps"]
        == 3 * (3 * ATTACKED + 2 * (ATTACK + 2)) + 7 * ATTACKED + with_newcomer
    )


# --- exploration and exploitation


@pytest.mark.slow
def test_spec8_chances_by_hand() -> None:
    """s = (1, 2, 6): mean 3, deviation √(14/3); ξ = 0.2, τ = 2."""
    chances = peer_chances({1: 1.0, 2: 2.0, 3: 6.0}, [1, 2, 3], 0.2, 2.0)
    e = [math.exp(s / math.sqrt(14 / 3) / 2) for s in (-2, -1, 3)]
    assert chances.tolist() == pytest.approx([0.8 * v / sum(e) + 0.2 / 3 for v in e])
    assert chances.sum().item() == pytest.approx(1)


@pytest.mark.slow
def test_spec8_unseen_peers_have_the_mean_score() -> None:
    """(1, ?, 5): the unknown has 3, which is 0 when standardised; ±√1.5 for the others."""
    e = [math.exp(s) for s in (-math.sqrt(1.5), 0, math.sqrt(1.5))]
    assert peer_chances({1: 1.0, 3: 5.0}, [1, 2, 3], 0.0, 1.0).tolist() == pytest.approx(
        [v / sum(e) for v in e]
    )
    assert peer_chances({}, [4, 5], 0.0, 1.0).tolist() == [0.5, 0.5]
    assert peer_chances({9: 7.0}, [4, 5], 0.0, 1.0).tolist() == [
        0.5,
        0.5,
    ], "who is not there does not count"


@pytest.mark.slow
@pytest.mark.parametrize(
    "scores",
    [{1: 1.0, 2: -5.0, 3: 100.0}, {}, {1: 2.0, 2: 2.0, 3: 2.0}, {2: math.nan}, {2: math.inf}],
)
@pytest.mark.parametrize("explore", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("temperature", [0.01, 1.0, 50.0])
def test_spec8_chances_sum_to_1_and_xi_1_is_uniform(
    scores: dict[int, float], explore: float, temperature: float
) -> None:
    chances = peer_chances(scores, [1, 2, 3], explore, temperature)
    assert chances.sum().item() == pytest.approx(1)
    assert chances.min().item() >= explore / 3 - 1e-12
    if explore == 1:
        assert chances.tolist() == pytest.approx([1 / 3] * 3)


def test_temperature_tells_peers_apart() -> None:
    sharp, soft = (peer_chances({1: 0.0, 2: 1.0}, [1, 2], 0.0, tau) for tau in (0.05, 100.0))
    assert sharp[1] > 0.999
    assert soft[1].item() == pytest.approx(1 / (1 + math.exp(-2 / 100)))  # standardised: −1 and 1


@pytest.mark.slow
@pytest.mark.parametrize(("explore", "temperature"), [(0.2, 1.0), (1.0, 1.0), (0.0, 0.5)])
def test_spec8_peers_are_drawn_by_these_chances(explore: float, temperature: float) -> None:
    fed, n, scores = (
        FedSps(peers=1, explore=explore, temperature=temperature),
        3000,
        {0: 1.0, 2: 2.0, 5: 4.0},
    )
    counts = Counter(j for k in range(n) for j in fed.choose_peers(scores, [0, 2, 5], Key(k)))
    mean = 7 / 3
    spread = math.sqrt(sum((s - mean) ** 2 for s in scores.values()) / 3)
    e = {j: math.exp((s - mean) / spread / temperature) for j, s in scores.items()}
    for j, v in e.items():
        p = (1 - explore) * v / sum(e.values()) + explore / 3
        assert counts[j] / n == pytest.approx(p, abs=4 * math.sqrt(p * (1 - p) / n))


@pytest.mark.slow
def test_spec8_without_replacement_and_all_if_there_are_no_more() -> None:
    for k in range(50):
        assert len(set(FedSps(peers=2).choose_peers({}, [3, 5, 7, 8], Key(k)))) == 2
    assert FedSps(peers=4).choose_peers({}, [3, 5, 7, 8], Key(0)) == [3, 5, 7, 8]
    assert FedSps(peers=9).choose_peers({}, [3, 5], Key(0)) == [3, 5]
    assert FedSps(peers=0).choose_peers({}, [3, 5], Key(0)) == [3, 5]
    assert FedSps(peers=2).choose_peers({}, [], Key(0)) == []


@pytest.mark.slow
@pytest.mark.parametrize("peers", [1, 2])
@pytest.mark.parametrize("options", [{}, {"code_compat": True}])
def test_spec8_exactly_m_peers_a_round_and_never_oneself(
    peers: int, options: dict[str, Any]
) -> None:
    fed = FedSps(peers=peers, explore=0.5, **options)
    data = [samples(8, SHAPE, CLASSES, seed=i) for i in range(5)]
    server, s = server_of(fed, mlp(), data, FULL)
    rounds(fed, server, s, 6)
    calls = Counter(
        (row.round, row.src)
        for row in server.ledger.rows
        if row.call == "assist" and row.kind == "peer"
    )
    assert calls == {(t, f"p{i}"): peers for t in range(1, 7) for i in range(5)}
    edges = {(row.src, row.dst) for row in server.ledger.rows if row.kind == "peer"}
    assert all(a != b for a, b in edges)
    assert len(edges) > 5 * peers, "others are tried, too"
    assert Counter((n.round, n.party) for n in server.notes) == calls


def test_scores_are_moving_averages() -> None:
    """0.9 · 2 + 0.1 · 1; a newcomer's first score is what it gave; the others' stay."""
    assert moving_average({1: 2.0, 3: 7.0}, {1: 1.0, 2: 5.0}) == pytest.approx(
        {1: 1.9, 2: 5.0, 3: 7.0}
    )


def test_score_overlap_over_rounds() -> None:
    """Everybody is asked (3 of 3), so the metrics say what each gave in each round."""
    data = [samples(9, SHAPE, CLASSES, seed=i) for i in range(4)]
    fed = FedSps(peers=3, score="overlap", beta=3.0)
    server, s = server_of(fed, mlp(), data, FULL)
    rounds(fed, server, s, 3)
    gave = {(n.round, n.party, n.metric): n.value for n in server.notes}
    for i in range(4):
        o = {j: [gave[t, f"p{i}", f"overlap/p{j}"] for t in (1, 2, 3)] for j in range(4) if j != i}
        assert server.state(i).scores == pytest.approx(
            {j: 0.81 * a + 0.09 * b + 0.1 * c for j, (a, b, c) in o.items()}
        )
    assert len(set(gave.values())) > 2


def test_score_gain_is_the_drop_by_that_peers_step() -> None:
    """L_i(h) − L_i(h − lr·β·g_ij), on the training samples if nothing is held out; twice, as a
    moving average.
    """
    fed = FedSps(peers=2, alpha=0.3, beta=0.7)
    server, s = server_of(fed, mlp(), three(), FULL)
    h = [mlp().init(Key.root(0).fold("init"))] * 3
    scores: dict[tuple[int, int], float] = {}
    for t in (1, 2):
        s = rounds(fed, server, s, 1, first=t)
        new, _, grads = round_of(h, three(), 0.2, 0.3, 0.7)
        for i, d in enumerate(three()):
            for j in range(3):
                if j != i:
                    one_step = gradient_step(h[i], 0.2, (0.7, grads[i][j]))
                    gain = (
                        each_loss(h[i], d.x, d.y).mean() - each_loss(one_step, d.x, d.y).mean()
                    ).item()
                    scores[i, j] = gain if t == 1 else 0.9 * scores[i, j] + 0.1 * gain
            assert server.state(i).scores == pytest.approx(
                {j: scores[i, j] for j in range(3) if j != i}, abs=1e-6
            )
        h = new
    assert max(map(abs, scores.values())) > 1e-3


def test_score_gain_is_on_validation_samples_if_there_are_any() -> None:
    validation = samples(9, SHAPE, CLASSES, seed=33)
    g, other = noisy(mlp().init(Key(1)), 10), noisy(mlp().init(Key(1)), 20)
    for score in ("gain", "overlap"):
        helps = {3: help_of(g, overlap=0.25), 8: help_of(other, overlap=0.75)}
        h, state = local_step(
            FedSps(peers=2, alpha=0.0, beta=0.7, score=score), helps, validation=validation
        )
        before = each_loss(h, validation.x, validation.y).mean()
        gain = {
            j: (
                before
                - each_loss(gradient_step(h, 0.2, (0.7, v)), validation.x, validation.y).mean()
            ).item()
            for j, v in ((3, g), (8, other))
        }
        assert state.scores == pytest.approx(
            gain if score == "gain" else {3: 0.25, 8: 0.75}, abs=1e-5
        )


def test_scores_prefer_peers_that_help() -> None:
    """With sharp exploitation a party keeps asking the peer with the best score; with ξ = 1 it does
    not.
    """
    data = [samples(8, SHAPE, CLASSES, seed=i) for i in range(4)]
    peers_asked = {}
    for explore in (0.0, 1.0):
        fed = FedSps(peers=1, explore=explore, temperature=0.01)
        server, _ = server_of(fed, mlp(), data, FULL)
        state = replace(server.state(0), scores={1: 0.0, 2: 1.0, 3: 0.1})
        party = party_of(mlp(), data[0], FULL)
        sealed_by_key = [
            run_call(fed.send(state, Group([1, 2, 3]), party, Key(k)))[1] for k in range(60)
        ]
        peers_asked[explore] = Counter(j for to in sealed_by_key for j in to)
    assert peers_asked[0.0] == {2: 60}
    assert set(peers_asked[1.0]) == {1, 2, 3}


# --- the public code's ways


def test_code_compat_attacks_the_first_weights() -> None:
    """First weights w, present ones −w: x + 0.03·sign(w) with the option, x − 0.03·sign(w) without."""
    task, first, now = task_of("linear", (3,), 2), line(1.0, -2.0, 3.0), line(-1.0, 2.0, -3.0)
    data = Samples(0.5 + 0.1 * noise(6, 3), torch.zeros(6, dtype=torch.int64))
    sign = torch.tensor([1.0, -1.0, 1.0])
    for compat, way in ((True, 1), (False, -1)):
        fed = FedSps(mode="samples", select="all", code_compat=compat, clamp="none")
        reply = help_replies(fed, now, {4: now}, data, task, first=first if compat else None)[4]
        torch.testing.assert_close(reply.x, data.x + way * 0.03 * sign, rtol=0, atol=1e-6)


def test_code_compat_keeps_the_first_weights() -> None:
    for compat in (True, False):
        fed = FedSps(code_compat=compat)
        server, s = server_of(fed, mlp(), three(), FULL)
        rounds(fed, server, s, 2)
        theta = mlp().init(Key.root(0).fold("init"))
        for i in range(3):
            assert_same(server.state(i).first, theta if compat else {})
            assert differ(server.state(i).h, theta) > 1e-3


def test_code_compat_starts_from_noise_of_a_thousandth() -> None:
    """One step of almost nothing leaves the noise alone: N(0, 0.001²); without the option there is
    none.
    """
    task = task_of("linear", (50,), 2)
    data = Samples(torch.full((60, 50), 0.5), torch.zeros(60, dtype=torch.int64))
    for compat, scale in ((True, 0.001), (False, 0.0)):
        fed = FedSps(
            mode="samples",
            select="all",
            code_compat=compat,
            attack_steps=1,
            attack_lr=1e-12,
            clamp="none",
        )
        h = line(*[1.0] * 50)
        reply = help_replies(fed, h, {4: h}, data, task, first=h)[4]
        assert reply.x is not None
        gap = reply.x - 0.5
        assert gap.std().item() == pytest.approx(scale, rel=0.06)
        assert gap.mean().item() == pytest.approx(0, abs=4 * scale / math.sqrt(3000))


@pytest.mark.parametrize("clamp", ["data", "none", "unit"])
def test_code_compat_clamps_to_0_and_1_whatever_clamp_says(
    clamp: Literal["data", "none", "unit"],
) -> None:
    """Normalised inputs lose what is negative, as in the public code."""
    task, h = task_of("linear", (2,), 2), line(1.0, -1.0)
    data = Samples(torch.tensor([[-2.0, 0.5], [0.99, 3.0]]), torch.zeros(2, dtype=torch.int64))
    fed = FedSps(mode="samples", select="all", code_compat=True, clamp=clamp)
    expected = torch.tensor([[0.0, 0.47], [1.0, 1.0]])
    torch.testing.assert_close(
        help_replies(fed, h, {4: h}, data, task, first=h)[4].x, expected, rtol=0, atol=1e-6
    )


@pytest.mark.parametrize("select", ["strict", "all"])
def test_code_compat_gives_the_clean_loss_of_the_selected(select: Literal["strict", "all"]) -> None:
    """Chosen by their perturbed loss, but as they were; without a selection all perturbed ones."""
    first, asker = mlp().init(Key(1)), mlp().init(Key(2))
    data = Samples(three()[2].x.sigmoid(), three()[2].y)
    reply = help_replies(
        FedSps(code_compat=True, select=select), asker, {4: asker}, data, mlp(), first=first
    )[4]
    bad = pgd_of(first, data, low=0.0, high=1.0)
    mask = eq12_mask(asker, data, bad)
    assert 0 < mask.sum() < len(data)
    x, s = (data.x, mask) if select == "strict" else (bad, torch.ones_like(mask))
    assert reply.count == s.sum()
    assert reply.loss == pytest.approx(each_loss(asker, x[s], data.y[s]).mean().item(), abs=1e-4)
    assert_close(
        reply.grads, mean_grad(asker, x[s], data.y[s]), atol=2e-4
    )  # the noise is left out here


@pytest.mark.parametrize("reduce", ["pool", "mean"])
def test_code_compat_two_rounds_by_torch(reduce: Literal["pool", "mean"]) -> None:
    """T on the first weights, also for the α term; the party's own batch among the pooled ones; the
    clean loss of the selected.
    """
    data = [Samples(d.x.sigmoid(), d.y) for d in three()]
    fed = FedSps(alpha=0.3, beta=0.9, code_compat=True, reduce=reduce)
    task = task_of("linear", SHAPE, CLASSES)
    server, s = server_of(fed, task, data, replace(FULL, lr=3.0))
    first = task.init(Key.root(0).fold("init"))
    h, bad, mixed = [first] * 3, [pgd_of(first, d, low=0.0, high=1.0) for d in data], 0
    for t in (1, 2, 3):
        s = rounds(fed, server, s, 1, first=t)
        new = []
        for i, h_i in enumerate(h):
            oda = [eq12_mask(h_i, d, b) for d, b in zip(data, bad, strict=True)]
            mixed += sum(bool(0 < c.sum() < len(c)) for c in oda)
            total = sum(int(c.sum()) for c in oda) if reduce == "pool" else 3
            terms = [
                (0.9 * (int(c.sum()) if reduce == "pool" else 1) / total, mean_grad(h_i, d.x[c], d.y[c]))
                for c, d in zip(oda, data, strict=True) if c.any()
            ]  # fmt: skip
            own = (
                (1.0, mean_grad(h_i, data[i].x, data[i].y)),
                (0.3, mean_grad(h_i, bad[i], data[i].y)),
            )
            new.append(gradient_step(h_i, 3.0, *own, *terms))
        h = new
        for ours, theirs in zip(models(server), h, strict=True):
            assert_close(ours, theirs, atol=1e-4)
    assert mixed


def test_code_compat_sends_nothing_to_oneself() -> None:
    fed = FedSps(code_compat=True)
    server, s = server_of(fed, mlp(), three(), FULL)
    rounds(fed, server, s, 1)
    assert len([row for row in server.ledger.rows if row.kind == "peer"]) == 2 * 6
    assert len(server.notes) == 6


# --- what crosses


class Wire:
    """Everything that passed the server."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.open: list[Any] = []
        self.sealed_messages: list[Any] = []
        function = LoopEngine.run

        def listening(
            engine: LoopEngine, call: Any, messages: Any, sealed_messages: Any
        ) -> Iterator[tuple[int, PartyResult]]:
            self.open += [message.content for message in messages.values()]
            self.sealed_messages += sealed_messages.values()
            for i, answer in function(engine, call, messages, sealed_messages):
                self.open.append(answer.reply)
                yield i, answer

        monkeypatch.setattr(LoopEngine, "run", listening)


def leaves(tree: Any) -> list[Any]:
    if is_dataclass(tree):
        return [leaf for f in fields(tree) for leaf in leaves(getattr(tree, f.name))]
    if isinstance(tree, dict):
        tree = [*tree, *tree.values()]
    return (
        [leaf for part in tree for leaf in leaves(part)]
        if isinstance(tree, list | tuple)
        else [tree]
    )


@pytest.mark.parametrize("options", [
    {}, {"mode": "samples"}, {"peers": 1, "code_compat": True}, {"tune": "end", "attack": "wasserstein"}, {"beta": 0.0},
    {"collab_steps": 2},
], ids=str)  # fmt: skip
def test_the_server_holds_no_tensor(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages and replies hold numbers and sealed messages only: the peers that may be asked, and
    shares of overlap.
    """
    wire = Wire(monkeypatch)
    fed = FedSps(**options)
    server, s = server_of(fed, mlp(), three(), FULL)
    s = (
        fed.finish(rounds(fed, server, s, 2), server)
        if fed.traits.finishes
        else rounds(fed, server, s, 2)
    )
    open_values = [leaf for message in wire.open for leaf in leaves(message)]
    assert {type(leaf) for leaf in open_values} <= {int, float, Sealed, type(None)}
    assert isinstance(s, Empty)
    assert all(isinstance(sealed, Sealed) for sealed in wire.sealed_messages)
    assert bool(wire.sealed_messages) == bool(fed.beta)
    inside = [unseal(sealed) for sealed in wire.sealed_messages]
    assert all(isinstance(content, Model | Help) for content in inside)
    for content in inside:
        assert any(isinstance(leaf, Tensor) for leaf in leaves(content))
        if isinstance(content, Help):
            assert (content.x is None) == (fed.mode == "gradient")


def test_samples_mode_is_a_choice_that_comes_with_a_warning() -> None:
    assert FedSps().mode == "gradient"
    info = server_of(FedSps(), mlp(), three(), FULL)[0].info
    assert FedSps().accounting.warnings(info) == []
    (warning,) = FedSps(mode="samples").accounting.warnings(info)
    assert "near-copies of private inputs" in warning
    with pytest.warns(UserWarning, match="near-copies of private inputs"):
        comity.run(
            "fed-sps", named_federation(), model=SMALL, rounds=1, engine="loop", mode="samples"
        )


# --- bytes

WIDTH7 = 4 * ((6 * 7 + 7) + (7 * 7 + 7) + (7 * 3 + 3))


def bytes_by_round(result: comity.Result) -> dict[int, Counter[str]]:
    """Bytes by round and kind."""
    by_round: dict[int, Counter[str]] = {
        t: Counter() for t in range(result.job.experiment.rounds + 1)
    }
    for row in result.ledger:
        by_round[row.round][row.kind] += row.bytes
    return by_round


@pytest.mark.slow
@pytest.mark.parametrize(("settings", "k", "edges"), [
    ({}, 4, 12),
    ({"collab_steps": 3}, 4, 12),
    ({"collab_steps": 2, "tune": "end", "peers": 1}, 4, 4),
    ({"peers": 1}, 4, 4),
    ({"peers": 2}, 4, 8),
    ({"peers": 9}, 4, 12),
    ({"beta": 0.0}, 0, 0),
    ({"alpha": 0.0, "beta": 0.0}, 0, 0),
    ({"participation": 0.5}, 2, 2),
    ({"participation": 0.75, "peers": 1}, 3, 3),
    ({"participation": 0.25}, 1, 0),
    ({"code_compat": True}, 4, 12),
    ({"tune": "end", "attack": "wasserstein"}, 4, 12),
    ({"bn": "none"}, 4, 12),
], ids=str)  # fmt: skip
def test_spec8_bytes_by_hand(settings: dict[str, Any], k: int, edges: int) -> None:
    """Σ edges (2 S + 12) between peers a step. The server gets a share from each edge and sends the
    peers that may be asked.
    """
    n = settings.get("collab_steps", 1)
    result = comity.run(
        "fed-sps",
        federation((9, 5, 14, 6)),
        model="mlp2(width=7)",
        rounds=2,
        engine="loop",
        **settings,
    )
    _, closed = plan.traffic(result.job)
    for t in (1, 2):
        traffic = bytes_by_round(result)[t]
        assert traffic["peer"] == closed[t - 1].peer == n * edges * (2 * WIDTH7 + 12)
        assert traffic["up"] == closed[t - 1].up == n * 4 * edges
        assert traffic["down"] == closed[t - 1].down == n * 4 * k * (k - 1)
    ways = {
        (row.round, row.src, row.dst, row.bytes)
        for row in result.ledger
        if row.call == "assist" and row.kind == "peer"
    }
    back = {
        (row.round, row.dst, row.src, row.bytes)
        for row in result.ledger
        if row.call == "local" and row.kind == "peer"
    }
    assert {way[3] for way in ways} <= {WIDTH7}
    assert {(*way[:3], WIDTH7 + 12) for way in ways} == back


@pytest.mark.slow
@pytest.mark.parametrize(("bn", "model_bytes", "gradient_bytes"), [
    ("all", 4 * 721 + 8, 4 * 703), ("params_only", 4 * 703, 4 * 703), ("none", 4 * 685, 4 * 685),
])  # fmt: skip
@pytest.mark.parametrize("peers", [0, 1])
def test_spec8_bytes_with_batchnorm(
    bn: Any, model_bytes: int, gradient_bytes: int, peers: int
) -> None:
    """64·9 + 9 + 9·10 + 10 weights, 18 of BatchNorm, 18 running values and a counter: buffers go,
    but have no gradient.
    """
    with torch.random.fork_rng(devices=[]):
        pair = (
            nn.Sequential(nn.Flatten(), nn.Linear(64, 9), nn.BatchNorm1d(9), nn.ReLU()),
            nn.Linear(9, 10),
        )
    fed = federation((9, 5, 14, 6), shape=(1, 8, 8), classes=10, test=10)
    result = comity.run("fed-sps", fed, model=pair, rounds=2, engine="loop", bn=bn, peers=peers)
    _, closed = plan.traffic(result.job)
    for t in (1, 2):
        assert (
            bytes_by_round(result)[t]["peer"]
            == closed[t - 1].peer
            == (4 if peers else 12) * (model_bytes + gradient_bytes + 12)
        )


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*near-copies")
@pytest.mark.parametrize("collab_steps", [1, 4])
@pytest.mark.parametrize(("select", "exact"), [("strict", False), ("all", True)])
def test_spec8_bytes_of_samples(select: str, exact: bool, collab_steps: int) -> None:
    """S there; 12 and count · (4·6 + 4) back, where count = overlap · 8; closed form: all 8. More
    steps send no more.
    """
    fed = federation((9, 15, 14))
    how: dict[str, Any] = {
        "model": "mlp2(width=7)",
        "rounds": 3,
        "batch": 8,
        "lr": 0.5,
        "engine": "loop",
    }
    result = comity.run(
        "fed-sps", fed, **how, mode="samples", select=select, collab_steps=collab_steps
    )
    shares = {
        (m.round, m.party, m.metric.removeprefix("overlap/")): m.value
        for m in result.metrics
        if m.split == "train"
    }
    counts = {edge: round(8 * share) for edge, share in shares.items()}
    back = {
        (row.round, row.dst, row.src): row.bytes
        for row in result.ledger
        if row.call == "local" and row.kind == "peer"
    }
    assert back == {edge: 12 + 28 * count for edge, count in counts.items()}
    assert len(back) == 3 * 6
    _, closed = plan.traffic(result.job)
    for t in (1, 2, 3):
        assert closed[t - 1].peer == 6 * (WIDTH7 + 12 + 28 * 8)
        assert bytes_by_round(result)[t]["peer"] <= closed[t - 1].peer
    assert (sum(counts.values()) == 3 * 6 * 8) == exact


# --- any inputs, any engine, stopped at any time


@pytest.mark.sweep("linear")
@pytest.mark.slow
@pytest.mark.parametrize("options", [
    {}, {"attack": "wasserstein"}, {"attack": "wasserstein", "cost": "l2"}, {"code_compat": True, "peers": 1},
], ids=str)  # fmt: skip
@pytest.mark.parametrize(
    ("shape", "model"), [((6,), "linear"), ((6,), SMALL), ((1, 8, 8), "fedbn-cnn(scale=0.06)")]
)
def test_vectors_and_images_run(
    shape: tuple[int, ...], model: str, options: dict[str, Any]
) -> None:
    fed = federation((12, 9, 14), shape=shape)
    first = comity.run("solo", fed, model=model, rounds=1, engine="loop")
    result = comity.run("fed-sps", fed, model=model, rounds=2, engine="loop", **options)
    shares = [m.value for m in result.metrics if m.metric.startswith("overlap/")]
    assert len(shares) == 2 * (3 if options.get("peers") else 6)
    assert all(0 <= value <= 1 for value in shares)
    for name in fed.names:
        theta = result.model(name).theta
        assert all(v.isfinite().all() for v in theta.values())
        assert differ(theta, first.model(name).theta) > 1e-4


def test_architectures_must_be_equal() -> None:
    with pytest.raises(comity.UsageError, match="one architecture"):
        comity.run(
            "fed-sps",
            named_federation(),
            model=SMALL,
            rounds=1,
            party={"south": {"model": "mlp2(width=4)"}},
        )


@pytest.mark.parametrize("wrong", [
    {"alpha": -1.0}, {"beta": -0.1}, {"epsilon": -0.1}, {"explore": 1.5}, {"temperature": 0.0}, {"lambda0": -1.0}, {"peers": -1},
])  # fmt: skip
def test_options_out_of_range_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(comity.UsageError):
        FedSps(**wrong)


VARIANTS: list[dict[str, Any]] = [
    {"attack": "wasserstein", "epsilon": 0.5, "lambda0": 0.5},
    {"peers": 1, "explore": 0.1, "temperature": 0.3},
    {"code_compat": True, "tune": "end"},
    {
        "collab_steps": 3,
        "tune": "end",
        "peers": 1,
        "opt_state": "keep",
        "optimizer": "sgd(momentum=0.5)",
    },
    {"collab_steps": 2, "mode": "samples", "alpha_mode": "eval"},
]


Straight = Callable[[dict[str, Any]], comity.Result]


def run_variant(folder: Path, **settings: Any) -> comity.Result:
    fed = federation((19, 11, 24, 15))
    return comity.run(
        "fed-sps", fed, model=SMALL, rounds=4, out=folder, lr=0.3, beta=2.0, **settings
    )


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Straight:
    """Uninterrupted runs of variants on engine loop, each computed once."""
    runs: dict[str, comity.Result] = {}

    def of(options: dict[str, Any]) -> comity.Result:
        if str(options) not in runs:
            runs[str(options)] = run_variant(
                tmp_path_factory.mktemp("straight") / "run", engine="loop", **options
            )
        return runs[str(options)]

    return of


def tables_and_models(result: comity.Result) -> tuple[dict[str, bytes], dict[str, Params]]:
    table_bytes = {
        name: (result.folder / name).read_bytes()
        for name in ("metrics.csv", "ledger.csv", "outcomes.csv")
    }
    return table_bytes, {name: result.model(name).theta for name in result.job.info.names}


def assert_same_run(ours: comity.Result, theirs: comity.Result) -> None:
    (tables, thetas), (their_tables, their_thetas) = (
        tables_and_models(ours),
        tables_and_models(theirs),
    )
    assert tables == their_tables
    for name, theta in their_thetas.items():
        assert_same(thetas[name], theta)


class Stop(Quiet):
    """Stops a run in the middle of round 3."""

    def __init__(self) -> None:
        self.now, self.replies_left, self.first = 0, 2, 0

    def begin(self, job: Any, first_round: int) -> None:
        self.first = first_round

    def add_replies(self, count: int) -> None:
        self.replies_left -= self.now == 3
        if not self.replies_left:
            raise KeyboardInterrupt

    def round(self, t: int, accuracy: float | None, ledger: Any) -> None:
        self.now = t + 1


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*near-copies")
@pytest.mark.parametrize("options", VARIANTS, ids=str)
def test_process_equals_loop(options: dict[str, Any], straight: Straight, tmp_path: Path) -> None:
    assert_same_run(
        run_variant(tmp_path / "process", engine="process", workers=2, **options), straight(options)
    )


@pytest.mark.sweep("code_compat", "'peers': 1, 'explore'")
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*near-copies")
@pytest.mark.parametrize("options", VARIANTS, ids=str)
def test_stacked_equals_loop(options: dict[str, Any], straight: Straight, tmp_path: Path) -> None:
    """Parties that are attacked together: the same samples, multipliers and peers, up to rounding;
    the same bytes.
    """
    ours = run_variant(tmp_path / "stacked", engine="stacked", **options)
    theirs = straight(options)
    (tables, thetas), (their_tables, their_thetas) = (
        tables_and_models(ours),
        tables_and_models(theirs),
    )
    assert tables["ledger.csv"] == their_tables["ledger.csv"]
    for name, theta in their_thetas.items():
        assert_close(thetas[name], theta)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*near-copies")
@pytest.mark.parametrize("options", VARIANTS, ids=str)
def test_resumed_is_the_run_that_was_not_stopped(
    options: dict[str, Any], straight: Straight, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """λ, scores and first weights are states."""
    monkeypatch.setattr(checkpoint, "EVERY_SECONDS", 0.0)
    with pytest.raises(KeyboardInterrupt):
        run_variant(tmp_path / "stopped", engine="loop", progress=Stop(), **options)
    again = Stop()
    again.replies_left = -1
    resumed_run = run_variant(
        tmp_path / "stopped", engine="loop", resume=True, progress=again, **options
    )
    assert again.first == 2
    assert_same_run(resumed_run, straight(options))
