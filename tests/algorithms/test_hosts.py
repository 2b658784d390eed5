"""FedGen, FedRoD, FedBABU and APFL: their objectives and steps by hand, their reductions, and what
DBE's parts do around them.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from test_reductions import assert_same, run_method
from torch import Tensor, nn
from toys import (
    batch_of,
    federation,
    noise,
    party_of,
    quadratic,
    rounds,
    rows,
    run_call,
    samples,
    server_of,
    task_of,
)

import comity
from comity.algorithms.apfl import Apfl, ApflState
from comity.algorithms.dbe import OFFSET, Dbe
from comity.algorithms.fedavg import FedAvg
from comity.algorithms.fedbabu import FedBabu
from comity.algorithms.fedgen import Ensemble, FedGen, Wanted, sameness
from comity.algorithms.fedgen import Generator as Given
from comity.algorithms.fedrod import OWN, FedRod
from comity.algorithms.mr import Mr
from comity.base.key import BatchKey
from comity.components.pilot import Mean
from comity.core import (
    Algorithm,
    Batch,
    Key,
    LearningTask,
    Model,
    Params,
    Party,
    Samples,
    Training,
    drop,
    keep,
)
from comity.training import descent

SHAPE, CLASSES, K = (6,), 3, 5
SIZES = (9, 14, 6)
SETTINGS: dict[str, Any] = {
    "model": "mlp2(width=7)",
    "rounds": 3,
    "engine": "loop",
    "lr": 0.1,
    "batch": 4,
}
SMALL = "gen_steps=4,noise=3,hidden=6"


def small() -> LearningTask:
    return task_of(f"mlp2(width={K})", SHAPE, CLASSES)


def run(method: str, **settings: Any) -> comity.Result:
    return comity.run(method, federation(SIZES), **SETTINGS | settings)


def deployed_models(method: str, **settings: Any) -> list[Params]:
    result = run(method, **settings)
    return [result.model(name).theta for name in result.job.info.names]


def logits(theta: Params, x: Tensor) -> Tensor:
    """McMahan's 2NN, written down again."""
    z = F.relu(
        F.relu(x @ theta["fc1.weight"].T + theta["fc1.bias"]) @ theta["fc2.weight"].T
        + theta["fc2.bias"]
    )
    return z @ theta["fc3.weight"].T + theta["fc3.bias"]


def body(theta: Params, x: Tensor) -> Tensor:
    return F.relu(
        F.relu(x @ theta["fc1.weight"].T + theta["fc1.bias"]) @ theta["fc2.weight"].T
        + theta["fc2.bias"]
    )


def linear(theta: Params, z: Tensor, prefix: str = "") -> Tensor:
    return z @ theta[f"{prefix}fc3.weight"].T + theta[f"{prefix}fc3.bias"]


def free(theta: Params) -> Params:
    return {k: v.clone().requires_grad_() for k, v in theta.items()}


def grads_of(value: Tensor, theta: Params) -> Params:
    grads = torch.autograd.grad(
        value, list(theta.values()), allow_unused=True, materialize_grads=True
    )
    return dict(zip(theta, grads, strict=True))


def assert_close(ours: Params, expected: Params, atol: float = 1e-6) -> None:
    assert ours.keys() == expected.keys()
    for k, v in expected.items():
        torch.testing.assert_close(ours[k], v.detach(), rtol=0, atol=atol, msg=k)


# --- FedGen


class Generator(nn.Module):
    """(y, ε) → FC, BatchNorm, ReLU, FC → z, from PyTorch's own layers."""

    def __init__(self, G: Params) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            hidden, inputs = G["gen1.weight"].shape
            self.fc1, self.bn, self.fc2 = (
                nn.Linear(inputs, hidden),
                nn.BatchNorm1d(hidden),
                nn.Linear(hidden, len(G["gen2.bias"])),
            )
        names = {
            "fc1.weight": "gen1.weight",
            "fc1.bias": "gen1.bias",
            "bn.weight": "gen1.bn.weight",
            "bn.bias": "gen1.bn.bias",
        }
        names |= {"bn.running_mean": "gen1.bn.~mean", "bn.running_var": "gen1.bn.~var"}
        self.names = names | {"fc2.weight": "gen2.weight", "fc2.bias": "gen2.bias"}
        self.load_state_dict(
            {ours: G[theirs].clone() for ours, theirs in self.names.items()}, strict=False
        )

    def forward(self, eps: Tensor, y: Tensor) -> Tensor:
        return self.fc2(
            F.relu(self.bn(self.fc1(torch.cat([eps, F.one_hot(y, CLASSES).float()], 1))))
        )

    def params(self) -> Params:
        state = self.state_dict()
        return {theirs: state[ours] for ours, theirs in self.names.items()}


def gen(**options: Any) -> FedGen:
    return FedGen(**{"noise": 4, "hidden": 8, "gen_steps": 1, **options})


