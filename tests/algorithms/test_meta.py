"""Per-FedAvg, FedReptile, q-FFL and FedMeta: what their equations say of problems that can be
worked out by hand.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from toys import (
    assert_near,
    batch_of,
    distance,
    federation,
    party_of,
    quadratic,
    rounds,
    rows,
    run_call,
    same,
    samples,
    server_of,
    task_of,
)

import comity
from comity.algorithms.fedavg import FedAvg
from comity.algorithms.fedmeta import FedMeta
from comity.algorithms.fedreptile import FedReptile
from comity.algorithms.per_fedavg import Inner, PerFedAvg
from comity.algorithms.q_ffl import QFfl
from comity.core import Key, Model, Params, Samples, Server, Training, average, batches
from comity.runs.folder import RunFolder
from comity.studies.export import export, load

pytestmark = pytest.mark.quick

SIZES = (9, 14, 6)
SETTINGS: dict[str, Any] = {
    "model": "mlp2(width=7)",
    "rounds": 2,
    "engine": "loop",
    "lr": 0.1,
    "batch": 4,
}
A, B = 2.0, 3.0
"""The curvature and the optimum of the quadratic."""


def run_method(method: str, **settings: Any) -> comity.Result:
    return comity.run(method, federation(SIZES), **SETTINGS | settings)


def weights(method: str, **settings: Any) -> list[Params]:
    result = run_method(method, **settings)
    return [result.model(name).theta for name in result.job.info.names]


def alike(ours: list[Params], theirs: list[Params]) -> bool:
    return all(same(a, b) for a, b in zip(ours, theirs, strict=True))


# Per-FedAvg


@pytest.mark.parametrize(("order", "power"), [("fo", 1), ("hf", 2)])
def test_per_fedavg_alg1_on_a_quadratic(order, power):
    """f = a/2 (w − b)²: w̃ − b = (1 − αa)(w − b); FO leaves out the Hessian a, HF's finite
    difference is exact.
    """
    alpha, beta, steps = 0.1, 0.05, 3
    method = PerFedAvg(alpha=alpha, order=order, delta=0.5)
    k = method.parts
    server, s = server_of(method, quadratic(), [rows(A, B, k * steps)], Training(lr=beta, batch=1))
    w = rounds(method, server, s, 1)["body.w"].item()
    shrink = 1 - beta * A * (1 - alpha * A) ** power
    assert w == pytest.approx(B - shrink ** (k * steps) * B, rel=1e-12)


def test_per_fedavg_is_deployed_after_one_step_of_the_party():
    method, task = PerFedAvg(alpha=0.1), quadratic(5.0)
    party = party_of(task, rows(A, B, 4), Training(lr=0.05, batch=2, optimizer="adam"))
    deployed = method.deployed_model({}, Model(task.init(Key(0))), party)
    assert deployed["body.w"].item() == pytest.approx(5 - 0.1 * A * (5 - B))


def test_per_fedavg_hf_is_the_gradient_of_the_meta_objective():
    """On one batch thrice over: ∇ f(w − α∇f(w)), which autograd knows, up to the finite difference."""
    task, data = task_of("mlp2(width=5)", (6,), 3), samples(6, (6,), 3)
    task64 = {k: v.double() for k, v in task.init(Key(1)).items()}
    x, y = data.x.double(), data.y
    w = {k: v.clone().requires_grad_() for k, v in task64.items()}
    inner = torch.autograd.grad(
        F.cross_entropy(task.logits(w, x), y), list(w.values()), create_graph=True
    )
    ahead = {k: v - 0.3 * g for (k, v), g in zip(w.items(), inner, strict=True)}
    exact = torch.autograd.grad(F.cross_entropy(task.logits(ahead, x), y), list(w.values()))
    for method, near in ((PerFedAvg(order="hf", delta=1e-4), True), (PerFedAvg(), False)):
        times = Samples(x.repeat(method.parts, 1), y.repeat(method.parts))
        value = method.meta(task, w, batch_of(times), Inner(0.3))
        grads = torch.autograd.grad(value, list(w.values()))
        apart = max((a - b).abs().max().item() for a, b in zip(grads, exact, strict=True))
        assert (apart < 1e-6) == near


def test_per_fedavg_without_a_step_is_fedavg():
    """α = 0, and all samples of a party alike, so that it does not matter which half of a batch
    counts.
    """
    data = [rows(1.0, 2.0, 8), rows(3.0, -1.0, 4)]
    ends = []
    for method in (
        comity.algorithms.compose("per-fedavg(alpha=0)"),
        comity.algorithms.compose("fedavg"),
    ):
        server, s = server_of(method, quadratic(), data, Training(lr=0.1, batch=2))
        ends.append(rounds(method, server, s, 3))
    assert same(*ends)


def test_per_fedavg_options_and_the_same_model_each_time():
    usual = run_method("per-fedavg")
    theta = [usual.model("p0").theta for _ in range(2)]
    assert same(*theta)
    for option in ("alpha=0.5", "order=hf", "order=hf,delta=0.3"):
        assert distance(theta[0], run_method(f"per-fedavg({option})").model("p0").theta) > 1e-6
    assert distance(theta[0], run_method("per-fedavg", seed=1).model("p0").theta) > 1e-6


def test_per_fedavg_is_evaluated_and_exported_as_adapted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    result = run_method(
        "per-fedavg", out=tmp_path / "run", batch=64
    )  # all of a party's samples adapt its model
    checkpoints = RunFolder(result.folder).checkpoints()
    assert checkpoints.load()
    w = checkpoints.server_state()
    for name, data in result.job.federation.parties.items():
        free = {k: v.clone().requires_grad_() for k, v in w.items()}
        loss = F.cross_entropy(result.model(name).task.logits(free, data.train.x), data.train.y)
        grads = torch.autograd.grad(loss, list(free.values()))
        by_hand = {k: (v - 0.1 * g).detach() for (k, v), g in zip(free.items(), grads, strict=True)}
        assert_near(result.model(name).theta, by_hand, 1e-6)
        right = (result.model(name).predict(data.test) == data.test.y).float().mean().item()
        assert result.summary["accuracy"]["per_party"][name] == pytest.approx(right)
    monkeypatch.setattr(
        "comity.studies.export._write_networks", lambda *args: []
    )  # which takes ten seconds
    export(result, "p1", tmp_path / "p1")
    assert same(load(tmp_path / "p1").theta, result.model("p1").theta)


def test_per_fedavg_warns_of_parties_that_cannot_train():
    result = run_method("per-fedavg", rounds=1)
    assert not result.job.algorithm.accounting.warnings(result.job.info)
    few = comity.run("per-fedavg", federation((1, 10)), **SETTINGS)
    assert few.job.algorithm.accounting.warnings(few.job.info) == [
        "p0 cannot cut a batch into 2 and trains nothing."
    ]
    # p1: two rounds of two epochs of a pair of 4 and a pair of 1, with gradients at w and at w̃
    assert few.summary["steps"] == 2 * 2 * 2 * 2


def test_per_fedavg_hf_needs_one_function_at_both_points():
    """(∇f(w + δv) − ∇f(w − δv)) / 2δ: with another dropout at either point it is their difference,
    1/2δ times, and runs away.
    """
    with torch.random.fork_rng():
        torch.manual_seed(0)
        pair = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.3)), nn.Linear(16, 3)
    assert run_method("per-fedavg", model=pair).summary["diverged"] == []
    with pytest.raises(comity.UsageError, match="layers draw at random: use order=fo"):
        run_method("per-fedavg(order=hf)", model=pair)


@pytest.mark.parametrize("wrong", ["alpha=-1", "order=third", "delta=0"])
def test_per_fedavg_refuses(wrong):
    with pytest.raises(comity.UsageError):
        comity.algorithms.compose(f"per-fedavg({wrong})")


# FedReptile


@pytest.mark.parametrize(("decay", "steps"), [(False, (0.8, 0.8)), (True, (0.8, 0.4))])
def test_fedreptile_moves_by_epsilon_to_the_plain_mean(decay, steps):
    """Parties that reach their optima b in one step (η a = 1): w ← w + ε (mean b − w), however many
    samples they have.
    """
    method = FedReptile(step=0.8, decay=decay)
    server, w = server_of(
        method, quadratic(), [rows(2.0, 1.0, 1), rows(2.0, 5.0, 7)], Training(lr=0.5, batch=8)
    )
    server.info = replace(server.info, rounds=2)
    expected = 0.0
    for t, epsilon in enumerate(steps, 1):
        w = rounds(method, server, w, 1, first=t)
        expected += epsilon * (3.0 - expected)
        assert w["body.w"].item() == pytest.approx(expected)


def by_plain_means(task: Any, data: list[Samples], how: Training, count: int) -> Params:
    """FedAvg in which all parties count alike."""

    class Uniform(FedAvg):
        def round(self, theta: Params, server: Server, t: int) -> Params:
            replies = server.call(
                self.local, {i: self.message_for(theta, i) for i in server.sample(t)}
            )
            return average(
                {i: reply.theta for i, reply in replies.items()}, dict.fromkeys(replies, 1.0)
            )

    server, s = server_of(Uniform(), task, data, how)
    end: Params = rounds(server._owners[0], server, s, count)
    return end


@pytest.mark.parametrize("method", [FedReptile(step=1.0), QFfl(q=0.0)])
def test_with_step_1_and_with_q_0_it_is_fedavg_with_equal_weights(method):
    task, data, how = (
        task_of("mlp2(width=5)", (6,), 3),
        [samples(n, (6,), 3, seed=n) for n in (9, 4)],
        Training(lr=0.1, batch=4),
    )
    server, s = server_of(method, task, data, how)
    end = rounds(method, server, s, 3)
    assert same(end, by_plain_means(task, data, how, 3))
    others = [FedReptile(step=0.9), FedReptile(step=1.0, decay=True), QFfl(q=0.5)]
    for other in others:
        server, s = server_of(other, task, data, how)
        server.info = replace(server.info, rounds=3)
        assert distance(end, rounds(other, server, s, 3)) > 1e-5


# q-FFL


@pytest.mark.parametrize("q", [0.5, 1.0, 2.0, 5.0])
def test_q_ffl_alg2_by_hand(q):
    """One step of two parties: Δ_k is the gradient, and the server's line with F_k, Δ_k and h_k as
    printed.
    """
    task, how = task_of("linear", (6,), 3), Training(lr=0.2, batch=64)
    data = [samples(9, (6,), 3, seed=1), samples(5, (6,), 3, seed=2)]
    method = QFfl(q=q)
    server, w = server_of(method, task, data, how)
    updated = rounds(method, server, w, 1)
    total, step = 0.0, {k: torch.zeros_like(v) for k, v in w.items()}
    for party in data:
        free = {k: v.clone().requires_grad_() for k, v in w.items()}
        loss = F.cross_entropy(task.logits(free, party.x), party.y)
        delta = dict(zip(free, torch.autograd.grad(loss, list(free.values())), strict=True))
        f = loss.item()
        total += (
            q * f ** (q - 1) * sum(v.square().sum().item() for v in delta.values()) + f**q / 0.2
        )
        step = {k: v + f**q * delta[k] for k, v in step.items()}
    assert_near(updated, {k: v - step[k] / total for k, v in w.items()}, 1e-6)


def test_q_ffl_survives_losses_that_vanish():
    task, data = (
        task_of("linear", (6,), 3),
        [samples(6, (6,), 3, seed=1), samples(6, (6,), 3, seed=2)],
    )
    losses = iter((0.0, 1e-4))

    class Faint(QFfl):
        async def local(self, state: Params, m: Model, party: Any, key: Key) -> tuple[Params, Any]:
            state, reply = await super().local(state, m, party, key)
            return state, replace(reply, loss=next(losses))

    method = Faint(q=15.0)
    server, w = server_of(method, task, data, Training(lr=0.1, batch=6))
    after = rounds(method, server, w, 1)
    assert all(v.isfinite().all() for v in after.values())
    assert distance(after, w) < 1  # and not thrown to 0, as by weights that are all 0


# FedMeta


def traced_by_autograd(task: Any, w: Params, data: Samples, key: Key, how: Training) -> Params:
    """∇_w F(w_k) with w_k after all but the last epoch, by one graph that is kept from end to end."""
    first = {k: v.clone().requires_grad_() for k, v in w.items()}
    now: Params = dict(first)
    v = {k: torch.zeros_like(x) for k, x in first.items()}
    for batch in batches(data, key, replace(how, epochs=how.epochs - 1)):
        grads = torch.autograd.grad(task.loss(now, batch), list(now.values()), create_graph=True)
        v = {k: how.momentum * v[k] + g + how.decay * now[k] for k, g in zip(v, grads, strict=True)}
        now = {k: x - how.lr * v[k] for k, x in now.items()}
    loss = F.cross_entropy(task.logits(now, data.x), data.y)
    return dict(zip(first, torch.autograd.grad(loss, list(first.values())), strict=True))


@pytest.mark.parametrize(("momentum", "decay"), [(0.0, 0.0), (0.9, 0.01)])
def test_uga_is_the_gradient_with_respect_to_the_received_model(momentum, decay):
    task, data = task_of("mlp2(width=5)", (6,), 3), samples(10, (6,), 3)
    data = Samples(data.x.double(), data.y)
    w = {k: v.double() for k, v in task.init(Key(1)).items()}
    how = Training(lr=0.3, batch=4, epochs=3, momentum=momentum, decay=decay)
    party = party_of(task, data, how)
    exact = traced_by_autograd(task, w, data, Key(5), how)
    _, reply = run_call(FedMeta(server_lr=0.7).local({}, Model(w), party, Key(5)))
    assert_near(reply.theta, {k: v - 0.7 * exact[k] for k, v in w.items()}, 1e-10)
    _, cut = run_call(FedMeta(server_lr=0.7, first_order=True).local({}, Model(w), party, Key(5)))
    assert distance(cut.theta, reply.theta) > 1e-3


def test_uga_on_a_quadratic():
    """f = a/2 (w − b)², J traced steps: w_k − b = (1 − ηa)^J (w − b), and ∇_w f(w_k) = a (1 −
    ηa)^{2J} (w − b).
    """
    eta, J = 0.1, 3
    for cut, power in ((False, 2 * J), (True, J)):
        method = FedMeta(server_lr=0.5, meta_lr=0.0, first_order=cut)
        server, s = server_of(
            method, quadratic(), [rows(A, B, 2)], Training(lr=eta, batch=2, epochs=J + 1)
        )
        w = rounds(method, server, s, 1).theta["body.w"].item()
        assert w == pytest.approx(0.5 * A * (1 - eta * A) ** power * B)


def test_fedmeta_steps_on_what_the_server_holds():
    """Two parties whose gradients cancel; of D_meta all is theirs, and the far party's half of it
    weighs as much.
    """
    data = [rows(1.0, 4.0, 10), rows(3.0, -1.0, 10)]
    method = FedMeta(server_lr=0.25, meta_lr=0.1, share=0.5)
    server, s = server_of(method, quadratic(), data, Training(lr=0.1, batch=20))
    assert s.data.x.shape == (10, 2)
    uga = 0.25 * (4.0 - 3.0) / 2
    meta = uga - 0.1 * ((uga - 4.0) + 3.0 * (uga + 1.0)) / 2
    assert rounds(method, server, s, 1).theta["body.w"].item() == pytest.approx(meta)


def test_fedmeta_with_one_epoch_and_no_samples_is_one_gradient_step_of_fedavg():
    """E = 1: η_g times the whole gradient, hence FedAvg with one batch of everything and a learning
    rate of η_g.
    """
    task, data = task_of("mlp2(width=5)", (6,), 3), [samples(n, (6,), 3, seed=n) for n in (9, 4)]
    method, parent = FedMeta(server_lr=0.2, meta_lr=0.0), comity.algorithms.compose("fedavg")
    server, s = server_of(method, task, data, Training(lr=0.05, batch=3))
    other, theta = server_of(parent, task, data, Training(lr=0.2, batch=64))
    assert_near(rounds(method, server, s, 3).theta, rounds(parent, other, theta, 3), 1e-6)


def test_fedmeta_sends_its_samples_once_and_says_so():
    result = run_method("fedmeta", epochs=2)
    uploads = [row for row in result.ledger if row.call == "hand_over" and row.kind == "up"]
    assert [row.bytes for row in uploads] == [
        n * (4 * 6 + 4) for n in (1, 2, 1)
    ]  # a tenth of 9, 14 and 6, rounded up
    assert {row.round for row in uploads} == {0}
    assert result.job.algorithm.traits.leaves == {"weights", "samples"}
    assert result.job.algorithm.accounting.warnings(result.job.info) == [
        "each party sends the server 10% of its training samples."
    ]
    without = run_method("fedmeta(meta_lr=0)", epochs=2)
    assert not [row for row in without.ledger if row.call == "hand_over"]
    assert without.job.algorithm.traits.leaves == {"weights"}


def test_fedmeta_options_are_not_without_effect():
    usual = weights("fedmeta", epochs=2)
    for option in ("server_lr=0.3", "meta_lr=0.5", "meta_lr=0", "share=0.9", "first_order=true"):
        assert distance(usual[0], weights(f"fedmeta({option})", epochs=2)[0]) > 1e-6, option


@pytest.mark.parametrize(
    ("text", "settings", "why"),
    [
        ("fedmeta", {"optimizer": "adam"}, "steps of SGD"),
        ("fedmeta(share=0)", {}, "share must be greater than 0"),
        ("fedmeta+dbe(mu=0.5)", {"epochs": 3}, "remembers its last batches"),
    ],
)
def test_fedmeta_refuses(text, settings, why):
    with pytest.raises(comity.UsageError, match=why):
        run_method(text, **settings)


@pytest.mark.parametrize("bn", ["all", "params_only", "none"])
def test_fedmeta_with_batchnorm(bn):
    """Whatever of it stays at the party, both steps are made, and the statistics that are shared
    move.
    """
    pictures = federation((12, 9), shape=(1, 8, 8))
    settings = SETTINGS | {"model": "fedbn-cnn(scale=0.06)", "rounds": 1, "bn": bn}
    ends = [
        comity.run(text, pictures, **settings).model("p0").theta
        for text in ("fedmeta", "fedmeta(meta_lr=0)")
    ]
    assert distance(*({k: v for k, v in end.items() if "~" not in k} for end in ends)) > 1e-4
    statistics = [{k: v for k, v in end.items() if "~" in k} for end in ends]
    assert same(*statistics)
    assert any((v != 0).any() for k, v in statistics[0].items() if k.endswith("mean"))
