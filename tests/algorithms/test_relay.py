"""Representation sharing (Berdoz 2022): eqs. 2-7, Theorem 1, Algorithms 1 and 2, communication,
privacy, peer to peer.

Spec 5.6's known answers are marked K1 to K8.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from toys import (
    assert_near,
    batch_of,
    federation,
    noise,
    party_of,
    rounds,
    run_call,
    same,
    samples,
    server_of,
    task_of,
)

import comity
from comity import cli
from comity.algorithms import find, options
from comity.algorithms.fedavg import FedAvg
from comity.algorithms.relay import Relay, V
from comity.algorithms.relay_p2p import RelayP2p, RelayPeerState
from comity.base.call import PartyResult
from comity.base.key import BatchKey
from comity.base.record import read_only, unseal
from comity.components.bank import Teacher
from comity.components.classwise import contrast, one_class, one_class_external, tellable
from comity.components.peer import Group
from comity.core import Batch, Empty, Info, Key, LearningTask, Params, Samples, Sealed, Training
from comity.engines.loop import LoopEngine
from comity.models import build
from comity.runs import checkpoint
from comity.runs.config import read
from comity.runs.server_run import Quiet
from comity.studies import plan
from comity.training.requests import FitRequest
from comity.training.task import batchnorm_private

pytestmark = pytest.mark.quick

SHAPE, C, D = (6,), 3, 5
MODEL = f"mlp2(width={D})"
BOTH = pytest.mark.parametrize("method", [Relay, RelayP2p])
STILL = Training(lr=0.0, batch=100)


# --- the thesis in plain torch, sample by sample and class by class


def phi(theta: Params, x: Tensor) -> Tensor:
    """mlp2's second hidden layer."""
    inner = (x.flatten(1) @ theta["fc1.weight"].T + theta["fc1.bias"]).clamp(min=0)
    return (inner @ theta["fc2.weight"].T + theta["fc2.bias"]).clamp(min=0)


def tau(theta: Params, s: Tensor) -> Tensor:
    return s @ theta["fc3.weight"].T + theta["fc3.bias"]


def eq5(theta: Params, s: Tensor, t: Tensor) -> Tensor:
    return (tau(theta, s).softmax(0) * tau(theta, t).softmax(0)).sum()


def exponential(T: float) -> Any:
    """The authors' exponential_prob."""

    def h(theta: Params, s: Tensor, t: Tensor) -> Tensor:
        e = ((theta[V] @ s) @ (theta[V] @ t) / T).exp()
        return e / (e + (C - 1) / C)

    return h


@dataclass
class Received:
    """Input of Algorithm 2: global representations by class and one observation of each, None where
    there is none.
    """

    bar: list[Tensor | None]
    t: list[Tensor | None]


def algorithm2(
    theta: Params, data: Samples, received: Received, kd: float, disc: float, h: Any = eq5
) -> Tensor:
    """L of one mini-batch as printed; `kd` and `disc` are what ‖·‖² and the sum of the C terms are
    multiplied by.
    """
    total = torch.zeros(())
    for x, y in zip(data.x, data.y.tolist(), strict=True):
        s = phi(theta, x[None])[0]
        total = total - tau(theta, s).log_softmax(0)[y]
        if received.bar[y] is not None:
            total = total + kd * (s - received.bar[y]).square().sum()
        for c, t in enumerate(received.t):
            if t is not None:
                total = total + disc * (
                    -h(theta, s, t).log() if c == y else -(1 - h(theta, s, t)).log()
                )
    return total / len(data)


def descend(
    theta: Params,
    data: Samples,
    received: Received,
    lr: float,
    epochs: int,
    kd: float,
    disc: float,
    h: Any = eq5,
) -> Params:
    """Algorithm 2 with all samples in one mini-batch."""
    for _ in range(epochs):
        free = {k: v.detach().clone().requires_grad_() for k, v in theta.items()}
        grads = torch.autograd.grad(
            algorithm2(free, data, received, kd, disc, h),
            list(free.values()),
            materialize_grads=True,
        )
        theta = {k: v.detach() - lr * g for (k, v), g in zip(free.items(), grads, strict=True)}
    return theta


def class_mean(theta: Params, data: Samples) -> list[Tensor | None]:
    """The mean representation of each class that has two samples."""
    z = phi(theta, data.x)
    return [z[data.y == c].mean(0) if (data.y == c).sum() >= 2 else None for c in range(C)]


def pool(means: list[list[Tensor | None]], data: list[Samples]) -> list[Tensor | None]:
    """The mean over all samples of all parties."""
    bar: list[Tensor | None] = []
    for c in range(C):
        counted_means = [
            (int((d.y == c).sum()), t)
            for m, d in zip(means, data, strict=True)
            if (t := m[c]) is not None
        ]
        bar.append(
            sum((n * t for n, t in counted_means), torch.zeros(()))
            / sum(n for n, _ in counted_means)
            if counted_means
            else None
        )
    return bar


def not_none(mean: Tensor | None) -> Tensor:
    """A mean of which the test knows that it is there."""
    assert mean is not None
    return mean


def assert_classes(rows: Tensor, mask: Tensor, expected: list[Tensor | None]) -> None:
    """Rows by class, and which of them hold anything; the others are zeros."""
    assert mask.tolist() == [e is not None for e in expected]
    for row, e in zip(rows, expected, strict=True):
        torch.testing.assert_close(
            row, torch.zeros_like(row) if e is None else e, rtol=0, atol=2e-6
        )


def teacher(
    seed: int = 5, sets: int = 1, known_mask: Tensor | None = None, seen_mask: Tensor | None = None
) -> Teacher:
    """Arbitrary means and observations."""
    mask = torch.ones(sets, C, dtype=torch.bool)
    return Teacher(
        noise(C, D, seed=seed), mask[0] if known_mask is None else known_mask,
        noise(sets, C, D, seed=seed + 1),
        mask if seen_mask is None else seen_mask, {},
    )  # fmt: skip


def received_of(m: Teacher, k: int = 0) -> Received:
    bar = [row if ok else None for row, ok in zip(m.means, m.known.tolist(), strict=True)]
    return Received(
        bar, [row if ok else None for row, ok in zip(m.obs[k], m.seen[k].tolist(), strict=True)]
    )


def fit_request(algorithm: Relay | RelayP2p, of: LearningTask, m: Teacher) -> FitRequest[Any]:
    """A party's fit request after this message."""
    training = algorithm.train_with_teacher(
        of.init(Key(1)), m, party_of(of, samples(1, SHAPE, C), STILL), Key(0)
    )
    request = training.send(None)
    training.close()
    return request


def loss_of(
    algorithm: Relay | RelayP2p, of: LearningTask, m: Teacher
) -> Callable[[Params, Batch], Tensor]:
    """A party's objective after this message, with its random draws for each batch."""
    request = fit_request(algorithm, of, m)
    own = read_only(request.aux)

    def value(theta: Params, batch: Batch) -> Tensor:
        batch.draws = (
            request.draw(batch, BatchKey(request.key.bits, batch.number), own)
            if request.draw
            else None
        )
        return request.objective(request.task, theta, batch, own)

    return value


@dataclass
class Turn:
    """One call: its function, round, messages and replies."""

    round: int
    function: str
    messages: dict[int, Any]
    sealed_messages: dict[tuple[int, int], Any]
    replies: dict[int, Any]


@pytest.fixture
def wire(monkeypatch: pytest.MonkeyPatch) -> list[Turn]:
    """All messages of a run on engine loop, with sealed messages opened."""
    recorded: list[Turn] = []
    function = LoopEngine.run

    def listening(
        self: LoopEngine, call: Any, messages: Any, sealed_messages: Any
    ) -> Iterator[tuple[int, PartyResult]]:
        opened_messages = {edge: unseal(sealed) for edge, sealed in sealed_messages.items()}
        turn = Turn(
            call.round,
            call.function,
            {i: message.content for i, message in messages.items()},
            opened_messages,
            {},
        )
        recorded.append(turn)
        for i, answer in function(self, call, messages, sealed_messages):
            turn.replies[i] = answer.reply
            yield i, answer

    monkeypatch.setattr(LoopEngine, "run", listening)
    return recorded


def turns(wire: list[Turn], function: str) -> dict[int, Turn]:
    """The calls of a party function by round."""
    return {turn.round: turn for turn in wire if turn.function == function}


def tensors(tree: Any) -> list[Tensor]:
    """All tensors in a message."""
    if isinstance(tree, Tensor):
        return [tree]
    if isinstance(tree, Sealed):
        return tensors(unseal(tree))
    if is_dataclass(tree):
        tree = [getattr(tree, f.name) for f in fields(tree)]
    if isinstance(tree, dict):
        tree = list(tree.values())
    return [t for part in tree for t in tensors(part)] if isinstance(tree, list | tuple) else []


def start_of(task: LearningTask) -> Params:
    """The first weights of every party."""
    return task.init(Key.root(0).fold("init"))


def task() -> LearningTask:
    return task_of(MODEL, SHAPE, C)


def samples_with_labels(labels: list[int], seed: int = 1) -> Samples:
    """Gaussian inputs with these labels, seen from elsewhere by each seed."""
    return Samples(noise(len(labels), *SHAPE, seed=seed) + 0.3 * seed, torch.tensor(labels))


# Three parties; p2 has nothing of class 2, and one sample of class 1.
TRIO = [
    samples_with_labels([0, 1, 2] * 3, 1),
    samples_with_labels([0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 2], 2),
    samples_with_labels([0, 0, 0, 0, 1], 3),
]


def test_no_option_is_without_a_test() -> None:
    """A new option belongs into this file."""
    both = {
        "lambda_kd", "lambda_disc", "n_avg", "m_up", "kd_reduction", "disc_reduction", "disc", "disc_temperature", "negatives",
        "min_count", "guarded", "secret",
    }  # fmt: skip
    relayed = {"m_down", "exclude_self", "weights", "begin", "aggregate", "max_age", "age_decay"}
    assert set(options(find("relay"))) == both | relayed
    assert set(options(find("relay-p2p"))) == both | {"neighbours", "running"}
    for name in relayed:
        foreign: dict[str, Any] = {name: 1}
        assert not hasattr(RelayP2p(), name)
        with pytest.raises(comity.UsageError):
            comity.run(
                "relay-p2p", federation((6, 6)), model=MODEL, rounds=1, engine="loop", **foreign
            )


