"""FedFomo, pFedMe, APPLE, Fed-MTL and FML: their steps by hand, their known answers, and what they
are with their extras off.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import pytest
import torch
import torch.nn.functional as F
from toys import (
    assert_near,
    federation,
    noise,
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
from comity.algorithms.apple import Apple, AppleState, Cores
from comity.algorithms.fed_mtl import FedMtl, Held, Relations, precision
from comity.algorithms.fedavg import FedAvg
from comity.algorithms.fedfomo import FedFomo, FomoState, Offered, choose_models
from comity.algorithms.fml import Fml, FmlState
from comity.algorithms.pfedme import PFedMe
from comity.core import Empty, Key, LearningTask, Model, Params, Party, Samples, Training

pytestmark = pytest.mark.quick

SIZES = (9, 14, 6)
SETTINGS: dict[str, Any] = {
    "model": "mlp2(width=7)",
    "rounds": 3,
    "engine": "loop",
    "lr": 0.1,
    "batch": 4,
}


def small() -> LearningTask:
    return task_of("mlp2(width=5)", (6,), 3)


def deployed_models(
    method: str, fed: comity.Federation | None = None, **settings: Any
) -> list[Params]:
    result = comity.run(method, fed or federation(SIZES), **SETTINGS | settings)
    return [result.model(name).theta for name in result.job.info.names]


def all_same(ours: list[Params], theirs: list[Params]) -> bool:
    return all(same(a, b) for a, b in zip(ours, theirs, strict=True))


def flat(theta: Params) -> torch.Tensor:
    return torch.cat([v.flatten() for v in theta.values()])


# --- FedFomo


def fomo_party(count: int = 10) -> Party:
    return party_of(small(), samples(count, (6,), 3), Training(lr=0.1, batch=4), parties=3)


@pytest.mark.parametrize("norm", ["l2", "l1"])
def test_fedfomo_weights_and_update_by_hand(norm: Literal["l2", "l1"]) -> None:
    party, method = fomo_party(), FedFomo(norm=norm)
    task, data = party.task, party.data.train
    before, own_model, *others = (task.init(Key(k)) for k in range(1, 6))
    validation = Samples(data.x[[4, 9]], data.y[[4, 9]])  # every fifth sample

    def loss(theta: Params) -> float:
        return F.cross_entropy(task.logits(theta, validation.x), validation.y).item()

    models = dict(enumerate([own_model, *others]))
    by_hand = {
        n: (
            (loss(before) - loss(m))
            / torch.linalg.vector_norm(flat(m) - flat(before), int(norm[1])).item()
        )
        for n, m in models.items()
    }
    state = FomoState(own_model, before, False)
    new_state, w = run_call(
        method.weigh(state, Offered({j: models[j] for j in (1, 2, 3)}), party, Key(0))
    )
    assert w == pytest.approx(by_hand, rel=1e-4)
    better = {n: value for n, value in by_hand.items() if value > 0}
    assert 0 < len(better) < 4, "some do better, and some do not"
    total = sum(better.values())
    expected = {
        k: v + sum(x / total * (models[n][k] - v) for n, x in better.items())
        for k, v in before.items()
    }
    assert_near(new_state.begin, expected)
    assert new_state.weighed
    assert same(method.deployed_model(new_state, Empty(), party), own_model)


def test_fedfomo_stays_where_it_was_if_no_model_does_better() -> None:
    """θ + Σ w⁺ (θ_n − θ) with all w⁺ = 0, though the party has trained since."""
    party = fomo_party()
    models = sorted(
        (party.task.init(Key(k)) for k in range(1, 6)), key=lambda m: fomo_loss(party, m)
    )
    best, *worse = models
    state, w = run_call(
        FedFomo().weigh(
            FomoState(worse[0], best, False), Offered(dict(enumerate(worse[1:], 1))), party, Key(0)
        )
    )
    assert all(value < 0 for value in w.values())
    assert same(state.begin, best)


def fomo_loss(party: Party, theta: Params) -> float:
    data = party.data.train
    return F.cross_entropy(party.task.logits(theta, data.x[4::5]), data.y[4::5]).item()


def test_fedfomo_a_model_that_overflows_is_not_taken() -> None:
    party = fomo_party()
    theta, other = party.task.init(Key(1)), party.task.init(Key(2))
    broken = {k: v * 1e30 for k, v in other.items()}
    _, w = run_call(
        FedFomo().weigh(FomoState(theta, theta, False), Offered({1: broken}), party, Key(0))
    )
    assert w == {0: 0.0, 1: 0.0}


def test_fedfomo_with_its_own_model_only_is_solo_on_what_is_not_held_out() -> None:
    def less(part: Samples) -> Samples:
        return part.take([k for k in range(len(part)) if k % 5 != 4])

    fed = federation(SIZES)
    without = comity.Federation.from_arrays(
        {
            name: ((less(party.train).x, less(party.train).y), (party.test.x, party.test.y))
            for name, party in fed.parties.items()
        },
        validation=0.0,
        classes=3,
    )
    assert all_same(deployed_models("fedfomo(models=1)", fed), deployed_models("solo", without))


def test_fedfomo_weighs_by_validation_samples_if_there_are_any() -> None:
    party = fomo_party()
    validated = replace(party, data=replace(party.data, validation=samples(4, (6,), 3, seed=9)))
    method = FedFomo()
    assert len(method.samples(validated.data, held_out=False)) == 10
    assert len(method.samples(validated.data, held_out=True)) == 4
    assert (len(method.samples(party.data, False)), len(method.samples(party.data, True))) == (8, 2)
    few = fomo_party(4).data
    assert len(method.samples(few, held_out=False)) == len(method.samples(few, held_out=True)) == 4


def test_fedfomo_takes_the_nearest_and_explores_with_chance_epsilon() -> None:
    affinity = [0.0, 0.3, -0.2, 0.9, 0.1, 0.0]
    others = [0, 1, 2, 4, 5]
    assert choose_models(affinity, others, 2, 0.0, Key(1)) == [1, 4]
    pairs = [tuple(choose_models(affinity, others, 2, 1.0, Key(k))) for k in range(60)]
    assert len(set(pairs)) == 10, "each pair of five"
    ties = {choose_models([0.0] * 3, [0, 1, 2], 1, 0.0, Key(k))[0] for k in range(30)}
    assert ties == {0, 1, 2}


def test_fedfomo_affinities_add_up() -> None:
    """After a round P_ij = δ_ij + w_ij for the models that i weighed; each weighs both others and
    its own.
    """
    task, how = small(), Training(lr=0.1, batch=4)
    method = FedFomo(models=3)
    data = [samples(n, (6,), 3, seed=n) for n in (10, 15, 20)]
    server, s = server_of(method, task, data, how)
    assert torch.equal(s.P, torch.eye(3))
    after = rounds(method, server, s, 1)
    begin = task.init(Key.root(0).fold("init"))
    trained_models = {i: server.state(i).trained for i in range(3)}
    for i in range(3):
        party = party_of(task, data[i], how, i, 3)
        w = method.weights(begin, trained_models, party)
        assert after.P[i].tolist() == pytest.approx(
            [float(i == j) + w[j] for j in range(3)], abs=1e-6
        )
    assert all(same(after.last[i], trained_models[i]) for i in range(3))


def test_fedfomo_a_party_that_missed_the_exchange_continues_from_its_trained_model() -> None:
    party, method = fomo_party(), FedFomo()
    begin, trained_model = party.task.init(Key(1)), party.task.init(Key(2))
    missed, _ = run_call(
        method.local(FomoState(trained_model, begin, False), Empty(), party, Key(3))
    )
    took, _ = run_call(method.local(FomoState(begin, trained_model, True), Empty(), party, Key(3)))
    assert same(missed.begin, trained_model)
    assert same(missed.trained, took.trained)


def test_fedfomo_no_option_is_without_effect() -> None:
    usual = deployed_models("fedfomo(epsilon=0)")
    for options in ("models=2", "norm=l1"):
        assert not all_same(deployed_models(f"fedfomo(epsilon=0,{options})"), usual)
    greedy, always, once = (
        deployed_models(f"fedfomo(models=2,{options})", rounds=6)
        for options in ("epsilon=0", "epsilon=1,epsilon_decay=0", "epsilon=1,epsilon_decay=1")
    )
    assert not all_same(greedy, always)
    assert all_same(greedy, once), "ε is 0 from round 1 on"


def test_fedfomo_takes_mr_and_no_offset() -> None:
    assert not all_same(deployed_models("fedfomo+mr", kappa=50), deployed_models("fedfomo"))
    assert all_same(deployed_models("fedfomo+mr", kappa=0), deployed_models("fedfomo"))
    with pytest.raises(comity.UsageError, match=r"use fedfomo\+mr"):
        comity.run("fedfomo+dbe", federation(SIZES), **SETTINGS)


def test_mr_sends_no_model_to_parties_that_have_theirs() -> None:
    """Before round 1: K floats up and K down (the consensus), and nothing else."""
    charged = [
        row
        for row in comity.run("fedfomo+mr", federation(SIZES), **SETTINGS).ledger
        if row.round == 0
    ]
    of_start = {(row.call, row.kind): row.bytes for row in charged if row.call in ("mean", "agree")}
    assert of_start == {("mean", "up"): 4 * 7, ("agree", "down"): 4 * 7}


# --- pFedMe


def step(theta: Params, data: Samples, task: LearningTask) -> Params:
    """The gradient of the whole batch's loss."""
    free = {k: v.clone().requires_grad_() for k, v in theta.items()}
    grads = torch.autograd.grad(
        F.cross_entropy(task.logits(free, data.x), data.y), list(free.values())
    )
    return dict(zip(free, grads, strict=True))


