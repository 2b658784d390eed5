"""DBE (Zhang et al. 2023): eq. 5 (PRBM), eq. 7 (MR), Algorithm 1 and its first exchange, Table 1's
offsets, Table 3's noise.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from toys import (
    batch_of,
    federation,
    fit,
    noise,
    party_of,
    rounds,
    run_call,
    samples,
    server_of,
    task_of,
)

import comity
from comity.algorithms import compose
from comity.algorithms.dbe import MEAN, OFFSET, Biased, Dbe
from comity.algorithms.fedavg import FedAvg
from comity.components.pilot import Mean
from comity.core import Batch, Key, LearningTask, Params, Samples, Training

pytestmark = pytest.mark.quick

SHAPE, CLASSES, K = (6,), 3, 5


def biased_task(
    kappa: float = 1.0, mu: float = 1.0, consensus: Tensor | None = None
) -> LearningTask:
    """A linear head behind a representation of 5 values, with DBE's offset and regulariser."""
    task = task_of(f"mlp2(width={K})", SHAPE, CLASSES)
    dbe = Dbe(host=FedAvg(), kappa=kappa, mu=mu)
    extra = Mean(torch.zeros(K) if consensus is None else consensus)
    return dbe.wrap_party(party_of(task, samples(4, SHAPE, CLASSES), Training()), extra).task


def regulariser(task: LearningTask, z: Tensor, scratch: dict[str, Tensor] | None = None) -> Tensor:
    """kappa * MR: what the objective holds beyond the cross-entropy."""
    theta = task.init(Key(1))
    y = torch.arange(len(z)) % CLASSES
    batch = batch_of(Samples(z, y), scratch)
    return task.objective(theta, z, batch) - F.cross_entropy(task.head(theta, z), y)


# --- eq. 7


def test_eq7_value_with_the_half_of_the_authors_code() -> None:
    """m = (1, 2, 3, 4, 5), consensus 0, K = 5: kappa * (1 + 4 + 9 + 16 + 25) / (2 * 5) = 5.5 kappa."""
    z = torch.tensor([[0.0, 1, 2, 3, 4], [2.0, 3, 4, 5, 6]])
    assert regulariser(biased_task(kappa=3.0), z).item() == pytest.approx(16.5, rel=1e-5)


def test_eq7_gradient_with_mu_1() -> None:
    """d MR / d f(x_b)_k = (m_k - z_k) / (B K), the same for every sample of the batch."""
    B, consensus = 4, noise(K, seed=1)
    z = noise(B, K, seed=2).requires_grad_()
    (grad,) = torch.autograd.grad(regulariser(biased_task(consensus=consensus), z), z)
    expected = (z.detach().mean(0) - consensus) / (B * K)
    torch.testing.assert_close(grad, expected.expand(B, K), rtol=0, atol=1e-6)


def test_eq7_gradient_vanishes_at_the_consensus() -> None:
    z = noise(4, K, seed=2).requires_grad_()
    (grad,) = torch.autograd.grad(regulariser(biased_task(consensus=z.detach().mean(0)), z), z)
    assert grad.abs().max() < 1e-7


def test_eq7_running_mean_and_no_gradient_through_the_past() -> None:
    """m_2 = (1 - mu) mu mean_1 + mu mean_2, and only the current batch's part of it carries a
    gradient.
    """
    B, mu, consensus = 4, 0.3, noise(K, seed=1)
    task = biased_task(mu=mu, consensus=consensus)
    first, second = noise(B, K, seed=2).requires_grad_(), noise(B, K, seed=3).requires_grad_()
    scratch: dict[str, Tensor] = {}
    regulariser(task, first, scratch)
    value = regulariser(task, second, scratch)
    past, now = torch.autograd.grad(
        value, [first, second], allow_unused=True, materialize_grads=True
    )
    m = (1 - mu) * mu * first.detach().mean(0) + mu * second.detach().mean(0)
    assert value.item() == pytest.approx((m - consensus).square().mean().item() / 2, rel=1e-4)
    torch.testing.assert_close(
        now, (mu * (m - consensus) / (B * K)).expand(B, K), rtol=0, atol=1e-6
    )
    assert past.abs().max() == 0


def test_eq7_running_mean_starts_from_zero_in_every_local_training() -> None:
    """The first batch's loss is CE + kappa/2 mean (mu mean f(x) - z)^2, in the second training as
    in the first.
    """
    kappa, mu, consensus = 7.0, 0.4, noise(K, seed=1)
    task = biased_task(kappa, mu, consensus)
    data = samples(12, SHAPE, CLASSES)
    theta = task.init(Key(1))
    first_batches: list[tuple[Params, Tensor, Tensor, Tensor]] = []

    def loss(theta: Params, batch: Batch) -> Tensor:
        value = task.loss(theta, batch)
        if batch.number == 0:
            first_batches.append(
                (
                    {k: v.detach().clone() for k, v in theta.items()},
                    batch.x,
                    batch.y,
                    value.detach(),
                )
            )
        return value

    for training in (0, 1):
        theta = fit(loss, theta, data, Key(training), Training(lr=0.01, batch=4)).theta
    assert len(first_batches) == 2
    for before, x, y, value in first_batches:
        z = task.features(before, x)
        ce = F.cross_entropy(task.head(before, z), y)
        expected = ce + kappa / 2 * (mu * z.mean(0) - consensus).square().mean()
        assert value.item() == pytest.approx(expected.item(), rel=1e-5)


