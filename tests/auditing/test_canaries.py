"""Canaries: a right mechanism passes, broken ones are caught, and where nothing can be caught,
nothing is claimed.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import comity
from comity.auditing import private_training
from comity.auditing.audit import audit_run
from comity.auditing.canaries import Mechanism, Observe, Steps, attack, gaussian_bound
from comity.auditing.local_training import local_trainings
from comity.auditing.private_training import few_samples, mechanism, plant
from comity.auditing.view import View
from comity.base.key import Key
from comity.core.release import Release
from comity.privacy.accounting import gaussian_epsilon, gaussian_sigma
from comity.privacy.composition import epsilon

DELTA = 1e-5
ONE = Steps()


def gaussian(noise: float, sensitivity: float = 1.0, steps: Steps = ONE) -> Mechanism:
    """Canaries of length 1 with Gaussian noise; another `sensitivity` than 1 is a fault."""
    source = torch.Generator().manual_seed(1)

    def with_noise(factor: float) -> Observe:
        def observe(present: Tensor) -> Tensor:
            shape = (steps.count, len(present))
            sampled = torch.rand(shape, generator=source) < steps.rate
            spread = factor * noise * sensitivity
            return (sampled * present + spread * torch.randn(shape, generator=source)).sum(0)

        return observe

    return with_noise


@pytest.mark.parametrize("claimed", [0.5, 1.0, 2.0])
def test_the_right_mechanism_passes(claimed: float) -> None:
    result = attack(gaussian(gaussian_sigma(claimed, DELTA)), claimed, DELTA, ONE, trainings=120)
    assert result.power
    assert result.epsilon is not None
    assert 0 < result.epsilon <= claimed
    assert "do not refute" in result.sentence


@pytest.mark.parametrize("claimed", [0.5, 2.0])
def test_a_tenth_of_the_noise_is_caught(claimed: float) -> None:
    mutant = gaussian(gaussian_sigma(claimed, DELTA) / 10)
    result = attack(mutant, claimed, DELTA, ONE, trainings=80)
    assert result.refuted
    assert "refuted" in result.sentence


def test_half_the_sensitivity_is_caught() -> None:
    mutant = gaussian(gaussian_sigma(1.0, DELTA), sensitivity=0.5)
    assert attack(mutant, 1.0, DELTA, ONE, trainings=160).refuted


def test_steps_that_are_not_counted_are_caught() -> None:
    """Four steps, each with the noise that one alone would need."""
    noise, four = gaussian_sigma(1.0, DELTA), Steps(1.0, 4)
    assert attack(gaussian(noise, steps=four), 1.0, DELTA, four, trainings=60).refuted
    right = gaussian(noise * math.sqrt(4), steps=four)
    assert not attack(right, 1.0, DELTA, four, trainings=60).refuted


def test_sampled_batches_are_attacked_with_power() -> None:
    """The right mechanism passes. Half the noise, and twice the sampling rate, are caught."""
    steps = Steps(0.1, 50)
    release = Release("record", "gaussian", 1.0, 1.0, rate=steps.rate, steps=steps.count)
    claimed = epsilon({release: 1}, DELTA)

    def result(mutant: Mechanism) -> tuple[bool, bool]:
        found = attack(mutant, claimed, DELTA, steps, trainings=60)
        return found.power, found.refuted

    assert result(gaussian(1.0, steps=steps)) == (True, False)
    assert result(gaussian(0.5, steps=steps)) == (True, True)
    assert result(gaussian(1.0, steps=Steps(0.2, 50))) == (True, True)


def test_where_it_has_no_power_it_says_so() -> None:
    """A canary that is hardly ever in the batch is not seen, whatever the noise."""
    steps = Steps(0.001, 1)
    result = attack(gaussian(2.0, steps=steps), 1.5, DELTA, steps, trainings=40)
    assert not result.power
    assert result.epsilon is None
    assert not result.refuted
    assert "no power" in result.sentence


@pytest.mark.parametrize(("sigma", "least"), [(2.0, 0.8), (1.0, 0.88), (0.5, 0.92)])
def test_the_bound_is_tight(sigma: float, least: float) -> None:
    """The shown epsilon is close to the true one on 4000 trials with a canary, and as many
    without.
    """
    true = gaussian_epsilon(sigma, DELTA)
    shares = []
    for seed in range(20):
        source = torch.Generator().manual_seed(seed)
        present, absent = sigma * torch.randn(2, 4000, generator=source, dtype=torch.float64)
        shares.append(gaussian_bound(1 + present, absent, DELTA) / true)
    assert sum(shares) / len(shares) > least


@pytest.mark.parametrize(("sigma", "trials"), [(0.5, 4000), (2.0, 300)])
def test_the_bound_is_above_the_truth_in_two_of_a_thousand_cases(sigma: float, trials: int) -> None:
    true = gaussian_epsilon(sigma, DELTA)
    source = torch.Generator().manual_seed(0)
    above = 0
    for _ in range(1000):
        present, absent = sigma * torch.randn(2, trials, generator=source, dtype=torch.float64)
        above += gaussian_bound(1 + present, absent, DELTA) > true
    assert above <= 8, "2 are expected; 9 or more have a chance of one in four thousand"


def test_equal_groups_show_nothing_and_certain_ones_show_the_most() -> None:
    zeros = torch.zeros(10, dtype=torch.float64)
    spread = torch.linspace(-1, 1, 10, dtype=torch.float64)
    assert gaussian_bound(spread, spread, DELTA) == 0
    assert gaussian_bound(spread - 5, spread, DELTA) == 0
    assert gaussian_bound(zeros + 1, zeros, DELTA) > 50


def test_few_samples_keep_the_rate_and_never_exceed_it() -> None:
    for rate in (0.5, 0.106, 0.0142, 0.003):
        size = few_samples(rate, 75, 5000)
        assert int(rate * size) >= 1
        assert rate * 0.97 < int(rate * size) / size <= rate
    assert few_samples(1.0, 75, 5000) == 75


HOW: dict[str, Any] = {
    "record_messages": True,
    "parties": 12,
    "partition": "iid",
    "rounds": 2,
    "batch": 1000,
    "model": "mlp2(width=50)",
}


def test_the_trainer_of_the_run_is_attacked(tmp_path: Path) -> None:
    """Without noise it shows each canary's own length if it takes part, and nothing otherwise: what
    all others contribute is known.
    """
    comity.run("fedavg+dp(noise=5)", out=tmp_path / "run", **HOW)
    view = View(tmp_path / "run")
    (training,) = local_trainings(view, 0)
    request = training.request
    assert request.private is not None
    assert (request.private.clip, request.private.noise) == (1.0, 5.0)
    assert training.sent_as == {"theta": frozenset(request.begin)}
    steps = Steps(1.0, 3)
    planted = plant(request, steps, 75, 1.0, 50, Key(0))
    products = planted.directions @ planted.directions.T
    assert torch.allclose(products, torch.eye(50), atol=1e-4)
    lengths = planted.lengths.diagonal()
    assert lengths.min() > 0.8
    assert lengths.max() <= 1 + 1e-5
    present = torch.arange(50) % 2 == 0
    values = mechanism(planted, request, steps, 5.0, Key(0))(0.0)(present)
    assert torch.allclose(values, 3 * lengths * present, atol=0.05)


@pytest.mark.parametrize(
    "more", [{}, {"batch": 16, "steps": 4}, {"model": "lenet5", "rounds": 1, "parties": 20}]
)
def test_a_private_run_is_attacked_by_canaries(
    more: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They have power, and do not refute what the run claims."""
    monkeypatch.setattr(private_training, "MOST_STEPS", 600)
    comity.run("fedavg+dp(noise=2)", out=tmp_path / "run", **HOW | more)
    result = audit_run(tmp_path / "run")
    assert result.claimed is not None
    assert result.canaries is not None
    assert result.canaries.power
    assert not result.canaries.refuted
    assert [row[1] for row in result.rows()][-3:] == ["canaries", "noise in messages", "account"]
    assert "refuted" not in result.sentences[0]
    assert all(one.epsilon is None or one.epsilon <= result.claimed for one in result.findings)