def eps_of(key: Key, count: int, width: int = 4) -> Tensor:
    return torch.randn((count, width), generator=key.fold("noise").generator())


def j_g(method: FedGen, task: LearningTask, G: Params, y: Tensor, heads: Ensemble) -> Tensor:
    """The generator's objective on one batch of labels, with the noise that belongs to it."""
    batch = batch_of(Samples(y, y))
    return method.j_g(
        task, G, replace(batch, draws=method.noises(batch, BatchKey(0, batch.number), heads)), heads
    )


def j_k(method: FedGen, task: LearningTask, theta: Params, data: Samples, aux: Given) -> Tensor:
    """A party's objective on one batch, with the labels and the noise that belong to it."""
    batch = batch_of(data)
    return method.j_k(
        task,
        theta,
        replace(batch, draws=method.draw_request(batch, BatchKey(0, batch.number), aux)),
        aux,
    )


def test_fedgen_objective_of_the_generator() -> None:
    """CE of 3/4 h_1(z) + 1/4 h_2(z), with BatchNorm over the batch."""
    task, method = small(), gen()
    G, heads = method.generator(task).init(Key(5)), [task.init(Key(1)), task.init(Key(2))]
    y = torch.tensor([0, 2, 1, 1])
    value = j_g(method, task, G, y, Ensemble([0.75, 0.25], heads))
    z = Generator(G)(eps_of(Key(0).fold("made", 0), 4), y)
    by_hand = F.cross_entropy(0.75 * linear(heads[0], z) + 0.25 * linear(heads[1], z), y)
    assert value.item() == pytest.approx(by_hand.item(), abs=1e-6)


def test_fedgen_diversity_term_by_hand() -> None:
    """Pairs (i, j), (j, i) count, (i, i) add nothing: exp(−(2/4) · mean(4, 16) · mean(1, 3)) =
    exp(−10).
    """
    eps, z = torch.tensor([[0.0, 0.0], [2.0, 4.0]]), torch.tensor([[1.0, 1.0], [2.0, -2.0]])
    assert sameness(eps, z).item() == pytest.approx(math.exp(-10), rel=1e-5)
    assert sameness(eps, torch.ones(2, 3, 2, 2)).item() == 1, "one z for all noise"
    task, y = small(), torch.tensor([0, 2, 1, 1])
    G, heads = gen().generator(task).init(Key(5)), Ensemble([1.0], [task.init(Key(1))])
    with_it, without = (j_g(gen(diversity=eta), task, G, y, heads).item() for eta in (2.0, 0.0))
    eps = eps_of(Key(0).fold("made", 0), 4)
    z = Generator(G)(eps, y)
    apart = [
        (eps[i] - eps[j]).square().mean() * (z[i] - z[j]).abs().mean()
        for i in range(4)
        for j in range(4)
    ]
    assert with_it - without == pytest.approx(2 * math.exp(-sum(apart).item() / 16), abs=1e-5)


def test_fedgen_server_trains_the_generator_by_adam_over_rounds(
    replies: list[dict[int, Any]],
) -> None:
    """G follows torch's Adam on CE(9/12 h_1 + 3/12 h_2, y), over the heads that came; moments and
    statistics are kept.
    """
    task, method = small(), gen(gen_steps=3, gen_batch=6, gen_lr=0.01)
    data = [samples(9, SHAPE, CLASSES, seed=1), samples(3, SHAPE, CLASSES, seed=2)]
    server, s = server_of(method, task, data, Training(lr=0.3, batch=4, epochs=3))
    reference = Generator(s.G)
    adam = torch.optim.Adam(reference.parameters(), lr=0.01)
    s = rounds(method, server, s, 2)
    for t, head_replies in zip((1, 2), replies[-2:], strict=True):
        generator = Key.root(0).fold("server", t, "labels").generator()
        labels = torch.multinomial(
            torch.tensor([4.0, 4.0, 4.0]), 18, replacement=True, generator=generator
        )
        key = Key.root(0).fold("server", t, "generator")
        order = key.fold("order", 0).permutation(18)
        for number, y in enumerate(labels[order].split(6)):
            adam.zero_grad()
            z = reference(eps_of(key.fold("made", number), 6), y)
            F.cross_entropy(
                0.75 * linear(head_replies[0].theta, z) + 0.25 * linear(head_replies[1].theta, z), y
            ).backward()
            adam.step()
    before_batchnorm = frozenset(
        {"gen1.bias", "gen1.bn.~mean"}
    )  # without a gradient but for rounding, which Adam blows up
    assert_close(drop(s.G, before_batchnorm), drop(reference.params(), before_batchnorm), atol=2e-5)