def test_section4_settings_of_the_experiments() -> None:
    """λ_KD = 10, λ_disc = 1, n_avg = 10, M↑ = M↓ = 1; own observations excluded, nothing averaged,
    means by sample counts.
    """
    for algorithm in (Relay(), RelayP2p()):
        assert (algorithm.lambda_kd, algorithm.lambda_disc, algorithm.n_avg, algorithm.m_up) == (
            10.0,
            1.0,
            10,
            1,
        )
        assert (algorithm.disc, algorithm.negatives) == ("prob_product", "class")
        assert (algorithm.kd_reduction, algorithm.disc_reduction) == ("code", "code")
    relay = Relay()
    assert (relay.m_down, relay.exclude_self, relay.aggregate) == (1, True, "none")
    assert (relay.weights, relay.begin) == ("samples", "features")


# --- eq. 5


def test_eq5_h_is_the_inner_product_of_probabilities() -> None:
    """(.7, .2, .1) with (.5, .3, .2) is .35 + .06 + .02 = .43; with (0, 1, 0) it is .2."""
    s = torch.tensor([[0.7, 0.2, 0.1]])
    h = one_class(s, torch.tensor([[[0.5, 0.3, 0.2], [0.0, 1.0, 0.0]]]))
    torch.testing.assert_close(h, torch.tensor([[0.43, 0.2]]))


@pytest.mark.parametrize(("reduction", "expected"), [("paper", 3.2508), ("code", 0.32508)])
def test_eq5_a_uniform_classifier(reduction: Literal["paper", "code"], expected: float) -> None:
    """K2: W = 0, b = 0: ĥ = 1/10 for every pair; ℓ_disc = log 10 + 9 log(10/9) = 3.2508, a tenth of
    it in the code's mean.
    """
    ten = task_of(MODEL, SHAPE, 10)
    theta = ten.init(Key(1))
    theta |= {k: torch.zeros_like(theta[k]) for k in ("fc3.weight", "fc3.bias")}
    data = samples(20, SHAPE, 10)
    everything = torch.ones(1, 10, dtype=torch.bool)
    m = Teacher(noise(10, D, seed=3), everything[0], noise(1, 10, D, seed=4), everything, {})
    loss = loss_of(Relay(lambda_kd=0.0, disc_reduction=reduction), ten, m)(
        theta, batch_of(data)
    ).item()
    assert loss - math.log(10) == pytest.approx(expected, abs=5e-5)
    p = ten.head(theta, m.obs[0]).softmax(1)
    torch.testing.assert_close(one_class(p[:1], p[None]), torch.full((1, 10), 0.1))


# --- eqs. 6 and 7, Algorithm 2


def test_eq7_terms_by_hand() -> None:
    """h = (.8, .3, .1), y = 0: -log .8 - log .7 - log .9 = .68522; without class 1 .32850; without
    class 0 .46204.
    """
    h, y = torch.tensor([[0.8, 0.3, 0.1]] * 3), torch.zeros(3, dtype=torch.int64)
    seen_mask = torch.tensor([[True, True, True], [True, False, True], [False, True, True]])
    losses = contrast(h, seen_mask, y, None)
    torch.testing.assert_close(
        losses, torch.tensor([0.685179, 0.328504, 0.462035]), rtol=0, atol=1e-5
    )


def test_eq7_is_finite_where_h_is_0_or_1() -> None:
    """-log ĥ(own) = -log 1e-7 = 16.118 at most, either way."""
    h = torch.tensor([[0.0, 1.0, 0.0]])
    value = contrast(h, torch.ones(1, 3, dtype=torch.bool), torch.tensor([0]), None).item()
    assert value == pytest.approx(2 * 16.1, abs=0.3)


REDUCED = [
    ("code", "code", 1 / D, 1 / C),
    ("paper", "code", 1.0, 1 / C),
    ("code", "paper", 1 / D, 1.0),
    ("paper", "paper", 1, 1),
]


@BOTH
@pytest.mark.parametrize(("kd", "disc"), [(0.0, 1.5), (2.5, 0.0), (2.5, 1.5)])
@pytest.mark.parametrize(("kd_reduction", "disc_reduction", "by_kd", "by_disc"), REDUCED)
def test_eq6_value_and_gradient(
    method: Any,
    kd: float,
    disc: float,
    kd_reduction: str,
    disc_reduction: str,
    by_kd: float,
    by_disc: float,
) -> None:
    """CE + λ_KD ℓ_KD + λ_disc ℓ_disc over the batch; t̄ and t are constants, and W, b get a
    gradient through both sides of ĥ.
    """
    data, theta, m = samples(7, SHAPE, C), task().init(Key(1)), teacher()
    algorithm = method(
        lambda_kd=kd, lambda_disc=disc, kd_reduction=kd_reduction, disc_reduction=disc_reduction
    )
    values, grads = [], []
    for loss in (
        lambda p: loss_of(algorithm, task(), m)(p, batch_of(data)),
        lambda p: algorithm2(p, data, received_of(m), kd * by_kd, disc * by_disc),
    ):
        free = {k: v.clone().requires_grad_() for k, v in theta.items()}
        values.append(loss(free))
        grads.append(
            dict(zip(free, torch.autograd.grad(values[-1], list(free.values())), strict=True))
        )
    assert values[0].item() == pytest.approx(values[1].item(), rel=1e-5)
    assert_near(grads[0], grads[1], atol=2e-6)


@pytest.mark.parametrize(("reduction", "by"), [("paper", 1), ("code", 6)])
def test_eq6_gradient_of_the_distillation(reduction: Literal["paper", "code"], by: int) -> None:
    """K4: 2 (s - t̄) / B as printed, 2 (s - t̄) / (B d') in the code; a linear model's s is x, and
    W = 0 silences the CE.
    """
    linear = task_of("linear", SHAPE, C)
    theta = {k: torch.zeros_like(v) for k, v in linear.init(Key(1)).items()}
    s, y = noise(4, 6, seed=2).requires_grad_(), torch.tensor([0, 2, 2, 1])
    everything = torch.ones(1, C, dtype=torch.bool)
    m = Teacher(noise(C, 6, seed=3), everything[0], torch.zeros(1, C, 6), everything, {})
    relay = Relay(lambda_kd=1.0, lambda_disc=0.0, kd_reduction=reduction)
    (grad,) = torch.autograd.grad(loss_of(relay, linear, m)(theta, batch_of(Samples(s, y))), s)
    torch.testing.assert_close(grad, 2 * (s.detach() - m.means[y]) / (4 * by), rtol=0, atol=1e-6)


@BOTH
def test_alg2_each_sample_draws_its_set_uniformly(method: Any) -> None:
    """m ~ Uniform(1..3): 600 single samples meet each set some 200 times (five standard deviations
    are 58).
    """
    m, theta, data = teacher(sets=3), task().init(Key(1)), samples(1, SHAPE, C)
    loss = loss_of(method(lambda_kd=0.0), task(), m)
    sets = [algorithm2(theta, data, received_of(m, k), 0.0, 1 / C).item() for k in range(3)]
    assert min(abs(a - b) for a, b in combinations(sets, 2)) > 1e-3
    met: Counter[int] = Counter()
    for number in range(600):
        value = loss(theta, Batch(data.x, data.y, torch.arange(1), number, {})).item()
        gaps = [abs(value - set_loss) for set_loss in sets]
        assert min(gaps) < 1e-5
        met[gaps.index(min(gaps))] += 1
    assert all(abs(met[k] - 200) < 58 for k in range(3))
    crowd = Samples(data.x.repeat(90, 1), data.y.repeat(90))  # within a batch, too
    value = loss(theta, batch_of(crowd)).item()
    assert min(abs(value - set_loss) for set_loss in sets) > 1e-4
    assert value == pytest.approx(sum(sets) / 3, abs=5 * (max(sets) - min(sets)) / 90**0.5)


@BOTH
def test_alg2_a_set_comes_with_the_classes_that_it_shows(method: Any) -> None:
    """Two sets that show different classes: each sample has the terms of the set that it drew, and
    no others.
    """
    seen_mask = torch.tensor([[True, True, False], [False, True, True]])
    m, theta, data = teacher(sets=2, seen_mask=seen_mask), task().init(Key(1)), samples(1, SHAPE, C)
    loss = loss_of(method(lambda_kd=0.0), task(), m)
    sets = [algorithm2(theta, data, received_of(m, k), 0.0, 1 / C).item() for k in range(2)]
    assert abs(sets[0] - sets[1]) > 1e-3
    met = set()
    for number in range(40):
        value = loss(theta, Batch(data.x, data.y, torch.arange(1), number, {})).item()
        gaps = [abs(value - set_loss) for set_loss in sets]
        assert min(gaps) < 1e-5
        met.add(gaps.index(min(gaps)))
    assert met == {0, 1}


@BOTH
def test_alg2_which_values_are_random(method: Any) -> None:
    """With one set and one negative of each class nothing is random; m is drawn of several sets,
    negatives of all classes.
    """
    batch = batch_of(samples(7, SHAPE, C))
    single, several = teacher(), teacher(sets=3)
    assert fit_request(method(), task(), single).draw is None
    for negatives, m in (("class", several), ("marginal", single), ("marginal", several)):
        request = fit_request(method(negatives=negatives), task(), m)
        assert request.draw is not None
        draws = request.draw(batch, BatchKey(request.key.bits, batch.number), request.aux)
        assert draws.pick.shape == (7,)
        assert set(draws.pick.tolist()) <= set(range(len(m.obs)))
        assert (draws.negatives is None) == (negatives == "class")
        assert draws.negatives is None or draws.negatives.shape == (7, C - 1)


@BOTH
def test_alg2_a_received_message_is_not_changed(method: Any) -> None:
    """A party leaves unknown classes out of its computation; it does not remove them from the
    message.
    """
    m = teacher(known_mask=torch.tensor([True, False, True]))
    means, known_mask = m.means.clone(), m.known.clone()
    party = party_of(task(), samples(7, SHAPE, C), Training(lr=0.1))
    run_call(method().train_with_teacher(task().init(Key(1)), m, party, Key(0)))
    assert torch.equal(m.means, means)
    assert torch.equal(m.known, known_mask)


# --- Theorem 1


def _eq3(h: Tensor) -> float:
    """Eq. 3 for Φ_s = Φ_t = one-hot Y, Y uniform, K = C - 1, exactly; h[a, b] = ĥ(s = a, t = b)."""
    c = len(h)
    together, apart = h.diagonal().log().mean(), (1 - h).log().mean()
    return -(together + (c - 1) * apart).item()


def _mean_contrast(h: Tensor, negatives: Literal["class", "marginal"], n: int = 60_000) -> float:
    """The code's mean over many samples."""
    c = len(h)
    y = torch.arange(n) % c
    seen_mask = torch.ones(n, c, dtype=torch.bool)
    message = Teacher(torch.zeros(c, D), seen_mask[0], torch.zeros(1, c, D), seen_mask[:1], {})
    draws = Relay(negatives=negatives).draw_comparisons(
        batch_of(Samples(torch.zeros(n, 1), y)), BatchKey(7, 0), message
    )
    return contrast(h[y], seen_mask, y, draws.negatives).mean().item()


