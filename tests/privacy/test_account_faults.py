"""Ten possible faults of a privacy account, each with a test; and mutants of the DP-SGD mechanism,
which the checks detect.
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


def job_of(**settings: Any) -> Any:
    usual = {
        "data": "digits",
        "partition": "iid",
        "parties": 3,
        "model": "mlp2(width=8)",
        "rounds": 1,
    }
    config = experiment(usual | settings)
    return prepare(config, federation_of(config))


SMALL: dict[str, Any] = {"rounds": 1, "model": "mlp2(width=8)", "disc": "linear"}


# --- 1. The unit


def test_1_row_noise_protects_rows_not_records(
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
    row_changes = (rows(Samples(x, y)) - rows(train_part)).abs().sum(1)
    assert (row_changes[1:] > 1e-4).float().mean() > 0.9  # rows of unchanged records
    with pytest.warns(UserWarning, match="nothing is guaranteed for the record"):
        guarantee = comity.run("adcol", federation, noise="lap_l1", epsilon=1.0, **SMALL).summary[
            "privacy"
        ]
    assert (guarantee["unit"], guarantee["epsilon"]) == ("row", pytest.approx(1.0, rel=1e-3))


# --- 2. Poisson samples


def check_batches_are_poisson_samples() -> None:
    """Check that each record is drawn independently in every step: batch sizes are binomial."""
    samples = Samples(torch.zeros(400, 1), torch.zeros(400, dtype=torch.int64))
    sample_batches = list(poisson_batches(samples, 0.1, 400, Key(5), Training()))
    sizes = torch.tensor([float(len(batch.y)) for batch in sample_batches])
    assert sizes.mean().item() == pytest.approx(40, abs=1.5)
    assert sizes.var().item() == pytest.approx(36, rel=0.3)
    occurrences = torch.bincount(
        torch.cat([batch.indices for batch in sample_batches]), minlength=400
    ).float()
    assert occurrences.var().item() == pytest.approx(
        36, rel=0.3
    )  # with shuffled batches, all records would occur equally often


def test_2_batches_are_poisson_samples() -> None:
    check_batches_are_poisson_samples()


# --- 3. Cohorts of different sizes


def test_3_each_round_is_accounted_with_its_own_sizes(federation: comity.Federation) -> None:
    small_release, large_release = (
        Release("row", "gaussian", 1.0, 1.0, rate=min(1.0, 64 / n), steps=-(-n // 64))
        for n in (100, 3000)
    )
    mixed_epsilon = epsilon({small_release: 9, large_release: 1}, 1e-5)
    assert mixed_epsilon > 3 * epsilon(
        {large_release: 10}, 1e-5
    )  # the wrong account: the last round's size for all ten
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


# --- 4. Releases outside the account


def test_4_weights_without_noise_beside_noisy_rows_give_no_guarantee(
    federation: comity.Federation,
) -> None:
    with pytest.warns(UserWarning, match="protects a row"):
        guarantee = comity.run(
            "adcol", federation, noise="lap_l1", epsilon=1.0, aggregate="model", **SMALL
        ).summary["privacy"]
    assert (guarantee["epsilon"], guarantee["unprotected"]) == ("infinite", ["Reps.shared (local)"])


def test_4_scaling_by_own_records_gives_no_guarantee() -> None:
    with pytest.warns(UserWarning, match="missing"):
        result = comity.run(
            "fedavg+dp", comity.load("heart").partition("auto"), noise=1.0, rounds=1, model="linear"
        )
    guarantee = result.summary["privacy"]
    assert guarantee["epsilon"] == "infinite"
    assert "own records" in guarantee["unprotected"][0]
    with pytest.warns(UserWarning, match="the schema's constants"):
        result_with_constants = comity.run(
            "fedavg+dp",
            comity.load("heart(scale=fixed)").partition("auto"),
            noise=1.0,
            rounds=1,
            model="linear",
        )
    assert result_with_constants.summary["privacy"]["epsilon"] < 10


def test_4_assumptions_name_evaluation_and_sizes(
    federation: comity.Federation,
) -> None:
    guarantee = comity.run("fedavg+dp", federation, noise=1.0, rounds=1, model="linear").summary[
        "privacy"
    ]
    assumptions = " ".join(guarantee["assumptions"])
    assert "validation and test records" in assumptions
    assert "How many records" in assumptions
    assert "seed" in assumptions


# --- 5. Delta composes too


def test_5_two_gaussian_releases_at_one_delta() -> None:
    release = Release("row", "gaussian", 1.0, gaussian_sigma(0.01, 0.01), "replaced")
    assert epsilon({release: 1}, 0.01) == pytest.approx(0.01, abs=1e-3)
    assert epsilon({release: 2}, 0.01) == pytest.approx(0.026, abs=1.5e-3)  # not 0.020


# --- 6. Every step divides by the expected batch size


def check_noise_in_every_step(noise: float = 1.0) -> None:
    """With 61 records in batches of 60, the noise of the second step is also divided by 60, not by
    1.
    """
    network = build("linear", (900,), 10)
    task = LearningTask(network, 10, network.cut)
    samples = Samples(torch.zeros(61, 900), torch.zeros(61, dtype=torch.int64))
    theta = task.init(Key(1))
    steps = []
    for step_count in (1, 2):
        training = Training(lr=1.0, batch=60, steps=step_count)
        request = FitRequest(
            plain,
            theta,
            samples,
            Key(4),
            training,
            task,
            None,
            private=Private(samples, 1.0, noise, []),
        )
        steps.append(train(request).theta["fc.weight"])
    for change in (steps[0] - theta["fc.weight"], steps[1] - steps[0]):
        assert change.std().item() == pytest.approx(noise / 60, rel=0.03)


def test_6_noise_is_the_same_in_every_step() -> None:
    check_noise_in_every_step()


# --- 7 (the experiment's optimizer, with its momentum) is in test_privacy.py.


# --- 8. Different settings have different noise


def test_8_runs_with_one_seed_and_different_settings_have_independent_noise() -> None:
    noise_samples = []
    for scale in (1.0, 4.0):
        job = job_of(
            algorithm="adcol",
            set={"disc": "linear", "noise": "gauss_l2", "epsilon": scale, "delta": 1e-3},
        )
        game = job.algorithm.init_server(job.root.fold("init"), job.info)
        site = Site(job.algorithm, job.parties[0], job.root)
        z = site.run(CallId("local", 0, 1, 0), Message(game, None, True), {}).reply.z
        noise_samples.append(((z - z.mean()) / z.std()).flatten())
    assert (
        abs((noise_samples[0] * noise_samples[1]).mean().item()) < 0.2
    )  # with the same noise it would be near 1
    assert (
        job_of(algorithm="fedavg").root.bits == job_of(algorithm="fedavg", lr=0.2).root.bits
    )  # all other random draws depend on the seed alone
    assert (
        job_of(algorithm="fedavg").root.noise() != job_of(algorithm="fedavg", lr=0.2).root.noise()
    )
    assert (
        job_of(algorithm="fedavg").root.noise()
        == job_of(algorithm="fedavg", rounds=3, engine="loop").root.noise()
    )


# --- 9. One neighbour relation


def test_9_different_neighbour_relations_are_not_composed() -> None:
    """A guarantee for any replacement of a record includes its replacement by a blank one, and is
    then stated for that; the converse does not hold.
    """
    sampled_release = Release("row", "gaussian", 0.5, 2.0, rate=0.1, steps=10)
    replaced_release = Release("row", "gaussian", 1.0, 2.0, "replaced")
    drawn_release = Release("row", "gaussian", 1.0, 2.0, "replaced", drawn_of=10, drawn=2)
    mixed_history = {sampled_release: 1, replaced_release: 1}
    assert epsilon(mixed_history, 1e-5) == pytest.approx(
        epsilon({sampled_release: 1, replace(replaced_release, neighbours="blank"): 1}, 1e-5)
    )
    assert neighbours_of(mixed_history) == "blank"
    assert neighbours_of({replaced_release: 2}) == "replaced"
    assert renyi_epsilon({sampled_release: 1, drawn_release: 1}, 1e-5) == math.inf
    assert epsilon({sampled_release: 1, drawn_release: 1}, 1e-5) == math.inf
    assert neighbours_of({sampled_release: 1, drawn_release: 1}) == ""


# --- 10. Statements before a run


def test_10_plan_states_the_guarantee(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def plan_output(*words: str) -> str:
        small = ["--parties", "3", "--rounds", "3", "--model", "linear", "--batch", "30"]
        monkeypatch.setattr(sys, "argv", ["comity", "plan", *words, *small])
        with contextlib.suppress(SystemExit):
            main()
        return capsys.readouterr().out

    private = plan_output("fedavg+dp", "--budget", "epsilon=2,delta=1e-6")
    assert "epsilon 2 at delta 1e-06, for a training record" in private
    assert "times the clipping norm" in private
    assert "no guarantee (epsilon infinite), as no noise hides Model.theta (local)" in plan_output(
        "fedavg"
    )


def test_10_noise_of_dbe_gives_no_guarantee(federation: comity.Federation) -> None:
    with pytest.warns(UserWarning, match="noise_s and noise_q guarantee nothing"):
        guarantee = comity.run(
            "fedavg+dbe", federation, noise_s=1.0, rounds=1, model="mlp2(width=8)"
        ).summary["privacy"]
    assert guarantee["epsilon"] == "infinite"
    assert "Mean.z (mean)" in guarantee["unprotected"]


# --- The mechanism


def networks() -> list[tuple[str, tuple[int, ...]]]:
    return [
        ("linear", (6,)),
        ("mlp2(width=9)", (1, 8, 8)),
        ("lenet5(width=5)", (1, 12, 12)),
        ("cnn4(width=7)", (1, 16, 16)),
    ]


@pytest.mark.parametrize(("model", "shape"), networks())
def test_clipped_gradients_equal_a_loop_over_records(model: str, shape: tuple[int, ...]) -> None:
    network = build(model, shape, 4)
    task = LearningTask(network, 4, network.cut)
    theta = {k: v.clone().requires_grad_() for k, v in task.init(Key(1)).items()}
    x, y = torch.randn(7, *shape, generator=Key(2).generator()), torch.arange(7) % 4

    def loss(weights: Any, batch: Batch) -> torch.Tensor:
        return task.loss(weights, batch)

    total = {k: torch.zeros_like(v) for k, v in theta.items()}
    sizes = []
    for n in range(7):
        record_loss = loss(theta, Batch(x[n : n + 1], y[n : n + 1], torch.tensor([n]), 0, {}))
        grads = torch.autograd.grad(record_loss, list(theta.values()))
        size = torch.stack([g.square().sum() for g in grads]).sum().sqrt()
        sizes.append(size.item())
        for (name, _), g in zip(theta.items(), grads, strict=True):
            total[name] += g * min(1.0, 0.9 * sizes[0] / size.item())
    clip = 0.9 * sizes[0]  # at least the first is clipped
    clipped_sum = {k: torch.zeros_like(v) for k, v in theta.items()}
    add_clipped(clipped_sum, loss, theta, Batch(x, y, torch.arange(7), 0, {}), clip, 1.0)
    record_gradients = per_record(loss, theta, list(theta), Batch(x, y, torch.arange(7), 0, {}))
    norms = (
        torch.stack([g.flatten(1).square().sum(1) for g in record_gradients.values()]).sum(0).sqrt()
    )
    torch.testing.assert_close(norms, torch.tensor(sizes), rtol=1e-4, atol=1e-6)
    for name in theta:
        torch.testing.assert_close(clipped_sum[name], total[name], rtol=1e-4, atol=1e-5)


def check_sensitivity_of_a_step(seed: int = 3) -> None:
    """Check that the noiseless sum of a step changes by at most the sensitivity C when a record is
    removed.
    """
    network = build("mlp2(width=6)", (5,), 3)
    task = LearningTask(network, 3, network.cut)
    theta = {k: v.clone().requires_grad_() for k, v in task.init(Key(seed)).items()}
    x, y = 30 * torch.randn(9, 5, generator=Key(seed).generator()), torch.arange(9) % 3
    sums = []
    for keep in (slice(0, 9), slice(0, 8)):
        clipped_sum = {k: torch.zeros_like(v) for k, v in theta.items()}
        batch = Batch(x[keep], y[keep], torch.arange(9)[keep], 0, {})
        private_module.add_clipped(clipped_sum, task.loss, theta, batch, 0.5, 1.0)
        sums.append(torch.cat([v.flatten() for v in clipped_sum.values()]))
    assert (sums[0] - sums[1]).norm().item() <= 0.5 * (1 + 1e-4)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10_000))
def test_sensitivity_of_a_step_is_bounded(seed: int) -> None:
    check_sensitivity_of_a_step(seed)


def _use_a_tenth_of_the_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    original = gaussian
    monkeypatch.setattr(
        private_module,
        "gaussian",
        lambda key, shape, spread, out: original(key, shape, spread / 10, out),
    )


def _use_twice_the_clip(monkeypatch: pytest.MonkeyPatch) -> None:
    original = private_module.add_clipped
    monkeypatch.setattr(
        private_module,
        "add_clipped",
        lambda into, loss, theta, batch, clip, scale, *more: original(
            into, loss, theta, batch, 2 * clip, scale, *more
        ),
    )


def _use_shuffled_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    def shuffled_uniform(key: Key, shape: Any) -> torch.Tensor:
        order = Key(1).permutation(shape[1])  # one order, split into consecutive batches
        uniforms = torch.ones(*shape, dtype=torch.float64)
        for step in range(shape[0]):
            at = 40 * step % shape[1]
            uniforms[step, order[at : at + 40]] = 0.0
        return uniforms

    monkeypatch.setattr(private_module, "uniform", shuffled_uniform)


MUTANTS: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], Callable[[], None]]] = {
    "a tenth of the noise": (_use_a_tenth_of_the_noise, check_noise_in_every_step),
    "half of the sensitivity": (
        _use_twice_the_clip,
        check_sensitivity_of_a_step,
    ),
    "shuffled batches": (_use_shuffled_batches, check_batches_are_poisson_samples),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_checks_detect_mutants_of_the_mechanism(
    mutant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    change, check = MUTANTS[mutant]
    check()
    change(monkeypatch)
    with pytest.raises(AssertionError):
        check()


def test_undeclared_field_of_a_reply_gives_no_guarantee(tmp_path: Path) -> None:
    """A method that adds a field to a reply without a declaration has no guarantee."""
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
    async def local(self, state, m, party: Party, key: Key) -> tuple[object, More]:
        state, reps = await super().local(state, m, party, key)
        return state, More(reps.z, reps.shared, float(party.data.train.x.mean()))
''')
    federation = comity.load("digits").partition("iid", parties=2, seed=0)
    with pytest.warns(UserWarning, match="protects a row"):
        guarantee = comity.run(
            str(method), federation, noise="lap_l1", epsilon=1.0, **SMALL
        ).summary["privacy"]
    assert guarantee["epsilon"] == "infinite"
    assert "More.mean (local)" in guarantee["unprotected"]


# --- Accountants


GRID = [
    (rate, noise, steps)
    for rate in (0.01, 0.2, 1.0)
    for noise in (0.7, 2.0)
    for steps in (1, 300 if rate < 1 else 30)
]


def sampled_epsilon(rate: float, noise: float, steps: int) -> float:
    """Epsilon from dp_accounting of `steps` Gaussian releases, each of a Poisson sample."""
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
def test_renyi_accountant_is_an_upper_bound(rate: float, noise: float, steps: int) -> None:
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
def test_laplace_composes_at_most_linearly(scale: float, count: int) -> None:
    history = Counter({Release("row", "laplace", 1.0, scale, "replaced"): count})
    assert renyi_epsilon(history, 1e-5) <= count / scale * (1 + 1e-9)


def test_weakest_unit() -> None:
    kinds = [Release(unit, "gaussian", 1.0, 1.0) for unit in ("party", "record", "row")]
    assert [weakest_unit(dict.fromkeys(kinds[:n], 1)) for n in (1, 2, 3)] == [
        "party",
        "record",
        "row",
    ]


# --- Sealed messages


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        ("relay-p2p", {"Told.obs (tell)", "Told.seen (tell)"}),
        ("fed-sps", {"Model.theta (send)", "Help.grads (assist)", "Help.count (assist)"}),
    ],
)
def test_sealed_messages_are_in_the_account(
    method: str, expected: set[str], federation: comity.Federation
) -> None:
    guarantee = comity.run(method, federation, rounds=1, model="mlp2(width=8)").summary["privacy"]
    assert guarantee["epsilon"] == "infinite"
    assert expected <= set(guarantee["unprotected"])
    assert set(guarantee["parties"].values()) == {"infinite"}
