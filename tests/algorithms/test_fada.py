"""FADA: a target without labels, the losses of sources and target, and the weight of each source."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from toys import (
    assert_near,
    batch_of,
    distance,
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
from comity.algorithms.fada import NOBODY, SOURCE, TARGET, Fada, Judges, Lesson
from comity.components.clusters import left_in_clusters
from comity.components.discriminator import label_by_owner
from comity.core import Key, Params, Samples, Training, UsageError

pytestmark = pytest.mark.quick

SIZES = (12, 12, 14)
SETTINGS: dict[str, Any] = {
    "model": "mlp2(width=7)",
    "rounds": 3,
    "lr": 0.1,
    "batch": 4,
    "engine": "loop",
}


def thetas(text: str, fed: comity.Federation | None = None, **settings: Any) -> dict[str, Params]:
    result = comity.run(text, fed or federation(SIZES), **SETTINGS | settings)
    return {name: result.model(name).theta for name in result.job.info.names}


def relabelled_federation(whose: int) -> comity.Federation:
    """The same parties; one of them has other training labels."""
    parties = {}
    for i, size in enumerate(SIZES):
        data = samples(size + 6, (6,), 3, seed=i + 1)
        y = data.y.clone()
        if i == whose:
            y[:size] = (y[:size] + 1) % 3
        x = data.x + 0.3 * i
        parties[f"p{i}"] = ((x[:size], y[:size]), (x[size:], y[size:]))
    return comity.Federation.from_arrays(parties, validation=0.0, classes=3)


@pytest.mark.parametrize("options", ["", "(target=p0)", "(mu=1)"])
def test_the_targets_training_labels_change_nothing(options: str) -> None:
    target = 0 if "p0" in options else 2
    usual, other = thetas(f"fada{options}"), thetas(f"fada{options}", relabelled_federation(target))
    assert all(same(usual[name], other[name]) for name in usual)
    changed = thetas(f"fada{options}", relabelled_federation(1))  # a source's labels do
    assert all(not same(usual[name], changed[name]) for name in usual)


def test_each_in_turn_is_as_many_runs() -> None:
    """Bit for bit for every target, whose labels are never used."""
    all_targets = thetas(
        "fada(target=each)",
        bn="none",
        model="fedbn-cnn(scale=0.03)",
        fed=federation(SIZES, shape=(1, 8, 8)),
    )
    for name, theta in all_targets.items():
        fed = federation(SIZES, shape=(1, 8, 8))
        single_target = thetas(
            f"fada(target={name})", bn="none", model="fedbn-cnn(scale=0.03)", fed=fed
        )
        assert same(theta, single_target[name])
    assert same(
        thetas("fada(target=each)")["p1"],
        thetas("fada(target=each)", relabelled_federation(1))["p1"],
    )


def test_without_its_extras_it_is_fedavg_of_the_sources() -> None:
    """μ = 0 and equal weights; the sources have equally many samples. Up to rounding, as FedAvg
    divides by 24, and this by 2.
    """
    ours = thetas("fada(mu=0,attention=uniform)")
    theirs = thetas("fedavg", federation(SIZES[:2]))
    assert_near(ours["p2"], theirs["p0"], atol=1e-6)


def test_the_losses_of_source_and_target() -> None:
    task, data, fada = (
        task_of("mlp2(width=7)", (6,), 3),
        samples(5, (6,), 3),
        Fada(mu=0.3, hidden=4),
    )
    theta, batch = task.init(Key(1)), batch_of(data)
    disc = fada.identifier(task.width)
    first, second = disc.init(Key(2)), disc.init(Key(3))
    z = task.features(theta, data.x)
    ce = F.cross_entropy(task.head(theta, z), data.y)

    def identifier_loss(D: Params, who: int) -> torch.Tensor:
        return F.cross_entropy(disc.logits(D, z), torch.full((5,), who))

    source = fada.source_loss(task, theta, batch, Judges([first], torch.tensor(TARGET)))
    target = fada.target_loss(task, theta, batch, Judges([first, second], torch.tensor(SOURCE)))
    assert source.item() == pytest.approx(
        (ce + 0.3 * identifier_loss(first, TARGET)).item(), abs=1e-6
    )
    assert target.item() == pytest.approx(
        (0.3 * (identifier_loss(first, SOURCE) + identifier_loss(second, SOURCE)) / 2).item(),
        abs=1e-6,
    )


def test_clusters_by_hand() -> None:
    """0, 1, 10, 11 in two clusters: 4 · 0.25 within them, 101 in all. Size does not matter; too few
    points say nothing.
    """
    z = torch.tensor([[0.0], [1.0], [10.0], [11.0]])
    assert left_in_clusters(z, 2, Key(0)) == pytest.approx(1 / 101)
    assert left_in_clusters(100 * z, 2, Key(0)) == pytest.approx(1 / 101)
    assert left_in_clusters(z, 4, Key(0)) == left_in_clusters(torch.ones(9, 2), 2, Key(0)) == 1.0


def test_sources_count_by_the_targets_clusters() -> None:
    """Nobody trains (μ = 0): α_i ∝ W_1/W_k of the target's features by each source's model, and the
    model is their mean by α.
    """
    task, fada = task_of("mlp2(width=7)", (6,), 3), Fada(mu=0)
    data = samples(20, (6,), 3)
    models = {4: task.init(Key(1)), 7: task.init(Key(2))}
    lessons = {i: Lesson(theta, {}) for i, theta in models.items()}
    key = Key(5)
    _, reply = run_call(
        fada.adapt({NOBODY: {}}, lessons, party_of(task, data, Training(), i=9), key)
    )
    fit = {
        i: 1 / left_in_clusters(task.features(theta, data.x), 3, key.fold("clusters"))
        for i, theta in models.items()
    }
    share = fit[4] / (fit[4] + fit[7])
    assert reply.attention == pytest.approx({4: share, 7: 1 - share})
    assert share != pytest.approx(0.5, abs=1e-3)
    assert_near(
        reply.theta, {k: share * models[4][k] + (1 - share) * models[7][k] for k in models[4]}
    )


def test_the_target_moves_its_extractor_only() -> None:
    task, fada = task_of("mlp2(width=7)", (6,), 3), Fada(mu=1.0, attention="uniform", hidden=4)
    theta = task.init(Key(1))
    lessons = {0: Lesson(theta, fada.identifier(task.width).init(Key(2)))}
    party = party_of(task, samples(20, (6,), 3), Training(lr=0.1, batch=5), i=1)
    _, reply = run_call(fada.adapt({NOBODY: {}}, lessons, party, Key(0)))
    assert all(torch.equal(reply.theta[k], v) == (k in task.head_names) for k, v in theta.items())


def test_an_identifiers_loss_counts_both_sides_alike() -> None:
    """min CE(DI(G_i(x)), source) + CE(DI(G_t(x)), target), each a mean of its own: of 3 rows and of
    9, a step of 0.1.
    """
    fada, task = Fada(hidden=4), task_of("mlp2(width=7)", (6,), 3)
    server, s = server_of(fada, task, [samples(9, (6,), 3)] * 2, Training(lr=0.1, batch=12))
    z_i, z_t = noise(3, 7), noise(9, 7, seed=1) + 1
    disc, free = fada.identifier(7), {k: v.clone().requires_grad_() for k, v in s.DI[1][0].items()}
    of_source = F.cross_entropy(disc.logits(free, z_i), torch.full((3,), SOURCE))
    of_target = F.cross_entropy(disc.logits(free, z_t), torch.full((9,), TARGET))
    slopes = torch.autograd.grad(of_source + of_target, list(free.values()))
    expected = {k: (v - 0.1 * g).detach() for (k, v), g in zip(free.items(), slopes, strict=True)}
    assert_near(fada.train_identifier(s.DI[1][0], z_i, z_t, server, (1, 0)), expected, atol=1e-6)


def test_identifiers_learn_to_tell_source_from_target() -> None:
    fada, task = (
        Fada(hidden=16, disc_steps="epochs", disc_epochs=20),
        task_of("mlp2(width=7)", (6,), 3),
    )
    server, s = server_of(fada, task, [samples(9, (6,), 3)] * 2, Training(lr=0.1, batch=4))
    z_i, z_t = noise(30, 7), noise(30, 7, seed=1) + 2
    D = fada.train_identifier(s.DI[1][0], z_i, z_t, server, (1, 0))
    data = label_by_owner({SOURCE: z_i, TARGET: z_t})
    assert (fada.identifier(7).logits(D, data.x).argmax(1) == data.y).float().mean() > 0.95


def test_confusing_brings_features_nearer() -> None:
    """Two parties, the target's inputs moved: with a strong adversary its features end nearer to
    the source's.
    """
    source = samples(60, (6,), 3)
    target = Samples(samples(60, (6,), 3, seed=4).x + 2.0, source.y)
    task, apart = task_of("mlp2(width=7)", (6,), 3), {}
    for mu in (0.0, 1.0):
        fada = Fada(mu=mu, hidden=16, disc_steps="epochs", disc_epochs=5)
        server, s = server_of(fada, task, [source, target], Training(lr=0.05, batch=10))
        s = rounds(fada, server, s, 8)
        means = [task.features(s.models[1], data.x).mean(0) for data in (source, target)]
        apart[mu] = (means[0] - means[1]).norm().item()
    assert apart[1.0] < 0.8 * apart[0.0]


@pytest.mark.parametrize(
    "option",
    [
        "mu=1",
        "attention=uniform",
        "disc=linear",
        "hidden=9",
        "disc_steps=5",
        "confuse=both",
        "target=p0",
    ],
)
def test_no_option_is_without_effect(option: str) -> None:
    assert distance(thetas("fada")["p2"], thetas(f"fada({option})")["p2"]) > 0


def test_unsupported_settings_are_refused() -> None:
    with pytest.raises(UsageError, match="no party 'p9'"):
        thetas("fada(target=p9)")
    with pytest.raises(UsageError, match="at least two parties"):
        thetas("fada", federation((9,)))
    with pytest.raises(UsageError, match="--opt-state reset"):
        thetas(
            "fada(target=each)", participation=0.7, opt_state="keep", optimizer="sgd(momentum=0.9)"
        )


def test_eq6_a_source_stays_recognisable_and_the_target_does_not() -> None:
    """Eq. 6: both sides are trained to be classified as the source; confuse=both trains each to be
    classified as the other.
    """
    task = task_of("mlp2(width=7)", (6,), 3)
    source = samples(60, (6,), 3)
    target = Samples(samples(60, (6,), 3, seed=4).x + 2.0, source.y)
    shares = {}
    for confuse in ("target", "both"):
        fada = Fada(mu=10.0, hidden=16, confuse=confuse)
        server, s = server_of(fada, task, [source, target], Training(lr=0.05, batch=10, epochs=5))
        reply = server.call(fada.local, {0: {1: Lesson(s.models[1], s.DI[1][0])}})[0][1]
        logits = fada.identifier(7).logits(s.DI[1][0], reply.z)
        shares[confuse] = logits.softmax(1)[:, SOURCE].mean().item()
    assert shares["target"] > shares["both"] + 0.05
