"""ADCOL's variants (Li, He, Song 2023): appendix B, section 5.1's projection head, future work.
Each option changes what it says.

Expected weights come from loops written out here: torch.optim, networks as matrix products, KL from
its definition. Only the order of the batches and the party's keys are the library's.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from typing import Any, Literal

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from toys import (
    LoopServer,
    assert_near,
    batch_of,
    distance,
    federation,
    fit,
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
from comity.algorithms.adcol import Adcol, AdcolState, Game, Judges
from comity.base.call import PartyResult
from comity.base.key import BatchKey
from comity.components.divergence import kl_from_uniform
from comity.components.views import augment_view, ntxent, second_view, simsiam
from comity.core import (
    Batch,
    Key,
    LearningTask,
    Params,
    Samples,
    Training,
    batches,
    payload,
)
from comity.models import build
from comity.training import descent

SHAPE, CLASSES, WIDTH, HIDDEN = (6,), 3, 5, 7
IMAGE, BATCHNORM = (1, 8, 8), "fedbn-cnn(scale=0.03)"
HOW = Training(lr=0.2, batch=4, epochs=2)
SIZES = (11, 7, 9, 6)
ROOT = Key.root(0)

# --- ADCOL written out


def encoder_features(theta: Params, x: Tensor) -> Tensor:
    """G of mlp2."""
    x = F.relu(x @ theta["fc1.weight"].T + theta["fc1.bias"])
    return F.relu(x @ theta["fc2.weight"].T + theta["fc2.bias"])


def predictor_logits(theta: Params, z: Tensor) -> Tensor:
    """The predictor of mlp2."""
    return z @ theta["fc3.weight"].T + theta["fc3.bias"]


def disc_logits(D: Params, z: Tensor) -> Tensor:
    """The logits of a discriminator of fully connected layers."""
    k = 1
    while f"fc{k}.weight" in D:
        z, k = F.relu(z @ D[f"fc{k}.weight"].T + D[f"fc{k}.bias"]), k + 1
    return z @ D["out.weight"].T + D["out.bias"]


def divergence(logits: Tensor) -> Tensor:
    """sum_j u_j (log u_j - log p_j), batch mean."""
    u, p = 1 / logits.shape[1], logits.softmax(1)
    return (u * (math.log(u) - p.log())).sum(1).mean()


def eq2(Ds: list[Params], mu: float) -> Callable[[Params, Batch], Tensor]:
    """CE + mu times the mean over discriminators of the KL divergence."""

    def loss(theta: Params, batch: Batch) -> Tensor:
        z = encoder_features(theta, batch.x)
        ce = F.cross_entropy(predictor_logits(theta, z), batch.y)
        return ce + mu * sum(divergence(disc_logits(D, z)) for D in Ds) / len(Ds) if Ds else ce

    return loss


def torch_sgd(
    loss: Callable[[Params, Batch], Tensor],
    theta: Params,
    data: Samples,
    key: Key,
    how: Training = HOW,
    only: Any = None,
) -> Params:
    """torch.optim.SGD over the batches that this key gives."""
    theta = {k: v.clone() for k, v in theta.items()}
    free = [
        v.requires_grad_() for k, v in theta.items() if "~" not in k and (only is None or k in only)
    ]
    optimizer = torch.optim.SGD(free, lr=how.lr, momentum=how.momentum)
    for batch in batches(data, key, how):
        optimizer.zero_grad()
        loss(theta, batch).backward()
        optimizer.step()
    return {k: v.detach() for k, v in theta.items()}


def party_key(i: int, t: int, function: str = "local") -> Key:
    return ROOT.fold("party", i, t, function, 0)


def server_key(t: int, purpose: str) -> Key:
    return ROOT.fold("server", t, purpose)


def game(
    adcol: Adcol,
    participation: float = 1.0,
    sizes: tuple[int, ...] = SIZES,
    server_training: Training | None = None,
) -> tuple[list[Samples], LoopServer, Game]:
    """Parties with shifted inputs, and the server before round 1."""
    data = [samples(n, SHAPE, CLASSES, seed=i + 1) for i, n in enumerate(sizes)]
    data = [Samples(d.x + 0.5 * i, d.y) for i, d in enumerate(data)]
    server, s = server_of(
        adcol, task_of(f"mlp2(width={WIDTH})", SHAPE, CLASSES), data, HOW, participation
    )
    if (
        server_training is not None
    ):  # D's own learning rate: discriminators of successive rounds differ well
        server.info = replace(server.info, training=server_training)
    return data, server, s


def weights_of(server: LoopServer) -> dict[int, Params]:
    return {i: server.state(i).F for i in server.info.parties}


@cache
def run_method(text: str, model: str = f"mlp2(width={WIDTH})", **settings: Any) -> comity.Result:
    shape = IMAGE if model.startswith("fedbn") else SHAPE
    usual: dict[str, Any] = {"rounds": 3, "batch": 4, "lr": 0.1, "engine": "loop"}
    return comity.run(text, federation(SIZES, shape=shape), model=model, **(usual | settings))


def traffic(result: comity.Result) -> dict[int, Counter[str]]:
    """Bytes of each round by party function and kind, without evaluations and party infos."""
    by_round: dict[int, Counter[str]] = {}
    for row in result.ledger:
        if row.kind in ("up", "down", "peer"):
            by_round.setdefault(row.round, Counter())[f"{row.call} {row.kind}"] += row.bytes
    return by_round


def s_d(d: int, layers: tuple[int, ...]) -> int:
    """A discriminator of fully connected layers with biases, 4 bytes a number."""
    return 4 * sum((a + 1) * b for a, b in zip((d, *layers), layers, strict=False))


# --- eq. 2 with mu = 0


@pytest.mark.sweep(
    "1.0-disc=conv", "0.5-sampling=0.4,past=2", "1.0-disc=linear", "0.5-disc_steps=3"
)
@pytest.mark.parametrize(
    "options",
    ["", "past=3", "sampling=0.4", "disc=linear", "disc=deep", "disc=conv", "disc_steps=0", "disc_steps=3", "disc_steps=epochs",
     "rep_mode=last_epoch", "sampling=0.4,past=2,rep_mode=last_epoch,disc=conv"],
)  # fmt: skip
@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_eq2_with_mu_0_is_solo_bit_for_bit(options: str, participation: float) -> None:
    """D is still trained and sent, and past discriminators are kept: none of it changes a party's
    own training.
    """
    model = BATCHNORM
    ours = run_method(
        f"adcol(mu=0,hidden=8{',' if options else ''}{options})", model, participation=participation
    )
    theirs = run_method("solo", model, participation=participation)
    for name in theirs.job.info.names:
        assert same(ours.model(name).theta, theirs.model(name).theta), name
    figures = [
        [r for r in run.metrics if r.metric in ("accuracy", "loss") and r.party != "server"]
        for run in (ours, theirs)
    ]
    assert len(figures[1]) == 4 * len(SIZES) * 2
    assert figures[0] == figures[1]


# --- B.6: past discriminators


def _play_rounds(
    participation: float, count: int = 9
) -> list[tuple[int, int, Params, Params, list[Params], list[Params]]]:
    """past=3: (round, party, weights before, weights after, discriminators the party got so far,
    all the server sent).
    """
    adcol = Adcol(past=3, mu=3.0, hidden=HIDDEN)
    _, server, s = game(adcol, participation, server_training=Training(lr=0.5, batch=4, epochs=1))
    rows, all_sent = [], []
    received: dict[int, list[Params]] = {i: [] for i in server.info.parties}
    for t in range(1, count + 1):
        before, cohort = weights_of(server), server.sample(t)
        all_sent.append(s.D)
        for i in cohort:
            received[i].append(s.D)
        s = rounds(adcol, server, s, 1, first=t)
        rows += [
            (t, i, before[i], server.state(i).F, list(received[i]), list(all_sent)) for i in cohort
        ]
    return rows


def _data(i: int) -> Samples:
    data = samples(SIZES[i], SHAPE, CLASSES, seed=i + 1)
    return Samples(data.x + 0.5 * i, data.y)


@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_b6_eq18_penalty_is_the_mean_over_the_latest_discriminators(participation: float) -> None:
    """N_d = 3: CE + mu / 3 (KL_1 + KL_2 + KL_3) over the three that the party received last,
    whatever rounds it missed.
    """
    checked, told_apart, missed = 0, 0.0, 0.0
    for t, i, before, after, received, all_sent in _play_rounds(participation):
        if len(received) < 4:
            continue  # early rounds: below
        latest = received[:-4:-1]
        expected = torch_sgd(eq2(latest, 3.0), before, _data(i), party_key(i, t))
        assert_near(after, expected)
        checked += 1
        told_apart = max(
            told_apart,
            distance(expected, torch_sgd(eq2(latest[:1], 3.0), before, _data(i), party_key(i, t))),
        )
        if [id(D) for D in latest] != [id(D) for D in all_sent[:-4:-1]]:
            missed = max(
                missed,
                distance(
                    expected,
                    torch_sgd(eq2(all_sent[:-4:-1], 3.0), before, _data(i), party_key(i, t)),
                ),
            )
    assert checked >= 4
    assert told_apart > 1e-3, "the newest alone would give other weights"
    assert (missed > 1e-3) == (participation < 1), "so would those that the party never got"


@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_b6_the_first_trained_discriminator_received_stands_for_those_before_it(
    participation: float,
) -> None:
    for t, i, before, after, received, all_sent in _play_rounds(participation, 4):
        trained_discs = [D for D in received if D is not all_sent[0]] or received
        latest = [*trained_discs[::-1], trained_discs[0], trained_discs[0]][:3]
        assert_near(after, torch_sgd(eq2(latest, 3.0), before, _data(i), party_key(i, t)))


def test_b6_eq18_early_rounds_repeat_the_discriminator_trained_in_round_1() -> None:
    """D^i is the discriminator trained in round max(1, t - i), so from round 2 on the random one
    plays no part.
    """
    for t, i, before, after, _, all_sent in _play_rounds(1.0, 4):
        if t > 1:  # all_sent[r] was trained in round r, all_sent[0] never
            latest = [all_sent[max(1, t - k)] for k in (1, 2, 3)]
            assert_near(after, torch_sgd(eq2(latest, 3.0), before, _data(i), party_key(i, t)))


def test_b6_one_discriminator_is_the_standard_path_bit_for_bit() -> None:
    """past=1 is fit on CE + mu KL as eq. 2 has it, and nothing is kept."""
    adcol, task = (
        Adcol(past=1, mu=2.0, hidden=HIDDEN),
        task_of(f"mlp2(width={WIDTH})", SHAPE, CLASSES),
    )
    disc, data = adcol.discriminator(WIDTH, 4), samples(13, SHAPE, CLASSES)
    D, F_0 = disc.init(Key(2)), task.init(Key(1))

    def loss(theta: Params, batch: Batch) -> Tensor:
        z = task.features(theta, batch.x, train=True)
        return F.cross_entropy(task.head(theta, z, train=True), batch.y) + 2.0 * kl_from_uniform(
            disc.logits(D, z)
        )

    state, _ = run_call(
        adcol.local(AdcolState(F_0, []), Game(D, {}), party_of(task, data, HOW, parties=4), Key(3))
    )
    assert same(state.F, fit(loss, F_0, data, Key(3), HOW).theta)
    assert state.past == []


def test_b6_parties_keep_n_d_minus_1_discriminators_the_newest_first() -> None:
    adcol = Adcol(past=3, hidden=HIDDEN)
    _, server, s = game(adcol)
    sent_discs = []
    for t in (1, 2, 3, 4):
        sent_discs.append(s.D)
        s = rounds(adcol, server, s, 1, first=t)
    for i in server.info.parties:
        past = server.state(i).past
        assert len(past) == 2
        assert same(past[0], sent_discs[3])
        assert same(past[1], sent_discs[2])


@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_b6_only_the_newest_discriminator_is_sent(participation: float) -> None:
    single, three = (
        run_method(f"adcol(past={n},hidden=7)", participation=participation) for n in (1, 3)
    )
    rows = [[r for r in run.ledger if r.kind != "eval"] for run in (single, three)]
    assert rows[0] == rows[1]
    assert not same(single.model("p0").theta, three.model("p0").theta), "the option was on"


# --- B.14: a fixed number of parties


def test_b14_a_round_by_hand(replies: list[dict[int, Any]]) -> None:
    """CE alone; representations; the server fits an m-way D; the same parties train again with
    KL(1/m || D).
    """
    mu, server_training = 3.0, Training(lr=0.5, batch=4, epochs=1)
    adcol = Adcol(slots="cohort", mu=mu, hidden=HIDDEN, disc_steps="epochs")
    data, server, s = game(adcol, 0.5, (11, 7, 9, 6, 8, 10), server_training)
    penalties = []
    for t in (1, 2, 3):
        before, trunk, cohort = weights_of(server), s.D, server.sample(t)
        assert len(cohort) == 3
        s = rounds(adcol, server, s, 1, first=t)
        first = {
            i: torch_sgd(eq2([], mu), before[i], data[i], party_key(i, t)) for i in cohort
        }  # i: CE only
        local, align = replies[-2:]
        assert list(local) == list(align) == cohort
        for i in cohort:  # ii: after the first phase
            torch.testing.assert_close(
                local[i].z, encoder_features(first[i], data[i].x), rtol=0, atol=1e-5
            )
            assert payload(align[i]) == 0, "the second phase sends nothing"
        z = torch.cat([local[i].z for i in cohort])
        label = torch.cat(
            [torch.full((len(data[i]),), j) for j, i in enumerate(cohort)]
        )  # slot j is the j-th party drawn
        fresh = adcol.discriminator(WIDTH, 3).init(server_key(t, "slots"))
        D = {k: fresh[k] if k.startswith("out.") else v for k, v in trunk.items()}
        assert D["out.weight"].shape == (3, HIDDEN)
        D = torch_sgd(  # iii
            lambda D, b: F.cross_entropy(disc_logits(D, b.x), b.y),
            D,
            Samples(z, label),
            server_key(t, "discriminator"),
            server_training,
        )
        assert_near(s.D, D)
        for i in before:
            if i not in cohort:
                assert same(server.state(i).F, before[i]), "unselected parties are left alone"
                continue
            second = torch_sgd(
                eq2([s.D], mu), first[i], data[i], party_key(i, t, "align")
            )  # iv and v
            assert_near(server.state(i).F, second)
            penalties.append(
                distance(
                    second, torch_sgd(eq2([], mu), first[i], data[i], party_key(i, t, "align"))
                )
            )
    assert max(penalties) > 1e-3, "the second phase has a penalty"


def test_b14_two_local_phases_in_the_ledger() -> None:
    """Exactly m = 2 of 4 send representations, then exactly they get D, with 2 outputs: 4 d sum n_i
    + m S_D.
    """
    result = run_method("adcol(slots=cohort,hidden=7)", participation=0.5, rounds=4)
    cohorts = set()
    for t in (1, 2, 3, 4):
        rows = [r for r in result.ledger if r.round == t and r.kind != "eval"]
        up = {r.src: r.bytes for r in rows if (r.call, r.kind) == ("local", "up")}
        down = {r.dst: r.bytes for r in rows if (r.call, r.kind) == ("align", "down")}
        assert len(rows) == 4
        assert [r.call for r in rows] == ["local", "local", "align", "align"]
        assert up == {name: 4 * WIDTH * SIZES[int(name[1:])] for name in up}
        assert down == dict.fromkeys(up, s_d(WIDTH, (7, 7, 2)))
        cohorts.add(tuple(up))
    assert len(cohorts) > 1, "cohorts change"


def test_b14_unselected_parties_in_a_run_keep_their_weights() -> None:
    """The same run with one more round: a party that was not drawn in the last round deploys the
    same model.
    """
    shorter, longer = (
        run_method("adcol(slots=cohort,hidden=7)", participation=0.5, rounds=r) for r in (3, 4)
    )
    cohort = {r.src for r in longer.ledger if r.round == 4 and r.kind == "up"}
    for name in longer.job.info.names:
        assert same(shorter.model(name).theta, longer.model(name).theta) == (name not in cohort)


def test_b14_a_phase_more_costs_steps() -> None:
    """3 rounds of 2 parties: each phase is one epoch, so twice as many steps as with slots=party."""
    once, twice = (
        run_method(f"adcol(slots={slots},hidden=7)", participation=0.5)
        for slots in ("party", "cohort")
    )
    assert twice.summary["steps"] == 2 * once.summary["steps"] > 0


@pytest.mark.parametrize("carry", ["trunk", "keep", "reinit"])
def test_b14_which_layers_of_the_discriminator_are_carried_over(
    carry: Literal["trunk", "keep", "reinit"],
) -> None:
    """D is not trained here, so layers equal to the round before were carried over."""
    adcol = Adcol(slots="cohort", disc_carry=carry, hidden=HIDDEN, disc_steps=0)
    _, server, s = game(adcol, 0.5)
    assert s.D["out.weight"].shape == (4, HIDDEN)
    discs = [s.D]
    for t in (1, 2, 3):
        s = rounds(adcol, server, s, 1, first=t)
        assert s.D["out.weight"].shape == (2, HIDDEN)
        discs.append(s.D)
    trunk = {"fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"}
    survivors = {"trunk": trunk, "keep": trunk | {"out.weight", "out.bias"}, "reinit": set()}[carry]
    for t in (1, 2, 3):
        equal = {k for k in discs[t] if torch.equal(discs[t][k], discs[t - 1][k])}
        assert equal == (survivors if t > 1 else survivors & trunk), (
            "four outputs become two before round 1's D is made"
        )


@pytest.mark.parametrize("carry", ["trunk", "keep", "reinit"])
def test_b14_the_carried_discriminator_was_trained(
    carry: Literal["trunk", "keep", "reinit"],
) -> None:
    """One server step from the carried weights: the trunk has changed since round 1, unless it is
    drawn again each round.
    """
    adcol = Adcol(slots="cohort", disc_carry=carry, hidden=HIDDEN)
    _, server, s = game(adcol, 0.5)
    initial_D = s.D
    s1 = rounds(adcol, server, s, 1)
    s2 = rounds(adcol, server, s1, 1, first=2)
    change = (s2.D["fc1.weight"] - s1.D["fc1.weight"]).abs().max().item()
    assert not torch.equal(s1.D["fc1.weight"], initial_D["fc1.weight"])
    assert (0 < change < 0.1) == (carry != "reinit")


@pytest.mark.parametrize("carry", ["trunk", "keep", "reinit"])
def test_b14_the_number_of_parties_may_change(carry: Literal["trunk", "keep", "reinit"]) -> None:
    adcol = Adcol(slots="cohort", disc_carry=carry, hidden=HIDDEN)
    _, server, s = game(adcol)
    cohorts = {1: [0, 2], 2: [1, 2, 3], 3: [3], 4: [0, 1, 2, 3]}
    server.sample = lambda t: cohorts[t]
    for t, cohort in cohorts.items():
        before = weights_of(server)
        s = rounds(adcol, server, s, 1, first=t)
        assert s.D["out.weight"].shape == (len(cohort), HIDDEN)
        assert [i for i in before if not same(before[i], server.state(i).F)] == cohort
        assert all(v.isfinite().all() for v in s.D.values())


def test_b14_a_party_that_does_not_answer_is_not_asked_again() -> None:
    """D keeps the slot of the silent party; the second phase is for those that sent
    representations.
    """
    adcol = Adcol(slots="cohort", hidden=HIDDEN)
    _, server, s = game(adcol)
    function, calls = server.engine.run, []

    def without_party_1(
        call: Any, messages: Any, sealed_messages: Any
    ) -> Iterator[tuple[int, PartyResult]]:
        calls.append((call.function, list(messages)))
        return function(
            call, {i: message for i, message in messages.items() if i != 1}, sealed_messages
        )

    server.engine.run = without_party_1
    s = rounds(adcol, server, s, 1)
    assert calls == [("local", [0, 1, 2, 3]), ("align", [0, 2, 3])]
    assert s.D["out.weight"].shape == (4, HIDDEN)


@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_b14_mu_0_is_two_plain_trainings(participation: float) -> None:
    adcol = Adcol(slots="cohort", mu=0.0, hidden=HIDDEN)
    data, server, s = game(adcol, participation)
    expected = weights_of(server)
    task = server.info.task
    for t in (1, 2):
        s = rounds(adcol, server, s, 1, first=t)
        for i in server.sample(t):
            for function in ("local", "align"):
                expected[i] = fit(
                    task.loss, expected[i], data[i], party_key(i, t, function), HOW
                ).theta
    assert all(same(server.state(i).F, expected[i]) for i in expected)


def test_b14_past_discriminators_are_refused() -> None:
    with pytest.raises(comity.UsageError, match="past"):
        run_method("adcol(slots=cohort,past=2)")


# --- 5.1, B.6, B.12, B.15: the discriminator's architecture

SHAPES: dict[str, list[tuple[str, tuple[int, ...]]]] = {
    "linear": [("out", (5, 84))],  # B.15
    "mlp": [("fc1", (512, 84)), ("fc2", (512, 512)), ("out", (5, 512))],  # 5.1
    "deep": [
        ("fc1", (512, 84)),
        ("fc2", (512, 512)),
        ("fc3", (512, 512)),
        ("fc4", (512, 512)),
        ("out", (5, 512)),
    ],  # B.12
    "conv": [("conv1", (32, 1, 3, 3)), ("conv2", (64, 32, 3, 3)), ("out", (5, 64))],  # B.6
}


@pytest.mark.parametrize("disc", SHAPES)
def test_b6_layers_of_the_discriminator(disc: Literal["linear", "mlp", "deep", "conv"]) -> None:
    """84 values, 5 parties: 1, 3 or 5 FC layers, or two convolutions; each with biases and nothing
    else.
    """
    task = Adcol(disc=disc).discriminator(84, 5)
    D = task.init(Key(0))
    expected: dict[str, tuple[int, ...]] = {}
    for name, shape in SHAPES[disc]:
        expected |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
    assert {k: tuple(v.shape) for k, v in D.items()} == expected
    assert task.bytes() == 4 * sum(math.prod(shape) for shape in expected.values())
    if disc != "conv":
        z = noise(9, 84)
        torch.testing.assert_close(task.logits(D, z), disc_logits(D, z), rtol=0, atol=1e-5)


@pytest.mark.parametrize("disc", ["linear", "mlp", "deep", "conv"])
def test_b6_bytes_with_another_discriminator(disc: str) -> None:
    """Down: 4 parties times S_D, computed from the layers; up: unchanged."""
    sizes = {
        "linear": s_d(WIDTH, (4,)),
        "mlp": s_d(WIDTH, (6, 6, 4)),
        "deep": s_d(WIDTH, (6, 6, 6, 6, 4)),
        "conv": 4 * ((9 + 1) * 32 + (32 * 9 + 1) * 64 + (64 + 1) * 4),
    }
    for t, charged in traffic(run_method(f"adcol(disc={disc},hidden=6)")).items():
        assert charged == {"local down": 4 * sizes[disc], "local up": 4 * WIDTH * sum(SIZES)}, t


@pytest.mark.parametrize("disc", ["linear", "mlp", "deep", "conv"])
def test_b6_every_discriminator_learns_and_punishes(
    disc: Literal["linear", "mlp", "deep", "conv"],
) -> None:
    """Two clouds far apart: D tells them apart after some passes, and its gradient reaches the
    representations.
    """
    task = Adcol(disc=disc, hidden=16).discriminator(20, 2)
    z = torch.cat([noise(60, 20, seed=1) + 1, noise(60, 20, seed=2) - 1])
    data = Samples(z, torch.arange(2).repeat_interleave(60))
    D = fit(
        task.loss,
        task.init(Key(0)),
        data,
        Key(1),
        Training(lr=0.1, momentum=0.9, batch=20, epochs=15),
    ).theta
    assert (task.logits(D, z).argmax(1) == data.y).float().mean() > 0.95
    z = z.clone().requires_grad_()
    (grad,) = torch.autograd.grad(kl_from_uniform(task.logits(D, z)), z)
    assert grad.abs().max() > 1e-6


@pytest.mark.parametrize(
    ("width", "image"),
    [(1, (1, 4, 4)), (5, (1, 4, 4)), (16, (1, 4, 4)), (17, (1, 5, 5)), (48, (3, 4, 4)), (84, (1, 10, 10)), (200, (2, 10, 10)),
     (512, (2, 16, 16)), (2048, (2, 32, 32))],
)  # fmt: skip
def test_b6_conv_takes_any_width_as_an_image(width: int, image: tuple[int, int, int]) -> None:
    """2048 = 2 x 32 x 32; widths without a large square factor are filled up with zeros at the end."""
    task = Adcol(disc="conv").discriminator(width, 3)
    D, z = task.init(Key(0)), noise(4, width, seed=3)
    assert tuple(D["conv1.weight"].shape) == (32, image[0], 3, 3)
    padded = torch.zeros(4, math.prod(image))
    padded[:, :width] = z
    x = F.relu(F.conv2d(padded.view(4, *image), D["conv1.weight"], D["conv1.bias"], padding=1))
    x = F.relu(F.conv2d(x, D["conv2.weight"], D["conv2.bias"], padding=1)).mean((2, 3))
    torch.testing.assert_close(
        task.logits(D, z), x @ D["out.weight"].T + D["out.bias"], rtol=0, atol=1e-5
    )


@pytest.mark.parametrize("hidden", [1, 9])
def test_section5_hidden_is_the_width_of_every_hidden_layer(hidden: int) -> None:
    depths: dict[Literal["mlp", "deep"], int] = {"mlp": 2, "deep": 4}
    for disc, layers in depths.items():
        D = Adcol(disc=disc, hidden=hidden).discriminator(WIDTH, 3).init(Key(0))
        assert [len(D[f"fc{k + 1}.bias"]) for k in range(layers)] == [hidden] * layers


# --- Algorithm 1, l.7: passes over the representations


@pytest.mark.parametrize("passes", [0, 1, 3])
def test_alg1_l7_passes_over_the_representations(passes: int) -> None:
    """Parties do not train: D is the result of torch.optim on the union of their representations."""
    adcol = Adcol(disc_steps="epochs", disc_epochs=passes, hidden=HIDDEN)
    server_training = Training(
        lr=0.3, momentum=0.5, batch=4, epochs=7
    )  # the parties' epochs are not the server's
    data, server, s = game(adcol, server_training=server_training)
    for site in map(server.engine.sites.__getitem__, server.info.parties):
        site.party = replace(site.party, training=Training(lr=1e-30))
    theta = server.state(0).F
    after = rounds(adcol, server, s, 1).D
    union = Samples(
        torch.cat([encoder_features(theta, d.x) for d in data]),
        torch.arange(4).repeat_interleave(torch.tensor(SIZES)),
    )

    def disc_loss(D: Params, batch: Batch) -> Tensor:
        return F.cross_entropy(disc_logits(D, batch.x), batch.y)

    assert_near(
        after,
        torch_sgd(
            disc_loss,
            s.D,
            union,
            server_key(1, "discriminator"),
            replace(server_training, epochs=passes),
        ),
    )
    assert same(after, s.D) == (passes == 0)


def test_alg1_l7_passes_are_counted_as_the_servers_steps() -> None:
    """33 representations in batches of 4 are 9 steps a pass; three rounds."""
    assert [
        run_method(f"adcol(disc_steps=epochs,disc_epochs={e},hidden=7)").summary["server_steps"]
        for e in (0, 1, 2)
    ] == [
        0,
        27,
        54,
    ]


# --- B.11: representation sampling


def test_b11_a_rate_of_1_is_no_sampling() -> None:
    """All rows, in the order of the data; a whole run is the same bit for bit, and a smaller rate
    is another.
    """
    adcol, task = (
        Adcol(sampling=1.0, hidden=HIDDEN),
        task_of(f"mlp2(width={WIDTH})", SHAPE, CLASSES),
    )
    data, D = samples(13, SHAPE, CLASSES), adcol.discriminator(WIDTH, 2).init(Key(2))
    party = party_of(task, data, HOW, parties=2)
    state, reply = run_call(
        adcol.local(AdcolState(task.init(Key(1)), []), Game(D, {}), party, Key(3))
    )
    torch.testing.assert_close(reply.z, encoder_features(state.F, data.x), rtol=0, atol=1e-6)
    plain, full, half = (
        run_method("adcol(hidden=7)"),
        run_method("adcol(hidden=7,sampling=1)"),
        run_method("adcol(hidden=7,sampling=0.5)"),
    )
    assert same(plain.model("p0").theta, full.model("p0").theta)
    assert plain.metrics == full.metrics
    assert not same(plain.model("p0").theta, half.model("p0").theta)


# --- B.10: shared predictor; whole models

AVERAGED = {
    "predictor": {"fc3.weight", "fc3.bias"},
    "model": {f"fc{k}.{p}" for k in (1, 2, 3) for p in ("weight", "bias")},
}


@pytest.mark.parametrize("participation", [1.0, 0.5])
@pytest.mark.parametrize("aggregate", AVERAGED)
def test_b10_average_weighted_by_sample_counts(
    aggregate: Literal["predictor", "model"], participation: float
) -> None:
    """A round starts from the party's own weights with the averaged ones in their place, and ends
    with a new average.
    """
    mu, names = 3.0, AVERAGED[aggregate]
    adcol = Adcol(aggregate=aggregate, mu=mu, hidden=HIDDEN)
    data, server, s = game(adcol, participation)
    for t in (1, 2, 3):
        before, sent_state, cohort = weights_of(server), s, server.sample(t)
        s = rounds(adcol, server, s, 1, first=t)
        for i in before:
            if i in cohort:
                begin = {k: sent_state.shared[k] if k in names else v for k, v in before[i].items()}
                assert_near(
                    server.state(i).F,
                    torch_sgd(eq2([sent_state.D], mu), begin, data[i], party_key(i, t)),
                )
            else:
                assert same(server.state(i).F, before[i])
        assert set(s.shared) == names
        total = sum(SIZES[i] for i in cohort)
        for k in names:
            average = sum(SIZES[i] / total * server.state(i).F[k].double() for i in cohort)
            torch.testing.assert_close(s.shared[k].double(), average, rtol=0, atol=1e-6)
            plain = sum(server.state(i).F[k].double() for i in cohort) / len(cohort)
            assert t < 3 or (average - plain).abs().max() > 1e-5, "parties differ in size"
    encoders = [server.state(i).F["fc1.weight"] for i in server.info.parties]
    assert not any(torch.equal(encoders[0], other) for other in encoders[1:]), (
        "every party has its own encoder"
    )


@pytest.mark.parametrize("aggregate", ["none", "predictor", "model"])
@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_b10_bytes(aggregate: str, participation: float) -> None:
    """2 m S_pred more, half of it each way: S_pred = 4 (5*3 + 3) here, a whole mlp2 4 (35 + 30 +
    18).
    """
    extra = {"none": 0, "predictor": 4 * 18, "model": 4 * 83}[aggregate]
    m = round(4 * participation)
    plain, result = (
        traffic(run_method(f"adcol(hidden=7,aggregate={a})", participation=participation))
        for a in ("none", aggregate)
    )
    for t in (1, 2, 3):
        for kind in ("local up", "local down"):
            assert result[t][kind] == plain[t][kind] + m * extra


@pytest.mark.parametrize(
    ("bn", "values"),
    [("all", 8 * 2 + 2 + 4 * 2 + 9), ("params_only", 8 * 2 + 2 + 2 * 2 + 9), ("none", 27)],
)
def test_b10_predictor_of_two_layers_with_batchnorm_policies(bn: str, values: int) -> None:
    """A predictor 8 -> 2, BatchNorm, 2 -> 3; BatchNorm values that stay at the party are not
    averaged.
    """
    plain, shared = (
        traffic(
            run_method(f"adcol(hidden=7,aggregate={a})", f"mlp2(width={WIDTH},projection=8)", bn=bn)
        )
        for a in ("none", "predictor")
    )
    for t in (1, 2, 3):
        assert shared[t]["local up"] - plain[t]["local up"] == 4 * 4 * values
        assert shared[t]["local down"] - plain[t]["local down"] == 4 * 4 * values


@pytest.mark.parametrize("aggregate", ["none", "predictor", "model"])
def test_b10_parties_with_other_architectures_cannot_average(aggregate: str) -> None:
    """Representations of one width are enough for ADCOL itself."""
    own = {"p1": {"model": f"mlp2(width={WIDTH},projection={WIDTH})"}}

    def run() -> comity.Result:
        return comity.run(
            f"adcol(hidden=7,aggregate={aggregate})", federation(SIZES), model=f"mlp2(width={WIDTH})", rounds=1, engine="loop",
            party=own,
        )  # fmt: skip

    if aggregate == "none":
        assert "proj3.weight" in run().model("p1").theta
    else:
        with pytest.raises(comity.UsageError, match=f"aggregate={aggregate}"):
            run()


@pytest.mark.parametrize("aggregate", ["predictor", "model"])
def test_b10_with_b14_is_refused(aggregate: Literal["predictor", "model"]) -> None:
    """With slots=cohort parties go on training after they have sent: there is nothing right to
    average.
    """
    with pytest.raises(comity.UsageError, match="aggregate"):
        game(Adcol(slots="cohort", aggregate=aggregate, hidden=HIDDEN))


# --- spec A9: which representations


@pytest.mark.parametrize("epochs", [1, 3])
@pytest.mark.parametrize(
    ("model", "shape", "n", "min_batch"),
    [("mlp2(width=5)", SHAPE, 13, 1), (BATCHNORM, IMAGE, 23, 2), (BATCHNORM, IMAGE, 21, 2)],
)
def test_a9_representations_as_the_last_epoch_made_them(
    model: str, shape: tuple[int, ...], n: int, min_batch: int, epochs: int
) -> None:
    """Each row is the training-mode feature at the weights before its batch's step; batches of 5,
    21 samples drop one.

    In double precision, as BatchNorm over few samples makes much of the last bit.
    """
    task, data = task_of(model, shape, CLASSES), samples(n, shape, CLASSES)
    data = Samples(data.x.double(), data.y)
    how = Training(lr=0.1, batch=5, epochs=epochs, min_batch=min_batch)
    party = party_of(task, data, how, parties=2)
    judge = Adcol(hidden=HIDDEN).discriminator(task.width, 2)
    D, F_0 = ({k: v.double() for k, v in t.init(Key(1)).items()} for t in (judge, task))
    rows, last = (
        torch.full((n, task.width), torch.nan, dtype=torch.float64),
        (epochs - 1) * how.steps_for(n) // epochs,
    )

    def loss(theta: Params, batch: Batch) -> Tensor:
        z = task.features(theta, batch.x, train=True)
        if batch.number >= last:
            rows[batch.indices] = z.detach()
        return F.cross_entropy(task.head(theta, z, train=True), batch.y) + divergence(
            disc_logits(D, z)
        )

    F_1 = torch_sgd(loss, F_0, data, Key(3), how)
    afterwards = task.features(F_1, data.x)
    (state, reply), (plain, usual) = (
        run_call(
            Adcol(hidden=HIDDEN, rep_mode=mode).local(
                AdcolState(F_0, []), Game(D, {}), party, Key(3)
            )
        )
        for mode in ("last_epoch", "after")
    )
    assert same(state.F, plain.F), "training is the same"
    assert_near(state.F, F_1, 1e-8)
    torch.testing.assert_close(usual.z, afterwards, rtol=0, atol=1e-7)
    in_batch = ~rows[:, 0].isnan()
    assert int(in_batch.sum()) == n - (n % 5 < min_batch and n % 5 > 0)
    torch.testing.assert_close(reply.z[in_batch], rows[in_batch], rtol=0, atol=1e-7)
    assert (rows[in_batch] - afterwards[in_batch]).abs().max() > 0.01, "the two modes differ"
    assert reply.z.shape == (n, task.width)
    assert reply.z.isfinite().all()
    if epochs == 1:  # a row that no batch held is the one after training
        torch.testing.assert_close(reply.z[~in_batch], afterwards[~in_batch], rtol=0, atol=1e-7)


def test_a9_bytes_and_sampling_are_the_same() -> None:
    runs = [
        run_method(f"adcol(hidden=7,sampling=0.4,rep_mode={mode})")
        for mode in ("after", "last_epoch")
    ]
    assert traffic(runs[0]) == traffic(runs[1])
    assert traffic(runs[0])[1]["local up"] == 4 * WIDTH * (5 + 3 + 4 + 3)  # 0.4 of 11, 7, 9 and 6
    assert not same(runs[0].model("p0").theta, runs[1].model("p0").theta), (
        "D learned from other rows"
    )


def test_a9_a_partys_data_are_not_written_to() -> None:
    """An encoder that is the identity when not training: flat inputs through dropout."""
    with torch.random.fork_rng(devices=[]):
        pair = nn.Sequential(nn.Flatten(), nn.Dropout(0.5)), nn.Linear(6, CLASSES)
    task = LearningTask(build(pair, SHAPE, CLASSES), CLASSES, "encoder")
    data = samples(20, SHAPE, CLASSES)
    before, adcol = data.x.clone(), Adcol(rep_mode="last_epoch", hidden=HIDDEN)
    D = adcol.discriminator(6, 2).init(Key(2))
    with task.network.layer_stream(Key(4)):
        run_call(
            adcol.local(
                AdcolState(task.init(Key(1)), []),
                Game(D, {}),
                party_of(task, data, HOW, parties=2),
                Key(3),
            )
        )
    assert torch.equal(data.x, before)


# --- future work: self-supervision

SELF = ["simsiam", "ntxent"]


def test_ntxent_by_hand() -> None:
    """Two samples at right angles, tau = 1/2. Equal views: -log(e^2 / (e^2 + 2)), whatever their
    lengths; swapped: + 2.
    """
    a = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    assert ntxent(a, 3 * a, 0.5).item() == pytest.approx(math.log(1 + 2 * math.exp(-2)), rel=1e-6)
    assert ntxent(a, a.flip(0), 0.5).item() == pytest.approx(math.log(2 + math.exp(2)), rel=1e-6)


@pytest.mark.parametrize("tau", [0.5, 0.1])
def test_ntxent_is_chens_formula(tau: float) -> None:
    """l(i, j) = -log exp(s_ij / tau) / sum_{k != i} exp(s_ik / tau), averaged over both orders of
    all n pairs.
    """
    a, b = noise(4, 3, seed=1).double(), noise(4, 3, seed=2).double()
    views = [*a, *b]

    def s(i: int, k: int) -> float:
        return math.exp(float(views[i] @ views[k] / views[i].norm() / views[k].norm()) / tau)

    terms = [
        -math.log(s(i, (i + 4) % 8) / sum(s(i, k) for k in range(8) if k != i)) for i in range(8)
    ]
    assert ntxent(a, b, tau).item() == pytest.approx(sum(terms) / 8, rel=1e-9)


def test_simsiam_by_hand() -> None:
    """A predictor that is ReLU alone: cos((1,0), (1,1)) = cos((1,1), (1,0)) = 1 / sqrt 2; a
    negative part is cut before it.
    """
    theta = {"simsiam.down": torch.eye(2), "simsiam.up": torch.eye(2)}
    a, b = torch.tensor([[1.0, 0.0]]), torch.tensor([[5.0, 5.0]])
    assert simsiam(a, b, theta).item() == pytest.approx(-(0.5**0.5), rel=1e-6)
    assert simsiam(torch.tensor([[1.0, -1.0]]), a, theta).item() == pytest.approx(
        -(1 + 0.5**0.5) / 2, rel=1e-6
    )


def test_simsiam_stops_the_gradient_at_the_other_view() -> None:
    """dL/da is that of D(p(a), b) / 2 with b constant, measured by differences; without the stop it
    would be another.
    """
    theta = {
        "simsiam.down": noise(3, 4, seed=1).double(),
        "simsiam.up": noise(4, 3, seed=2).double(),
    }
    a, b = noise(2, 4, seed=5).double(), noise(2, 4, seed=6).double()

    def predictor(z: Tensor) -> Tensor:
        return F.relu(z @ theta["simsiam.down"].T) @ theta["simsiam.up"].T

    def cosine(p: Tensor, z: Tensor) -> Tensor:
        return (p * z).sum(1) / p.norm(dim=1) / z.norm(dim=1)

    def with_stop(a: Tensor) -> Tensor:
        return -cosine(predictor(a), b).mean() / 2

    def without_stop(a: Tensor) -> Tensor:
        return with_stop(a) - cosine(predictor(b), a).mean() / 2

    def slope(function: Callable[[Tensor], Tensor]) -> Tensor:
        out, h = torch.zeros_like(a), 1e-6
        for at in range(a.numel()):
            step = torch.zeros_like(a).view(-1)
            step[at] = h
            out.view(-1)[at] = (function(a + step.view_as(a)) - function(a - step.view_as(a))) / (
                2 * h
            )
        return out

    free = a.clone().requires_grad_()
    value = simsiam(free, b, theta)
    assert value.item() == pytest.approx(without_stop(a).item(), rel=1e-9)
    (grad,) = torch.autograd.grad(value, free)
    torch.testing.assert_close(grad, slope(with_stop), rtol=0, atol=1e-7)
    assert (grad - slope(without_stop)).abs().max() > 1e-3


@pytest.mark.parametrize("objective", SELF)
def test_future_work_replaces_the_cross_entropy_alone(
    objective: Literal["simsiam", "ntxent"],
) -> None:
    """Eq. 2 becomes L_self(G(x), G(x')) + mu KL(u || D(G(x))), x' another view of x; the KL term is
    on x itself.
    """
    adcol, data = Adcol(objective=objective, mu=2.0, hidden=HIDDEN), samples(8, SHAPE, CLASSES)
    party = party_of(task_of("mlp2(width=16)", SHAPE, CLASSES), data, HOW, parties=3)
    task = adcol.supervision.task(party.task)
    theta, D = task.init(Key(1)), adcol.discriminator(16, 3).init(Key(2))
    z, other = (
        encoder_features(theta, x) for x in (data.x, augment_view(data.x, Key(0).fold("view", 0)))
    )
    expected = simsiam(z, other, theta) if objective == "simsiam" else ntxent(z, other, 0.5)
    assert abs(expected.item()) > 0.05
    judges, batch = Judges([D], None), batch_of(data)
    batch.draws = second_view(batch, BatchKey(0, batch.number), judges)
    value = adcol.eq2(task, theta, batch, judges)
    assert value.item() == pytest.approx(
        (expected + 2.0 * divergence(disc_logits(D, z))).item(), abs=1e-5
    )


def test_future_work_simsiam_has_a_predictor_that_is_trained_and_stays_at_home() -> None:
    plain, ours = (
        run_method(f"adcol(hidden=7,objective={o})", "mlp2(width=16)") for o in ("ce", "simsiam")
    )
    theta = [ours.model(name).theta for name in ("p0", "p1")]
    for name, shape in (("simsiam.down", (8, 16)), ("simsiam.up", (16, 8))):
        assert tuple(theta[0][name].shape) == shape
        assert not torch.equal(theta[0][name], theta[1][name])
    rows = [[r for r in run.ledger if r.kind != "eval"] for run in (plain, ours)]
    assert rows[0] == rows[1]


@pytest.mark.parametrize("slots", ["party", "cohort"])
@pytest.mark.parametrize("model", ["mlp2(width=16)", BATCHNORM])
@pytest.mark.parametrize("objective", SELF)
def test_future_work_labels_do_not_reach_the_body(
    objective: Literal["simsiam", "ntxent"], model: str, slots: Literal["party", "cohort"]
) -> None:
    """Other labels, the same bodies and the same D bit for bit, buffers included; only heads
    differ.
    """
    shape = SHAPE if model.startswith("mlp2") else IMAGE
    task = task_of(model, shape, CLASSES)
    adcol = Adcol(objective=objective, slots=slots, hidden=HIDDEN)
    ends = []
    for shift in (0, 1):
        data = [samples(n, shape, CLASSES, seed=n) for n in (11, 8)]
        data = [Samples(d.x, (d.y * (1 + shift) + shift) % CLASSES) for d in data]
        server, s = server_of(adcol, task, data, Training(lr=0.1, batch=4, min_batch=2))
        begin = server.state(0).F
        s = rounds(adcol, server, s, 2)
        ends.append((s.D, weights_of(server)))
    (D, models), (D_other, other_models) = ends
    assert same(D, D_other)
    for i in (0, 1):
        for name in models[i]:
            assert torch.equal(models[i][name], other_models[i][name]) == (
                name not in task.head_names or "~" in name
            ), name
    changed_names = [
        k for k in begin if k not in task.head_names and not torch.equal(begin[k], models[0][k])
    ]
    assert "fc1.weight" in changed_names, "the body did learn"


@pytest.mark.parametrize("objective", SELF)
def test_future_work_head_is_a_probe_on_the_frozen_body(
    objective: Literal["simsiam", "ntxent"],
) -> None:
    """First the body without labels, then logistic regression on its representations; the old head
    is where it starts.
    """
    adcol, data = Adcol(objective=objective, mu=1.0, hidden=HIDDEN), samples(13, SHAPE, CLASSES)
    party = party_of(task_of("mlp2(width=16)", SHAPE, CLASSES), data, HOW, parties=3)
    F_0, D = (
        adcol.supervision.task(party.task).init(Key(1)),
        adcol.discriminator(16, 3).init(Key(2)),
    )
    state, reply = run_call(adcol.local(AdcolState(F_0, []), Game(D, {}), party, Key(3)))

    def self_supervised(theta: Params, batch: Batch) -> Tensor:
        z, other = (
            encoder_features(theta, x)
            for x in (batch.x, augment_view(batch.x, Key(3).fold("view", batch.number)))
        )
        value = simsiam(z, other, theta) if objective == "simsiam" else ntxent(z, other, 0.5)
        return value + divergence(disc_logits(D, z))

    expected = torch_sgd(self_supervised, F_0, data, Key(3))
    assert torch.equal(expected["fc3.weight"], F_0["fc3.weight"])
    assert distance({"fc1.weight": F_0["fc1.weight"]}, expected) > 1e-3
    z = encoder_features(expected, data.x)

    def probe(theta: Params, batch: Batch) -> Tensor:
        return F.cross_entropy(predictor_logits(theta, z[batch.indices]), batch.y)

    expected = torch_sgd(
        probe, expected, data, Key(3).fold("probe"), only={"fc3.weight", "fc3.bias"}
    )
    assert_near(state.F, expected)
    torch.testing.assert_close(reply.z, z, rtol=0, atol=1e-5)


def test_future_work_probe_leaves_the_bodys_running_statistics_alone() -> None:
    """Spec 0 (a): a frozen network is in evaluation mode; without a step of the probe the body is
    the same.
    """
    task, data = task_of(BATCHNORM, IMAGE, CLASSES), samples(20, IMAGE, CLASSES)
    adcol = Adcol(objective="ntxent", hidden=HIDDEN)
    party = party_of(task, data, Training(lr=0.1, batch=5, min_batch=2), parties=2)
    F_0, D = (
        adcol.supervision.task(party.task).init(Key(1)),
        adcol.discriminator(task.width, 2).init(Key(2)),
    )
    request = party.fit(
        adcol.eq2,
        F_0,
        Key(3),
        Judges([D], None),
        task=adcol.supervision.task(party.task),
        draw=second_view,
    )
    body = descent.train(request).theta
    state, _ = run_call(adcol.local(AdcolState(F_0, []), Game(D, {}), party, Key(3)))
    assert [
        k for k in body if k not in task.head_names and not torch.equal(body[k], state.F[k])
    ] == []


@cache
def _digits() -> comity.Federation:
    digits = comity.load("digits")
    parts = {
        name: (digits.x[at : at + 300], digits.y[at : at + 300])
        for name, at in (("north", 0), ("south", 300))
    }
    return comity.Federation.from_arrays(parts, classes=10)


@pytest.mark.parametrize("objective", SELF)
def test_future_work_learns_digits(objective: str) -> None:
    """Far better than chance (0.1), and the self-supervised loss itself falls."""
    text = f"adcol(objective={objective},mu=0.1,hidden=16)"
    result = comity.run(
        text,
        _digits(),
        model="mlp2(width=48,projection=32)",
        rounds=5,
        lr=0.1,
        batch=32,
        epochs=3,
        engine="loop",
    )
    assert result.summary["accuracy"]["mean"] > 0.4
    party = result.job.parties[0]
    adcol = result.job.algorithm
    assert isinstance(adcol, Adcol)
    task, batch = adcol.supervision.task(party.task), batch_of(party.data.train)
    batch.draws = second_view(batch, BatchKey(0, batch.number), None)
    with torch.no_grad():
        begin, end = (
            task.loss(theta, batch)
            for theta in (task.init(ROOT.fold("init")), result.model("north").theta)
        )
    assert end < begin - 0.05


def test_future_work_another_view_is_rolled_a_little_and_noisy() -> None:
    """16 x 16 images move by at most 2 each way, cyclically, and each value gets noise of a tenth
    of the batch's spread.
    """
    x = noise(40, 2, 16, 16, seed=1)
    view = augment_view(x, Key(5))
    assert torch.equal(view, augment_view(x, Key(5)))
    assert not torch.equal(view, augment_view(x, Key(6)))
    rolls = [(dy, dx) for dy in range(-8, 8) for dx in range(-8, 8)]
    best_rolls, residuals = [], []
    for image, rolled in zip(x, view, strict=True):
        misses = torch.stack([(rolled - image.roll(r, (1, 2))).square().mean() for r in rolls])
        best_rolls.append(rolls[int(misses.argmin())])
        residuals.append(misses.min().sqrt().item())
    assert {abs(d) for r in best_rolls for d in r} == {0, 1, 2}
    assert {r[0] for r in best_rolls} == {r[1] for r in best_rolls} == {-2, -1, 0, 1, 2}
    assert sum(residuals) / len(residuals) == pytest.approx(0.1 * x.std().item(), rel=0.02)


def test_future_work_another_view_of_rows_is_noise_alone() -> None:
    x = noise(200, 50, seed=1) * 3
    added = augment_view(x, Key(5)) - x
    assert added.std().item() == pytest.approx(0.3, rel=0.03)
    assert added.mean().item() == pytest.approx(0, abs=0.02)


def test_future_work_another_view_of_a_single_number_is_finite() -> None:
    assert augment_view(torch.ones(1, 1), Key(0)).isfinite().all()


# --- 5.1 and B.7: projection head and predictor


@pytest.mark.parametrize(
    ("model", "shape", "encoder", "d", "hidden"),
    [
        ("mlp2(width=7,projection=32)", SHAPE, 7, 32, 8),
        ("fedbn-cnn(scale=0.1,projection=32)", IMAGE, 51, 32, 8),
        ("lenet5(width=9,projection=16)", IMAGE, 9, 16, 4),
        ("cnn4(width=11,projection=4)", (3, 16, 16), 11, 4, 1),
        ("mlp2(width=6,projection=2048)", SHAPE, 6, 2048, 512),
    ],
)
def test_section5_projection_head_and_predictor(
    model: str, shape: tuple[int, ...], encoder: int, d: int, hidden: int
) -> None:
    """Three FC layers with BatchNorm, ReLU after the first two; the representation; FC, BatchNorm,
    ReLU, FC.
    """
    task = task_of(model, shape, CLASSES)
    assert task.cut == "proj3"
    assert task.width == d
    theta = task.init(Key(1))
    layers = {
        "proj1": (encoder, encoder),
        "proj2": (encoder, encoder),
        "proj3": (d, encoder),
        "pred1": (hidden, d),
    }
    for name, size in layers.items():
        assert tuple(theta[f"{name}.weight"].shape) == size
        assert {k for k in theta if k.startswith(f"{name}.bn.")} <= task.norm_names
        for part in ("weight", "bias", "~mean", "~var"):
            assert tuple(theta[f"{name}.bn.{part}"].shape) == size[:1]
    assert tuple(theta["pred2.weight"].shape) == (CLASSES, hidden)
    assert task.head_names == {k for k in theta if k.startswith(("pred1.", "pred2."))}

    def layer(name: str, x: Tensor, train: bool) -> Tensor:
        x = x @ theta[f"{name}.weight"].T + theta[f"{name}.bias"]
        mean, var = (
            (x.mean(0), x.var(0, correction=0))
            if train
            else (theta[f"{name}.bn.~mean"], theta[f"{name}.bn.~var"])
        )
        return (x - mean) / (var + 1e-5).sqrt() * theta[f"{name}.bn.weight"] + theta[
            f"{name}.bn.bias"
        ]

    x = noise(20, *shape, seed=2)
    at = task.network.stages.index("proj1")
    for name in layers:  # BatchNorm as after some training
        for part in ("weight", "bias", "~mean", "~var"):
            theta[f"{name}.bn.{part}"] += 0.5 * noise(layers[name][0], seed=7)
        theta[f"{name}.bn.~var"].abs_()
    for train in (False, True):
        own = {k: v.clone() for k, v in theta.items()}
        below = task.network.run({k: v.clone() for k, v in theta.items()}, x, train, 0, at)
        assert below.shape == (20, encoder)
        z = layer(
            "proj3", F.relu(layer("proj2", F.relu(layer("proj1", below, train)), train)), train
        )
        torch.testing.assert_close(task.features(own, x, train), z, rtol=0, atol=1e-4)
        assert z.min() < 0, "no ReLU after the third"
        y = F.relu(layer("pred1", z, train)) @ theta["pred2.weight"].T + theta["pred2.bias"]
        torch.testing.assert_close(task.head(own, z, train), y, rtol=0, atol=1e-4)


def test_b7_the_representation_that_is_sent_has_the_projections_width() -> None:
    """d = 12: 4 d n_i up, and a discriminator of 12 inputs down."""
    for charged in traffic(run_method("adcol(hidden=7)", "mlp2(width=5,projection=12)")).values():
        assert charged == {"local up": 4 * 12 * sum(SIZES), "local down": 4 * s_d(12, (7, 7, 4))}


# --- refusals


@pytest.mark.parametrize(
    "options",
    ["past=0", "past=1.5", "disc_epochs=-1", "disc_steps=-1", "disc_steps=all", "hidden=0", "mu=-1", "disc=resnet", "slots=all", "disc_carry=some", "aggregate=all",
     "rep_mode=before", "objective=byol"],
)  # fmt: skip
def test_options_out_of_range_are_refused(options: str) -> None:
    with pytest.raises(comity.UsageError, match=options.partition("=")[0]):
        run_method(f"adcol({options})")
