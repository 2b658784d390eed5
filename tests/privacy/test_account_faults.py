"""Ten ways in which an account of what parties give away was wrong; and that mutants of the
mechanism are caught.
"""

from __future__ import annotations

import contextlib
import math
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.stats import norm

import comity
from comity.base.call import CallId, Message
from comity.base.noise import gaussian
from comity.cli import main
from comity.core import FitRequest, Key, LearningTask, Release, Samples, Training, plain
from comity.engines.site import Site
from comity.models import build
from comity.privacy.accounting import gaussian_sigma
from comity.privacy.composition import epsilon, neighbours_of, renyi_epsilon, weakest_unit
from comity.runs.build import federation_of, prepare
from comity.runs.config import experiment
from comity.training import dp_sgd as private_module
from comity.training.descent import train
from comity.training.dp_sgd import add_clipped, per_record, poisson_batches
from comity.training.requests import Private
from comity.training.task import Batch


@pytest.fixture(scope="module")
def federation() -> comity.Federation:
    return comity.load("digits").partition("iid", parties=3, seed=0)


def job_of(**chosen: Any) -> Any:
    usual = {
        "data": "digits",
        "partition": "iid",
        "parties": 3,
        "model": "mlp2(width=8)",
        "rounds": 1,
    }
    made = experiment(usual | chosen)
    return prepare(made, federation_of(made))


SMALL: dict[str, Any] = {"rounds": 1, "model": "mlp2(width=8)", "disc": "linear"}


# --- 1. The unit


def test_1_a_swapped_record_moves_the_rows_of_others_so_that_a_row_is_what_is_protected(
    federation: comity.Federation,
) -> None:
    job = job_of(algorithm="adcol", set={"disc": "linear"})
    party, call = job.parties[0], CallId("local", 0, 1, 0)
    game = job.algorithm.init_server(job.root.fold("init"), job.info)

    def rows(samples: Samples) -> torch.Tensor:
        site = Site(
            job.algorithm, replace(party, data=replace(party.data, train=samples)), job.root
        )
        z: torch.Tensor = site.run(call, Message(game, None, True), {}).reply.z
        return z

    train_part = party.data.train
    x, y = train_part.x.clone(), train_part.y.clone()
    x[0], y[0] = 1.0, (y[0] + 1) % 10
    moved = (rows(Samples(x, y)) - rows(train_part)).abs().sum(1)
    assert (moved[1:] > 1e-4).float().mean() > 0.9  # rows of records that were not touched
    with pytest.warns(UserWarning, match="nothing is guaranteed for the record"):
        told = comity.run("adcol", federation, noise="lap_l1", epsilon=1.0, **SMALL).summary[
            "privacy"
        ]
    assert (told["unit"], told["epsilon"]) == ("row", pytest.approx(1.0, rel=1e-3))


# --- 2. Poisson samples


def check_samples_are_poisson() -> None:
    """A record's chance is the same and independent in every step: sizes vary as a binomial's do."""
    samples = Samples(torch.zeros(400, 1), torch.zeros(400, dtype=torch.int64))
    drawn = list(poisson_batches(samples, 0.1, 400, Key(5), Training()))
    sizes = torch.tensor([float(len(batch.y)) for batch in drawn])
    assert sizes.mean().item() == pytest.approx(40, abs=1.5)
    assert sizes.var().item() == pytest.approx(36, rel=0.3)
    often = torch.bincount(torch.cat([batch.indices for batch in drawn]), minlength=400).float()
    assert often.var().item() == pytest.approx(
        36, rel=0.3
    )  # shuffled, everybody would be there as often as all others


def test_2_batches_are_what_they_are_accounted_for() -> None:
    check_samples_are_poisson()


# --- 3. Cohorts of different sizes