# --- eq. 5


def test_eq5_offset_before_a_linear_head_shifts_logits_by_a_constant() -> None:
    """h(z + p) = h(z) + W p."""
    task, p, z = biased_task(), noise(K, seed=1), noise(7, K, seed=2)
    theta = task.init(Key(1))
    assert theta[OFFSET].shape == (K,)
    assert not theta[OFFSET].any(), "offsets start at 0"
    shift = task.head(theta | {OFFSET: p}, z) - task.head(theta, z)
    torch.testing.assert_close(
        shift, (theta["fc3.weight"] @ p).expand(7, CLASSES), rtol=0, atol=1e-6
    )


def test_eq5_gradient_of_the_offset() -> None:
    """W^T sum_b dL/dlogits_b, where dL/dlogits_b = (softmax - onehot) / B."""
    B, task, p = 4, biased_task(kappa=0.0), noise(K, seed=1)
    data = samples(B, SHAPE, CLASSES)
    theta = task.init(Key(1)) | {OFFSET: p.requires_grad_()}
    (grad,) = torch.autograd.grad(task.loss(theta, batch_of(data)), p)
    W, b = theta["fc3.weight"], theta["fc3.bias"]
    logits = (task.features(theta, data.x) + p.detach()) @ W.T + b
    wrong = (logits.softmax(1) - F.one_hot(data.y, CLASSES)) / B
    torch.testing.assert_close(grad, W.T @ wrong.sum(0), rtol=0, atol=1e-6)


def test_eq5_regulariser_sees_z_without_the_offset() -> None:
    """MR is on z^g = f(x): an offset of 100 changes the cross-entropy alone."""
    task, data = biased_task(kappa=50.0, consensus=noise(K, seed=1)), samples(4, SHAPE, CLASSES)
    theta = task.init(Key(1))
    far = theta | {OFFSET: torch.full((K,), 100.0)}
    extra = []
    for weights in (theta, far):
        ce = F.cross_entropy(task.logits(weights, data.x), data.y)
        extra.append((task.loss(weights, batch_of(data)) - ce).item())
    assert extra[0] > 0.1
    assert extra[1] == pytest.approx(extra[0], rel=1e-3)


@pytest.mark.parametrize(("cut", "count"), [("conv1", 28_800), ("conv2", 10_816), ("fc1", 512)])
def test_table1_offset_element_counts_of_the_4_layer_cnn(cut: str, count: int) -> None:
    """64 x 64 x 3 inputs: 32*30*30, 64*13*13, 512."""
    task = task_of("cnn4", (3, 64, 64), 200)
    dbe = Dbe(host=FedAvg(), cut=cut)
    party = party_of(task, samples(1, (3, 64, 64), 1), Training())
    wrapped_party = dbe.wrap_party(party, dbe.extra(Key(0), party))
    assert wrapped_party.task.init(Key(0))[OFFSET].numel() == count
    assert wrapped_party.task.width == count
    assert OFFSET in wrapped_party.task.private


def test_table1_offset_at_an_inner_cut_is_added_there() -> None:
    """With the cut after conv1, f(x) + p goes through conv2, fc1 and fc2."""
    task = task_of("cnn4(width=16)", (1, 16, 16), CLASSES)
    party = party_of(task, samples(3, (1, 16, 16), CLASSES), Training())
    dbe = Dbe(host=FedAvg(), cut="conv1")
    wrapped_task = dbe.wrap_party(party, dbe.extra(Key(0), party)).task
    p = noise(32, 6, 6, seed=3)
    theta = wrapped_task.init(Key(1)) | {OFFSET: p}
    x = party.data.train.x
    inner = F.max_pool2d(F.relu(F.conv2d(x, theta["conv1.weight"], theta["conv1.bias"])), 2) + p
    inner = F.max_pool2d(
        F.relu(F.conv2d(inner, theta["conv2.weight"], theta["conv2.bias"])), 2
    ).flatten(1)
    inner = F.relu(inner @ theta["fc1.weight"].T + theta["fc1.bias"])
    expected = inner @ theta["fc2.weight"].T + theta["fc2.bias"]
    torch.testing.assert_close(wrapped_task.logits(theta, x), expected, rtol=0, atol=1e-5)