def test_pfedme_alg1_two_batches_by_hand() -> None:
    task, data = small(), samples(8, (6,), 3)
    w = theta = task.init(Key(1))
    party = party_of(task, data, Training(lr=0.05, batch=8, epochs=2))
    method = PFedMe(lam=3.0, inner_lr=0.1, inner_steps=2)
    state, reply = run_call(method.local(task.init(Key(2)), Model(w), party, Key(3)))
    for _ in range(2):
        for _ in range(2):
            g = step(theta, data, task)
            theta = {k: v - 0.1 * (g[k] + 3.0 * (v - w[k])) for k, v in theta.items()}
        w = {k: v - 0.05 * 3.0 * (v - theta[k]) for k, v in w.items()}
    assert_near(state, theta, atol=1e-6)
    assert_near(reply.theta, w, atol=1e-6)
    assert same(method.deployed_model(state, Model(w), party), state)


def test_pfedme_finds_the_minimum_of_the_moreau_envelopes() -> None:
    """f_i = a_i/2 (θ − b_i)², so F_i' = c_i (w − b_i) with c = aλ/(a + λ): w* = Σ c b / Σ c, θ_i =
    (a b + λ w*)/(a + λ).

    All count alike, however many samples they have.
    """
    a, b, lam = (1.0, 3.0), (2.0, -1.0), 2.0
    method = PFedMe(lam=lam, inner_lr=0.1, inner_steps=80)
    server, w = server_of(
        method,
        quadratic(5.0),
        [rows(a[0], b[0]), rows(a[1], b[1], count=3)],
        Training(lr=0.2, batch=4),
    )
    w = rounds(method, server, w, 80)
    c = [x * lam / (x + lam) for x in a]
    best = sum(x * y for x, y in zip(c, b, strict=True)) / sum(c)
    assert w["body.w"].item() == pytest.approx(best, abs=1e-5)
    for i in range(2):
        assert server.state(i)["body.w"].item() == pytest.approx(
            (a[i] * b[i] + lam * best) / (a[i] + lam), abs=1e-5
        )