def test_3_each_round_is_accounted_for_as_it_was(federation: comity.Federation) -> None:
    few, many = (
        Release("row", "gaussian", 1.0, 1.0, rate=min(1.0, 64 / n), steps=-(-n // 64))
        for n in (100, 3000)
    )
    mixed = epsilon({few: 9, many: 1}, 1e-5)
    assert mixed > 3 * epsilon(
        {many: 10}, 1e-5
    )  # what was reported: the last round's size for all ten
    sizes = {"large": 300, "small": 20}
    digits = comity.load("digits")
    parties, at = {}, 0
    for name, n in sizes.items():
        parties[name] = (digits.x[at : at + n], digits.y[at : at + n])
        at += n
    uneven = comity.Federation.from_arrays(parties, classes=10)
    with pytest.warns(UserWarning, match="must be trusted"):
        result = comity.run(
            "adcol", uneven, disc_noise=1.0, participation=0.5, batch=10, **SMALL | {"rounds": 6}
        )
    rows = [row for row in result.privacy if row.against == "parties"]
    assert {row.rate for row in rows} == {10 / size for size in uneven.sizes}
    for row in rows:
        assert row.steps == math.ceil(10 / row.rate / 10)


# --- 4. Exits that nobody counted


def test_4_weights_beside_noisy_rows_leave_nothing_guaranteed(
    federation: comity.Federation,
) -> None:
    with pytest.warns(UserWarning, match="protects a row"):
        told = comity.run(
            "adcol", federation, noise="lap_l1", epsilon=1.0, aggregate="model", **SMALL
        ).summary["privacy"]
    assert (told["epsilon"], told["unprotected"]) == ("infinite", ["Reps.shared (local)"])


def test_4_what_scales_inputs_by_the_records_themselves_is_said() -> None:
    with pytest.warns(UserWarning, match="missing"):
        result = comity.run(
            "fedavg+dp", comity.load("heart").partition("auto"), noise=1.0, rounds=1, model="linear"
        )
    told = result.summary["privacy"]
    assert told["epsilon"] == "infinite"
    assert "own records" in told["unprotected"][0]
    with pytest.warns(UserWarning, match="the schema's constants"):
        fixed = comity.run(
            "fedavg+dp",
            comity.load("heart(scale=fixed)").partition("auto"),
            noise=1.0,
            rounds=1,
            model="linear",
        )
    assert fixed.summary["privacy"]["epsilon"] < 10


def test_4_evaluation_and_sizes_are_named_among_the_assumptions(
    federation: comity.Federation,
) -> None:
    told = comity.run("fedavg+dp", federation, noise=1.0, rounds=1, model="linear").summary[
        "privacy"
    ]
    said = " ".join(told["assumptions"])
    assert "validation and test records" in said
    assert "How many records" in said
    assert "seed" in said


# --- 5. Delta composes too


def test_5_two_gaussians_at_one_delta() -> None:
    release = Release("row", "gaussian", 1.0, gaussian_sigma(0.01, 0.01), "replaced")
    assert epsilon({release: 1}, 0.01) == pytest.approx(0.01, abs=1e-3)
    assert epsilon({release: 2}, 0.01) == pytest.approx(0.026, abs=1.5e-3)  # not 0.020


# --- 6. Every step divides by the same number


def check_noise_in_every_step(noise: float = 1.0) -> None:
    """61 records in batches of 60: the second step has noise of 1/60 as well, not of 1 over the
    record that is left.
    """
    network = build("linear", (900,), 10)
    task = LearningTask(network, 10, network.cut)
    samples = Samples(torch.zeros(61, 900), torch.zeros(61, dtype=torch.int64))
    theta = task.init(Key(1))
    steps = []
    for made in (1, 2):
        how = Training(lr=1.0, batch=60, steps=made)
        request = FitRequest(
            plain, theta, samples, Key(4), how, task, None, private=Private(samples, 1.0, noise, [])
        )
        steps.append(train(request).theta["fc.weight"])
    for moved in (steps[0] - theta["fc.weight"], steps[1] - steps[0]):
        assert moved.std().item() == pytest.approx(noise / 60, rel=0.03)


def test_6_noise_is_the_same_in_every_step() -> None:
    check_noise_in_every_step()


# --- 7 is test_privacy.py's: the experiment's optimizer, with its momentum.


# --- 8. Never one stream for two settings


def test_8_two_runs_with_one_seed_have_nothing_in_common_to_subtract() -> None:
    found = []
    for scale in (1.0, 4.0):
        job = job_of(
            algorithm="adcol",
            set={"disc": "linear", "noise": "gauss_l2", "epsilon": scale, "delta": 1e-3},
        )
        game = job.algorithm.init_server(job.root.fold("init"), job.info)
        site = Site(job.algorithm, job.parties[0], job.root)
        z = site.run(CallId("local", 0, 1, 0), Message(game, None, True), {}).reply.z
        found.append(((z - z.mean()) / z.std()).flatten())
    assert abs((found[0] * found[1]).mean().item()) < 0.2  # the same noise would be near 1
    assert (
        job_of(algorithm="fedavg").root.bits == job_of(algorithm="fedavg", lr=0.2).root.bits
    )  # all else is the seed's
    assert (
        job_of(algorithm="fedavg").root.noise() != job_of(algorithm="fedavg", lr=0.2).root.noise()
    )
    assert (
        job_of(algorithm="fedavg").root.noise()
        == job_of(algorithm="fedavg", rounds=3, engine="loop").root.noise()
    )


# --- 9. One kind of neighbours


def test_9_kinds_of_neighbours_are_never_added_up() -> None:
    """What holds for any replacement holds for a blank one, and is then said to be for that; not
    the other way round.
    """
    sampled = Release("row", "gaussian", 0.5, 2.0, rate=0.1, steps=10)
    replaced = Release("row", "gaussian", 1.0, 2.0, "replaced")
    drawn = Release("row", "gaussian", 1.0, 2.0, "replaced", drawn_of=10, drawn=2)
    mixed = {sampled: 1, replaced: 1}
    assert epsilon(mixed, 1e-5) == pytest.approx(
        epsilon({sampled: 1, replace(replaced, neighbours="blank"): 1}, 1e-5)
    )
    assert neighbours_of(mixed) == "blank"
    assert neighbours_of({replaced: 2}) == "replaced"
    assert renyi_epsilon({sampled: 1, drawn: 1}, 1e-5) == math.inf
    assert epsilon({sampled: 1, drawn: 1}, 1e-5) == math.inf
    assert neighbours_of({sampled: 1, drawn: 1}) == ""


# --- 10. Said before a run


def test_10_a_plan_says_what_it_will_come_to(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def said(*words: str) -> str:
        small = ["--parties", "3", "--rounds", "3", "--model", "linear", "--batch", "30"]
        monkeypatch.setattr(sys, "argv", ["comity", "plan", *words, *small])
        with contextlib.suppress(SystemExit):
            main()
        return capsys.readouterr().out

    private = said("fedavg+dp", "--budget", "epsilon=2,delta=1e-6")
    assert "epsilon 2 at delta 1e-06, for a training record" in private
    assert "times the clipping norm" in private
    assert "no guarantee (epsilon infinite), as no noise hides Model.theta (local)" in said(
        "fedavg"
    )


def test_10_dbes_noise_says_that_it_guarantees_nothing(federation: comity.Federation) -> None:
    with pytest.warns(UserWarning, match="noise_s and noise_q guarantee nothing"):
        told = comity.run(
            "fedavg+dbe", federation, noise_s=1.0, rounds=1, model="mlp2(width=8)"
        ).summary["privacy"]
    assert told["epsilon"] == "infinite"
    assert "Mean.z (mean)" in told["unprotected"]


# --- The mechanism


def networks() -> list[tuple[str, tuple[int, ...]]]:
    return [
        ("linear", (6,)),
        ("mlp2(width=9)", (1, 8, 8)),
        ("lenet5(width=5)", (1, 12, 12)),
        ("cnn4(width=7)", (1, 16, 16)),
    ]


@pytest.mark.parametrize(("model", "shape"), networks())
def test_clipped_gradients_are_those_of_a_loop_over_records(
    model: str, shape: tuple[int, ...]
) -> None:
    network = build(model, shape, 4)
    task = LearningTask(network, 4, network.cut)
    theta = {k: v.clone().requires_grad_() for k, v in task.init(Key(1)).items()}
    x, y = torch.randn(7, *shape, generator=Key(2).generator()), torch.arange(7) % 4

    def loss(weights: Any, batch: Batch) -> torch.Tensor:
        return task.loss(weights, batch)

    total = {k: torch.zeros_like(v) for k, v in theta.items()}
    sizes = []
    for n in range(7):
        one = loss(theta, Batch(x[n : n + 1], y[n : n + 1], torch.tensor([n]), 0, {}))
        grads = torch.autograd.grad(one, list(theta.values()))
        size = torch.stack([g.square().sum() for g in grads]).sum().sqrt()
        sizes.append(size.item())
        for (name, _), g in zip(theta.items(), grads, strict=True):
            total[name] += g * min(1.0, 0.9 * sizes[0] / size.item())
    clip = 0.9 * sizes[0]  # some are clipped, others may not be
    found = {k: torch.zeros_like(v) for k, v in theta.items()}
    add_clipped(found, loss, theta, Batch(x, y, torch.arange(7), 0, {}), clip, 1.0)
    whole = per_record(loss, theta, list(theta), Batch(x, y, torch.arange(7), 0, {}))
    norms = torch.stack([g.flatten(1).square().sum(1) for g in whole.values()]).sum(0).sqrt()
    torch.testing.assert_close(norms, torch.tensor(sizes), rtol=1e-4, atol=1e-6)
    for name in theta:
        torch.testing.assert_close(found[name], total[name], rtol=1e-4, atol=1e-5)


def check_one_record_moves_a_step_by_no_more_than_declared(seed: int = 3) -> None:
    """Without noise: the step's sum with a record and without it differ by the declared
    sensitivity, C, at most.
    """
    network = build("mlp2(width=6)", (5,), 3)
    task = LearningTask(network, 3, network.cut)
    theta = {k: v.clone().requires_grad_() for k, v in task.init(Key(seed)).items()}
    x, y = 30 * torch.randn(9, 5, generator=Key(seed).generator()), torch.arange(9) % 3
    sums = []
    for keep in (slice(0, 9), slice(0, 8)):
        found = {k: torch.zeros_like(v) for k, v in theta.items()}
        batch = Batch(x[keep], y[keep], torch.arange(9)[keep], 0, {})
        private_module.add_clipped(found, task.loss, theta, batch, 0.5, 1.0)
        sums.append(torch.cat([v.flatten() for v in found.values()]))
    assert (sums[0] - sums[1]).norm().item() <= 0.5 * (1 + 1e-4)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10_000))
def test_one_record_moves_a_step_by_no_more_than_declared(seed: int) -> None:
    check_one_record_moves_a_step_by_no_more_than_declared(seed)


def _tenth_of_the_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    right = gaussian
    monkeypatch.setattr(
        private_module,
        "gaussian",
        lambda key, shape, spread, out: right(key, shape, spread / 10, out),
    )


def _twice_the_clip(monkeypatch: pytest.MonkeyPatch) -> None:
    right = private_module.add_clipped
    monkeypatch.setattr(
        private_module,
        "add_clipped",
        lambda into, loss, theta, batch, clip, scale, *record_messages: right(
            into, loss, theta, batch, 2 * clip, scale, *record_messages
        ),
    )


def _shuffled(monkeypatch: pytest.MonkeyPatch) -> None:
    def shuffled(key: Key, shape: Any) -> torch.Tensor:
        order = Key(1).permutation(shape[1])  # one order, cut into batches one after the other
        found = torch.ones(*shape, dtype=torch.float64)
        for step in range(shape[0]):
            at = 40 * step % shape[1]
            found[step, order[at : at + 40]] = 0.0
        return found

    monkeypatch.setattr(private_module, "uniform", shuffled)


MUTANTS: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], Callable[[], None]]] = {
    "a tenth of the noise": (_tenth_of_the_noise, check_noise_in_every_step),
    "half of the sensitivity": (
        _twice_the_clip,
        check_one_record_moves_a_step_by_no_more_than_declared,
    ),
    "shuffled batches": (_shuffled, check_samples_are_poisson),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_mutant_is_caught(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    change, check = MUTANTS[mutant]
    check()
    change(monkeypatch)
    with pytest.raises(AssertionError):
        check()


def test_a_field_that_nobody_declares_is_caught(tmp_path: Path) -> None:
    """A method that adds a field to a reply has no guarantee any more, though it forgot to say so."""
    method = tmp_path / "chatty.py"
    method.write_text('''"""Rows with noise, and one figure without."""
from comity.algorithms.adcol import Adcol, Reps
from comity.core import *


@record
class More(Reps):
    mean: float


@algorithm
class Chatty(Adcol):
    @on_party
    async def local(self, mine, m, party: Party, key: Key) -> tuple[object, More]:
        state, reps = await super().local(mine, m, party, key)
        return state, More(reps.z, reps.shared, float(party.data.train.x.mean()))
''')
    federation = comity.load("digits").partition("iid", parties=2, seed=0)
    with pytest.warns(UserWarning, match="protects a row"):
        told = comity.run(str(method), federation, noise="lap_l1", epsilon=1.0, **SMALL).summary[
            "privacy"
        ]
    assert told["epsilon"] == "infinite"
    assert "More.mean (local)" in told["unprotected"]


# --- Accountants


GRID = [
    (rate, noise, steps)
    for rate in (0.01, 0.2, 1.0)
    for noise in (0.7, 2.0)
    for steps in (1, 300 if rate < 1 else 30)
]


def sampled_epsilon(rate: float, noise: float, steps: int) -> float:
    """What dp_accounting says of so many Gaussian releases, each of a Poisson sample."""
    import dp_accounting
    from dp_accounting import pld

    account = pld.PLDAccountant(dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE)
    event = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(noise))
    account.compose(dp_accounting.SelfComposedDpEvent(event, steps))
    return float(account.get_epsilon(1e-5))


def gaussian_epsilon(noise: float) -> float:
    """The exact epsilon of one Gaussian release (Balle and Wang 2018, theorem 8). A release
    repeated k times is one with noise / sqrt(k).
    """

    def excess(eps: float) -> float:
        at_least = norm.cdf(0.5 / noise - eps * noise)
        beyond = math.exp(eps + norm.logcdf(-0.5 / noise - eps * noise))
        return float(at_least - beyond) - 1e-5

    return float(brentq(excess, 0, 1e4))


@pytest.mark.parametrize(("rate", "noise", "steps"), GRID)
def test_renyi_accounts_are_never_below_distributions(
    rate: float, noise: float, steps: int
) -> None:
    pytest.importorskip(
        "dp_accounting", reason="pip install comity[privacy] for privacy loss distributions"
    )
    history = {Release("record", "gaussian", 3.0, 3.0 * noise, rate=rate, steps=steps): 2}
    loose, tight = renyi_epsilon(history, 1e-5), epsilon(history, 1e-5)
    expected = (
        sampled_epsilon(rate, noise, 2 * steps)
        if rate < 1
        else gaussian_epsilon(noise / math.sqrt(2 * steps))
    )
    assert tight == pytest.approx(expected, rel=2e-3, abs=2e-3)
    assert tight <= loose * (1 + 1e-9)


@given(st.floats(0.05, 5), st.integers(1, 40))
@settings(max_examples=20, deadline=None)
def test_laplace_adds_up_at_most(scale: float, count: int) -> None:
    history = Counter({Release("row", "laplace", 1.0, scale, "replaced"): count})
    assert renyi_epsilon(history, 1e-5) <= count / scale * (1 + 1e-9)


def test_the_weakest_unit_counts() -> None:
    kinds = [Release(unit, "gaussian", 1.0, 1.0) for unit in ("party", "record", "row")]
    assert [weakest_unit(dict.fromkeys(kinds[:n], 1)) for n in (1, 2, 3)] == [
        "party",
        "record",
        "row",
    ]


# --- Beyond the ten: parcels


@pytest.mark.parametrize(
    ("method", "open_"),
    [
        ("relay-p2p", {"Told.obs (tell)", "Told.seen (tell)"}),
        ("fed-sps", {"Model.theta (send)", "Help.grads (assist)", "Help.count (assist)"}),
    ],
)
def test_what_is_sealed_for_other_parties_is_in_the_account(
    method: str, open_: set[str], federation: comity.Federation
) -> None:
    told = comity.run(method, federation, rounds=1, model="mlp2(width=8)").summary["privacy"]
    assert told["epsilon"] == "infinite"
    assert open_ <= set(told["unprotected"])
    assert set(told["parties"].values()) == {"infinite"}