def test_fedgen_learned_representations_are_recognised_by_the_heads() -> None:
    task, method = small(), gen(gen_steps=300, gen_lr=0.01)
    server, s = server_of(method, task, [samples(9, SHAPE, CLASSES)], Training(lr=0.0, batch=4))
    s = rounds(method, server, s, 1)
    y = torch.arange(300) % CLASSES
    z = method.generate(task, s.G, Wanted(y, eps_of(Key(9), 300)))
    assert (linear(s.theta, z).argmax(1) == y).float().mean() > 0.95


def test_fedgen_objective_of_a_party() -> None:
    """CE on data + λ CE(h(G(ŷ, ε)), ŷ) with ŷ from p̂ and G in evaluation mode; the second part
    moves the head alone.
    """
    task, method, data = small(), gen(weight=2.5), samples(8, SHAPE, CLASSES)
    G, counts = method.generator(task).init(Key(5)), torch.tensor([5, 0, 1], dtype=torch.int32)
    G |= {"gen1.bn.~mean": noise(8, seed=1), "gen1.bn.~var": noise(8, seed=2).exp()}
    theta = free(task.init(Key(1)))
    value = j_k(method, task, theta, data, Given(G, counts))
    key = Key(0).fold("made", 0)
    y = torch.multinomial(counts.float(), 8, replacement=True, generator=key.generator())
    assert 1 not in y, "a class that no party has is not generated"
    z = Generator(G).eval()(eps_of(key, 8), y).detach()
    generated = 2.5 * F.cross_entropy(linear(theta, z), y)
    assert value.item() == pytest.approx(
        (F.cross_entropy(logits(theta, data.x), data.y) + generated).item(), abs=1e-6
    )
    ours, plain = (
        grads_of(value, theta),
        grads_of(F.cross_entropy(logits(theta, data.x), data.y), theta),
    )
    assert_close(drop(ours, task.head_names), drop(plain, task.head_names))
    assert not torch.allclose(ours["fc3.weight"], plain["fc3.weight"], atol=1e-4)


def test_fedgen_label_histogram_is_pooled_and_shared_once(replies: list[dict[int, Any]]) -> None:
    data = [
        Samples(noise(4, *SHAPE), torch.tensor([0, 0, 0, 2])),
        Samples(noise(2, *SHAPE), torch.tensor([2, 0])),
    ]
    method = gen()
    server, s = server_of(method, small(), data, Training(lr=0.1, batch=4))
    assert [replies[0][i].counts.tolist() for i in (0, 1)] == [[3, 0, 1], [1, 0, 1]]
    assert (
        s.labels.tolist()
        == server.state(0).labels.tolist()
        == server.state(1).labels.tolist()
        == [4, 0, 2]
    )
    assert dict(server.ledger.total) == {"up": 2 * 4 * CLASSES, "down": 2 * 4 * CLASSES}
    rounds(method, server, s, 2)
    assert server.state(1).labels.tolist() == [4, 0, 2]


def test_fedgen_bytes_by_hand() -> None:
    """G: (4 + 3)·8 + 8, BatchNorm 4·8, 8·5 + 5 floats. w: 6·5 + 5, 5·5 + 5, 5·3 + 3."""
    charged = run("fedgen(gen_steps=1,noise=4,hidden=8)", model=f"mlp2(width={K})", rounds=1).ledger
    S, S_G = 4 * (35 + 30 + 18), 4 * (64 + 32 + 45)
    of_round = [row for row in charged if row.round == 1 and row.kind in ("up", "down")]
    assert {(row.kind, row.bytes) for row in of_round} == {("up", S), ("down", S + S_G)}
    assert len(of_round) == 2 * len(SIZES)


@pytest.mark.sweep("-batchnorm-0.5", "-mlp2-1.0")
@pytest.mark.parametrize("participation", [1.0, 0.5])
@pytest.mark.parametrize("model", ["mlp2", "batchnorm"])
@pytest.mark.parametrize("wrapper", ["", "+dbe"])
def test_fedgen_weight_0_is_fedavg(model: str, participation: float, wrapper: str) -> None:
    ours = run_method(f"fedgen(weight=0,{SMALL}){wrapper}", model, participation)
    parent = run_method(f"fedavg{wrapper}", model, participation)
    for name in parent.job.info.names:
        a, b = ours.model(name).theta, parent.model(name).theta
        assert a.keys() == b.keys()
        assert all(torch.equal(a[k], b[k]) for k in b)


def test_fedgen_weight_0_is_fedavg_with_batchnorm_in_the_head() -> None:
    """Generated z leave the head's running statistics alone."""
    fed, how = (
        federation(SIZES, shape=(1, 8, 8)),
        SETTINGS | {"model": "fedbn-cnn(scale=0.03)", "cut": "fc1"},
    )
    ours, parent = (
        comity.run(text, fed, **how).model("p0").theta
        for text in (f"fedgen(weight=0,{SMALL})", "fedavg")
    )
    assert all(torch.equal(ours[k], parent[k]) for k in parent)


