"""Canaries: a right mechanism passes, broken ones are caught, and where nothing can be caught, nothing is claimed."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from comity import models
from comity.audit.canaries import Mechanism, Step, attack, step_of
from comity.core.descent import train
from comity.core.key import Key
from comity.core.task import Task
from comity.privacy.accounting import gaussian_sigma

DELTA = 1e-5
GRADIENTS = torch.randn(20, 12, generator=torch.Generator().manual_seed(0))


def gaussian(noise: float, sensitivity: float = 1.0, rate: float = 1.0, clip: float = 2.0, seed: int = 1) -> Mechanism:
    """Clipped means of whole batches with Gaussian noise; another `sensitivity` than 1 is a fault, a `rate` samples batches."""
    source = torch.Generator().manual_seed(seed)

    def made(factor: float) -> Step:
        def step(rows: Tensor) -> Tensor:
            kept = rows * (clip / rows.norm(dim=1, keepdim=True).clamp(min=1e-12)).clamp(max=1)
            if rate < 1:
                kept = kept * (torch.rand(len(rows), 1, generator=source) < rate)
            noisy = kept.sum(0) + factor * noise * clip * sensitivity * torch.randn(rows.shape[1], generator=source)
            return noisy / (rate * len(rows))

        return step

    return made


@pytest.mark.parametrize("claimed", [0.5, 1.0, 2.0])
def test_the_right_mechanism_passes(claimed: float) -> None:
    found = attack(gaussian(gaussian_sigma(claimed, DELTA)), GRADIENTS, claimed, DELTA, whole=True, trials=3000)
    assert found.power
    assert found.epsilon is not None
    assert found.epsilon <= claimed
    assert "do not refute" in found.says


@pytest.mark.parametrize("claimed", [0.5, 2.0])
def test_a_tenth_of_the_noise_is_caught(claimed: float) -> None:
    found = attack(gaussian(gaussian_sigma(claimed, DELTA) / 10), GRADIENTS, claimed, DELTA, whole=True, trials=2000)
    assert found.refuted
    assert "refuted" in found.says
    anything = attack(gaussian(gaussian_sigma(claimed, DELTA) / 10), GRADIENTS, claimed, DELTA, trials=1000)
    assert anything.refuted, "by the bound for any mechanism"


def test_half_the_sensitivity_is_caught() -> None:
    assert attack(gaussian(gaussian_sigma(1.0, DELTA), sensitivity=0.5), GRADIENTS, 1.0, DELTA, whole=True).refuted


def test_steps_that_are_not_counted_are_caught() -> None:
    """Four steps, each with the noise that one alone would need."""
    noise = gaussian_sigma(1.0, DELTA)
    assert attack(gaussian(noise), GRADIENTS, 1.0, DELTA, steps=4, whole=True, trials=1500).refuted
    assert not attack(gaussian(noise * math.sqrt(4)), GRADIENTS, 1.0, DELTA, steps=4, whole=True, trials=1500).refuted


def test_where_it_has_no_power_it_says_so() -> None:
    """A canary that is hardly ever in the batch is not seen, whatever the noise."""
    found = attack(gaussian(2.0, rate=0.02), GRADIENTS, 1.5, DELTA, trials=1000)
    assert not found.power
    assert found.epsilon is None
    assert not found.refuted
    assert "no power" in found.says


def test_a_trainer_is_a_step() -> None:
    """The trainer that all methods use, without noise: what it takes from zero is the mean of the rows."""
    network = models.build("linear", (12,), 2)
    step = step_of(train, Task(network, 2, network.cut), Key(0))
    assert torch.allclose(step(GRADIENTS), GRADIENTS.mean(0), atol=1e-6)