def test_pfedme_whose_copy_is_the_personal_model_is_fedavg() -> None:
    """η λ = 1 and K = 1: w_i = θ_i after every step, so nothing pulls, and the steps are SGD's with
    η_p.
    """
    task, data = small(), [samples(8, (6,), 3, seed=n) for n in range(3)]
    ours, parent = PFedMe(lam=8.0, inner_steps=1, inner_lr=0.1), FedAvg()
    ends = []
    for method, lr in ((ours, 0.125), (parent, 0.1)):
        server, w = server_of(method, task, data, Training(lr=lr, batch=4))
        ends.append(rounds(method, server, w, 3))
    assert_near(ends[0], ends[1], atol=1e-6)


def test_pfedme_beta_at_the_server_by_hand() -> None:
    """w ← (1 − β) w + β · mean of the w_i; β = 0 never moves it, β = 1 is the mean."""
    task, how = small(), Training(lr=0.05, batch=4)
    data = [samples(n, (6,), 3, seed=n) for n in (4, 12)]

    def once(beta: float) -> tuple[Params, Params]:
        method = PFedMe(beta=beta)
        server, w = server_of(method, task, data, how)
        return w, rounds(method, server, w, 1)

    w, mean = once(1.0)
    assert same(once(0.0)[1], w)
    assert_near(once(1.5)[1], {k: -0.5 * v + 1.5 * mean[k] for k, v in w.items()}, atol=1e-6)