def test_fedgen_switched_on_is_not_fedavg() -> None:
    ours, parent = deployed_models(f"fedgen({SMALL})")[0], deployed_models("fedavg")[0]
    assert not torch.equal(ours["fc3.weight"], parent["fc3.weight"])


def wrap(wrapper: Dbe, party: Party, consensus: Tensor | None = None) -> Party:
    """The party as a host sees it inside a wrapper."""
    return wrapper.wrap_party(
        party, wrapper.extra(Key(0), party) if consensus is None else Mean(consensus)
    )


@pytest.mark.parametrize("cut", ["", "fc1"])
def test_fedgen_generated_z_meet_no_offset(cut: str) -> None:
    """In DBE, wherever its offset sits, generated z are z^g at the model's own cut: CE(h(z), ŷ)
    knows no offset.
    """
    method, data = gen(), samples(8, (1, 8, 8), CLASSES)
    task = task_of("lenet5(width=5)", (1, 8, 8), CLASSES)
    if cut:
        cut = "conv2"  # another width than the model's cut
    inside = wrap(Dbe(host=method, kappa=0.0, cut=cut), party_of(task, data, Training())).task
    theta = inside.init(Key(1)) | {OFFSET: noise(*inside.z_shape, seed=4)}
    G = method.generator(task).init(Key(5))
    value = j_k(method, inside, theta, data, Given(G, torch.ones(CLASSES)))
    value = value - F.cross_entropy(inside.logits(theta, data.x), data.y)
    key = Key(0).fold("made", 0)
    y = torch.multinomial(torch.ones(CLASSES), 8, replacement=True, generator=key.generator())
    z = Generator(G).eval()(eps_of(key, 8), y)
    by_hand = F.cross_entropy(z @ theta["fc2.weight"].T + theta["fc2.bias"], y)
    assert value.item() == pytest.approx(by_hand.item(), abs=1e-5)


def test_fedgen_takes_dbe_at_another_cut() -> None:
    fed, how = (
        federation(SIZES, shape=(1, 8, 8)),
        SETTINGS | {"model": "fedbn-cnn(scale=0.03)", "bn": "none"},
    )
    result = comity.run(f"fedgen({SMALL})+dbe(cut=conv1)", fed, **how)
    assert result.model("p0").theta[OFFSET].shape == (2, 4, 4)


def test_fedgen_needs_whole_heads_at_the_server() -> None:
    fed, how = (
        federation(SIZES, shape=(1, 8, 8)),
        SETTINGS | {"model": "fedbn-cnn(scale=0.03)", "cut": "fc1"},
    )
    with pytest.raises(comity.UsageError, match="needs whole heads"):
        comity.run("fedgen", fed, **how, bn="params_only")


# --- FedRoD


def uneven() -> Samples:
    """Two of class 0, five of class 2, none of class 1."""
    return Samples(noise(7, *SHAPE, seed=3), torch.tensor([0, 0, 2, 2, 2, 2, 2]))


def rod(data: Samples) -> tuple[LearningTask, Params]:
    party = FedRod().party_for(party_of(small(), data, Training()), {})
    theta = party.task.init(Key(1))
    return party.task, theta | {
        k: v + 0.1 * noise(*v.shape, seed=8) for k, v in theta.items() if k.startswith(OWN)
    }


def test_fedrod_balanced_softmax_by_hand() -> None:
    """−log(n_y e^{g_y} / Σ_c n_c e^{g_c}) with n = (2, 0, 5), and CE(g + p, y) for the personal
    head.
    """
    task, theta = rod(data := uneven())
    z = body(theta, data.x)
    g, p = linear(theta, z), linear(theta, z, OWN)
    weight = torch.tensor([2.0, 0.0, 5.0]) * g.exp()
    generic = -(weight[torch.arange(7), data.y] / weight.sum(1)).log().mean()
    personal = -((g + p).softmax(1)[torch.arange(7), data.y]).log().mean()
    assert task.loss(theta, batch_of(data)).item() == pytest.approx(
        (generic + personal).item(), abs=1e-5
    )


def test_fedrod_each_loss_trains_its_own_part() -> None:
    task, theta = rod(data := uneven())
    theta = free(theta)
    ours = grads_of(task.loss(theta, batch_of(data)), theta)
    z = body(theta, data.x)
    weight = torch.tensor([2.0, 0.0, 5.0]) * linear(theta, z).exp()
    generic = grads_of(-(weight[torch.arange(7), data.y] / weight.sum(1)).log().mean(), theta)
    z = body(theta, data.x).detach()
    personal = grads_of(
        F.cross_entropy(linear(theta, z).detach() + linear(theta, z, OWN), data.y), theta
    )
    assert_close(ours, {k: personal[k] if k.startswith(OWN) else generic[k] for k in theta})
    assert all(ours[k].abs().max() > 1e-4 for k in theta)