# --- Algorithm 1


def test_alg1_consensus_is_the_weighted_mean_of_exact_means() -> None:
    """At a learning rate of 0 the initial epoch changes nothing, so z = sum_i (n_i / n) mean f(x;
    theta_0).
    """
    task = task_of(f"mlp2(width={K})", SHAPE, CLASSES)
    data = [samples(9, SHAPE, CLASSES, seed=1), samples(3, SHAPE, CLASSES, seed=2)]
    dbe = Dbe(host=FedAvg())
    server, _ = server_of(dbe, task, data, Training(lr=0.0, batch=2))
    theta = task.init(Key.root(0).fold("init"))
    means = [task.features(theta, d.x).mean(0) for d in data]
    for i in (0, 1):
        torch.testing.assert_close(
            server.state(i).extra.z, 0.75 * means[0] + 0.25 * means[1], rtol=0, atol=1e-6
        )


def test_alg1_initial_training_has_neither_offset_nor_regulariser_and_is_thrown_away() -> None:
    """A party's mean comes after one plain epoch from theta_0, one batch here; round 1 starts from
    theta_0 again.
    """
    task = task_of(f"mlp2(width={K})", SHAPE, CLASSES)
    data = samples(9, SHAPE, CLASSES, seed=1)
    dbe = Dbe(host=FedAvg(), kappa=1000.0)
    server, s = server_of(dbe, task, [data], Training(lr=0.3, batch=100, epochs=4))
    theta = task.init(Key.root(0).fold("init"))
    assert all(torch.equal(s.host[k], v) for k, v in theta.items())
    assert not server.state(0).host[OFFSET].any()
    params = {k: v.clone().requires_grad_() for k, v in theta.items()}
    grads = torch.autograd.grad(
        F.cross_entropy(task.logits(params, data.x), data.y), list(params.values())
    )
    stepped = {k: v - 0.3 * g for (k, v), g in zip(theta.items(), grads, strict=True)}
    torch.testing.assert_close(
        server.state(0).extra.z, task.features(stepped, data.x).mean(0), rtol=0, atol=1e-5
    )


@pytest.mark.parametrize("host", ["fedavg", "fedprox", "scaffold"])
def test_alg1_an_unselected_party_keeps_its_offset(host: str) -> None:
    task = task_of(f"mlp2(width={K})", SHAPE, CLASSES)
    dbe = compose(f"{host}+dbe")
    data = [samples(8, SHAPE, CLASSES, seed=i) for i in range(4)]
    server, s = server_of(dbe, task, data, Training(lr=0.1), participation=0.5)

    def offsets() -> list[Tensor]:
        states = [server.state(i).host for i in range(4)]
        return [(m if isinstance(m, dict) else m.private)[OFFSET].clone() for m in states]

    before = offsets()
    for t in (1, 2, 3):
        s = rounds(dbe, server, s, 1, first=t)
        after = offsets()
        selected = server.sample(t)
        assert len(selected) == 2
        for i in range(4):
            assert torch.equal(after[i], before[i]) == (i not in selected)
        before = after


@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_alg1_bytes(participation: float) -> None:
    """N (S_L + 8 K) before round 1, then 2 rho N S_L."""
    N, width = 4, 7
    S_L = 4 * ((6 * width + width) + (width * width + width) + (width * 3 + 3))
    result = comity.run(
        "fedavg+dbe", federation((9, 5, 14, 6)), model=f"mlp2(width={width})", rounds=2, engine="loop",
        participation=participation,
    )  # fmt: skip
    total: Counter[tuple[int, str]] = Counter()
    for row in result.ledger:
        if row.kind not in ("setup", "eval"):
            total[row.round, row.kind] += row.bytes
    K_bytes = 4 * width
    assert total[0, "up"] == N * K_bytes
    assert total[0, "down"] == N * (S_L + K_bytes)
    for t in (1, 2):
        assert total[t, "up"] == total[t, "down"] == participation * N * S_L


def test_alg1_identical_parties_behave_as_one() -> None:
    """Same data in one batch: all offsets are equal and theta is what a single party gets."""
    task = task_of(f"mlp2(width={K})", SHAPE, CLASSES)
    data, how = samples(10, SHAPE, CLASSES, seed=1), Training(lr=0.1, batch=10, epochs=3)
    ends = []
    for parties in (1, 3):
        dbe = Dbe(host=FedAvg(), kappa=2.0, mu=0.5)
        server, s = server_of(dbe, task, [data] * parties, how)
        s = rounds(dbe, server, s, 3)
        ends.append((s.host, [server.state(i).host[OFFSET] for i in range(parties)]))
    (alone, (offset,)), (together, offsets) = ends
    assert offset.abs().max() > 1e-3
    for other in offsets:
        torch.testing.assert_close(other, offset, rtol=0, atol=1e-5)
    for name, value in alone.items():
        torch.testing.assert_close(together[name], value, rtol=0, atol=1e-5)