def test_theorem1_best_discriminator_and_its_bound() -> None:
    """K3: q(1 | equal) = 1 / (1 + K/C) = 10/19, q(1 | different) = 0: L = log 1.9 + .9 log(19/9) =
    1.3143; log 9 - L = .8829.
    """
    q = torch.eye(10) * 10 / 19
    assert _eq3(q) == pytest.approx(1.3143, abs=5e-5)
    assert _eq3(q) == pytest.approx(math.log(1 + 9 / 10) + 9 / 10 * math.log(1 + 10 / 9), abs=1e-6)
    assert math.log(9) - _eq3(q) == pytest.approx(0.8829, abs=1e-4)
    assert math.log(9) - _eq3(q) < math.log(10), "I(Φ_s, Φ_t) = log 10"
    deviation = (9 * 0.1 * 0.9) ** 0.5 * math.log(19 / 9)
    assert _mean_contrast(q, "marginal") == pytest.approx(1.3143, abs=4 * deviation / 60_000**0.5)


@pytest.mark.parametrize(
    ("equal", "different"),
    [(0.3, 0.0), (0.45, 0.0), (0.62, 0.0), (0.9, 0.0), (10 / 19, 0.02), (0.5, 0.1)],
)
def test_theorem1_any_other_h_loses_more(equal: float, different: float) -> None:
    h = torch.full((10, 10), different) + torch.eye(10) * (equal - different)
    assert _eq3(h) > 1.3143 + 0.01
    deviation = (9 * 0.1 * 0.9) ** 0.5 * abs(math.log((1 - different) / (1 - equal)))
    value = _mean_contrast(h, "marginal")
    assert value == pytest.approx(_eq3(h), abs=4 * deviation / 60_000**0.5)
    assert value > 1.3143


def test_theorem1_the_thesis_own_negatives_are_not_the_bounds() -> None:
    """One of each other class: no pair of one class among them, so q's loss is log 1.9 = .6419."""
    assert _mean_contrast(torch.eye(10) * 10 / 19, "class") == pytest.approx(
        math.log(1.9), abs=1e-4
    )


@BOTH
def test_theorem1_marginal_negatives_in_the_loss(method: Any) -> None:
    """E = -log ĥ(s, t^y) - (C - 1) / C · Σ_c log(1 - ĥ(s, t^c)), the sample's own class included."""
    n, theta, m, sample = 6000, task().init(Key(1)), teacher(), samples(1, SHAPE, C)
    crowd = Samples(sample.x.repeat(n, 1), sample.y.repeat(n))
    s = phi(theta, sample.x)[0]
    h = torch.stack([eq5(theta, s, t) for t in m.obs[0]])
    wrong = -(1 - h).log()
    expected = (-h[0].log() + (C - 1) * wrong.mean()).item()
    algorithm = method(lambda_kd=0.0, negatives="marginal", disc_reduction="paper")
    ce = F.cross_entropy(tau(theta, s)[None], sample.y).item()
    value = loss_of(algorithm, task(), m)(theta, batch_of(crowd)).item() - ce
    assert value == pytest.approx(expected, abs=5 * ((C - 1) ** 0.5 * wrong.std().item()) / n**0.5)
    own = (-h[0].log() + wrong[1:].sum()).item()
    assert abs(expected - own) > 20 * wrong.std().item() / n**0.5, (
        "the other kind of negatives gives another value"
    )


# --- an external discriminator


@pytest.mark.parametrize("T", [1.0, 0.5, 4.0])
def test_external_h_by_hand(T: float) -> None:
    """V = diag(1, 2), s = (1, 1), t = (.5, -.25) gives a = 1 * .5 - 4 * .25 = -.5; with C = 2, ĥ =
    e^{a/T} / (e^{a/T} + 1/2).
    """
    v = torch.diag(torch.tensor([1.0, 2.0]))
    t = torch.tensor([[[0.5, -0.25], [0.0, 0.5]]])
    h = one_class_external(torch.tensor([[1.0, 1.0]]), t, v, T)
    expected = [math.exp(a / T) / (math.exp(a / T) + 0.5) for a in (1 * 0.5 + 4 * -0.25, 4 * 0.5)]
    torch.testing.assert_close(h, torch.tensor([expected]))


@pytest.mark.parametrize("T", [1.0, 3.0])
def test_external_discriminator_is_trained_with_the_model_and_never_sent(
    T: float, wire: list[Turn]
) -> None:
    """Two rounds by hand with V beside the weights; nothing on the wire has its values."""
    relay = Relay(lambda_kd=2.0, lambda_disc=3.0, n_avg=0, disc="external", disc_temperature=T)
    data = [TRIO[0], TRIO[1]]
    server, s = server_of(relay, task(), data, Training(lr=0.2, batch=100))
    first = [server.state(u) for u in (0, 1)]
    assert all(state[V].abs().max() > 0.1 for state in first)
    ours = [{k: v.clone() for k, v in state.items()} for state in first]
    means = [class_mean(theta, d) for theta, d in zip(ours, data, strict=True)]
    for _ in (1, 2):
        bar = pool(means, data)
        how = {"lr": 0.2, "epochs": 1, "kd": 2 / D, "disc": 3 / C, "h": exponential(T)}
        ours = [descend(ours[u], data[u], Received(bar, means[1 - u]), **how) for u in (0, 1)]
        means = [class_mean(theta, d) for theta, d in zip(ours, data, strict=True)]
    rounds(relay, server, s, 2)
    for u in (0, 1):
        assert_near(server.state(u), ours[u])
        assert (server.state(u)[V] - first[u][V]).abs().max() > 1e-3
    secrets = [state[V] for state in (*first, server.state(0), server.state(1))]
    sent_tensors = [
        t
        for turn in wire
        for message in (*turn.messages.values(), *turn.replies.values())
        for t in tensors(message)
    ]
    assert sent_tensors
    assert not [
        1
        for t in sent_tensors
        for secret in secrets
        if t.shape == secret.shape and torch.equal(t, secret)
    ]


def test_external_discriminator_is_unchanged_without_its_loss() -> None:
    relay = Relay(lambda_kd=2.0, lambda_disc=0.0, disc="external")
    server, s = server_of(relay, task(), TRIO, Training(lr=0.2))
    before = server.state(0)[V].clone()
    rounds(relay, server, s, 2)
    assert torch.equal(server.state(0)[V], before)


# --- Algorithm 1


HOW: dict[str, dict[str, Any]] = {
    "sgd": {},
    "adam": {"optimizer": "adam", "opt_state": "keep", "lr": 0.01},
}


@cache
def some_parties(text: str, parties: int, how: str, **options: Any) -> comity.Result:
    """Three rounds of the first of five parties."""
    fed = federation([9, 14, 11, 7, 12][:parties])
    return comity.run(
        text, fed, model=MODEL, rounds=3, batch=4, engine="loop", **HOW[how], **options
    )


@pytest.mark.sweep(
    "adam-relay-3", "sgd-relay-p2p-3", "adam-relay(disc=external)-2", "sgd-relay(m_up=2,m_down=3)-5"
)
@pytest.mark.slow
@pytest.mark.parametrize("parties", [2, 3, 5])
@pytest.mark.parametrize(
    "text", ["relay", "relay(m_up=2,m_down=3)", "relay(disc=external)", "relay-p2p"]
)
@pytest.mark.parametrize("how", HOW)
def test_alg1_without_the_two_losses_is_solo(parties: int, text: str, how: str) -> None:
    """K1: λ_KD = λ_disc = 0 is independent learning bit for bit, while representations still cross."""
    alone = some_parties("solo", parties, how)
    without_losses = some_parties(text, parties, how, lambda_kd=0.0, lambda_disc=0.0)
    with_kd = some_parties(text, parties, how, lambda_kd=0.1)
    for name in alone.job.info.names:
        expected = alone.model(name).theta
        assert same({k: v for k, v in without_losses.model(name).theta.items() if k != V}, expected)
        assert not torch.equal(with_kd.model(name).theta["fc1.weight"], expected["fc1.weight"])
    for t in (1, 2, 3):
        crossed = {row.kind for row in without_losses.ledger if row.round == t}
        assert crossed >= ({"down", "peer"} if text == "relay-p2p" else {"up", "down"})


@pytest.mark.parametrize(("kd", "disc"), [(10.0, 1.0), (0.5, 4.0)])
def test_alg1_two_rounds_of_three_parties_by_hand(kd: float, disc: float, wire: list[Turn]) -> None:
    """Everything is computed in plain torch, except the first weights and the choice of senders: p2
    lacks class 2 and shows nothing of class 1.
    """
    relay = Relay(lambda_kd=kd, lambda_disc=disc, n_avg=0)
    server, s = server_of(relay, task(), TRIO, Training(lr=0.05, batch=100, epochs=2))
    rounds(relay, server, s, 2)
    ours = [start_of(task()) for _ in TRIO]
    means = [class_mean(theta, d) for theta, d in zip(ours, TRIO, strict=True)]
    for u, reply in turns(wire, "show")[0].replies.items():
        assert_classes(reply.means, reply.counts > 0, means[u])
    assert means[2][1:] == [None, None]
    for t in (1, 2):
        turn, bar, after = turns(wire, "local")[t], pool(means, TRIO), []
        for u, message in turn.messages.items():
            assert_classes(message.means, message.known, bar)
            senders = [
                v
                for v in range(3)
                if torch.allclose(message.obs[0, 0], not_none(means[v][0]), atol=1e-5)
            ]
            assert len(senders) == 1
            assert senders != [u]
            assert_classes(message.obs[0], message.seen[0], means[senders[0]])
            after.append(
                descend(
                    ours[u], TRIO[u], Received(bar, means[senders[0]]), 0.05, 2, kd / D, disc / C
                )
            )
        ours = after
        means = [class_mean(theta, d) for theta, d in zip(ours, TRIO, strict=True)]
        for u, reply in turn.replies.items():
            assert_classes(reply.means, reply.counts > 0, means[u])
            assert_classes(reply.obs[0], reply.seen, means[u])
    for u in range(3):
        assert_near(server.state(u), ours[u])
        assert (ours[u]["fc1.weight"] - start_of(task())["fc1.weight"]).abs().max() > 1e-3


