"""FedRep, LG-FedAvg and FD: what stays, what is trained when, and their reductions."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from toys import batch_of, federation, noise, party_of, run_call, samples, task_of

import comity
from comity.algorithms.ditto import Ditto, DittoState
from comity.algorithms.fd import Answers, Bank, Fd, Teacher
from comity.algorithms.fedrep import FedRep
from comity.algorithms.moon import contrast
from comity.core import Key, Model, Training, drop, keep

pytestmark = pytest.mark.quick

SIZES = (9, 14, 6)
SETTINGS: dict[str, Any] = {
    "model": "mlp2(width=7)",
    "rounds": 2,
    "engine": "loop",
    "lr": 0.1,
    "batch": 4,
}


def weights(method: str, **settings: object) -> list[dict[str, torch.Tensor]]:
    result = comity.run(method, federation(SIZES), **SETTINGS | settings)
    return [result.model(name).theta for name in result.job.info.names]


def test_lg_fedavg_shares_the_head_and_nothing_else():
    a, b, _ = weights("lg-fedavg")
    heads = {k for k in a if k.startswith("fc3")}
    assert all(torch.equal(a[k], b[k]) == (k in heads) for k in a)


def test_lg_fedavg_and_fedper_share_complementary_parts():
    total = comity.run("fedavg", federation(SIZES), **SETTINGS).summary["bytes"]["up"]
    parts = [
        comity.run(m, federation(SIZES), **SETTINGS).summary["bytes"]["up"]
        for m in ("lg-fedavg", "fedper")
    ]
    assert sum(parts) == total


@pytest.mark.parametrize("wrapper", ["dbe", "mr", "prbm"])
def test_dbe_refuses_methods_without_a_shared_extractor(wrapper):
    with pytest.raises(comity.UsageError, match="keeps the extractor"):
        comity.run(f"lg-fedavg+{wrapper}", federation(SIZES), **SETTINGS)


def test_fedrep_alg1_head_first_then_body():
    """By hand: the head moves on the received body, the body then moves under the new head."""
    task, data = task_of("mlp2(width=5)", (6,), 3), samples(8, (6,), 3)
    theta = task.init(Key(1))
    heads = task.head_names
    how = Training(lr=0.1, batch=8)
    method = FedRep(head_epochs=1)
    state, reply = run_call(
        method.local(
            keep(theta, heads), Model(drop(theta, heads)), party_of(task, data, how), Key(3)
        )
    )

    def step(at: dict[str, torch.Tensor], names: frozenset[str]) -> dict[str, torch.Tensor]:
        free = {k: v.clone().requires_grad_() for k, v in at.items()}
        loss = F.cross_entropy(task.logits(free, data.x), data.y)
        grads = dict(zip(free, torch.autograd.grad(loss, list(free.values())), strict=True))
        return {k: (v - 0.1 * grads[k] if k in names else v).detach() for k, v in free.items()}

    after_head = step(theta, heads)
    after_both = step(after_head, frozenset(theta.keys() - heads))
    assert state.keys() == heads
    for k, v in (state | reply.theta).items():
        assert torch.allclose(v, after_both[k], atol=1e-6)


def test_fedrep_without_head_epochs_never_moves_the_head():
    start = task_of("mlp2(width=7)", (6,), 3)
    initial = start.init(Key.root(0).fold("init"))
    for theta in weights("fedrep", head_epochs=0):
        assert all(torch.equal(theta[k], initial[k]) for k in start.head_names)


def test_fedrep_takes_mr():
    plain, regularised = weights("fedrep"), weights("fedrep+mr", kappa=50)
    assert any(not torch.equal(plain[0][k], regularised[0][k]) for k in plain[0])


@pytest.mark.parametrize("distance", ["mse", "ce"])
def test_fd_gamma_0_is_solo(distance):
    ours, alone = weights("fd", gamma=0, distance=distance), weights("solo")
    assert all(torch.equal(a[k], b[k]) for a, b in zip(ours, alone, strict=True) for k in a)


def test_fd_with_distillation_is_not_solo():
    assert any(
        not torch.equal(a[k], b[k])
        for a, b in zip(weights("fd"), weights("solo"), strict=True)
        for k in a
    )


def two_parties() -> Bank:
    first = Answers(torch.tensor([[1.0, 0.0], [0.0, 4.0]]), torch.tensor([3, 1], dtype=torch.int32))
    second = Answers(
        torch.tensor([[5.0, 2.0], [9.0, 9.0]]), torch.tensor([1, 0], dtype=torch.int32)
    )
    return Bank(2, {0: first, 1: second})


def test_fd_pools_by_class_counts():
    teacher = Fd().message_for(two_parties(), 0)
    assert torch.equal(
        teacher.logits, torch.tensor([[2.0, 0.5], [0.0, 4.0]])
    )  # (3·1 + 1·5)/4, (3·0 + 1·2)/4
    assert teacher.known.tolist() == [True, True]


def test_fd_excluding_oneself_leaves_unseen_classes_out():
    teacher = Fd(exclude_self=True).message_for(two_parties(), 0)
    assert torch.equal(teacher.logits[0], torch.tensor([5.0, 2.0]))
    assert teacher.known.tolist() == [True, False]


def test_fd_eq1_by_hand():
    task, data = task_of("mlp2(width=5)", (6,), 3), samples(7, (6,), 3)
    theta, batch = task.init(Key(1)), batch_of(data)
    target, known_classes = noise(3, 3), torch.tensor([True, False, True])
    own = task.logits(theta, data.x)
    mask = known_classes[data.y].float()
    for distance in ("mse", "ce"):
        value = Fd(gamma=2.0, distance=distance).eq1(
            task, theta, batch, Teacher(target, known_classes)
        )
        t = target[data.y]
        gap = (
            (own - t).square().sum(1) / 3
            if distance == "mse"
            else -(t.softmax(1) * own.log_softmax(1)).sum(1)
        )
        by_hand = F.cross_entropy(own, data.y) + 2.0 * (mask * gap).mean()
        assert value == pytest.approx(by_hand.item(), abs=1e-6)


def test_fd_lets_architectures_differ():
    names = federation(SIZES).names
    result = comity.run(
        "fd", federation(SIZES), **SETTINGS | {"party": {names[1]: {"model": "linear"}}}
    )
    assert result.model(names[1]).task.network.name == "linear"
    assert result.model(names[0]).task.network.name == "mlp2"


def test_moon_eq3_by_hand():
    z, g, p = torch.tensor([[1.0, 0.0]]), torch.tensor([[1.0, 1.0]]), torch.tensor([[0.0, 3.0]])
    near, far = 1 / math.sqrt(2) / 0.5, 0.0
    by_hand = -math.log(math.exp(near) / (math.exp(near) + math.exp(far)))
    assert contrast(z, g, p, tau=0.5).item() == pytest.approx(by_hand, abs=1e-6)


def test_moon_eq3_is_log_2_in_a_partys_first_round():
    """Previous and received model are one, so both similarities are equal."""
    z, g = noise(4, 5), noise(4, 5, seed=1)
    assert contrast(z, g, g, tau=0.5).item() == pytest.approx(math.log(2), abs=1e-6)


@pytest.mark.parametrize("settings", [{}, {"model": "fedbn-cnn(scale=0.05)", "shape": True}])
def test_moon_mu_0_is_fedavg(settings):
    fed = federation(SIZES, shape=(1, 8, 8)) if settings else federation(SIZES)
    run_settings = SETTINGS | {"rounds": 3} | ({"model": settings["model"]} if settings else {})
    ours, parent = (
        comity.run(m, fed, **run_settings | extra)
        for m, extra in (("moon", {"mu": 0}), ("fedavg", {}))
    )
    a, b = ours.model(fed.names[0]).theta, parent.model(fed.names[0]).theta
    assert all(torch.equal(a[k], b[k]) for k in b)


def test_moon_first_round_is_fedavg_up_to_the_constant_gradient():
    """With z_prev = z_glob the contrast's gradient vanishes: softplus(0) of equal similarities."""
    ours, parent = weights("moon", rounds=1, mu=10), weights("fedavg", rounds=1)
    assert all(
        torch.allclose(a[k], b[k], atol=1e-6) for a, b in zip(ours, parent, strict=True) for k in b
    )
    later, fedavg = weights("moon", rounds=3, mu=10), weights("fedavg", rounds=3)
    assert any(not torch.allclose(later[0][k], fedavg[0][k], atol=1e-4) for k in fedavg[0])


