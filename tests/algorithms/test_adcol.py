"""ADCOL (Li, He, Song 2023): eq. 2, Algorithm 1, the bytes of section 4.4 and its worked example."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from fractions import Fraction
from typing import Literal

import pytest
import torch
import torch.nn.functional as F
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
from comity.algorithms.adcol import Adcol, AdcolState, Game, Judges
from comity.algorithms.fedavg import FedAvg
from comity.components.divergence import kl_from_uniform
from comity.core import Info, Key, LearningTask, Samples, Training, in_chunks
from comity.models.stack import Builder, flat, linear, relu

pytestmark = pytest.mark.quick

FULL = Training(lr=2.0, momentum=0.9, batch=10**6, epochs=150)


# --- the discriminator that theory expects


@pytest.mark.slow
@pytest.mark.parametrize("m", [1.0, 2.0])
def test_theorem_best_discriminator_of_two_gaussians_is_the_density_ratio(m: float) -> None:
    """D*_k = P_k / sum_j P_j; log P_1/P_2 of N(0,1) and N(m,1) is -m z + m^2/2, so that is a linear
    D's logit difference.
    """
    n = 50_000
    z = torch.cat([noise(n, 1, seed=1), m + noise(n, 1, seed=2)])
    task = Adcol(disc="linear").discriminator(1, 2)
    D = fit(
        task.loss, task.init(Key(0)), Samples(z, torch.arange(2).repeat_interleave(n)), Key(1), FULL
    ).theta
    slope = (D["out.weight"][0] - D["out.weight"][1]).item()
    intercept = (D["out.bias"][0] - D["out.bias"][1]).item()
    assert slope == pytest.approx(-m, rel=0.03)
    assert intercept == pytest.approx(m * m / 2, rel=0.03)
    grid = torch.linspace(-2, 4, 13)[:, None]
    first, second = torch.exp(-grid.square() / 2), torch.exp(-(grid - m).square() / 2)
    torch.testing.assert_close(
        task.logits(D, grid).softmax(1)[:, :1], first / (first + second), rtol=0, atol=0.01
    )


@pytest.mark.parametrize("disc", ["linear", "mlp"])
def test_equal_distributions_leave_the_discriminator_with_chance(
    disc: Literal["linear", "mlp"],
) -> None:
    """The same vectors from every party: the best answer is 1/N, so KL = 0 and the server's CE =
    log N.
    """
    N, z = 3, noise(200, 4)
    task = Adcol(disc=disc, hidden=8).discriminator(4, N)
    data = Samples(z.repeat(N, 1), torch.arange(N).repeat_interleave(len(z)))
    D = fit(
        task.loss, task.init(Key(0)), data, Key(1), Training(lr=0.5, batch=10**6, epochs=300)
    ).theta
    logits = task.logits(D, data.x)
    assert F.cross_entropy(logits, data.y).item() == pytest.approx(math.log(N), abs=2e-4)
    assert kl_from_uniform(logits).item() == pytest.approx(0, abs=2e-4)


@pytest.mark.parametrize("N", [2, 5, 100])
def test_zero_output_layer_gives_exactly_chance(N: int) -> None:
    task = Adcol(hidden=16).discriminator(8, N)
    D = task.init(Key(0))
    D = D | {k: torch.zeros_like(D[k]) for k in ("out.weight", "out.bias")}
    logits = task.logits(D, noise(50, 8))
    assert F.cross_entropy(logits, torch.arange(50) % N).item() == pytest.approx(
        math.log(N), abs=2e-6
    )
    assert kl_from_uniform(logits).item() == pytest.approx(0, abs=2e-6)


# --- eq. 2


def test_eq2_kl_from_uniform_to_the_discriminator() -> None:
    """p = (3/4, 1/4): KL(u || p) = -log 2 - (log 3/4 + log 1/4) / 2 = 0.14384; KL(p || u) would be
    0.13081.
    """
    value = kl_from_uniform(torch.tensor([[math.log(3), 0.0]])).item()
    assert value == pytest.approx(0.14384, abs=1e-5)
    assert abs(value - 0.13081) > 0.01


def test_eq2_kl_is_a_mean_over_the_batch() -> None:
    """One row at 0.14384 and one at 0: the KL term is neither summed over rows nor divided by N
    again.
    """
    assert kl_from_uniform(torch.tensor([[math.log(3), 0.0], [1.0, 1.0]])).item() == pytest.approx(
        0.07192, abs=1e-5
    )


def test_eq2_is_cross_entropy_plus_mu_kl() -> None:
    """With a discriminator that always answers (3/4, 1/4), eq. 2 is CE + 0.14384 mu."""
    task = task_of("mlp2(width=5)", (6,), 3)
    data = samples(8, (6,), 3)
    adcol = Adcol(mu=2.5, disc="linear")
    D = {"out.weight": torch.zeros(2, 5), "out.bias": torch.tensor([math.log(3), 0.0])}
    theta = task.init(Key(1))
    ce = F.cross_entropy(task.logits(theta, data.x), data.y).item()
    loss = adcol.eq2(task, theta, batch_of(data), Judges([D], None)).item()
    assert loss == pytest.approx(ce + 2.5 * 0.143841, abs=1e-5)


def _gradients(D_scale: float) -> dict[str, torch.Tensor]:
    """The gradient of the KL term alone, by name."""
    task = task_of("mlp2(width=5)", (6,), 3)
    data = samples(8, (6,), 3)
    D = Adcol(hidden=7).discriminator(5, 3).init(Key(2))
    D = D | {"out.weight": D_scale * D["out.weight"], "out.bias": D_scale * D["out.bias"]}
    theta = {k: v.requires_grad_() for k, v in task.init(Key(1)).items()}
    judges = Judges([D], None)
    with_term = Adcol(mu=1.0, hidden=7).eq2(task, theta, batch_of(data), judges)
    without = Adcol(mu=0.0, hidden=7).eq2(task, theta, batch_of(data), judges)
    grads = torch.autograd.grad(with_term - without, list(theta.values()))
    return dict(zip(theta, grads, strict=True))


def test_eq2_gradient_reaches_the_features_and_not_the_predictor() -> None:
    grads = _gradients(D_scale=1.0)
    for name in ("fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"):
        assert grads[name].abs().max() > 1e-6, name
    for name in ("fc3.weight", "fc3.bias"):  # CE cancels to rounding
        assert grads[name].abs().max() < 1e-7, name


def test_eq2_gradient_is_zero_when_the_discriminator_is_constant() -> None:
    assert all(g.abs().max() < 1e-7 for g in _gradients(D_scale=0.0).values())


def _hash(theta: dict[str, torch.Tensor]) -> str:
    return hashlib.sha256(
        b"".join(k.encode() + v.numpy().tobytes() for k, v in sorted(theta.items()))
    ).hexdigest()


def test_alg1_l11_local_training_leaves_the_discriminator_alone() -> None:
    task = task_of("mlp2(width=5)", (6,), 3)
    data = samples(20, (6,), 3)
    adcol = Adcol(mu=10.0, hidden=7)
    D = adcol.discriminator(5, 3).init(Key(2))
    before, F_0 = _hash(D), task.init(Key(1))
    party = party_of(task, data, Training(lr=0.1, epochs=3), parties=3)
    state, _ = run_call(adcol.local(AdcolState(F_0, []), Game(D, {}), party, Key(3)))
    assert _hash(D) == before
    assert not any(v.requires_grad for v in D.values())
    assert _hash(F_0) != _hash(state.F)


# --- Algorithm 1


def _fraction(r: float, n: int) -> int:
    """ceil(r n) in exact decimal arithmetic: r is the decimal number as written."""
    return math.ceil(Fraction(str(r)) * n)


@pytest.mark.parametrize(
    ("r", "n"), [(1.0, 13), (0.5, 13), (0.2, 15), (0.01, 13), (0.28, 25), (0.55, 100)]
)
def test_b11_representation_sampling_sends_exactly_ceil_rn_rows(r: float, n: int) -> None:
    task, data = task_of("mlp2(width=5)", (6,), 3), samples(n, (6,), 3)
    adcol = Adcol(sampling=r, hidden=7)
    D = adcol.discriminator(5, 3).init(Key(2))
    party = party_of(task, data, Training(lr=0.1), parties=3)
    state, reply = run_call(
        adcol.local(AdcolState(task.init(Key(1)), []), Game(D, {}), party, Key(3))
    )
    assert reply.z.shape == (_fraction(r, n), 5)
    z = in_chunks(
        lambda x: task.features(state.F, x), data.x
    )  # l.18: after training, in evaluation mode
    nearest = torch.cdist(reply.z, z, compute_mode="donot_use_mm_for_euclid_dist").min(1)
    assert nearest.values.max() < 1e-6
    assert len(set(nearest.indices.tolist())) == len(reply.z), "drawn without replacement"


def test_b11_representation_sampling_is_fresh_each_round() -> None:
    """20 of 40 rows: two draws agree with probability 1/C(40,20), some 10^-11."""
    task, data = task_of("mlp2(width=5)", (6,), 3), samples(40, (6,), 3)
    adcol = Adcol(sampling=0.5, hidden=7, mu=0.0)
    still = party_of(task, data, Training(lr=0.0), parties=3)
    message, state = (
        Game(adcol.discriminator(5, 3).init(Key(2)), {}),
        AdcolState(task.init(Key(1)), []),
    )
    root = Key.root(0)
    representations = [
        run_call(adcol.local(state, message, still, root.fold("party", 0, t, "local", 0)))[1].z
        for t in (1, 2)
    ]
    assert not torch.equal(*representations)


def test_alg1_l6_one_pass_of_sgd_on_the_discriminator() -> None:
    """Frozen parties, one batch of all representations: D moves by one step of -lr times the
    gradient of its CE.
    """
    task = task_of("mlp2(width=5)", (6,), 3)
    data = [samples(9, (6,), 3, seed=1), samples(4, (6,), 3, seed=2)]
    adcol = Adcol(disc="linear")
    server, s = server_of(adcol, task, data, Training(lr=1e-30, batch=100))
    server.info = Info(
        server.info.names,
        server.info.sizes,
        server.info.tasks,
        Training(lr=0.5, batch=100),
        server.info.shape,
    )
    D, after = s.D, rounds(adcol, server, s, 1).D
    theta = task.init(Key.root(0).fold("init"))
    z = torch.cat([task.features(theta, d.x) for d in data])
    label = torch.tensor([0] * 9 + [1] * 4)
    wrong = (z @ D["out.weight"].T + D["out.bias"]).softmax(1) - F.one_hot(
        label, 2
    )  # d CE / d logits
    torch.testing.assert_close(
        after["out.weight"], D["out.weight"] - 0.5 * wrong.T @ z / 13, rtol=0, atol=1e-6
    )
    torch.testing.assert_close(
        after["out.bias"], D["out.bias"] - 0.5 * wrong.mean(0), rtol=0, atol=1e-6
    )


def test_b5_party_sampling_keeps_all_outputs_and_the_absent_keep_their_models() -> None:
    task = task_of("mlp2(width=5)", (6,), 3)
    adcol = Adcol(hidden=7)
    server, s = server_of(
        adcol,
        task,
        [samples(8, (6,), 3, seed=i) for i in range(4)],
        Training(lr=0.1),
        participation=0.5,
    )
    before = [server.state(i).F for i in range(4)]
    D = rounds(adcol, server, s, 1).D
    took_part = server.sample(1)
    assert len(took_part) == 2
    assert D["out.weight"].shape == (4, 7)
    for i in range(4):
        assert (_hash(server.state(i).F) != _hash(before[i])) == (i in took_part)


# --- bytes


def _s_d(d: int, hidden: int, n: int) -> int:
    """A discriminator d - hidden - hidden - n with biases, 4 bytes a number."""
    return 4 * ((d + 1) * hidden + (hidden + 1) * hidden + (hidden + 1) * n)


def test_section5_discriminator_of_2048_512_512_5_weighs_5257236_bytes() -> None:
    assert Adcol().discriminator(2048, 5).bytes() == 5_257_236


def _info(task: LearningTask, names: int, size: int) -> Info:
    return Info(
        tuple(f"p{i}" for i in range(names)),
        (size,) * names,
        (task,) * names,
        Training(),
        (1, 28, 28),
    )


def test_section44_worked_example_fedavg_159_megabytes() -> None:
    """FedAvg's MLP of 199,210 parameters, 100 parties: 2 * 100 * 4 * 199,210 = 159.37 MB a round."""
    task = task_of("mlp2", (1, 28, 28), 10)
    assert task.bytes() == 4 * 199_210
    traffic = FedAvg().accounting.traffic(_info(task, 100, 600), list(range(100)))
    assert traffic.up + traffic.down == 159_368_000