@pytest.mark.parametrize(
    "text", ["relay(m_up=2,m_down=3,n_avg=2)", "relay-p2p(neighbours=2,n_avg=2)"]
)
def test_alg1_the_order_of_parties_does_not_matter(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """K8: every party uses what was shared in the round before, so parties may run and reply in
    reverse.
    """
    fed = federation((9, 14, 11, 7))
    how: dict[str, Any] = {"model": MODEL, "rounds": 3, "batch": 4, "engine": "loop"}
    forwards = comity.run(text, fed, **how)
    function = LoopEngine.run
    order = []

    def backwards(
        self: LoopEngine, call: Any, messages: Any, sealed_messages: Any
    ) -> Iterator[tuple[int, PartyResult]]:
        for i, answer in function(
            self, call, dict(reversed(messages.items())), dict(reversed(sealed_messages.items()))
        ):
            order.append(i)
            yield i, answer

    monkeypatch.setattr(LoopEngine, "run", backwards)
    reverse = comity.run(text, fed, **how)
    assert order[:4] == [3, 2, 1, 0]
    assert all(same(forwards.model(name).theta, reverse.model(name).theta) for name in fed.names)
    assert forwards.ledger == reverse.ledger


# --- eq. 2: observations


def show(
    algorithm: Relay, theta: Params, data: Samples, key: Key | None = None, i: int = 0
) -> tuple[Any, Any, Tensor, Tensor]:
    """The values that leave a party with these weights: means and counts (to the relay only),
    observations and their classes.
    """
    key = key or Key(3)
    party = party_of(task(), data, STILL, i, parties=2)
    if not isinstance(algorithm, RelayP2p):
        _, up = run_call(algorithm.show(theta, Empty(), party, key))
        return up.means, up.counts, up.obs, up.seen
    state = RelayPeerState(theta, torch.zeros(C, D), torch.zeros(C))
    _, sealed_messages = run_call(algorithm.tell(state, Group([i + 1]), party, key))
    (message,) = map(unseal, sealed_messages.values())
    return None, None, message.obs, message.seen


FIVE = samples_with_labels([0] * 5 + [1] * 5 + [2] * 4)


@BOTH
@pytest.mark.parametrize("n_avg", [0, 5, 10, 1000])
def test_eq2_an_observation_of_all_samples_is_the_class_mean(method: Any, n_avg: int) -> None:
    """K6: n_avg >= n_c, or 0."""
    theta = task().init(Key(1))
    means, counts, obs, seen_mask = show(method(n_avg=n_avg), theta, FIVE)
    assert_classes(obs[0], seen_mask, class_mean(theta, FIVE))
    if method is Relay:
        assert_classes(means, counts > 0, class_mean(theta, FIVE))
        assert counts.tolist() == [5, 5, 4]


@pytest.mark.parametrize(
    ("size", "rows", "out_of", "least", "expected"),
    [
        (10, 25, 25, 2, 10),  # as asked
        (10, 11, 11, 2, 11),  # 11 means - 10 observations would be one sample
        (10, 12, 12, 2, 10),
        (10, 12, 12, 3, 12),
        (0, 7, 7, 2, 7),
        (10, 7, 7, 2, 7),
        (0, 10, 11, 2, 9),  # one guarded sample in the mean: hide it behind a free one
        (0, 2, 3, 2, 0),  # nothing is left to hide behind
        (0, 10, 11, 1, 10),
        (10, 1, 1, 2, 0),
        (10, 0, 5, 1, 0),
    ],
)
def test_privacy_differences_of_means_show_min_count_at_least(
    size: int, rows: int, out_of: int, least: int, expected: int
) -> None:
    assert tellable(size, rows, out_of, least) == expected
    assert not expected or out_of - expected == 0 or out_of - expected >= least


@BOTH
@pytest.mark.parametrize("n_avg", [2])
def test_eq2_an_observation_is_the_mean_of_n_avg_different_samples(method: Any, n_avg: int) -> None:
    """Each is the mean of one of the subsets of that size; over many rounds every subset comes, on
    average the class mean.
    """
    theta = task().init(Key(1))
    z, algorithm = phi(theta, FIVE.x), method(n_avg=n_avg, m_up=2)
    of_class = [
        [
            z[list(some)].mean(0)
            for some in combinations(torch.where(FIVE.y == c)[0].tolist(), n_avg)
        ]
        for c in range(C)
    ]
    counts: list[Counter[int]] = [Counter() for _ in range(C)]
    for t in range(60):
        _, _, obs, _ = show(algorithm, theta, FIVE, Key.root(0).fold("party", 0, t, "local", 0))
        assert obs.shape == (2, C, D)
        for observation in obs:
            for c in range(C):
                near = torch.stack([(observation[c] - some).abs().max() for some in of_class[c]])
                assert near.min() < 1e-6
                counts[c][int(near.argmin())] += 1
    for c in range(C):
        expected = 120 / len(of_class[c])
        assert len(counts[c]) == len(of_class[c])
        assert max(counts[c].values()) < expected + 5 * expected**0.5


@BOTH
def test_eq2_m_up_sets_are_drawn_anew(method: Any) -> None:
    """Six sets of two out of five: all equal with probability 10^-5 for one class."""
    _, _, obs, _ = show(method(n_avg=2, m_up=6), task().init(Key(1)), FIVE)
    assert len(obs) == 6
    assert len({tuple(observation[0].tolist()) for observation in obs}) > 1


def test_alg1_representations_are_taken_after_training_in_evaluation_mode(wire: list[Turn]) -> None:
    """BatchNorm's running statistics, not the batch's."""
    image, classes = (1, 16, 16), 3
    norm = task_of("fedbn-cnn(scale=0.06)", image, classes)
    data = [samples(9, image, classes, seed=u) for u in (1, 2)]
    relay = Relay(n_avg=0)
    server, s = server_of(relay, norm, data, Training(lr=0.1, batch=100, min_batch=2))
    rounds(relay, server, s, 1)
    for u, reply in turns(wire, "local")[1].replies.items():
        z = norm.features(server.state(u), data[u].x, train=False)
        for c in range(classes):
            torch.testing.assert_close(reply.means[c], z[data[u].y == c].mean(0), rtol=0, atol=1e-5)


@BOTH
def test_alg2_own_samples_pass_in_training_mode(method: Any) -> None:
    """Without received representations the loss is the CE of batch-normalised samples, before the
    cut and behind it.
    """
    norm = task_of("fedbn-cnn(scale=0.06)", (1, 16, 16), C, cut="fc1")
    nothing, width = torch.zeros(1, C, dtype=torch.bool), norm.width
    m = Teacher(torch.zeros(C, width), nothing[0], torch.zeros(1, C, width), nothing, {})
    data = samples(9, (1, 16, 16), C)
    loss = loss_of(method(), norm, m)(norm.init(Key(1)), batch_of(data)).item()
    in_training, in_evaluation = (
        F.cross_entropy(
            norm.head(theta, norm.features(theta, data.x, train=train), train=train), data.y
        ).item()
        for train, theta in ((True, norm.init(Key(1))), (False, norm.init(Key(1))))
    )
    assert loss == pytest.approx(in_training, abs=1e-5)
    assert abs(in_training - in_evaluation) > 0.01


# --- what the relay sends


def sets_of(upload: Any) -> list[Tensor]:
    return list(upload.obs)


@pytest.mark.parametrize(("m_up", "m_down"), [(1, 1), (1, 2), (2, 1), (2, 3), (2, 4), (2, 6)])
def test_alg1_m_down_different_sets_of_others(m_up: int, m_down: int, wire: list[Turn]) -> None:
    """A message holds M↓ whole sets of the 2 M↑ that two others sent the round before, as different
    as possible.
    """
    relay = Relay(m_up=m_up, m_down=m_down, n_avg=2)
    server, s = server_of(
        relay,
        task(),
        [FIVE, samples_with_labels(FIVE.y.tolist(), 2), samples_with_labels(FIVE.y.tolist(), 3)],
        Training(lr=0.1),
    )
    rounds(relay, server, s, 6)
    last, sources = turns(wire, "show")[0].replies, set()
    for t in range(1, 7):
        turn = turns(wire, "local")[t]
        for u, message in turn.messages.items():
            assert message.obs.shape == (m_down, C, D)
            assert message.seen.all()
            offered = [
                (v, k, observations)
                for v in last
                if v != u
                for k, observations in enumerate(sets_of(last[v]))
            ]
            found_sources = [
                next(
                    (v, k)
                    for v, k, observations in offered
                    if torch.equal(observations, received_set)
                )
                for received_set in message.obs
            ]
            assert len(set(found_sources)) == min(m_down, 2 * m_up)
            sources |= {(u, v) for v, _ in found_sources}
        last = turn.replies
    assert len(sources) == 6, "in six rounds every party gets observations of every other"


@pytest.mark.slow
@pytest.mark.parametrize("exclude_self", [True, False])
def test_t3_own_observations_are_returned_unless_excluded(
    exclude_self: bool, wire: list[Turn]
) -> None:
    """150 messages: never a party's own observations; or those of each of three alike, 50 of 150
    (four standard deviations are 23).
    """
    relay = Relay(n_avg=0, exclude_self=exclude_self)
    data = [samples_with_labels([0, 1, 2] * 2, u) for u in (1, 2, 3)]
    server, s = server_of(relay, task(), data, STILL)
    rounds(relay, server, s, 50)
    own_sets = [sets_of(up)[0] for _, up in sorted(turns(wire, "show")[0].replies.items())]
    met: Counter[int] = Counter()
    alike = 0
    for turn in turns(wire, "local").values():
        sources = [
            next(v for v in range(3) if torch.equal(message.obs[0], own_sets[v]))
            for message in turn.messages.values()
        ]
        met.update((v - u) % 3 for u, v in enumerate(sources))
        alike += len(set(sources)) == 1
    if exclude_self:
        assert met[0] == 0
        assert abs(met[1] - 75) < 25
    else:
        assert all(abs(met[k] - 50) < 23 for k in range(3))
        assert 0 < alike < 20, "each draws for itself: all three the same in a ninth of the rounds"


@pytest.mark.parametrize("weights", ["samples", "uniform"])
def test_t5_global_means(weights: Literal["samples", "uniform"], wire: list[Turn]) -> None:
    """By n_{u,c}, as if all samples were pooled; or the plain mean of the parties that show the
    class.
    """
    relay = Relay(weights=weights)
    server, s = server_of(relay, task(), TRIO, Training(lr=0.1))
    rounds(relay, server, s, 1)
    means = [class_mean(start_of(task()), d) for d in TRIO]
    message = turns(wire, "local")[1].messages[0]
    if weights == "samples":
        z, y = (
            torch.cat([phi(start_of(task()), d.x) for d in TRIO[:2]]),
            torch.cat([d.y for d in TRIO[:2]]),
        )
        pooled: list[Tensor | None] = [pool(means, TRIO)[0], z[y == 1].mean(0), z[y == 2].mean(0)]
        assert_classes(message.means, message.known, pooled)
    else:
        both = [(not_none(means[0][c]) + not_none(means[1][c])) / 2 for c in (1, 2)]
        first = (not_none(means[0][0]) + not_none(means[1][0]) + not_none(means[2][0])) / 3
        assert_classes(message.means, message.known, [first, *both])
    counts = [up.counts.tolist() for _, up in sorted(turns(wire, "show")[0].replies.items())]
    assert counts == (
        [[3, 3, 3], [3, 4, 5], [4, 0, 0]]
        if weights == "samples"
        else [[1, 1, 1], [1, 1, 1], [1, 0, 0]]
    )


# --- T4: classes that are not there


@BOTH
def test_t4_masked_classes_have_no_effect(method: Any) -> None:
    """K7: whatever stands in a masked row, value and gradient are those of a sum without it."""
    known_mask, seen_mask = torch.tensor([True, False, True]), torch.tensor([[True, True, False]])
    data, theta, m = (
        samples(7, SHAPE, C),
        task().init(Key(1)),
        teacher(known_mask=known_mask, seen_mask=seen_mask),
    )
    algorithm = method(lambda_kd=2.0, lambda_disc=3.0)
    values, grads = [], []
    for fill in (0.0, 1e4, -77.0):
        filled = Teacher(
            torch.where(known_mask[:, None], m.means, fill),
            known_mask,
            torch.where(seen_mask[:, :, None], m.obs, fill),
            seen_mask,
            {},
        )
        free = {k: v.clone().requires_grad_() for k, v in theta.items()}
        values.append(loss_of(algorithm, task(), filled)(free, batch_of(data)))
        grads.append(
            dict(zip(free, torch.autograd.grad(values[-1], list(free.values())), strict=True))
        )
    expected = algorithm2(theta, data, received_of(m), 2 / D, 3 / C).item()
    assert all(v.item() == pytest.approx(expected, rel=1e-5) for v in values)
    assert_near(grads[1], grads[0], atol=1e-7)
    assert_near(grads[2], grads[0], atol=1e-7)


@BOTH
@pytest.mark.parametrize("how", [{}, {"disc": "external"}, {"negatives": "marginal"}])
def test_t4_nothing_known_is_the_cross_entropy_alone(method: Any, how: dict[str, Any]) -> None:
    nothing = torch.zeros(2, C, dtype=torch.bool)
    m = teacher(sets=2, known_mask=nothing[0], seen_mask=nothing)
    data, theta = samples(7, SHAPE, C), task().init(Key(1)) | {V: torch.eye(D)}
    loss = loss_of(method(lambda_kd=50.0, lambda_disc=50.0, **how), task(), m)(
        theta, batch_of(data)
    )
    assert loss.item() == pytest.approx(
        F.cross_entropy(tau(theta, phi(theta, data.x)), data.y).item(), abs=1e-6
    )


@pytest.mark.parametrize(
    "text", ["relay", "relay(disc=external)", "relay(m_down=2)", "relay(begin=random)", "relay-p2p"]
)
def test_t4_training_with_missing_classes_stays_finite(text: str) -> None:
    """K7: no party has class 3, one party has class 0 alone, another none of it."""
    x = noise(30, *SHAPE)
    labels = {"p0": [0] * 10, "p1": [1, 2] * 5, "p2": [0, 1, 2, 2, 2] * 2}
    parties = {
        n: ((rows[:8], y[:8]), (rows[8:], y[8:]))
        for rows, (n, y) in zip(x.split(10), labels.items(), strict=True)
    }
    fed = comity.Federation.from_arrays(parties, validation=0.0, classes=4)
    result = comity.run(text, fed, model=MODEL, rounds=3, engine="loop", batch=4)
    assert all(v.isfinite().all() for n in labels for v in result.model(n).theta.values())
    assert not result.summary["diverged"]


# --- T6: before round 1


def test_t6_begin_with_features_of_untrained_models(wire: list[Turn]) -> None:
    """One upload of every party before round 1, which round 1 uses."""
    relay = Relay(n_avg=0)
    server, s = server_of(relay, task(), TRIO, Training(lr=0.1))
    upload_bytes = C * (4 * 2 * D + 5)
    assert server.ledger.total == {"up": 3 * upload_bytes}
    assert relay.accounting.start_traffic(server.info).up == 3 * upload_bytes
    rounds(relay, server, s, 1)
    means = [class_mean(start_of(task()), d) for d in TRIO]
    assert_classes(
        turns(wire, "local")[1].messages[1].means, torch.tensor([True] * 3), pool(means, TRIO)
    )


@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_t6_begin_with_noise_that_is_gone_after_round_1(
    participation: float, wire: list[Turn]
) -> None:
    """Nothing crosses before round 1; round 1 pulls to N(0, 1); round 2 uses round 1's uploads and
    nothing else.
    """
    ten = task_of("mlp2(width=400)", SHAPE, 10)
    relay = Relay(begin="random", m_up=2, m_down=2, lambda_kd=0.01)
    data = [samples(40, SHAPE, 10, seed=u) for u in range(4)]
    server, s = server_of(relay, ten, data, Training(lr=0.01), participation=participation)
    assert not server.ledger.total
    assert relay.accounting.start_traffic(server.info).up == 0
    rounds(relay, server, s, 2)
    first, second = turns(wire, "local")[1], turns(wire, "local")[2]
    messages = list(first.messages.values())
    assert len(messages) == 4 * participation
    for message in messages:
        assert message.known.all()
        assert message.seen.all()
        assert torch.equal(message.means, messages[0].means)
        for values in (message.means, *message.obs):
            assert values.mean().item() == pytest.approx(0, abs=4 / 4000**0.5)
            assert values.var().item() == pytest.approx(1, abs=4 * (2 / 4000) ** 0.5)
        assert not torch.equal(message.obs[0], message.obs[1])
        assert not torch.equal(message.obs[0], message.means)
    total = sum(up.counts[:, None] for up in first.replies.values())
    expected = sum(up.counts[:, None] * up.means for up in first.replies.values()) / total
    for message in second.messages.values():
        torch.testing.assert_close(message.means, expected, rtol=0, atol=1e-5)
        assert all(
            any(torch.equal(observations, o) for up in first.replies.values() for o in up.obs)
            for observations in message.obs
        )


# --- averaging beside it


def test_aggregate_model_alone_is_fedavg() -> None:
    """Without the two losses the averaged models are FedAvg's bit for bit."""
    how = Training(lr=0.2, batch=4)
    relay, fedavg = Relay(lambda_kd=0.0, lambda_disc=0.0, aggregate="model"), FedAvg()
    server, s = server_of(relay, task(), TRIO, how)
    other, w = server_of(fedavg, task(), TRIO, how)
    for t in (1, 2, 3):
        s, w = rounds(relay, server, s, 1, first=t), rounds(fedavg, other, w, 1, first=t)
        assert same(s.shared, w)


def test_aggregate_predictor_by_hand() -> None:
    """Round 2 starts from the party's own body and 9/21 and 12/21 of the heads of round 1."""
    relay = Relay(lambda_kd=0.0, lambda_disc=0.0, aggregate="predictor")
    server, s = server_of(relay, task(), TRIO[:2], Training(lr=0.3, batch=100))
    s = rounds(relay, server, s, 1)
    nothing = Received([None] * C, [None] * C)
    first = [descend(start_of(task()), d, nothing, 0.3, 1, 0, 0) for d in TRIO[:2]]
    head = {k: (9 * first[0][k] + 12 * first[1][k]) / 21 for k in ("fc3.weight", "fc3.bias")}
    assert_near(s.shared, head)
    assert (first[0]["fc3.weight"] - head["fc3.weight"]).abs().max() > 1e-3
    rounds(relay, server, s, 1, first=2)
    for u in (0, 1):
        assert_near(server.state(u), descend(first[u] | head, TRIO[u], nothing, 0.3, 1, 0, 0))


HEAD, WHOLE = D * C + C, (6 * D + D) + (D * D + D) + (D * C + C)


@pytest.mark.parametrize(
    ("aggregate", "extra"), [("none", 0), ("predictor", 4 * HEAD), ("model", 4 * WHOLE)]
)
def test_aggregate_bytes_and_architectures(aggregate: str, extra: int) -> None:
    fed = federation((9, 14, 11))
    result = comity.run("relay", fed, model=MODEL, rounds=2, engine="loop", aggregate=aggregate)
    charged: Counter[tuple[int, str]] = Counter()
    for row in result.ledger:
        charged[row.round, row.kind] += row.bytes
    for t in (1, 2):
        assert charged[t, "up"] == 3 * (C * (8 * D + 5) + extra)
        assert charged[t, "down"] == 3 * (C * (8 * D + 2) + extra)
    mixed: dict[str, Any] = {"party": {"p1": {"model": "lenet5(width=5)"}}}
    mix = federation((9, 14), shape=(1, 8, 8))
    if aggregate == "none":
        comity.run("relay", mix, model=MODEL, rounds=1, engine="loop", **mixed)
    else:
        with pytest.raises(comity.UsageError, match="architecture"):
            comity.run(
                "relay", mix, model=MODEL, rounds=1, engine="loop", aggregate=aggregate, **mixed
            )


# --- parties that are not always there


SCHEDULE = {1: [0, 1], 2: [0, 2], 3: [0, 1], 4: [0, 3], 5: [0, 2], 6: [0, 1, 2, 3]}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("max_age", "age_decay"),
    [(0, 1.0), (0, 0.5), (2, 1.0), (2, 0.25), (1, 1.0), (3, 0.9), (4, 0.9)],
)
def test_offline_weights_by_age_and_forgotten_uploads(
    max_age: int, age_decay: float, wire: list[Turn]
) -> None:
    """A last upload of round r counts n_c decay^(t - r) in round t; one older than max_age is in no
    mean and no draw.

    p3 alone has class 2; it shows it before round 1, in round 4 and in round 6.
    """
    data = [
        samples_with_labels([0, 1] * 3, 1),
        samples_with_labels([0, 1, 1] * 3, 2),
        samples_with_labels([0, 0, 1] * 3, 3),
        samples_with_labels([0, 1, 2] * 2, 4),
    ]
    relay = Relay(n_avg=0, max_age=max_age, age_decay=age_decay, m_down=2)
    server, s = server_of(relay, task(), data, Training(lr=0.1))
    server.sample = lambda t: SCHEDULE[t]
    rounds(relay, server, s, 6)
    last = {u: (0, up) for u, up in turns(wire, "show")[0].replies.items()}
    forgotten = 0
    for t, turn in turns(wire, "local").items():
        assert sorted(turn.messages) == SCHEDULE[t]
        young = {v: (r, up) for v, (r, up) in last.items() if not max_age or t - r <= max_age}
        forgotten += len(last) - len(young)
        for u, message in turn.messages.items():
            bar: list[Tensor | None] = []
            for c in range(C):
                weighted_means = [
                    (int((data[v].y == c).sum()) * age_decay ** (t - r), up.means[c])
                    for v, (r, up) in young.items()
                ]
                total = sum(n for n, _ in weighted_means)
                bar.append(sum(n * m for n, m in weighted_means) / total if total else None)
            assert_classes(message.means, message.known, bar)
            sources = {
                v
                for observations in message.obs
                for v, (_, up) in young.items()
                if v != u and torch.equal(observations, up.obs[0])
            }
            offered = len(young) - (u in young)
            assert len(sources) == min(2, offered)
            assert bool(message.seen.any()) == bool(offered)
        last |= {u: (t, up) for u, up in turn.replies.items()}
    assert bool(forgotten) == (max_age in (1, 2, 3))