def test_moon_takes_dbe():
    assert "dbe.offset" in weights("moon+dbe", **{"set": {"dbe.kappa": 1}})[0]


def test_ditto_lambda_0_is_solo():
    ours, alone = weights("ditto", lam=0, rounds=3), weights("solo", rounds=3)
    assert all(torch.equal(a[k], b[k]) for a, b in zip(ours, alone, strict=True) for k in b)


def test_ditto_trains_the_global_model_as_fedavg():
    traffic = {
        m: [
            row
            for row in comity.run(m, federation(SIZES), **SETTINGS).ledger
            if row.kind in ("up", "down")
        ]
        for m in ("ditto", "fedavg")
    }
    assert traffic["ditto"] == traffic["fedavg"]


def test_ditto_step_by_hand():
    """v ← v − η (∇F(v) + λ (v − w)), one full-batch step away from w."""
    task, data = task_of("mlp2(width=5)", (6,), 3), samples(8, (6,), 3)
    w, v = task.init(Key(1)), task.init(Key(2))
    method = Ditto(lam=0.5)
    party = party_of(task, data, Training(lr=0.1, batch=8))
    state, _ = run_call(method.local(DittoState({}, v), Model(w), party, Key(3)))
    free = {k: x.clone().requires_grad_() for k, x in v.items()}
    grads = torch.autograd.grad(
        F.cross_entropy(task.logits(free, data.x), data.y), list(free.values())
    )
    for (k, x), g in zip(v.items(), grads, strict=True):
        assert torch.allclose(state.v[k], x - 0.1 * (g + 0.5 * (x - w[k])), atol=1e-6)


def test_ditto_mr_leaves_the_personal_model_alone_at_lambda_0():
    """MR applies to shared parameters only (DBE 5.2.3): with no pull to w, v_i is SOLO whatever κ
    is.
    """
    ours, alone = weights("ditto(lam=0)+mr", kappa=50, rounds=3), weights("solo", rounds=3)
    assert all(torch.equal(a[k], b[k]) for a, b in zip(ours, alone, strict=True) for k in b)


@pytest.mark.parametrize("host", ["ditto", "fedrep", "fedper"])
def test_an_offset_is_refused_where_models_are_personal_already(host):
    with pytest.raises(comity.UsageError, match=rf"use {host}\+mr"):
        comity.run(f"{host}+dbe", federation(SIZES), **SETTINGS)