def test_fedrod_leaves_an_absent_classs_generic_row_alone() -> None:
    task, theta = rod(data := uneven())
    theta = free(theta)
    grads = grads_of(task.loss(theta, batch_of(data)), theta)
    assert not grads["fc3.weight"][1].any()
    assert grads["fc3.bias"][1] == 0
    assert all(g.isfinite().all() for g in grads.values())
    assert grads[f"{OWN}fc3.weight"][1].any(), "the personal head does learn what is not there"


def test_fedrod_predicts_by_the_sum_of_both_heads() -> None:
    result = run("fedrod")
    for name in result.job.info.names:
        model = result.model(name)
        x = noise(11, *SHAPE, seed=5)
        z = body(model.theta, x)
        torch.testing.assert_close(
            model.logits(x), linear(model.theta, z) + linear(model.theta, z, OWN)
        )
    a, b = (result.model(name).theta for name in ("p0", "p1"))
    assert all(torch.equal(a[k], b[k]) != k.startswith(OWN) for k in a)


def test_fedrod_generic_part_with_balanced_classes_is_fedavg() -> None:
    """Equal n_{i,c} shift all logits alike, which softmax does not see."""
    fed = federation((9, 21, 6))
    ours, parent = (comity.run(m, fed, **SETTINGS).model("p0").theta for m in ("fedrod", "fedavg"))
    assert_close({k: ours[k] for k in parent}, parent, atol=1e-5)


def test_fedrod_sends_what_fedavg_sends(replies: list[dict[int, Any]]) -> None:
    traffic = {
        m: [row for row in run(m).ledger if row.kind in ("up", "down")]
        for m in ("fedrod", "fedavg")
    }
    assert traffic["fedrod"] == traffic["fedavg"]
    assert not [
        k
        for call in replies
        for r in call.values()
        if hasattr(r, "theta")
        for k in r.theta
        if k.startswith(OWN)
    ]


def test_fedrod_mr_goes_once_to_the_generic_loss() -> None:
    """κ/2 · mean (mean f(x) − z̄)² on top, with a gradient for the body and for no head."""
    data, consensus = uneven(), noise(K, seed=6)
    party = party_of(small(), data, Training())
    method = FedRod()
    plain = method.party_for(party, {}).task
    inside = method.party_for(wrap(Mr(host=method, kappa=3.0), party, consensus), {}).task
    theta = free(plain.init(Key(1)))
    mr = 1.5 * (body(theta, data.x).mean(0) - consensus).square().mean()
    extra = inside.loss(theta, batch_of(data)) - plain.loss(theta, batch_of(data))
    assert extra.item() == pytest.approx(mr.item(), abs=1e-5)
    assert_close(grads_of(extra, theta), grads_of(mr, theta))


def test_fedrod_mr_at_another_cut_moves_neither_head() -> None:
    """The personal head stays behind fc2 when MR looks at fc1."""
    data = uneven()
    party, method = party_of(small(), data, Training()), FedRod()
    plain = method.party_for(party, {}).task
    inside = method.party_for(wrap(Mr(host=method, kappa=0.0, cut="fc1"), party), {}).task
    theta = free(plain.init(Key(1)))
    assert inside.private == plain.private
    values = [task.loss(theta, batch_of(data)) for task in (plain, inside)]
    assert_close(grads_of(values[1], theta), grads_of(values[0], theta))
    torch.testing.assert_close(inside.logits(theta, data.x), plain.logits(theta, data.x))


def test_fedrod_with_batchnorm_in_both_heads() -> None:
    """Each head has running statistics of its own; the generic ones are averaged, the personal ones
    stay.
    """
    fed = federation(SIZES, shape=(1, 8, 8))
    result = comity.run(
        "fedrod+mr(cut=conv1)", fed, **SETTINGS | {"model": "fedbn-cnn(scale=0.03)", "cut": "fc1"}
    )
    a, b = (result.model(name).theta for name in ("p0", "p1"))
    stat = "fc2.bn.~mean"
    assert torch.equal(a[stat], b[stat])
    assert not torch.equal(a[OWN + stat], b[OWN + stat])


# --- FedBABU


def step(theta: Params, data: Samples, names: frozenset[str], lr: float = 0.1) -> Params:
    """One full-batch step of plain SGD on these names."""
    at = free(theta)
    grads = grads_of(F.cross_entropy(logits(at, data.x), data.y), at)
    return {k: (v - lr * grads[k] if k in names else v).detach() for k, v in at.items()}


def babu(**options: Any) -> tuple[FedBabu, Party, Params, Params]:
    """The method, a party with one batch, its head and the rest."""
    task = small()
    theta, heads = task.init(Key(1)), task.head_names
    party = party_of(task, samples(8, SHAPE, CLASSES), Training(lr=0.1, batch=8))
    return FedBabu(**options), party, keep(theta, heads), drop(theta, heads)