@pytest.mark.slow
def test_offline_a_mean_stays_a_mean_however_old(wire: list[Turn]) -> None:
    """Weights are relative: the only one who ever showed class 2 defines its mean, with weight 2 *
    0.1^14.
    """
    relay = Relay(n_avg=0, age_decay=0.1)
    server, s = server_of(
        relay,
        task(),
        [samples_with_labels([0, 1] * 3, 1), samples_with_labels([0, 1, 2] * 2, 4)],
        STILL,
    )
    server.sample = lambda t: [0]
    rounds(relay, server, s, 14)
    message, upload = turns(wire, "local")[14].messages[0], turns(wire, "show")[0].replies[1]
    assert message.known[2]
    torch.testing.assert_close(message.means[2], upload.means[2], rtol=1e-5, atol=0)


@pytest.mark.slow
def test_offline_any_two_parties_suffice(wire: list[Turn]) -> None:
    """Only p1 and p2 of four ever come: they learn from each other, and the others' models stay
    untouched.
    """
    relay = Relay(n_avg=0, begin="random")
    server, s = server_of(relay, task(), [*TRIO, TRIO[0]], Training(lr=0.1))
    server.sample = lambda t: [1, 2]
    before = start_of(task())
    rounds(relay, server, s, 3)
    assert not [turn for turn in wire if set(turn.messages) != {1, 2}]
    for t in (2, 3):
        turn, uploads = turns(wire, "local")[t], turns(wire, "local")[t - 1].replies
        assert torch.equal(turn.messages[1].obs[0], uploads[2].obs[0])
        assert torch.equal(turn.messages[2].obs[0], uploads[1].obs[0])
        zero = (3 * uploads[1].means[0] + 4 * uploads[2].means[0]) / 7
        assert_classes(
            turn.messages[1].means,
            turn.messages[1].known,
            [zero, uploads[1].means[1], uploads[1].means[2]],
        )
    assert same(server.state(0), before)
    assert same(server.state(3), before)
    assert all(v.isfinite().all() for u in (1, 2) for v in server.state(u).values())


