"""FedCP and GPFL: their networks written out, one step by hand, what is sent, and their reductions."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from toys import batch_of, federation, noise, party_of, run_call, same, samples, task_of

import comity
from comity.algorithms.fedcp import CONTEXT, OWN, POLICY, FedCp, Separated, mmd
from comity.algorithms.gpfl import (
    BETA,
    EMBEDDING,
    GAMMA,
    GENERIC,
    PERSONAL,
    Frozen,
    Gpfl,
    Valved,
    guide_names,
)
from comity.core import Key, LearningTask, Model, Params, Samples, Training, drop, keep
from comity.studies import export

pytestmark = pytest.mark.quick

SIZES = (9, 14, 6)
SETTINGS: dict[str, Any] = {
    "model": "mlp2(width=7)",
    "rounds": 2,
    "engine": "loop",
    "lr": 0.1,
    "batch": 4,
}
DATA = samples(8, (6,), 3)


def weights(method: str, **settings: object) -> list[Params]:
    result = comity.run(method, federation(SIZES), **SETTINGS | settings)
    return [result.model(name).theta for name in result.job.info.names]


def layer_norm(x: Tensor) -> Tensor:
    """LayerNorm at its first values, by hand."""
    return (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True, correction=0) + 1e-5).sqrt()


def gradient_step(value: Any, theta: Params, names: frozenset[str], lr: float) -> Params:
    """One step of gradient descent on `names`."""
    free = {k: v.clone().requires_grad_(k in names) for k, v in theta.items()}
    order = sorted(names)
    grads = dict(
        zip(order, torch.autograd.grad(value(free), [free[k] for k in order]), strict=True)
    )
    return {k: (v - lr * grads[k] if k in names else v).detach() for k, v in free.items()}


# --- FedCP


def fedcp(method: FedCp | None = None) -> tuple[FedCp, LearningTask, Params]:
    """A method, its task and weights whose two heads differ."""
    method = method or FedCp()
    task = method.extend_task(task_of("mlp2(width=5)", (6,), 3))
    theta = task.init(Key(1))
    theta |= {OWN + k: noise(*theta[k].shape, seed=5) for k in ("fc3.weight", "fc3.bias")}
    return method, task, theta


def test_fedcp_answer_by_hand() -> None:
    method, task, theta = fedcp()
    h = task.features(theta, DATA.x)
    v = theta[OWN + "fc3.weight"].sum(0)
    a = layer_norm((v / v.norm() * h) @ theta[POLICY + "weight"].T + theta[POLICY + "bias"]).clamp(
        min=0
    )
    r = a[:, :5].exp() / (a[:, :5].exp() + a[:, 5:].exp())
    by_hand = (r * h) @ theta["fc3.weight"].T + theta["fc3.bias"]
    by_hand = by_hand + ((1 - r) * h) @ theta[OWN + "fc3.weight"].T + theta[OWN + "fc3.bias"]
    assert torch.allclose(task.logits(method.in_context(theta, task), DATA.x), by_hand, atol=1e-5)


def test_fedcp_context_of_a_head_of_two_layers_is_that_of_their_product() -> None:
    method = FedCp()
    task = method.extend_task(task_of("mlp2(width=5)", (6,), 3, cut="fc1"))
    theta = task.init(Key(1))
    v = (theta[OWN + "fc3.weight"] @ theta[OWN + "fc2.weight"]).sum(0)
    assert torch.allclose(method.in_context(theta, task)[CONTEXT], v / v.norm(), atol=1e-6)


def test_fedcp_mmd_by_hand() -> None:
    x, y = noise(4, 3, seed=1), noise(4, 3, seed=2)

    def k(a: Tensor, b: Tensor) -> float:
        return sum(
            math.exp(-(math.dist(a.tolist(), b.tolist()) ** 2) / (2 * width))
            for width in (10, 15, 20, 50)
        )

    pairs = [(i, j) for i in range(4) for j in range(4)]
    by_hand = sum(k(x[i], x[j]) + k(y[i], y[j]) - 2 * k(x[i], y[j]) for i, j in pairs) / 16
    assert mmd(x, y).item() == pytest.approx(by_hand, abs=1e-5)
    assert mmd(x, x).item() == pytest.approx(0, abs=1e-5)


@pytest.mark.parametrize(("upload", "share"), [("half", 0.5), ("own", 1.0)])
def test_fedcp_two_steps_by_hand_and_what_is_sent(upload: Any, share: float) -> None:
    """In the first step the discrepancy is 0; the global head stays, the others move, and a mixture
    of heads is sent.
    """
    method, task, theta = fedcp(FedCp(lam=2.0, upload=upload))
    assert isinstance(task, Separated)
    bare, how = task.inner, Training(lr=0.1, batch=8, epochs=2)
    own = keep(theta, task.private)
    state, reply = run_call(
        method.local(own, Model(drop(theta, task.private)), party_of(bare, DATA, how), Key(3))
    )
    context = method.in_context(theta, task)
    h_g = bare.features(theta, DATA.x)

    def value(at: Params) -> Tensor:
        return F.cross_entropy(task.logits(at, DATA.x), DATA.y) + 2.0 * mmd(
            bare.features(at, DATA.x), h_g
        )

    moving = frozenset(theta.keys() - task.head_names)
    after = gradient_step(value, gradient_step(value, context, moving, 0.1), moving, 0.1)
    for k in ("fc3.weight", "fc3.bias"):
        assert torch.allclose(state[OWN + k], after[OWN + k], atol=1e-5)
        assert torch.allclose(
            reply.theta[k], share * after[OWN + k] + (1 - share) * theta[k], atol=1e-5
        )
    assert state.keys() == task.private
    assert reply.theta.keys() == theta.keys() - task.private
    for k in reply.theta.keys() - task.head_names:
        assert torch.allclose(reply.theta[k], after[k], atol=1e-5), k


def test_fedcp_heads_begin_alike_and_only_the_own_stays_at_a_party() -> None:
    a, b, _ = weights("fedcp")
    assert {k for k in a if not torch.equal(a[k], b[k])} == {
        OWN + "fc3.weight",
        OWN + "fc3.bias",
        CONTEXT,
    }


def test_fedcp_needs_a_head_of_linear_layers() -> None:
    with pytest.raises(comity.UsageError, match="head of linear layers"):
        comity.run(
            "fedcp",
            comity.load("digits").partition("iid", parties=2),
            rounds=1,
            model="lenet5",
            cut="conv1",
        )


@pytest.mark.parametrize("option", [{"lam": 0}, {"upload": "own"}, {"gumbel": True}])
def test_no_option_of_fedcp_is_without_effect(option: dict[str, Any]) -> None:
    assert not all(
        same(a, b) for a, b in zip(weights("fedcp"), weights("fedcp", **option), strict=True)
    )


def test_fedcp_gumbel_noise_is_gumbels() -> None:
    method, _, theta = fedcp()
    many = Samples(torch.zeros(4000, 6), torch.zeros(4000, dtype=torch.int64))
    gumbel = method.noise(batch_of(many), Key(1), Model(theta))
    assert gumbel.shape == (4000, 2, 5)
    assert gumbel.mean().item() == pytest.approx(0.5772, abs=0.02)
    assert gumbel.var().item() == pytest.approx(math.pi**2 / 6, abs=0.05)


# --- GPFL


def gpfl(method: Gpfl | None = None) -> tuple[Gpfl, Valved, Params]:
    method = method or Gpfl()
    task = method.extend_task(task_of("mlp2(width=5)", (6,), 3))
    assert isinstance(task, Valved)
    return method, task, task.init(Key(1))


def valve_output(theta: Params, f: Tensor, condition: Tensor) -> Tensor:
    """Eqs. 1 and 2 written out."""

    def cov(which: str) -> Tensor:
        out = layer_norm((theta[which + "weight"] @ condition + theta[which + "bias"]).clamp(min=0))
        return out * theta[which + "norm.weight"] + theta[which + "norm.bias"]

    return ((cov(GAMMA) + 1) * f + cov(BETA)).clamp(min=0)


def test_gpfl_conditions_by_hand() -> None:
    """Three samples of class 0, one of class 2: p_i is three quarters of the one embedding and a
    quarter of the other.
    """
    method, task, theta = gpfl()
    party = party_of(task, Samples(noise(4, 6), torch.tensor([0, 0, 2, 0])), Training())
    conditions = method.add_conditions(theta, party)
    C = theta[EMBEDDING]
    assert torch.allclose(conditions[PERSONAL], 0.75 * C[0] + 0.25 * C[2], atol=1e-6)
    assert torch.allclose(conditions[GENERIC], (C[0] + C[1] + C[2]) / 3, atol=1e-6)


def by_hand(task: Valved, theta: Params, C: Tensor, data: Samples, lam: float, mlg: str) -> Tensor:
    """Eqs. 3 to 5, from embeddings that are frozen."""
    f = task.inner.features(theta, data.x)
    counts = torch.bincount(data.y, minlength=3).float()
    f_P, f_G = valve_output(theta, f, counts @ C / counts.sum()), valve_output(theta, f, C.mean(0))
    eq5 = F.cross_entropy(task.inner.head(theta, f_P), data.y)
    cosines = torch.stack([F.cosine_similarity(f_G, c[None]) for c in theta[EMBEDDING]], 1)
    eq3 = -(cosines.gather(1, data.y[:, None])[:, 0].exp() / cosines.exp().sum(1)).log().mean()
    squares = (f_G - C[data.y]).square().sum(1)
    return eq5 + eq3 + lam * (squares.sum().sqrt() if mlg == "code" else squares.sqrt().mean())


@pytest.mark.parametrize("mlg", ["code", "paper"])
def test_gpfl_loss_by_hand(mlg: Any) -> None:
    method, task, theta = gpfl(Gpfl(lam=0.3, mlg=mlg))
    C = noise(3, 5, seed=7)
    begin = theta | keep(
        method.add_conditions({EMBEDDING: C}, party_of(task, DATA, Training())),
        frozenset({GENERIC, PERSONAL}),
    )
    counts = torch.bincount(DATA.y, minlength=3).float()
    assert torch.allclose(begin[PERSONAL], counts @ C / 8, atol=1e-6)
    loss = method.loss(task, begin, batch_of(DATA), Frozen(C))
    assert loss.item() == pytest.approx(
        by_hand(task, theta, C, Samples(DATA.x, DATA.y), 0.3, mlg).item(), abs=1e-5
    )


def test_gpfl_two_steps_by_hand_with_weight_decay_on_embeddings_and_valve() -> None:
    method, task, theta = gpfl(Gpfl(lam=0.3, mu=0.2))
    how = Training(lr=0.1, batch=8, epochs=2)
    heads = task.head_names
    state, reply = run_call(
        method.local(
            keep(theta, heads), Model(drop(theta, heads)), party_of(task.inner, DATA, how), Key(3)
        )
    )
    C, decayed = theta[EMBEDDING], guide_names(frozenset(theta))
    assert len(decayed) == 9

    def value(at: Params) -> Tensor:
        return by_hand(task, at, C, DATA, 0.3, "code") + 0.1 * sum(
            at[k].square().sum() for k in decayed
        )

    all_names = frozenset(theta)
    after = gradient_step(value, gradient_step(value, theta, all_names, 0.1), all_names, 0.1)
    assert state.keys() == heads
    assert reply.theta.keys() == theta.keys() - heads
    for k, v in (state | reply.theta).items():
        assert torch.allclose(v, after[k], atol=1e-5), k


def test_gpfl_shares_all_but_the_head_and_what_a_party_is_conditioned_by() -> None:
    a, b, _ = weights("gpfl")
    assert {k for k in a if not torch.equal(a[k], b[k])} == {"fc3.weight", "fc3.bias", PERSONAL}


def test_gpfl_deploys_the_personal_route() -> None:
    result = comity.run("gpfl", federation(SIZES), **SETTINGS)
    model = result.model("p0")
    x, theta = noise(10, 6, seed=3), model.theta
    assert isinstance(model.task, Valved)
    f = model.task.inner.features(theta, x)
    answer = valve_output(theta, f, theta[PERSONAL]) @ theta["fc3.weight"].T + theta["fc3.bias"]
    assert torch.allclose(model.logits(x), answer, atol=1e-5)


@pytest.mark.parametrize("option", [{"lam": 1}, {"mu": 0}, {"mlg": "paper"}])
def test_no_option_of_gpfl_is_without_effect(option: dict[str, Any]) -> None:
    assert not all(
        same(a, b) for a, b in zip(weights("gpfl"), weights("gpfl", **option), strict=True)
    )


# --- both


@pytest.mark.parametrize("method", ["fedcp", "gpfl"])
def test_mr_wraps_them_and_an_offset_is_refused(method: str) -> None:
    plain, regularised = weights(method), weights(f"{method}+mr")
    assert not all(same(a, b) for a, b in zip(plain, regularised, strict=True))
    with pytest.raises(comity.UsageError, match="offset would be redundant"):
        weights(f"{method}+dbe")


@pytest.mark.parametrize("method", ["fedcp", "gpfl"])
def test_bytes_are_the_networks_and_what_is_added(method: str) -> None:
    d, c = 7, 3
    body, head = 6 * d + d + d * d + d, d * c + c
    added = body + head + 2 * d * (d + 3) if method == "fedcp" else body + d * (c + 2 * d + 6)
    traffic = comity.run(method, federation(SIZES), **SETTINGS).summary["bytes"]
    assert traffic["up"] == traffic["down"] == 2 * 3 * 4 * added


@pytest.mark.usefixtures("without_onnx")
@pytest.mark.parametrize("method", ["fedcp", "gpfl"])
def test_an_exported_model_predicts_as_in_the_run(method: str, tmp_path: Path) -> None:
    result = comity.run(method, federation(SIZES), out=tmp_path / "run", **SETTINGS)
    export.export(result, "p0", tmp_path / "out")
    x = noise(20, 6, seed=9)
    assert torch.equal(export.load(tmp_path / "out").logits(x), result.model("p0").logits(x))


@pytest.mark.parametrize("method", ["fedcp", "gpfl"])
def test_parties_may_start_from_weights_of_their_own(method: str) -> None:
    assert not same(weights(method, init="own")[0], weights(method)[0])