def test_pfedme_without_a_pull_never_moves_the_global_model() -> None:
    task = small()
    method = PFedMe(lam=0.0)
    server, w = server_of(method, task, [samples(8, (6,), 3)], Training(lr=0.05, batch=4))
    assert same(rounds(method, server, w, 2), w)
    assert not same(server.state(0), w)


@pytest.mark.parametrize("optimizer", ["adam", "sgd(momentum=0.5)", "sgd(decay=0.1)"])
def test_pfedme_refuses_other_optimizers(optimizer: str) -> None:
    with pytest.raises(comity.UsageError, match="steps are its own"):
        comity.run("pfedme", federation(SIZES), optimizer=optimizer, **SETTINGS)


def test_pfedme_says_when_its_steps_are_too_long() -> None:
    info = server_of(PFedMe(), small(), [samples(8, (6,), 3)], Training(lr=0.1))[0].info
    (warning,) = PFedMe().accounting.warnings(info)
    assert "lr · lam = 1.5" in warning
    assert PFedMe(lam=5).accounting.warnings(info) == []
    assert "run away" in PFedMe(lam=5, inner_lr=0.4).accounting.warnings(info)[0]


# --- APPLE


def apple_party(i: int = 1, how: Training | None = None) -> Party:
    return party_of(small(), samples(8, (6,), 3), how or Training(lr=0.1, batch=8, epochs=2), i, 3)


def test_apple_two_steps_by_hand() -> None:
    """Both gradients come of the mixture as it was: p_ii ∇F for the core model, ⟨∇F, w_j⟩ + λμ
    (p_ij − p_0j) for p.
    """
    party = apple_party()
    task, data = party.task, party.data.train
    cores = {j: task.init(Key(j + 1)) for j in range(3)}
    p0, p = torch.tensor([0.5, 0.2, 0.3]), torch.tensor([0.1, 0.6, 0.2])
    method = Apple(mix_lr=0.02)
    state = AppleState(cores[1], p[[1, 0, 2]], cores[1], {}, {})  # a party's own share stands first
    message = Cores({0: cores[0], 2: cores[2]}, p0, pull=0.7, base=1.5)
    new_state, reply = run_call(method.local(state, message, party, Key(3)))

    def mixture() -> Params:
        return {k: p[0] * cores[0][k] + p[1] * cores[1][k] + p[2] * cores[2][k] for k in cores[0]}

    for _ in range(2):
        g = step(mixture(), data, task)
        slopes = torch.stack([flat(g) @ flat(cores[j]) for j in range(3)])
        cores[1] = {k: v - 0.1 * p[1] * g[k] for k, v in cores[1].items()}
        p = p - 0.02 * (slopes + 0.7 * (p - p0))
    assert_near(reply.theta, cores[1], atol=1e-6)
    assert_near({"p": new_state.p}, {"p": p[[1, 0, 2]]}, atol=1e-6)
    assert_near(method.deployed_model(new_state, message, party), mixture(), atol=1e-6)
    assert reply.asks == []