def test_fedbabu_alg1_trains_the_body_under_the_fixed_head() -> None:
    method, party, head, rest = babu()
    state, reply = run_call(method.local(head, Model(rest), party, Key(3)))
    expected = step(rest | head, party.data.train, frozenset(rest))
    assert_close(reply.theta, keep(expected, frozenset(rest)))
    assert all(torch.equal(state[k], v) for k, v in head.items())


def test_fedbabu_head_is_the_first_one_until_it_is_tuned() -> None:
    initial = task_of("mlp2(width=7)", SHAPE, CLASSES).init(Key.root(0).fold("init"))
    thetas = deployed_models("fedbabu(finetune_epochs=0)")
    for theta in thetas:
        assert all(torch.equal(theta[k], initial[k]) for k in ("fc3.weight", "fc3.bias"))
        assert all(torch.equal(theta[k], thetas[0][k]) for k in theta), (
            "one model before fine-tuning"
        )
    assert not torch.equal(thetas[0]["fc2.weight"], initial["fc2.weight"])


def test_fedbabu_before_tuning_is_fedrep_without_head_epochs() -> None:
    ours, theirs = (
        deployed_models("fedbabu(finetune_epochs=0)"),
        deployed_models("fedrep(head_epochs=0)"),
    )
    assert all(torch.equal(a[k], b[k]) for a, b in zip(ours, theirs, strict=True) for k in b)


@pytest.mark.parametrize(
    ("which", "moves"),
    [("all", ("fc1", "fc2", "fc3")), ("head", ("fc3",)), ("body", ("fc1", "fc2"))],
)
def test_fedbabu_fine_tuning_by_hand(which: str, moves: tuple[str, ...]) -> None:
    """Two epochs of one batch each, from the averaged body and the first head."""
    method, party, head, rest = babu(finetune=which, finetune_epochs=2)
    state, reply = run_call(method.tune(head, Model(rest), party, Key(3)))
    names = frozenset(k for k in head | rest if k.partition(".")[0] in moves)
    expected = step(step(rest | head, party.data.train, names), party.data.train, names)
    assert reply is None
    assert_close(state, expected)
    other = {k: torch.zeros_like(v) for k, v in rest.items()}
    assert_close(method.deployed_model(state, Model(other), party), expected)


def test_fedbabu_reports_before_and_after_and_pays_for_the_last_download() -> None:
    result = run("fedbabu", lr=0.3)
    untuned = run("fedbabu(finetune_epochs=0)", lr=0.3)
    accuracy = {
        split: [
            row.value
            for row in result.metrics
            if row.split == split and row.metric == "accuracy" and row.round == 3
        ]
        for split in ("test", "test-unfinished")
    }
    assert len(accuracy["test"]) == len(accuracy["test-unfinished"]) == len(SIZES)
    assert result.summary["accuracy"]["unfinished"] == pytest.approx(
        sum(accuracy["test-unfinished"]) / len(SIZES)
    )
    assert accuracy["test-unfinished"] == [
        row.value
        for row in untuned.metrics
        if row.split == "test" and row.metric == "accuracy" and row.round == 3
    ]
    tuned = [row for row in result.ledger if row.call == "tune"]
    assert [(row.round, row.kind, row.bytes) for row in tuned] == [
        (3, "down", 4 * (6 * 7 + 7 + 7 * 7 + 7))
    ] * len(SIZES)


def test_fedbabu_mr_does_not_apply_to_fine_tuning() -> None:
    method, party, head, rest = babu(finetune_epochs=3)
    inside = wrap(Mr(host=method, kappa=50.0), party, noise(K, seed=6))
    plain, tuned = (run_call(method.tune(head, Model(rest), p, Key(3)))[0] for p in (party, inside))
    assert all(torch.equal(plain[k], tuned[k]) for k in plain)
    bodies = [
        run_call(method.local(head, Model(rest), p, Key(3)))[1].theta for p in (party, inside)
    ]
    assert not torch.equal(bodies[0]["fc2.weight"], bodies[1]["fc2.weight"])


# --- APFL


def mixture(alpha: float, v: Params, w: Params) -> Params:
    return {k: alpha * v[k] + (1 - alpha) * w[k] for k in v}


def apfl_step(
    alpha: float, v: Params, w: Params, data: Samples, lr: float
) -> tuple[Params, Params, float]:
    """Algorithm 1 and the adaptive α, as printed: both gradients before any step."""
    grads_w = grads_of(F.cross_entropy(logits(at := free(w), data.x), data.y), at)
    grads = grads_of(F.cross_entropy(logits(at := free(mixture(alpha, v, w)), data.x), data.y), at)
    slope = sum(((v[k] - w[k]) * grads[k]).sum().item() for k in v)
    new_w = {k: w[k] - lr * grads_w[k] for k in w}
    new_v = {k: v[k] - lr * alpha * grads[k] for k in v}
    return new_w, new_v, min(1.0, max(0.0, alpha - lr * slope))