@pytest.mark.slow
def test_offline_a_party_alone_goes_on_by_itself(wire: list[Turn]) -> None:
    """No observations of others: the contrast is empty, and the pull is to the party's own means."""
    relay = Relay(begin="random", lambda_kd=1.0)
    server, s = server_of(relay, task(), TRIO, Training(lr=0.1, batch=100))
    server.sample = lambda t: [0]
    s = rounds(relay, server, s, 1)
    before = {k: v.clone() for k, v in server.state(0).items()}
    rounds(relay, server, s, 1, first=2)
    message = turns(wire, "local")[2].messages[0]
    assert not message.seen.any()
    expected = descend(
        before, TRIO[0], Received(class_mean(before, TRIO[0]), [None] * C), 0.1, 1, 1 / D, 0.0
    )
    assert_near(server.state(0), expected)


@pytest.mark.slow
@pytest.mark.parametrize(
    "text", ["relay(max_age=1,age_decay=0.5)", "relay(begin=random)", "relay-p2p"]
)
def test_offline_half_of_the_parties_a_round(text: str) -> None:
    result = comity.run(
        text, federation((9, 14, 11, 7)), model=MODEL, rounds=4, engine="loop", participation=0.5
    )
    assert all(
        v.isfinite().all() for n in result.job.info.names for v in result.model(n).theta.values()
    )
    start, by_round = plan.traffic(result.job)
    charged: Counter[tuple[int, str]] = Counter()
    for row in result.ledger:
        charged[row.round, row.kind] += row.bytes
    for t, formula in enumerate([start, *by_round]):
        assert (charged[t, "up"], charged[t, "down"], charged[t, "peer"]) == (
            formula.up,
            formula.down,
            formula.peer,
        )


# --- what stays at the party


SPARSE = samples_with_labels([0] * 4 + [1] * 2 + [2])


@BOTH
@pytest.mark.parametrize(
    ("least", "shown_classes"), [(1, [0, 1, 2]), (2, [0, 1]), (3, [0]), (5, [])]
)
def test_privacy_a_mean_of_fewer_than_min_count_samples_is_not_sent(
    method: Any, least: int, shown_classes: list[int]
) -> None:
    """4, 2 and 1 samples: classes below the limit are masked and zero, among means and observations
    alike.
    """
    theta = task().init(Key(1))
    means, counts, obs, seen_mask = show(method(min_count=least, n_avg=0, m_up=2), theta, SPARSE)
    z = phi(theta, SPARSE.x)
    expected = [z[SPARSE.y == c].mean(0) if c in shown_classes else None for c in range(C)]
    for observation in obs:
        assert_classes(observation, seen_mask, expected)
    if method is Relay:
        assert_classes(means, counts > 0, expected)
        assert counts.tolist() == [n if c in shown_classes else 0 for c, n in enumerate((4, 2, 1))]


@pytest.mark.parametrize("text", ["relay", "relay-p2p"])
def test_privacy_smaller_observations_than_min_count_are_refused(text: str) -> None:
    fed = federation((6, 6))
    how: dict[str, Any] = {"model": MODEL, "rounds": 1, "engine": "loop"}
    for n_avg, least in ((1, 2), (3, 4)):
        with pytest.raises(comity.UsageError, match="n_avg must be at least min_count"):
            comity.run(text, fed, n_avg=n_avg, min_count=least, **how)
    for n_avg, least in ((1, 1), (0, 4), (2, 2)):
        comity.run(text, fed, n_avg=n_avg, min_count=least, **how)


@BOTH
def test_privacy_levels_by_perturbing_each_sample(method: Any) -> None:
    """12 samples, a quarter secret, a quarter guarded: 3 change nothing that is sent, 3 means only,
    6 both; in every round.
    """
    data, theta = samples_with_labels([0, 1, 2] * 4), task().init(Key(1))
    algorithm = method(guarded=0.25, secret=0.25, n_avg=0, min_count=1)
    levels = []
    for key in (Key(3), Key(4)):
        means, counts, obs, seen_mask = show(algorithm, theta, data, key)
        kinds = []
        for k in range(12):
            x, y = data.x.clone(), data.y.clone()
            x[k] += 3.0
            perturbed = show(algorithm, theta, Samples(x, y), key)
            y[k] = (y[k] + 1) % C
            relabelled = show(algorithm, theta, Samples(data.x, y), key)
            in_obs = not torch.equal(perturbed[2], obs)
            assert in_obs == (
                not torch.equal(relabelled[2], obs) or not torch.equal(relabelled[3], seen_mask)
            )
            in_means = means is not None and not torch.equal(perturbed[0], means)
            if means is not None:
                assert (
                    in_means
                    == (not torch.equal(relabelled[0], means))
                    == (not torch.equal(relabelled[1], counts))
                )
            kinds.append(0 if in_obs else 1 if in_means else 2)
            assert in_means or not in_obs or method is RelayP2p
        levels.append(kinds)
        assert Counter(kinds) == ({0: 6, 1: 3, 2: 3} if method is Relay else {0: 6, 2: 6})
        if method is Relay:
            assert counts.sum() == 9
    assert levels[0] == levels[1], "a secret of one round may not come out in the next"


def test_privacy_parties_have_different_secrets() -> None:
    """Which samples are secret does not follow from their place: three parties with equal data show
    different counts or means.
    """
    data, theta = samples_with_labels([0, 1, 2] * 20), task().init(Key(1))
    means = [show(Relay(secret=0.5), theta, data, i=i)[0] for i in range(3)]
    assert not any(torch.equal(a, b) for a, b in combinations(means, 2))


@BOTH
def test_privacy_min_count_counts_what_may_be_shown(method: Any) -> None:
    """Half of each class guarded: a class of 2 free samples at least is observed, whatever the
    others are.
    """
    data, theta = samples_with_labels([0] * 8 + [1] * 3 + [2] * 2), task().init(Key(1))
    algorithm = method(guarded=0.5, n_avg=0, min_count=1)
    _, _, free, _ = show(algorithm, theta, data)
    alone = []
    for c in range(C):  # a sample is free if it alone moves the observation
        count = 0
        for k in torch.where(data.y == c)[0].tolist():
            x = data.x.clone()
            x[k] += 3.0
            count += not torch.equal(show(algorithm, theta, Samples(x, data.y))[2], free)
        alone.append(count)
    assert sum(alone) == 13 - round(13 / 2)
    for least in (2, 3, 4):
        means, counts, _, seen_mask = show(
            method(guarded=0.5, n_avg=0, min_count=least), theta, data
        )
        for c, (free_, of) in enumerate(zip(alone, (8, 3, 2), strict=True)):
            assert seen_mask[c] == any(
                of - s == 0 or of - s >= least for s in range(least, free_ + 1)
            )
        if means is not None:
            assert counts.tolist() == [n if n >= least else 0 for n in (8, 3, 2)]


@pytest.mark.parametrize("text", ["relay(secret=1)", "relay(guarded=1)", "relay-p2p(secret=1)"])
def test_privacy_a_party_that_sends_nothing_still_learns(text: str) -> None:
    result = comity.run(text, federation((9, 9)), model=MODEL, rounds=2, engine="loop")
    assert all(v.isfinite().all() for n in ("p0", "p1") for v in result.model(n).theta.values())


def test_privacy_shares_above_one_are_refused() -> None:
    with pytest.raises(comity.UsageError):
        comity.run(
            "relay(secret=0.8,guarded=0.8)",
            federation((9, 9)),
            model=MODEL,
            rounds=1,
            engine="loop",
        )


# --- chosen peers