def test_apple_starts_from_the_shares_of_samples() -> None:
    party = apple_party()
    theta, p0 = party.task.init(Key(1)), torch.tensor([0.5, 0.2, 0.3])
    state = Apple(mix_lr=0).init_party(Key(1), party)
    new_state, _ = run_call(
        Apple(mix_lr=0).local(state, Cores({0: theta, 2: theta}, p0, 0.0, 1.5), party, Key(3))
    )
    assert torch.equal(new_state.p, p0[[1, 0, 2]])


def test_apple_with_fixed_equal_shares_is_fedavg_n_times_slower() -> None:
    """One step a round, p = 1/N: Σ_j p w_j moves by η Σ_j p² ∇F_j, which is FedAvg's step with η/N."""
    task, data = small(), [samples(8, (6,), 3, seed=n) for n in range(4)]
    method = Apple(mix_lr=0)
    server, s = server_of(method, task, data, Training(lr=0.4, batch=8))
    s = rounds(method, server, s, 4)
    parent = FedAvg()
    server, w = server_of(parent, task, data, Training(lr=0.1, batch=8))
    w = rounds(parent, server, w, 4)
    ours = {k: sum(core[k] for core in s.cores.values()) / 4 for k in w}
    assert_near(ours, w, atol=1e-6)


def test_apple_of_one_party_is_solo() -> None:
    alone = federation((9,))
    assert all_same(deployed_models("apple", alone), deployed_models("solo", alone))


def test_apple_finds_a_party_of_its_kind() -> None:
    """Quadratics with minima 1, 1 and −3: the first two go on sharing, the third's core model ends
    with the least weight there.

    f is minimal wherever Σ_j p_ij w_j = b_i, and all get there.
    """
    method = Apple(mix_lr=0.02, mu=0.1)
    data = [rows(1.0, 1.0), rows(1.0, 1.0), rows(1.0, -3.0)]
    server, s = server_of(method, quadratic(0.5), data, Training(lr=0.3, batch=1))
    s = rounds(method, server, s, 150)
    for i, best in enumerate((1.0, 1.0, -3.0)):
        assert server.state(i).mixed["body.w"].item() == pytest.approx(best, abs=0.02)
    p = server.state(0).p
    assert p[2] < p[1]


def test_apple_schedule_of_the_pull() -> None:
    cosine, fast = Apple(until=0.5), Apple(until=0.5, decay="exponential")
    assert [cosine.weight(r, 8) for r in (0, 1, 2, 4, 7)] == pytest.approx(
        [1, (2**-0.5 + 1) / 2, 0.5, 0, 0]
    )
    assert [fast.weight(r, 8) for r in (0, 2, 4)] == pytest.approx([1, 0.001**0.5, 0])
    assert Apple(until=0).weight(0, 8) == 0


def test_apple_downloads_models_it_never_had_first_then_by_p() -> None:
    method = Apple(downloads=2)
    p = {0: 0.0, 1: 0.9, 2: -0.9, 3: 0.1, 4: 0.0}
    firsts = {tuple(method.asks(p, {1, 2, 3}, 1.5, Key(k))) for k in range(20)}
    assert firsts == {(0, 4)}
    requests = [method.asks(p, {0, 1, 2, 3}, 1e9, Key(k)) for k in range(50)]
    assert all(4 in request and len(set(request)) == 2 for request in requests)
    by_p = [j for k in range(200) for j in method.asks(p, set(p), 1e9, Key(k))]
    assert by_p.count(1) + by_p.count(2) > 0.99 * len(by_p), "b^|p|, whatever the sign"
    even = [j for k in range(200) for j in method.asks(p, set(p), 1.0, Key(k))]
    assert all(50 < even.count(j) < 110 for j in p)