def test_apfl_alg1_two_steps_by_hand() -> None:
    task, data, alpha = small(), samples(8, SHAPE, CLASSES), 0.3
    w, v = task.init(Key(1)), task.init(Key(2))
    how = Training(lr=0.1, batch=8, epochs=2)
    before = ApflState(w, v, torch.tensor(alpha))
    state, reply = run_call(Apfl().local(before, Model(w), party_of(task, data, how), Key(3)))
    for _ in range(2):
        w, v, alpha = apfl_step(alpha, v, w, data, 0.1)
    assert 0 < alpha < 1
    assert abs(alpha - 0.3) > 1e-3
    assert_close(reply.theta, w)
    assert_close(state.w, w)
    assert_close(state.v, v)
    assert state.alpha.item() == pytest.approx(alpha, abs=1e-6)
    assert_close(
        Apfl().deployed_model(state, Model({}), party_of(task, data, how)), mixture(alpha, v, w)
    )


@pytest.mark.parametrize(("v", "expected"), [(4.0, 1.0), (-4.0, 0.0)])
def test_apfl_alpha_stays_between_0_and_1(v: float, expected: float) -> None:
    """f(x) = ½ (x − 10)², w = 0: ⟨v − w, ∇f(v̄)⟩ = v (v/2 − 10) = −32 or 48, and α = ½ ± more than
    ½ at η = 0.1.

    The second step, on the clipped α, finds v̄ = v or w again where it lies: v moves by η α ∇f(v̄).
    """
    how = Training(lr=0.1, batch=1, epochs=2)
    w, own = ({"body.w": torch.tensor([x], dtype=torch.float64)} for x in (0.0, v))
    party = party_of(quadratic(), rows(1.0, 10.0), how)
    state, _ = run_call(Apfl().local(ApflState(w, own, torch.tensor(0.5)), Model(w), party, Key(3)))
    assert state.alpha.item() == expected
    after = v - 0.1 * 0.5 * (0.5 * v - 10)
    after -= 0.1 * expected * (after - 10)
    assert state.v["body.w"].item() == pytest.approx(after, abs=1e-6)


def test_apfl_trains_the_global_model_as_fedavg_whatever_alpha_is() -> None:
    task, data = small(), [samples(9, SHAPE, CLASSES, seed=1), samples(14, SHAPE, CLASSES, seed=2)]
    how = Training(lr=0.1, batch=4, momentum=0.5)

    def last(method: Algorithm[Any, Any, Any]) -> Params:
        server, s = server_of(method, task, data, how)
        return rounds(method, server, s, 3)

    expected = last(FedAvg())
    for method in (Apfl(), Apfl(alpha=0.0, adaptive=False), Apfl(alpha=1.0)):
        theta = last(method)
        assert all(torch.equal(theta[k], v) for k, v in expected.items())


def test_apfl_alpha_0_deploys_its_copy_of_the_global_model(replies: list[dict[int, Any]]) -> None:
    thetas = deployed_models("apfl(alpha=0,adaptive=false)")
    last_replies = [call for call in replies if hasattr(call[0], "theta")][-1]
    assert all(
        torch.equal(theta[k], last_replies[i].theta[k])
        for i, theta in enumerate(thetas)
        for k in theta
    )