def test_peers_limit_means_and_observations(wire: list[Turn]) -> None:
    """p0 chose p1, p2 no party, p3 all that it names: means are of those and itself, observations
    of those only.
    """
    party = {"p0": {"peers": ["p1"]}, "p2": {"peers": []}, "p3": {"peers": ["p0", "p2", "p3"]}}
    fed = federation((9, 14, 11, 12))
    comity.run(
        "relay", fed, model=MODEL, rounds=6, engine="loop", party=party, n_avg=2, m_down=2, m_up=2
    )
    allowed = {0: {0, 1}, 1: {0, 1, 2, 3}, 2: {2}, 3: {0, 2, 3}}
    last = turns(wire, "show")[0].replies
    met: dict[int, set[int]] = {u: set() for u in range(4)}
    for turn in turns(wire, "local").values():
        for u, message in turn.messages.items():
            sources = sorted(allowed[u])
            total = sum(last[v].counts for v in sources)[:, None]
            mean = sum(last[v].counts[:, None] * last[v].means for v in sources) / total
            torch.testing.assert_close(message.means, mean, rtol=0, atol=1e-5)
            met[u] |= {
                v
                for v in range(4)
                for observations in message.obs
                for o in last[v].obs
                if torch.equal(observations, o)
            }
            assert bool(message.seen.any()) == (u != 2)
        last = turn.replies
    assert met == {0: {1}, 1: {0, 2, 3}, 2: set(), 3: {0, 2}}


def test_peers_are_charged_once_with_the_setup() -> None:
    """Four bytes for each that was named."""
    fed = federation((9, 14, 11))
    how: dict[str, Any] = {"model": MODEL, "rounds": 1, "engine": "loop"}
    rows = [
        {
            (r.src, r.dst): r.bytes
            for r in comity.run("relay", fed, party=party, **how).ledger
            if r.kind == "setup"
        }
        for party in ({}, {"p0": {"peers": ["p1"]}, "p2": {"peers": ["p0", "p1"]}})
    ]
    more = {edge: rows[1][edge] - rows[0][edge] for edge in rows[0]}
    assert rows[0].keys() == rows[1].keys()
    assert {edge: n for edge, n in more.items() if n} == {("p0", "server"): 4, ("p2", "server"): 8}


def test_peers_unknown_are_refused() -> None:
    with pytest.raises(comity.UsageError, match="north"):
        comity.run(
            "relay",
            federation((9, 9)),
            model=MODEL,
            rounds=1,
            engine="loop",
            party={"p0": {"peers": ["north"]}},
        )


def test_peers_unknown_to_a_newcomer_are_refused_too() -> None:
    settings: dict[str, Any] = {"model": MODEL, "rounds": 1, "engine": "loop", "newcomers": 1}
    with pytest.raises(comity.UsageError, match="north"):
        comity.run("relay", federation((9, 9, 9)), party={"p2": {"peers": ["north"]}}, **settings)


def test_peers_without_a_relay(wire: list[Turn]) -> None:
    """p0 listens to p1 only: of six edges the one from p2 to p0 is missing, in the messages and in
    the charges.
    """
    party, fed = {"p0": {"peers": ["p1"]}}, federation((9, 14, 11))
    result = comity.run(
        "relay-p2p", fed, model=MODEL, rounds=3, engine="loop", party=party, neighbours=2
    )
    for t in (1, 2, 3):
        assert set(turns(wire, "local")[t].sealed_messages) == {
            (0, 1),
            (0, 2),
            (1, 0),
            (1, 2),
            (2, 1),
        }
    charged: Counter[tuple[int, str]] = Counter()
    for row in result.ledger:
        charged[row.round, row.kind] += row.bytes
    for t, formula in enumerate(plan.traffic(result.job)[1], start=1):
        assert charged[t, "peer"] == formula.peer == 5 * C * (4 * D + 1)
        assert charged[t, "down"] == formula.down == 5 * 4


def test_all_parties_get_the_first_noise_whatever_their_peers(wire: list[Turn]) -> None:
    """With begin=random there is no party to choose from in round 1."""
    party, fed = {"p0": {"peers": ["p1"]}, "p2": {"peers": []}}, federation((9, 14, 11))
    comity.run("relay", fed, model=MODEL, rounds=1, engine="loop", party=party, begin="random")
    messages = turns(wire, "local")[1].messages
    assert all(message.known.all() and message.seen.all() for message in messages.values())
    assert all(torch.equal(message.means, messages[1].means) for message in messages.values())


# --- communication


def _info(learning_task: LearningTask, names: int = 1) -> Info:
    return Info(
        tuple(f"p{i}" for i in range(names)),
        (100,) * names,
        (learning_task,) * names,
        Training(),
        (1, 28, 28),
    )


def test_communication_of_lenet5() -> None:
    """K5: 4 (M + 1) C d' = 4 * 2 * 10 * 84 = 6,720 bytes each way, and 10 counts with 10 marks up,
    2 * 10 marks down.
    """
    lenet = task_of("lenet5", (1, 28, 28), 10)
    assert lenet.width == 84
    traffic = Relay().accounting.traffic(_info(lenet), [0])
    assert (traffic.up, traffic.down, traffic.peer) == (6720 + 50, 6720 + 20, 0)
    assert Relay().accounting.start_traffic(_info(lenet, 7)).up == 7 * (6720 + 50)
    model = FedAvg().accounting.traffic(_info(lenet), [0]).up
    assert model == 4 * 30_986
    assert model / 6720 == pytest.approx(18.4, abs=0.05)


def test_communication_of_resnet9_is_a_thousandth_of_fedavgs() -> None:
    """K5: 2,470,730 parameters against 2 * 10 * 128 numbers: 965; with counts, marks and BatchNorm
    statistics 961.6.
    """
    network = build("resnet9", (1, 28, 28), 10)
    thesis = LearningTask(network, 10, network.cut, batchnorm_private(network, "params_only"))
    up, model = (
        Relay().accounting.traffic(_info(thesis), [0]).up,
        FedAvg().accounting.traffic(_info(thesis), [0]).up,
    )
    assert model == 4 * 2_470_730
    assert up == 4 * 2 * 10 * 128 + 50
    assert round(model / (up - 50)) == 965
    whole = LearningTask(network, 10, network.cut)
    assert FedAvg().accounting.traffic(_info(whole), [0]).up / up == pytest.approx(961.6, abs=0.05)


@pytest.mark.parametrize(
    ("parties", "classes", "d", "m_up", "m_down", "participation"),
    [(2, 3, 5, 1, 1, 1.0), (3, 3, 8, 2, 3, 1.0), (4, 4, 7, 3, 1, 0.5), (4, 3, 6, 1, 5, 0.5)],
)
def test_communication_a_round(
    parties: int, classes: int, d: int, m_up: int, m_down: int, participation: float
) -> None:
    """K5: C (4 (M↑ + 1) d' + 5) from each party, C (4 (M↓ + 1) d' + M↓ + 1) to each, on the ledger
    of a real run.
    """
    fed = federation([12, 9, 14, 10][:parties], classes=classes)
    result = comity.run(
        "relay",
        fed,
        model=f"mlp2(width={d})",
        rounds=3,
        engine="loop",
        participation=participation,
        m_up=m_up,
        m_down=m_down,
    )
    up, down = classes * (4 * (m_up + 1) * d + 5), classes * (4 * (m_down + 1) * d + m_down + 1)
    rows = [row for row in result.ledger if row.kind not in ("setup", "eval")]
    before = [(row.src, row.kind, row.bytes) for row in rows if row.round == 0]
    assert before == [(name, "up", up) for name in fed.names]
    for t in (1, 2, 3):
        traffic = Counter((row.kind, row.bytes) for row in rows if row.round == t)
        assert traffic == {
            ("up", up): participation * parties,
            ("down", down): participation * parties,
        }


def test_communication_is_known_beforehand() -> None:
    """`comity plan relay`."""
    result = comity.run("relay", federation((9, 14)), model=MODEL, rounds=1, engine="loop")
    round_plan = plan.plan(result.job)
    assert round_plan.per_round.up == 2 * C * (8 * D + 5)


# --- K8: any architecture of one width


def test_k8_three_architectures_learn_together(wire: list[Turn]) -> None:
    """LeNet5, an MLP and a CNN, all 84 wide: each gets the others' representations, and is not what
    it is alone.
    """
    fed = federation((12, 12, 12), shape=(1, 16, 16))
    party = {"p1": {"model": "mlp2(width=84)"}, "p2": {"model": "cnn4(width=84)"}}
    settings: dict[str, Any] = {
        "model": "lenet5",
        "rounds": 2,
        "engine": "loop",
        "party": party,
        "lr": 0.02,
    }
    result = comity.run("relay", fed, n_avg=0, **settings)
    messages, uploads = turns(wire, "local")[2].messages, turns(wire, "local")[1].replies
    alone = comity.run("solo", fed, **settings)
    assert len({tuple(result.model(n).theta) for n in fed.names}) == 3
    for u, name in enumerate(fed.names):
        theta = result.model(name).theta
        assert all(v.isfinite().all() for v in theta.values())
        assert not any(torch.equal(v, alone.model(name).theta[k]) for k, v in theta.items())
        assert any(torch.equal(messages[u].obs[0], uploads[v].obs[0]) for v in uploads if v != u)
        torch.testing.assert_close(
            messages[u].means, sum(up.means for up in uploads.values()) / 3, rtol=0, atol=1e-5
        )
    p2p = comity.run("relay-p2p", fed, neighbours=2, **settings)
    assert all(v.isfinite().all() for n in fed.names for v in p2p.model(n).theta.values())


@pytest.mark.parametrize("text", ["relay", "relay-p2p"])
def test_k8_different_widths_are_refused(text: str) -> None:
    with pytest.raises(comity.UsageError, match="width"):
        comity.run(
            text,
            federation((9, 9)),
            model=MODEL,
            rounds=1,
            engine="loop",
            party={"p1": {"model": "mlp2(width=6)"}},
        )


def command(monkeypatch: pytest.MonkeyPatch, *args: object) -> int:
    """`comity ARGS` in this process."""
    monkeypatch.setattr(sys, "argv", ["comity", *map(str, args)])
    try:
        cli.main()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(bool(end.code))
    return 0


TOML = """
algorithm = "relay"
data = "digits"
parties = 3
partition = "iid"
model = "lenet5"
rounds = 2
steps = 2
engine = "loop"

[set]
m_down = 2

[party.p1]
model = "mlp2(width=84)"

[party.p2]
peers = ["p0"]
"""


def test_k8_from_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wire: list[Turn]
) -> None:
    """Digits of 8x8 with LeNet5 and an MLP; p2 listens to p0 only. The run's folder records it, and
    the run can be opened again.
    """
    monkeypatch.chdir(tmp_path)
    Path("x.toml").write_text(TOML, encoding="utf-8")
    assert command(monkeypatch, "run", "x.toml", "--out", "out") == 0
    assert read(Path("out/config.toml")).party["p2"].peers == ("p0",)
    message, last = turns(wire, "local")[2].messages[2], turns(wire, "local")[1].replies
    assert message.obs.shape == (2, 10, 84)
    assert all(torch.equal(observations, last[0].obs[0]) for observations in message.obs)
    total = (last[0].counts + last[2].counts).clamp(min=1)[:, None]
    mean = (
        last[0].counts[:, None] * last[0].means + last[2].counts[:, None] * last[2].means
    ) / total
    torch.testing.assert_close(message.means, mean, rtol=0, atol=1e-5)
    assert command(monkeypatch, "resume", "out") == 0
    Path("x.toml").write_text(TOML.replace('["p0"]', '["p7"]'), encoding="utf-8")
    assert command(monkeypatch, "run", "x.toml", "--out", "other") != 0