def test_apple_with_limited_downloads_uses_what_it_had_last() -> None:
    party = apple_party(0)
    task = party.task
    first, old, new = (task.init(Key(k)) for k in (1, 2, 3))
    method = Apple(mix_lr=0, downloads=1)
    p = torch.full((3,), 1 / 3)
    state = AppleState(first, p, first, {1: old}, first)
    new_state, reply = run_call(method.local(state, Cores({2: new}, p, 0.0, 1.5), party, Key(3)))
    assert_near(
        new_state.mixed, {k: (reply.theta[k] + old[k] + new[k]) / 3 for k in first}, atol=1e-6
    )
    assert new_state.had.keys() == {1, 2}
    assert len(reply.asks) == 1
    once, _ = run_call(
        method.local(replace(state, had={}), Cores({2: new}, p, 0.0, 1.5), party, Key(3))
    )
    assert_near(once.mixed, {k: (once.core[k] + first[k] + new[k]) / 3 for k in first}, atol=1e-6)


def test_apple_no_option_is_without_effect() -> None:
    usual = {"mix_lr": 0.05, "until": 1.0, "mu": 1.0}
    base = deployed_models("apple", set=usual)
    for name, value in {
        "mu": 2,
        "mix_lr": 0.02,
        "until": 0.5,
        "decay": "exponential",
        "downloads": 1,
    }.items():
        assert not all_same(deployed_models("apple", set=usual | {name: value}), base), name


def test_apple_refuses_adam_and_mr() -> None:
    with pytest.raises(comity.UsageError, match="two learning rates"):
        comity.run("apple", federation(SIZES), optimizer="adam", **SETTINGS)
    with pytest.raises(comity.UsageError, match="no averaged extractor"):
        comity.run("apple+mr", federation(SIZES), **SETTINGS)


# --- Fed-MTL


def test_fed_mtl_relations_by_hand() -> None:
    """Two equal models: (WᵀW)^½ ∝ 11ᵀ, so Σ has 2 along (1, 1) and 0 across; two orthogonal ones of
    one length know nothing.
    """
    alike = precision(
        {"a": torch.tensor([[3.0], [3.0]]), "b": torch.tensor([[[4.0]], [[4.0]]])}, epsilon=0.1
    )
    along, across = 1 / (0.9 * 2 + 0.1), 1 / 0.1
    near, far = (along + across) / 2, (along - across) / 2
    torch.testing.assert_close(alike, torch.tensor([[near, far], [far, near]]))
    torch.testing.assert_close(precision({"a": 7 * torch.eye(3)}, epsilon=0.1), torch.eye(3))
    torch.testing.assert_close(precision({"a": torch.zeros(3, 2)}, epsilon=0.1), torch.eye(3))
    W = noise(3, 5).double()
    root = precision({"a": W}, epsilon=1e-12).inverse()
    torch.testing.assert_close(
        root @ root / (root @ root).trace(), W @ W.T / (W @ W.T).trace(), rtol=0, atol=1e-6
    )


def test_fed_mtl_w_step_finds_the_minimum_for_a_given_relation() -> None:
    """f_t = a_t/2 (w − b_t)²: (diag(a) + λ₁ Ω + λ₂ I) w = a b, though all parties move at once."""
    a, b = torch.tensor([1.0, 2.0, 4.0]).double(), torch.tensor([3.0, -1.0, 0.5]).double()
    omega = torch.tensor([[2.0, -1.5, 0.3], [-1.5, 2.0, 0.0], [0.3, 0.0, 1.0]]).double()
    method = FedMtl(lam1=0.7, lam2=0.2)
    how = Training(lr=0.1, batch=1, steps=10)
    parties = [party_of(quadratic(), rows(a[t].item(), b[t].item()), how, t, 3) for t in range(3)]
    w = torch.zeros(3, 1).double()
    for _ in range(40):
        messages = method.anchors(Relations({"body.w": w}, omega), range(3))
        updates = [
            run_call(method.local({"body.w": w[t]}, messages[t], parties[t], Key(0)))[1].theta[
                "body.w"
            ]
            for t in range(3)
        ]
        w = torch.stack(updates)
    best = torch.linalg.solve(a.diag() + 0.7 * omega + 0.2 * torch.eye(3).double(), a * b)
    torch.testing.assert_close(w[:, 0], best, rtol=0, atol=1e-6)


