"""DBE's variants (Zhang et al. 2023): where paper and authors' code differ (spec B1-B5), Table 3's
noise, Table 7's ResNet-18.

Expected values come from loops written out here; only the order of the batches and the party's keys
are the library's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from toys import federation, noise, party_of, rounds, samples, server_of, task_of

import comity
from comity.algorithms import compose
from comity.algorithms.dbe import OFFSET, Biased, Dbe, paper_constants
from comity.algorithms.fedavg import FedAvg
from comity.components.pilot import Mean
from comity.core import Batch, Key, LearningTask, Params, Samples, Training, batches
from comity.models import build

pytestmark = pytest.mark.quick

SHAPE, CLASSES, K, B = (6,), 3, 5, 4
IMAGE, BATCHNORM = (1, 8, 8), "fedbn-cnn(scale=0.03)"
ROOT = Key.root(0)


def biased_task(consensus: Tensor, **options: Any) -> Biased:
    """A linear head behind a representation of 5 values, with DBE's offset and regulariser."""
    task = task_of(f"mlp2(width={K})", SHAPE, CLASSES)
    dbe = Dbe(host=FedAvg(), **({"kappa": 1.0} | options))
    wrapped_task = dbe.wrap_party(
        party_of(task, samples(4, SHAPE, CLASSES), Training()), Mean(consensus)
    ).task
    assert isinstance(wrapped_task, Biased)
    return wrapped_task


def batch_number(b: int, scratch: dict[str, Tensor]) -> Batch:
    return Batch(
        torch.zeros(B, *SHAPE), torch.zeros(B, dtype=torch.int64), torch.arange(B), b, scratch
    )


def torch_sgd(
    loss: Callable[[Params, Batch], Tensor], theta: Params, data: Samples, key: Key, how: Training
) -> Params:
    """torch.optim.SGD over the batches that this key gives."""
    theta = {k: v.clone() for k, v in theta.items()}
    optimizer = torch.optim.SGD(
        [v.requires_grad_() for k, v in theta.items() if "~" not in k], lr=how.lr
    )
    for batch in batches(data, key, how):
        optimizer.zero_grad()
        loss(theta, batch).backward()
        optimizer.step()
    return {k: v.detach() for k, v in theta.items()}


# --- spec B2: the half


def test_eq8_without_the_half_the_regulariser_is_exactly_twice_as_large() -> None:
    """Value and gradient, to the last bit."""
    consensus = noise(K, seed=1)
    values, grads = [], []
    for half in (True, False):
        z = noise(B, K, seed=2).requires_grad_()
        value = biased_task(consensus, half=half).regulariser(z, batch_number(0, {}))
        values.append(value.detach())
        grads.append(torch.autograd.grad(value, z)[0])
    assert torch.equal(values[1], 2 * values[0])
    assert torch.equal(grads[1], 2 * grads[0])
    assert values[0] > 0


def test_eq8_as_printed_is_the_mean_squared_error() -> None:
    """m = (1, 2, 3, 4, 5), consensus 0: kappa * (1 + 4 + 9 + 16 + 25) / 5 = 11 kappa."""
    z = torch.tensor([[0.0, 1, 2, 3, 4], [2.0, 3, 4, 5, 6]])
    task = biased_task(torch.zeros(K), half=False, kappa=3.0)
    theta, batch = task.init(Key(1)), batch_number(0, {})
    extra = task.objective(theta, z, replace(batch, y=batch.y[:2])) - F.cross_entropy(
        task.head(theta, z), batch.y[:2]
    )
    assert extra.item() == pytest.approx(33.0, rel=1e-5)


@cache
def run_method(text: str, model: str = f"mlp2(width={K})", **settings: Any) -> comity.Result:
    shape = IMAGE if model == BATCHNORM else SHAPE
    usual: dict[str, Any] = {"rounds": 2, "batch": 4, "lr": 0.05, "engine": "loop"}
    return comity.run(
        text, federation((11, 7, 9, 6), shape=shape), model=model, **(usual | settings)
    )