@pytest.mark.parametrize("participation", [1.0, 0.5])
@pytest.mark.parametrize("model", ["mlp2", "batchnorm"])
def test_apfl_alpha_1_is_solo(
    model: str, participation: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mixture's gradients are always written out; if solo's are too, the bits are the same."""
    whole = descent._train
    monkeypatch.setattr(descent, "_train", lambda request, thin: whole(request, thin=False))
    anew = run_method.__wrapped__  # a cached solo of another test has thin gradients
    assert_same(
        anew("apfl(alpha=1,adaptive=false)", model, participation),
        anew("solo", model, participation),
    )


def test_apfl_finds_each_partys_optimum_and_the_common_one() -> None:
    """f_i = ½ (x − b_i)², b = (0, 8): w → 4 and v̄_i → b_i, whatever α has become."""
    method = Apfl()
    server, w = server_of(
        method,
        quadratic(3.0),
        [rows(1.0, 0.0), rows(1.0, 8.0)],
        Training(lr=0.1, batch=1, epochs=3),
    )
    w = rounds(method, server, w, 150)
    assert w["body.w"].item() == pytest.approx(4.0, abs=1e-3)
    for i, b in enumerate((0.0, 8.0)):
        state = server.state(i)
        theta = method.deployed_model(state, None, None)  # type: ignore[arg-type]
        assert theta["body.w"].item() == pytest.approx(b, abs=0.3)


def test_apfl_mr_applies_to_both_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """κ MR(w) + κ MR(v̄), each with a running mean of its own: m_2 = (1 − μ) μ mean_1 + μ mean_2."""
    task, mu, consensus, kappa = small(), 0.4, noise(K, seed=6), 2.0
    first, second = samples(4, SHAPE, CLASSES, seed=1), samples(4, SHAPE, CLASSES, seed=2)
    method = Apfl()
    inside = wrap(
        Mr(host=method, kappa=kappa, mu=mu), party_of(task, first, Training()), consensus
    ).task
    w, v = task.init(Key(1)), task.init(Key(2))
    theta = (
        {f"w.{k}": x for k, x in w.items()}
        | {f"v.{k}": x for k, x in v.items()}
        | {"alpha": torch.tensor(0.3)}
    )
    scratch: dict[str, Tensor] = {}
    extra = []
    for number, data in enumerate((first, second)):
        batch = Batch(data.x, data.y, torch.arange(4), number, scratch)
        with_mr, plain = (
            method.both(inside, theta, batch, None),
            method.both(task, theta, batch_of(data), None),
        )
        extra.append((with_mr - plain).item())
    expected = [0.0, 0.0]
    for at in (w, mixture(0.3, v, w)):
        m = mu * body(at, first.x).mean(0)
        expected[0] += kappa / 2 * (m - consensus).square().mean().item()
        m = (1 - mu) * m + mu * body(at, second.x).mean(0)
        expected[1] += kappa / 2 * (m - consensus).square().mean().item()
    assert extra == pytest.approx(expected, abs=1e-5)


# --- around all four


@pytest.mark.parametrize("wrapper", ["dbe", "prbm"])
@pytest.mark.parametrize("host", ["fedrod", "fedbabu", "apfl"])
def test_an_offset_is_refused_where_models_are_personal_already(host: str, wrapper: str) -> None:
    with pytest.raises(comity.UsageError, match=rf"use {host}\+mr"):
        run(f"{host}+{wrapper}")


@pytest.mark.parametrize("host", ["fedrod", "fedbabu", "apfl", f"fedgen({SMALL})"])
def test_mr_changes_the_shared_extractor_of(host: str, replies: list[dict[int, Any]]) -> None:
    uploads = []
    for text in (host, f"{host}+mr(kappa=0)", f"{host}+mr(kappa=50)"):
        replies.clear()
        run(text)
        uploads.append(
            [call[0].theta["fc1.weight"] for call in replies if hasattr(call[0], "theta")][-1]
        )
    assert torch.equal(uploads[0], uploads[1])
    assert not torch.allclose(uploads[0], uploads[2], atol=1e-4)


@pytest.mark.parametrize(
    "method",
    ["fedrod", "fedbabu", "apfl", f"fedgen({SMALL})", f"fedgen({SMALL})+dbe", "fedbabu+mr"],
)
def test_a_newcomer_trains_and_keeps_what_it_trained(method: str) -> None:
    result = run(method, newcomers=1, join_epochs=4)
    late = result.job.info.newcomers[0]
    splits = {row.split for row in result.metrics if row.party == late}
    assert {"test-offered", "test-joined"} <= splits
    lasts = result.model(late), result.model("p0")
    assert not torch.equal(lasts[0].theta["fc1.weight"], lasts[1].theta["fc1.weight"])


def test_fedgen_newcomer_learns_the_histogram() -> None:
    result = run(f"fedgen({SMALL})", newcomers=1)
    rows_ = [
        row
        for row in result.ledger
        if row.call == "agree" and row.dst == result.job.info.newcomers[0]
    ]
    assert [(row.kind, row.bytes) for row in rows_] == [("down", 4 * CLASSES)]


def test_fedbabu_newcomer_fine_tunes_by_hand() -> None:
    method, party, head, rest = babu(finetune="head", finetune_epochs=7)
    state, _ = run_call(method.warm_up(head, Model(rest), party, Key(3)))
    assert_close(state, step(rest | head, party.data.train, frozenset(head)))


def test_apfl_newcomers_own_model_starts_at_the_received_one() -> None:
    """v = w, so both move alike but for α: v by η α ∇f(w), w by η ∇f(w), and α not at all."""
    task, data = small(), samples(8, SHAPE, CLASSES)
    first, w = task.init(Key(2)), task.init(Key(1))
    party = party_of(task, data, Training(lr=0.1, batch=8))
    before = ApflState(first, first, torch.tensor(0.25))
    state, _ = run_call(Apfl(alpha=0.25).warm_up(before, Model(w), party, Key(3)))
    assert_close(state.v, step(w, data, frozenset(w), lr=0.025))
    assert_close(state.w, step(w, data, frozenset(w)))
    assert state.alpha.item() == 0.25