def test_fed_mtl_one_party_has_a_decay_of_lambda_1() -> None:
    """m = 1: Σ = Ω = 1, so w = a b / (a + λ₁)."""
    method = FedMtl(lam1=0.5)
    server, s = server_of(
        method, quadratic(1.0), [rows(2.0, 3.0)], Training(lr=0.1, batch=1, steps=30)
    )
    s = rounds(method, server, s, 40)
    assert s.W["body.w"].item() == pytest.approx(2 * 3 / 2.5, abs=1e-6)
    assert s.omega.item() == pytest.approx(1)


def test_fed_mtl_alternating_steps_converge_to_the_closed_form() -> None:
    """With one weight each W has rank one: Σ is 3 along W, so Ω there is 1/(0.9 · 3 + 0.1), and w =
    b / (1 + λ₁/2.8).
    """
    method = FedMtl(lam1=1.0)
    b = (2.0, 3.0, -2.0)
    server, s = server_of(
        method,
        quadratic(0.0),
        [rows(1.0, optimum) for optimum in b],
        Training(lr=0.05, batch=1, steps=10),
    )
    s = rounds(method, server, s, 115)
    assert s.W["body.w"][:, 0].tolist() == pytest.approx(
        [optimum / (1 + 1 / 2.8) for optimum in b], abs=1e-6
    )
    assert s.omega[0, 1] < 0 < s.omega[0, 2], "−Ω_st says how much s and t are alike"


def test_fed_mtl_bound_by_hand() -> None:
    """a = w − (λ₁ Ω w + λ₂ w)/c with c = λ₁ · 3 + λ₂; a newcomer is held to the mean."""
    omega = torch.tensor([[2.0, 1.0], [1.0, 2.0]])  # eigenvalues 1 and 3
    w = torch.tensor([[1.0, 0.0], [4.0, 2.0]])
    anchors = FedMtl(lam1=0.5, lam2=0.1).anchors(Relations({"a": w}, omega), [1, 2])
    assert anchors[1].weight == pytest.approx(1.6)
    torch.testing.assert_close(
        anchors[1].to["a"], w[1] - (0.5 * (w[0] + 2 * w[1]) + 0.1 * w[1]) / 1.6
    )
    torch.testing.assert_close(anchors[2].to["a"], torch.tensor([2.5, 1.0]))


def test_fed_mtl_surrogate_by_hand() -> None:
    """60 weights: λ = 2 · 10⁻³, so the gradient is 2 · 10⁻³ ((w − w̄) + w), which is 4 · 10⁻³ (w −
    w̄/2).
    """
    method = FedMtl(relation="surrogate", lam1=9.0)
    w = noise(4, 12, 5)
    anchor = method.message_for(Relations({"a": w}, torch.eye(4) - 1 / 4), 2)
    assert anchor.weight == pytest.approx(4e-3)
    torch.testing.assert_close(anchor.to["a"], w.mean(0) / 2)
    server, s = server_of(method, small(), [samples(4, (6,), 3)] * 3, Training(batch=4))
    torch.testing.assert_close(rounds(method, server, s, 1).omega, torch.eye(3) - 1 / 3)


def test_fed_mtl_without_weights_is_solo() -> None:
    assert all_same(deployed_models("fed-mtl(lam1=0)"), deployed_models("solo"))


def test_fed_mtl_a_newcomer_starts_at_the_mean() -> None:
    party = party_of(small(), samples(8, (6,), 3), Training(lr=0.1, batch=8))
    mean = party.task.init(Key(2))
    state, _ = run_call(FedMtl().warm_up(party.task.init(Key(1)), Held(mean, 0.0), party, Key(3)))
    g = step(mean, party.data.train, party.task)
    assert_near(state, {k: v - 0.1 * g[k] for k, v in mean.items()}, atol=1e-6)


def test_fed_mtl_no_option_is_without_effect() -> None:
    base = deployed_models("fed-mtl")
    for option in ("relation=surrogate", "lam1=0.1", "lam2=0.1", "epsilon=0.5"):
        assert not all_same(deployed_models(f"fed-mtl({option})"), base), option