# --- relaxation to peer to peer


@pytest.mark.slow
@pytest.mark.parametrize("running", [0.0, 0.3, 1.0])
def test_p2p_mean_of_all_received_observations(running: float, wire: list[Turn]) -> None:
    """Three rounds in which all tell all: the mean of all observations so far, or (1 - r) t̄ + r t
    in the order of senders.

    Observations are class means of the senders' models at the round's beginning; p2 shows class 0
    only.
    """
    p2p = RelayP2p(neighbours=2, running=running, n_avg=0)
    server, s = server_of(p2p, task(), TRIO, Training(lr=0.1))
    received: list[list[list[Tensor]]] = [[[] for _ in range(C)] for _ in TRIO]
    for t in (1, 2, 3):
        means = [class_mean(server.state(u).theta, d) for u, d in enumerate(TRIO)]
        for u in range(3):
            for v in (v for v in range(3) if v != u):
                for c, mean in enumerate(means[v]):
                    received[u][c] += [] if mean is None else [mean]
        s = rounds(p2p, server, s, 1, first=t)
        for u in range(3):
            own = server.state(u)
            assert own.heard.tolist() == [len(of_class) for of_class in received[u]]
            for c, of_class in enumerate(received[u]):
                expected = torch.stack(of_class).mean(0)
                if running:
                    expected = of_class[0]
                    for observation in of_class[1:]:
                        expected = (1 - running) * expected + running * observation
                torch.testing.assert_close(own.mean[c], expected, rtol=0, atol=1e-5)
    assert [len(h) for h in received[0]] == [6, 3, 3]
    assert [len(h) for h in received[2]] == [6, 6, 6]


@pytest.mark.slow
@pytest.mark.parametrize("running", [0.0, 0.4])
def test_p2p_three_rounds_of_two_parties_by_hand(running: float) -> None:
    """Each sends to the other: Algorithm 2 with the newest observations, and the mean of all
    received ones instead of the global mean.
    """
    p2p = RelayP2p(lambda_kd=4.0, lambda_disc=2.0, n_avg=0, running=running)
    data = [TRIO[1], TRIO[2]]
    server, s = server_of(p2p, task(), data, Training(lr=0.05, batch=100, epochs=2))
    ours, times = [start_of(task()) for _ in data], [[0] * C, [0] * C]
    bars: list[list[Tensor | None]] = [[None] * C, [None] * C]
    for _ in (1, 2, 3):
        means = [class_mean(theta, d) for theta, d in zip(ours, data, strict=True)]
        for u in (0, 1):
            for c, t in enumerate(means[1 - u]):
                if t is not None:
                    times[u][c] += 1
                    rate = running if running and times[u][c] > 1 else 1 / times[u][c]
                    bars[u][c] = (
                        t if times[u][c] == 1 else (1 - rate) * not_none(bars[u][c]) + rate * t
                    )
        ours = [
            descend(ours[u], data[u], Received(bars[u], means[1 - u]), 0.05, 2, 4 / D, 2 / C)
            for u in (0, 1)
        ]
    rounds(p2p, server, s, 3)
    for u in (0, 1):
        assert_near(server.state(u).theta, ours[u])
        assert server.state(u).heard.tolist() == times[u]
    assert times == [[3, 0, 0], [3, 3, 3]]


@pytest.mark.slow
def test_p2p_a_party_without_new_observations_uses_earlier_ones(wire: list[Turn]) -> None:
    """No observation this round: no contrast, but the pull to earlier observations."""
    p2p = RelayP2p(lambda_kd=4.0, lambda_disc=2.0, n_avg=0)
    server, s = server_of(p2p, task(), TRIO[:2], Training(lr=0.05, batch=100))
    s = rounds(p2p, server, s, 1)
    before = server.state(0)
    server.sample = lambda t: [0]
    rounds(p2p, server, s, 1, first=2)
    assert not turns(wire, "local")[2].sealed_messages
    bar = list(before.mean)
    assert_near(
        server.state(0).theta,
        descend(before.theta, TRIO[0], Received(bar, [None] * C), 0.05, 1, 4 / D, 0.0),
    )
    assert torch.equal(server.state(0).mean, before.mean)
    assert torch.equal(server.state(0).heard, before.heard)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("parties", "neighbours", "m_up"), [(2, 1, 1), (5, 1, 1), (5, 2, 3), (3, 7, 2)]
)
def test_p2p_sealed_messages_to_m_neighbours_and_nothing_up(
    parties: int, neighbours: int, m_up: int, wire: list[Turn]
) -> None:
    """k min(m, k - 1) sealed messages of C (4 M↑ d' + 1) bytes a round. A party that is asked gets
    the askers' numbers, 4 bytes each; nothing goes up.
    """
    fed, m = federation([9, 14, 11, 7, 12][:parties]), min(neighbours, parties - 1)
    result = comity.run(
        "relay-p2p", fed, model=MODEL, rounds=8, engine="loop", neighbours=neighbours, m_up=m_up
    )
    assert {row.kind for row in result.ledger} == {"setup", "eval", "down", "peer"}
    assert {row.kind for row in result.ledger if row.round == 0} == {"setup", "eval"}
    graphs = set()
    for t in range(1, 9):
        rows = [row for row in result.ledger if row.round == t and row.kind == "peer"]
        edges = [(row.src, row.dst) for row in rows]
        assert {row.bytes for row in rows} == {C * (4 * m_up * D + 1)}
        assert len(edges) == len(set(edges)) == parties * m
        assert all(src != dst for src, dst in edges)
        assert Counter(dst for _, dst in edges) == dict.fromkeys(fed.names, m), (
            "each party gets as many messages as it asks for"
        )
        assert (
            sum(row.bytes for row in result.ledger if row.round == t and row.kind == "down")
            == 4 * parties * m
        )
        graphs.add(frozenset(edges))
        tell, local = turns(wire, "tell")[t], turns(wire, "local")[t]
        assert all(
            isinstance(sealed, Sealed)
            for reply in tell.replies.values()
            for sealed in reply.values()
        )
        assert all(reply is None for reply in local.replies.values())
        assert not [
            x
            for turn in (tell, local)
            for message in turn.messages.values()
            for x in tensors(message)
        ]
        assert all(message.obs.shape == (m_up, C, D) for message in local.sealed_messages.values())
    assert (len(graphs) > 1) == (m < parties - 1), "neighbours are drawn again each round"
    assert result.summary["bytes"]["peer"] == 8 * parties * m * C * (4 * m_up * D + 1)


@pytest.mark.slow
def test_p2p_only_parties_present_get_messages(wire: list[Turn]) -> None:
    """Half of four take part: one tells the other, and those away keep all they have."""
    p2p = RelayP2p(neighbours=3)
    server, s = server_of(p2p, task(), [*TRIO, TRIO[0]], Training(lr=0.1), participation=0.5)
    before = [server.state(u) for u in range(4)]
    rounds(p2p, server, s, 1)
    here = server.sample(1)
    assert set(turns(wire, "local")[1].sealed_messages) == {(here[0], here[1]), (here[1], here[0])}
    for u in range(4):
        assert (server.state(u) is before[u]) == (u not in here)


@pytest.mark.slow
def test_p2p_external_discriminators_do_not_travel(wire: list[Turn]) -> None:
    p2p = RelayP2p(disc="external", neighbours=2)
    server, s = server_of(p2p, task(), TRIO, Training(lr=0.1))
    first = server.state(0).theta[V].clone()
    rounds(p2p, server, s, 2)
    assert not torch.equal(server.state(0).theta[V], first)
    sent_tensors = [
        x for turn in wire for message in turn.sealed_messages.values() for x in tensors(message)
    ]
    states = [server.state(u).theta[V] for u in range(3)]
    assert sent_tensors
    assert not [
        1
        for x in sent_tensors
        for v in (first, *states)
        if x.shape == v.shape and torch.equal(x, v)
    ]


# --- other places, other times


VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("relay(m_up=2,m_down=3)", {"participation": 0.5}),
    ("relay(disc=external)", {"optimizer": "adam", "opt_state": "keep", "lr": 0.01}),
    (
        "relay(begin=random,max_age=2,age_decay=0.5,aggregate=predictor)",
        {"party": {"p0": {"peers": ["p1", "p3"]}}},
    ),
    ("relay-p2p(neighbours=2)", {}),
    ("relay-p2p(running=0.5,disc=external,m_up=2)", {"participation": 0.5}),
]


class Stop(Quiet):
    """Ends a run after a round."""

    def __init__(self, after: int = 0) -> None:
        self.after, self.first = after, -1

    def begin(self, job: Any, first_round: int) -> None:
        self.first = first_round

    def round(self, t: int, accuracy: float | None, ledger: Any) -> None:
        if t == self.after:
            raise KeyboardInterrupt


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(("text", "settings"), VARIANTS)
def test_engines_and_resumed_runs_give_the_same(
    text: str, settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Straight on one process, on two workers, and stopped after round 2 of 4 and resumed: equal
    tables, equal weights.

    Trained together, weights are equal up to rounding, and bytes exactly.
    """
    monkeypatch.setattr(checkpoint, "EVERY_SECONDS", 0.0)
    fed, how = (
        federation((9, 14, 11, 7)),
        {"model": MODEL, "rounds": 4, "batch": 4, "n_avg": 2, **settings},
    )
    straight = comity.run(text, fed, out=tmp_path / "straight", engine="loop", **how)
    workers = comity.run(text, fed, out=tmp_path / "workers", engine="process", workers=2, **how)
    with pytest.raises(KeyboardInterrupt):
        comity.run(text, fed, out=tmp_path / "stopped", engine="loop", progress=Stop(2), **how)
    again = Stop(-1)
    resumed_run = comity.run(
        text, fed, out=tmp_path / "stopped", engine="loop", progress=again, resume=True, **how
    )
    assert again.first == 2
    for other in (workers, resumed_run):
        for name in ("metrics.csv", "ledger.csv", "outcomes.csv"):
            assert (other.folder / name).read_bytes() == (straight.folder / name).read_bytes(), name
        assert all(same(other.model(n).theta, straight.model(n).theta) for n in fed.names)
    together = comity.run(text, fed, engine="stacked", **how)
    assert together.ledger == straight.ledger
    for name in fed.names:
        assert_near(together.model(name).theta, straight.model(name).theta)