# --- around other methods


def test_table4_fedprox_holds_the_shared_weights_only() -> None:
    """The proximal gradient mu (w - w_t) does not reach the offset."""
    task, data = task_of(f"mlp2(width={K})", SHAPE, CLASSES), samples(4, SHAPE, CLASSES)
    data = Samples(data.x.double(), data.y)
    grads = []
    for mu in (0.0, 10.0):
        dbe: Any = compose("fedprox+dbe", {"fedprox.mu": mu, "kappa": 0.0})
        party = party_of(task, data, Training(lr=1.0, batch=4))
        wrapped_party = dbe.wrap_party(party, dbe.extra(Key(0), party))
        w_t = {k: v.double() for k, v in task.init(Key(1)).items()}
        w = {k: v.double() + 0.5 for k, v in wrapped_party.task.init(Key(1)).items()}
        stepped = run_call(
            dbe.host.train_locally(w, dbe.host.message_for(w_t, 0), wrapped_party, Key(2))
        )
        grads.append({k: w[k] - stepped[k] for k in w})  # by a step of 1
    plain, prox = grads
    torch.testing.assert_close(prox[OFFSET], plain[OFFSET], rtol=0, atol=1e-6)
    for name in w_t:
        torch.testing.assert_close(prox[name], plain[name] + 5.0, rtol=0, atol=1e-5)


def test_table2_prbm_makes_no_additional_call_and_mr_has_no_offset() -> None:
    fed = federation((9, 5))
    prbm = comity.run("fedavg+prbm", fed, model="mlp2(width=5)", rounds=1, engine="loop")
    assert not [row for row in prbm.ledger if row.round == 0 and row.kind in ("up", "down")]
    assert prbm.model("p0").theta[OFFSET].abs().max() > 0
    mr = comity.run("fedavg+mr", fed, model="mlp2(width=5)", rounds=1, engine="loop")
    assert [row for row in mr.ledger if row.round == 0 and row.kind == "up"]
    assert OFFSET not in mr.model("p0").theta


@pytest.mark.parametrize(
    "text",
    ["solo+dbe", "adcol+dbe", "centralized+mr", "fedper+dbe", "fedper+prbm", "fedavg+dbe+mr"],
)
def test_unsupported_hosts_are_refused(text: str) -> None:
    with pytest.raises(comity.UsageError):
        compose(text)


# --- Table 3


def test_table3_no_noise_is_the_identity() -> None:
    z = noise(1000, seed=5)
    assert torch.equal(Dbe(host=FedAvg()).add_mean_noise(z, Key(3)), z)


@pytest.mark.parametrize(
    ("s", "q"), [(0.05, 0.2), (0.5, 0.2), (5.0, 0.0), (0.05, 0.9), (0.05, 1.0)]
)
def test_table3_noise_has_mean_1_minus_q_and_variance_s2(s: float, q: float) -> None:
    """(1 - q) z + N(0, s^2) over 100,000 values; four standard errors are allowed."""
    n, value = 100_000, 3.0
    noised = (
        Dbe(host=FedAvg(), noise_s=s, noise_q=q)
        .add_mean_noise(torch.full((n,), value), Key(3))
        .double()
    )
    assert noised.mean().item() == pytest.approx((1 - q) * value, abs=4 * s / n**0.5 + 1e-6)
    assert noised.var().item() == pytest.approx(s * s, rel=4 * (2 / n) ** 0.5)


def test_table3_parties_draw_different_noise_on_what_they_upload() -> None:
    task = task_of(f"mlp2(width={K})", SHAPE, CLASSES)
    data = samples(6, SHAPE, CLASSES)
    dbe = Dbe(host=FedAvg(), noise_s=1.0, noise_q=1.0)  # noise alone
    server, s = server_of(dbe, task, [data, data], Training(lr=0.0))
    server.begin(0)
    replies = server.call(dbe.mean, {i: dbe.message_for(s, i) for i in (0, 1)})
    assert not torch.equal(replies[0].z, replies[1].z)
    consensus = server.state(0).extra.z  # the mean of two draws with the same keys
    torch.testing.assert_close(consensus, (replies[0].z + replies[1].z) / 2, rtol=0, atol=1e-6)


def test_frozen_offset_stays_at_zero_and_gets_no_gradient() -> None:
    task = biased_task(kappa=0.0)
    assert isinstance(task, Biased)
    frozen = replace(task, frozen=True)
    result = fit(
        frozen.loss,
        frozen.init(Key(1)),
        samples(9, SHAPE, CLASSES),
        Key(2),
        Training(lr=0.5, momentum=0.9, epochs=3),
    )
    assert not result.theta[OFFSET].any()
    assert MEAN not in result.theta