# --- FML


def test_fml_two_steps_by_hand() -> None:
    """Each model descends its own loss, in which the other's answers are constants; both gradients
    before any step.
    """
    task, data = small(), samples(8, (6,), 3)
    p, m = task.init(Key(1)), task.init(Key(2))
    party = party_of(task, data, Training(lr=0.1, batch=8, epochs=2))
    state, reply = run_call(
        Fml(alpha=0.3, beta=0.8).local(FmlState({}, p), Model(m), party, Key(3))
    )

    def slope(student: Params, teacher: Params, share: float) -> Params:
        free = {k: v.clone().requires_grad_() for k, v in student.items()}
        ours, theirs = task.logits(free, data.x), task.logits(teacher, data.x).softmax(1)
        apart = (
            (theirs * (theirs.log() - ours.log_softmax(1))).sum(1).mean()
        )  # KL(teacher ‖ student)
        value = share * F.cross_entropy(ours, data.y) + (1 - share) * apart
        return dict(zip(free, torch.autograd.grad(value, list(free.values())), strict=True))

    for _ in range(2):
        of_p, of_m = slope(p, m, 0.3), slope(m, p, 0.8)
        p = {k: v - 0.1 * of_p[k] for k, v in p.items()}
        m = {k: v - 0.1 * of_m[k] for k, v in m.items()}
    assert_near(state.personal, p, atol=1e-6)
    assert_near(reply.theta, m, atol=1e-6)


@pytest.mark.parametrize("other", [0.5, 1.0])
def test_fml_models_that_learn_from_labels_alone_are_solo_and_fedavg(other: float) -> None:
    """Bit for bit, whatever the other one learns from."""
    assert all_same(deployed_models(f"fml(alpha=1,beta={other})"), deployed_models("solo"))
    assert all_same(
        deployed_models(f"fml(alpha={other},beta=1,deploy=global)"), deployed_models("fedavg")
    )


def test_fml_models_are_equal_until_the_copies_are_averaged() -> None:
    """Both start alike, so in round 1 there is nothing to learn from each other."""
    party = party_of(small(), samples(8, (6,), 3), Training(lr=0.1, batch=4))
    theta = party.task.init(Key(1))
    state, reply = run_call(Fml().local(FmlState({}, theta), Model(theta), party, Key(3)))
    assert same(state.personal, reply.theta)
    ours = deployed_models("fml")
    assert not same(ours[0], ours[1])


def test_fml_deploys_one_model_or_each_its_own() -> None:
    shared, own = (
        comity.run(f"fml(deploy={which})", federation(SIZES), **SETTINGS)
        for which in ("global", "personal")
    )
    assert shared.job.algorithm.traits.one_model
    assert not own.job.algorithm.traits.one_model
    assert [r for r in shared.ledger if r.kind != "eval"] == [
        r for r in own.ledger if r.kind != "eval"
    ]
    a, b = (shared.model(name).theta for name in ("p0", "p1"))
    assert same(a, b)


def test_fml_mr_applies_to_the_copy_alone() -> None:
    assert all_same(deployed_models("fml(alpha=1)+mr", kappa=50), deployed_models("solo"))
    assert not all_same(deployed_models("fml+mr", kappa=50), deployed_models("fml"))


def test_fml_a_newcomer_begins_with_what_it_receives() -> None:
    party = party_of(small(), samples(8, (6,), 3), Training(lr=0.1, batch=4))
    first, w = party.task.init(Key(1)), party.task.init(Key(2))
    state, _ = run_call(Fml().warm_up(FmlState({}, first), Model(w), party, Key(3)))
    alike, reply = run_call(Fml().local(FmlState({}, w), Model(w), party, Key(3)))
    assert same(state.personal, alike.personal)
    assert same(state.private, reply.theta), (
        "and keeps its copy, which is its model with deploy=global"
    )


def test_fml_no_option_is_without_effect() -> None:
    base = deployed_models("fml")
    for option in ("alpha=0.2", "beta=0.2", "deploy=global"):
        assert not all_same(deployed_models(f"fml({option})"), base), option