def same(first: comity.Result, second: comity.Result) -> bool:
    """Whether all parties would deploy the same weights, bit for bit."""
    pairs = [(first.model(name).theta, second.model(name).theta) for name in first.job.info.names]
    return all(a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a) for a, b in pairs)


@pytest.mark.parametrize("wrapper", ["dbe", "mr"])
def test_eq8_half_of_kappa_8_is_whole_of_kappa_4(wrapper: str) -> None:
    """A power of two is exact: two whole runs agree in every bit; with kappa 8 both times they do
    not.
    """
    halved, printed = (
        run_method(f"fedavg+{wrapper}(kappa=8)"),
        run_method(f"fedavg+{wrapper}(kappa=4,half=false)"),
    )
    assert same(halved, printed)
    assert not same(halved, run_method(f"fedavg+{wrapper}(kappa=8,half=false)"))


# --- spec B4: the running mean's bias


def test_eq9_debiased_running_mean_by_hand() -> None:
    """mu = 0.3: m_b = sum_j 0.3 * 0.7^(b - j) mean_j, divided by 1 - 0.7^b; the gradient gets the
    same factor.
    """
    mu, consensus = 0.3, noise(K, seed=9)
    scratch: dict[str, Any] = {}
    task = biased_task(consensus, mu=mu, ema_debias=True)
    means = []
    for b in range(1, 6):
        z = (noise(B, K, seed=b) + b).requires_grad_()
        means.append(z.detach().mean(0))
        value = task.regulariser(z, batch_number(b - 1, scratch))
        m = sum(mu * (1 - mu) ** (b - j) * mean for j, mean in enumerate(means, start=1)) / (
            1 - (1 - mu) ** b
        )
        assert value.item() == pytest.approx(
            (m - consensus).square().mean().item() / 2, rel=1e-5
        ), b
        (grad,) = torch.autograd.grad(value, z)
        expected = mu / (1 - (1 - mu) ** b) * (m - consensus) / (B * K)
        torch.testing.assert_close(grad, expected.expand(B, K), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("debias", [True, False])
def test_eq9_batches_with_one_mean(debias: bool) -> None:
    """If every batch has the mean c, the debiased m is c from the first batch on, and the plain one
    is (1 - 0.7^b) c.
    """
    c = noise(K, seed=3)
    scratch: dict[str, Any] = {}
    task = biased_task(torch.zeros(K), mu=0.3, ema_debias=debias)
    for b in range(1, 5):
        value = task.regulariser(c.expand(B, K), batch_number(b - 1, scratch)).item()
        factor = 1.0 if debias else 1 - 0.7**b
        assert value == pytest.approx(factor**2 * c.square().mean().item() / 2, rel=1e-5)


@pytest.mark.parametrize("debias", [True, False])
@pytest.mark.parametrize("half", [True, False])
def test_alg1_l10_a_local_training_by_hand(debias: bool, half: bool) -> None:
    """Two epochs of five batches on CE(h(f(x) + p)) + kappa MR: weights, offset and running mean as
    a loop makes them.
    """
    kappa, mu, how = 4.0, 0.3, Training(lr=0.1, batch=4, epochs=2)
    task, data = task_of(f"mlp2(width={K})", SHAPE, CLASSES), samples(18, SHAPE, CLASSES)
    dbe = Dbe(host=FedAvg(), kappa=kappa, mu=mu, half=half, ema_debias=debias)
    server, s = server_of(dbe, task, [data], how)
    consensus = s.extra.z
    m, b = torch.zeros(K), 0

    def loss(theta: Params, batch: Batch) -> Tensor:
        nonlocal m, b
        z = F.relu(batch.x @ theta["fc1.weight"].T + theta["fc1.bias"])
        z = F.relu(z @ theta["fc2.weight"].T + theta["fc2.bias"])
        logits = (z + theta[OFFSET]) @ theta["fc3.weight"].T + theta["fc3.bias"]
        now, b = (1 - mu) * m + mu * z.mean(0), b + 1
        m = now.detach()
        used = now / (1 - (1 - mu) ** b) if debias else now
        mse = (used - consensus).square().mean()
        return F.cross_entropy(logits, batch.y) + kappa * (mse / 2 if half else mse)

    expected = torch_sgd(
        loss, s.host | {OFFSET: torch.zeros(K)}, data, ROOT.fold("party", 0, 1, "local", 0), how
    )
    s = rounds(dbe, server, s, 1)
    assert b == 10
    for name, value in expected.items():
        ours = server.state(0).host[OFFSET] if name == OFFSET else s.host[name]
        torch.testing.assert_close(
            ours, value, rtol=0, atol=1e-5, msg=partial("{}: {}".format, name)
        )
    assert expected[OFFSET].abs().max() > 1e-3


def test_eq9_with_mu_1_there_is_no_bias() -> None:
    assert same(run_method("fedavg+dbe(mu=1)"), run_method("fedavg+dbe(mu=1,ema_debias=true)"))
    assert not same(
        run_method("fedavg+dbe(mu=0.3)"), run_method("fedavg+dbe(mu=0.3,ema_debias=true)")
    )


def test_eq9_debiasing_with_mu_0_is_refused_or_finite() -> None:
    """The paper's grid has mu = 0: the running mean stays at 0 then, and there is nothing to divide
    it by.
    """
    try:
        result = run_method("fedavg+dbe(mu=0,ema_debias=true)")
    except comity.UsageError:
        return
    assert all(v.isfinite().all() for v in result.model("p0").theta.values())


# --- spec B1 and B5: the first mean


def reported_mean(
    model: str, data: Samples, how: Training, shape: tuple[int, ...] = SHAPE, **options: Any
) -> Tensor:
    """The consensus of a single party is what it reported."""
    dbe = Dbe(host=FedAvg(), **options)
    server, _ = server_of(dbe, task_of(model, shape, CLASSES), [data], how)
    return server.state(0).extra.z


def train_and_record_means(
    task: LearningTask, data: Samples, how: Training
) -> tuple[list[Tensor], Params]:
    """Means of the training-mode representations, batch by batch at the weights of the moment, and
    the weights afterwards.
    """
    means: list[Tensor] = []

    def loss(theta: Params, batch: Batch) -> Tensor:
        z = task.features(theta, batch.x, train=True)
        means.append(z.detach().mean(0))
        return F.cross_entropy(task.head(theta, z, train=True), batch.y)

    return means, torch_sgd(
        loss, task.init(ROOT.fold("init")), data, ROOT.fold("party", 0, 0, "mean", 0), how
    )


def gentle(model: str) -> Training:
    """Smaller steps with BatchNorm, which divides by the spread of three samples, and makes much of
    a last bit.
    """
    return Training(lr=0.002 if model == BATCHNORM else 0.02, batch=5, epochs=9, min_batch=2)


@pytest.mark.parametrize("mu", [1.0, 0.3])
@pytest.mark.parametrize("epochs", [1, 2])
@pytest.mark.parametrize(("model", "shape"), [(f"mlp2(width={K})", SHAPE), (BATCHNORM, IMAGE)])
def test_alg1_l2_running_mean(model: str, shape: tuple[int, ...], epochs: int, mu: float) -> None:
    """z <- (1 - mu) z + mu mean_batch f(x), from 0, over the training before round 1; with mu = 1
    the last batch's mean.
    """
    task, data = task_of(model, shape, CLASSES), samples(18, shape, CLASSES)
    how = gentle(model)
    means, theta = train_and_record_means(task, data, replace(how, epochs=epochs))
    z = torch.zeros_like(means[0])
    for mean in means:
        z = (1 - mu) * z + mu * mean
    assert len(means) == 4 * epochs
    ours = reported_mean(model, data, how, shape, init_mean="ema", init_epochs=epochs, mu=mu)
    torch.testing.assert_close(ours, z, rtol=0, atol=5e-4)
    if mu == 1:
        torch.testing.assert_close(ours, means[-1], rtol=0, atol=5e-4)
    exact = reported_mean(model, data, how, shape, init_epochs=epochs, mu=mu)
    torch.testing.assert_close(exact, task.features(theta, data.x).mean(0), rtol=0, atol=5e-4)
    assert (ours - exact).abs().max() > 0.005, "the two are not the same"


@pytest.mark.parametrize("mu", [1.0, 0.3])
@pytest.mark.parametrize("epochs", [1, 2])
@pytest.mark.parametrize(("model", "shape"), [(f"mlp2(width={K})", SHAPE), (BATCHNORM, IMAGE)])
def test_alg1_l2_mean_of_all_batches_alike(
    model: str, shape: tuple[int, ...], epochs: int, mu: float
) -> None:
    """init_mean=batch: the plain mean of the batches' means, in training mode at the weights of the
    moment, whatever mu is.

    18 samples in batches of 5: the last batch of 3 counts as much as the others.
    """
    task, data = task_of(model, shape, CLASSES), samples(18, shape, CLASSES)
    how = gentle(model)
    means, _ = train_and_record_means(task, data, replace(how, epochs=epochs))
    assert len(means) == 4 * epochs
    ours = reported_mean(model, data, how, shape, init_mean="batch", init_epochs=epochs, mu=mu)
    torch.testing.assert_close(ours, torch.stack(means).mean(0), rtol=0, atol=5e-4)
    for other in ("exact", "ema"):
        apart = ours - reported_mean(
            model, data, how, shape, init_mean=other, init_epochs=epochs, mu=mu
        )
        assert apart.abs().max() > 0.002, other


def test_alg1_l2_without_training_and_batchnorm_all_batches_alike_is_exact() -> None:
    """At a learning rate of 0, with batches of one size and no BatchNorm, the mean of the batches'
    means is the mean.
    """
    model, data, how = f"mlp2(width={K})", samples(20, SHAPE, CLASSES), Training(lr=0.0, batch=5)
    exact = reported_mean(model, data, how, init_mean="exact")
    torch.testing.assert_close(
        reported_mean(model, data, how, init_mean="batch"), exact, rtol=0, atol=1e-6
    )


def test_eq8_with_batchnorm_the_first_term_is_small_only_by_the_mean_in_training_mode() -> None:
    """After one epoch the running statistics are far from the batches': an exact mean is one that
    no batch is near to.
    """
    data, how = samples(60, IMAGE, CLASSES), Training(lr=0.02, batch=20, min_batch=2)
    task, first = task_of(BATCHNORM, IMAGE, CLASSES), {}
    now = task.features(task.init(ROOT.fold("init")), data.x[:20], train=True).mean(0)
    for init_mean in ("exact", "batch"):
        first[init_mean] = (
            (now - reported_mean(BATCHNORM, data, how, IMAGE, init_mean=init_mean))
            .square()
            .mean()
            .item()
        )
    assert first["exact"] > 5 * first["batch"]


@pytest.mark.parametrize(
    "how", [Training(lr=0.1, batch=4, epochs=5), Training(lr=0.1, batch=4, steps=1)]
)
@pytest.mark.parametrize("epochs", [0, 1, 3])
def test_alg1_l2_epochs_before_the_first_mean(epochs: int, how: Training) -> None:
    """However long parties train in a round; none at all gives the mean at theta_0."""
    model = f"mlp2(width={K})"
    task, data = task_of(model, SHAPE, CLASSES), samples(18, SHAPE, CLASSES)
    means, theta = train_and_record_means(task, data, Training(lr=0.1, batch=4, epochs=epochs))
    assert len(means) == 5 * epochs
    torch.testing.assert_close(
        reported_mean(model, data, how, init_epochs=epochs),
        task.features(theta, data.x).mean(0),
        rtol=0,
        atol=1e-5,
    )
    if epochs == 0:
        assert all(torch.equal(theta[k], v) for k, v in task.init(ROOT.fold("init")).items())


def test_alg1_l2_one_epoch_is_the_default() -> None:
    assert same(
        run_method("fedavg+dbe"),
        run_method("fedavg+dbe(init_epochs=1,init_mean=exact,half=true,ema_debias=false)"),
    )
    for other in ("init_epochs=0", "init_epochs=2", "init_mean=ema", "init_mean=batch"):
        assert not same(run_method("fedavg+dbe"), run_method(f"fedavg+dbe({other})")), other


@pytest.mark.parametrize(
    "options",
    [
        "init_mean=ema",
        "init_mean=batch",
        "init_epochs=0",
        "init_epochs=3",
        "half=false",
        "ema_debias=true",
        "noise_s=1,noise_q=0.5",
    ],
)
def test_alg1_no_option_changes_a_byte(options: str) -> None:
    """And each of them changes the weights, but for the running mean's bias, which mu = 1 does not
    have.
    """
    assert same(run_method("fedavg+dbe"), run_method(f"fedavg+dbe({options})")) == (
        options == "ema_debias=true"
    )
    rows = [
        [r for r in run_method(text).ledger if r.kind != "eval"]
        for text in ("fedavg+dbe", f"fedavg+dbe({options})")
    ]
    assert rows[0] == rows[1]


@pytest.mark.sweep("mlp2")
@pytest.mark.parametrize("model", [f"mlp2(width={K})", BATCHNORM])
@pytest.mark.parametrize(
    "options",
    [
        "",
        "init_mean=batch",
        "init_mean=ema",
        "init_mean=ema,mu=0.3,init_epochs=2",
        "init_epochs=0",
        "half=false",
    ],
)
def test_dbe_switched_off_is_fedavg_bit_for_bit(options: str, model: str) -> None:
    """kappa = 0 and the offset frozen at 0: the exchange before round 1 disturbs neither weights
    nor running statistics.
    """
    ours = run_method(
        f"fedavg+dbe(kappa=0,train_offset=false{',' if options else ''}{options})", model
    )
    theirs = run_method("fedavg", model)
    for name in theirs.job.info.names:
        theta = dict(ours.model(name).theta)
        assert not theta.pop(OFFSET).any()
        assert all(torch.equal(theta[k], v) for k, v in theirs.model(name).theta.items())


# --- Table 3


@pytest.mark.parametrize("init_mean", ["exact", "ema", "batch"])
def test_table3_noise_is_on_what_is_reported(init_mean: str) -> None:
    """q = 1 and s = 0 withhold all; q = 0.75 leaves a quarter; s alone adds N(0, s^2), the same
    draw for the same key.
    """
    model, data, how = f"mlp2(width={K})", samples(18, SHAPE, CLASSES), Training(lr=0.1, batch=4)
    clean = reported_mean(model, data, how, init_mean=init_mean)
    assert clean.abs().max() > 0.05
    assert not reported_mean(model, data, how, init_mean=init_mean, noise_q=1.0).any()
    quarter = reported_mean(model, data, how, init_mean=init_mean, noise_q=0.75)
    torch.testing.assert_close(quarter, clean / 4, rtol=0, atol=1e-7)
    draws = [
        (reported_mean(model, data, how, init_mean=init_mean, noise_s=s) - clean) / s
        for s in (0.5, 2.0)
    ]
    torch.testing.assert_close(draws[0], draws[1], rtol=0, atol=1e-5)
    assert draws[0].abs().max() > 0.1


# --- Table 7


class Block(nn.Module):
    """ResNet-18's basic block."""

    def __init__(self, into: int, out: int, stride: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(
            nn.Conv2d(into, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out), nn.ReLU(),
            nn.Conv2d(out, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out),
        )  # fmt: skip
        skip = nn.Sequential(nn.Conv2d(into, out, 1, stride, bias=False), nn.BatchNorm2d(out))
        self.skip = skip if stride > 1 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.inner(x) + self.skip(x))


def resnet18() -> list[nn.Module]:
    """CONV, B1, B2, B3, B4, POOL, with the 7x7 stem."""
    stem = nn.Sequential(
        nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)
    )
    widths = ((64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2))
    stages = [
        nn.Sequential(Block(into, out, stride), Block(out, out, 1)) for into, out, stride in widths
    ]
    return [stem, *stages, nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())]