@pytest.mark.parametrize(
    ("outputs", "s_d", "total"), [(5, 68_628, 37_582_800), (100, 117_648, 42_484_800)]
)
def test_section44_worked_example_adcol_37_and_42_megabytes(
    outputs: int, s_d: int, total: int
) -> None:
    """d = 128, a discriminator of two layers: the paper counted one with 5 outputs, though there
    are 100 parties.

    60,000 representations are 4 * 60,000 * 128 = 30.72 MB (our closed form); our D has three
    layers, so theirs is built here.
    """
    D = (
        Builder("two-layer", (128,))
        .stage("fc1", flat, linear(128), relu)
        .stage("out", linear(outputs))
        .build()
    )
    theirs = LearningTask(D, outputs, "fc1").bytes()
    assert theirs == s_d
    task = task_of("mlp2(width=128)", (1, 28, 28), 10)
    up = Adcol().accounting.traffic(_info(task, 100, 600), list(range(100))).up
    assert up == 30_720_000
    assert up + 100 * theirs == total


@pytest.mark.parametrize(
    ("sizes", "d", "hidden", "r", "participation", "cohort"),
    [
        ((7, 12), 4, 3, 1.0, 1.0, 2),
        ((9, 5, 14), 8, 512, 1.0, 1.0, 3),
        ((9, 5, 14, 6), 5, 6, 0.3, 1.0, 4),
        ((9, 5, 14, 6), 5, 6, 1.0, 0.5, 2),
        ((9, 5, 14, 6, 11), 16, 10, 0.25, 0.4, 2),
    ],
)
def test_section44_bytes_a_round(
    sizes: tuple[int, ...], d: int, hidden: int, r: float, participation: float, cohort: int
) -> None:
    """4 d sum ceil(r n_i) up and S_D to each down, on the ledger of a real run."""
    fed = federation(sizes)
    result = comity.run(
        "adcol",
        fed,
        model=f"mlp2(width={d})",
        rounds=3,
        engine="loop",
        participation=participation,
        hidden=hidden,
        sampling=r,
    )
    for t in (1, 2, 3):
        up: Counter[str] = Counter()
        down: Counter[str] = Counter()
        for row in result.ledger:
            if row.round == t and row.kind in ("up", "down"):
                (up if row.kind == "up" else down)[row.src if row.kind == "up" else row.dst] += (
                    row.bytes
                )
        assert len(down) == cohort
        assert down == dict.fromkeys(down, _s_d(d, hidden, len(sizes)))
        assert up == {name: 4 * d * _fraction(r, sizes[int(name[1:])]) for name in down}
    assert not [
        row
        for row in result.ledger
        if row.kind == "peer" or (row.round == 0 and row.kind in ("up", "down"))
    ]


@pytest.mark.parametrize("r", [0.0, -0.5, 1.5])
def test_b11_a_rate_outside_0_to_1_is_refused(r: float) -> None:
    """Without representations D has nothing to learn from, and more than all of them cannot be
    drawn without replacement.
    """
    with pytest.raises(comity.UsageError):
        comity.run(
            "adcol", federation((6, 7)), model="mlp2(width=4)", rounds=1, engine="loop", sampling=r
        )