TABLE7 = {"CONV": 16_384, "B1": 16_384, "B2": 8_192, "B3": 4_096, "B4": 2_048, "POOL": 512}


@pytest.mark.sweep("B4", "CONV")
@pytest.mark.slow
@pytest.mark.parametrize("cut", TABLE7)
def test_table7_offset_element_counts_of_resnet18(cut: str) -> None:
    """64 x 64 x 3 inputs; the offset has the shape of one representation wherever the network is
    cut.
    """
    depth, values = list(TABLE7).index(cut) + 1, TABLE7[cut]
    with torch.random.fork_rng(devices=[]):
        pair = nn.Sequential(*resnet18()[:depth]), nn.Sequential(nn.Flatten(), nn.Linear(values, 2))
    task = LearningTask(build(pair, (3, 64, 64), 2), 2, "encoder")
    party = party_of(task, samples(1, (3, 64, 64), 1), Training())
    dbe = Dbe(host=FedAvg())
    wrapped_task = dbe.wrap_party(party, dbe.extra(Key(0), party)).task
    assert wrapped_task.width == values
    assert wrapped_task.init(Key(0))[OFFSET].numel() == values


# --- refusals


@pytest.mark.parametrize(
    "option",
    [
        "half",
        "ema_debias",
        "init_mean",
        "init_epochs",
        "noise_s",
        "noise_q",
        "kappa",
        "mu",
        "pilot_rounds",
    ],
)
def test_prbm_alone_has_no_options_of_the_regulariser(option: str) -> None:
    with pytest.raises(comity.UsageError, match=option):
        compose(f"fedavg+prbm({option}=1)")


@pytest.mark.parametrize(
    "option",
    ["init_mean=last", "init_epochs=-1", "init_epochs=0.5", "noise_q=1.1", "noise_s=-1", "mu=2"],
)
def test_options_out_of_range_are_refused(option: str) -> None:
    with pytest.raises(comity.UsageError, match=option.partition("=")[0]):
        compose(f"fedavg+dbe({option})")


@pytest.mark.parametrize(
    "options",
    ["init_mean=batch,init_epochs=0", "init_mean=ema,init_epochs=0", "init_mean=ema,mu=0"],
)
def test_a_running_mean_needs_training_before_round_1(options: str) -> None:
    with pytest.raises(comity.UsageError, match="an epoch to run along"):
        run_method(f"fedavg+dbe({options})")


# --- C.2: constants by the kind of network


@pytest.mark.parametrize("wrapper", ["dbe", "mr"])
@pytest.mark.parametrize(
    ("model", "kappa", "mu"),
    [(f"mlp2(width={K})", 50, 1), (BATCHNORM, 1, 0.1)],
)
def test_c2_default_constants_are_the_papers_for_this_kind_of_network(
    wrapper: str, model: str, kappa: float, mu: float
) -> None:
    usual = run_method(f"fedavg+{wrapper}", model)
    assert same(usual, run_method(f"fedavg+{wrapper}(kappa={kappa},mu={mu})", model))
    assert not same(usual, run_method(f"fedavg+{wrapper}(kappa={kappa * 2},mu={mu})", model))


def test_c2_constants_of_word_vectors() -> None:
    assert paper_constants(task_of("fasttext(vocabulary=30)", (12,), 4)) == (0.1, 1.0)
