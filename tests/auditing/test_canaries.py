"""Canaries: a correct mechanism is not refuted, broken ones are, and an attack without power claims
nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import comity
from comity import models
from comity.auditing.audit import audit_run
from comity.auditing.canaries import CANARIES, Mechanism, Step, attack
from comity.auditing.private_training import mechanism
from comity.base.key import Key
from comity.privacy.account import PrivacyCharge
from comity.privacy.accounting import gaussian_sigma
from comity.training.descent import train
from comity.training.requests import FitRequest, Fitted
from comity.training.task import LearningTask

DELTA = 1e-5
GRADIENTS = torch.randn(20, 12, generator=torch.Generator().manual_seed(0))


def gaussian(
    noise: float, sensitivity: float = 1.0, rate: float = 1.0, clip: float = 2.0, seed: int = 1
) -> Mechanism:
    """Clipped means of batches with Gaussian noise. A `sensitivity` other than 1 is a fault; a
    `rate` below 1 samples the batches.
    """
    source = torch.Generator().manual_seed(seed)

    def with_factor(factor: float) -> Step:
        def step(rows: Tensor) -> Tensor:
            clipped = rows * (clip / rows.norm(dim=1, keepdim=True).clamp(min=1e-12)).clamp(max=1)
            if rate < 1:
                clipped = clipped * (torch.rand(len(rows), 1, generator=source) < rate)
            noisy = clipped.sum(0) + factor * noise * clip * sensitivity * torch.randn(
                rows.shape[1], generator=source
            )
            return noisy / (rate * len(rows))

        return step

    return with_factor


@pytest.mark.parametrize("claimed", [0.5, 1.0, 2.0])
def test_correct_mechanism_is_not_refuted(claimed: float) -> None:
    result = attack(
        gaussian(gaussian_sigma(claimed, DELTA)), GRADIENTS, claimed, DELTA, whole=True, trials=3000
    )
    assert result.power
    assert result.epsilon is not None
    assert result.epsilon <= claimed
    assert "do not refute" in result.sentence


@pytest.mark.parametrize("claimed", [0.5, 2.0])
def test_a_tenth_of_the_noise_is_refuted(claimed: float) -> None:
    result = attack(
        gaussian(gaussian_sigma(claimed, DELTA) / 10),
        GRADIENTS,
        claimed,
        DELTA,
        whole=True,
        trials=2000,
    )
    assert result.refuted
    assert "refuted" in result.sentence
    anything = attack(
        gaussian(gaussian_sigma(claimed, DELTA) / 10), GRADIENTS, claimed, DELTA, trials=1000
    )
    assert anything.refuted, "not refuted by the bound for any mechanism"


def test_half_the_sensitivity_is_refuted() -> None:
    assert attack(
        gaussian(gaussian_sigma(1.0, DELTA), sensitivity=0.5), GRADIENTS, 1.0, DELTA, whole=True
    ).refuted


def test_uncounted_steps_are_refuted() -> None:
    """Four steps, each with the noise of a single step."""
    noise = gaussian_sigma(1.0, DELTA)
    assert attack(gaussian(noise), GRADIENTS, 1.0, DELTA, steps=4, whole=True, trials=1500).refuted
    assert not attack(
        gaussian(noise * math.sqrt(4)), GRADIENTS, 1.0, DELTA, steps=4, whole=True, trials=1500
    ).refuted


def test_attack_without_power_is_reported() -> None:
    """A canary that is rarely in the batch is not detected, whatever the noise."""
    result = attack(gaussian(2.0, rate=0.02), GRADIENTS, 1.5, DELTA, trials=1000)
    assert not result.power
    assert result.epsilon is None
    assert not result.refuted
    assert "no power" in result.sentence


def trainer_mechanism(
    noise: float, rate: float, steps: int = 1, trainer: Callable[[FitRequest[None]], Fitted] = train
) -> Mechanism:
    """The trainer of `+dp` as the mechanism that the audit of a run attacks."""
    network = models.build("linear", (12,), 2)
    row = PrivacyCharge(
        1,
        "local",
        "p0",
        "Model.theta",
        "record",
        "gaussian",
        2.0,
        2.0 * noise,
        rate,
        steps,
        1.0,
        DELTA,
        "blank",
        "",
        0,
        0,
    )
    return mechanism(
        row, steps, 20 + CANARIES, LearningTask(network, 2, network.cut), Key(0), trainer
    )


def test_mechanism_without_noise_is_the_clipped_mean() -> None:
    """Without noise the result of n steps from zero is n times the clipped mean of the rows."""
    clipped = GRADIENTS * (2.0 / GRADIENTS.norm(dim=1, keepdim=True)).clamp(max=1)
    rows = torch.cat([GRADIENTS, torch.zeros(CANARIES, 12)])
    assert torch.allclose(
        trainer_mechanism(1.0, 1.0, steps=3)(0.0)(rows),
        3 * clipped.sum(0) / (20 + CANARIES),
        atol=1e-5,
    )


def test_trainer_is_not_refuted_and_its_mutants_are() -> None:
    noise = gaussian_sigma(1.0, DELTA)

    def less_noise(request: FitRequest[None]) -> Fitted:
        assert request.private
        return train(
            replace(request, private=replace(request.private, noise=request.private.noise / 10))
        )

    def half_the_sensitivity(request: FitRequest[None]) -> Fitted:
        """Clip at twice the norm for which the noise is scaled."""
        assert request.private
        return train(
            replace(
                request, private=replace(request.private, clip=4.0, noise=request.private.noise / 2)
            )
        )

    results = {
        trainer.__name__: attack(
            trainer_mechanism(noise, 1.0, trainer=trainer),
            GRADIENTS,
            1.0,
            DELTA,
            whole=True,
            trials=1500,
        )
        for trainer in (train, less_noise, half_the_sensitivity)
    }
    assert all(result.power for result in results.values())
    assert {name for name, result in results.items() if result.refuted} == {
        "less_noise",
        "half_the_sensitivity",
    }


def test_a_private_run_is_attacked_by_canaries(tmp_path: Path) -> None:
    """With full batches canaries have power, and do not refute the claim of the run."""
    how: dict[str, Any] = {
        "record_messages": True,
        "parties": 12,
        "partition": "iid",
        "rounds": 2,
        "model": "linear",
    }
    comity.run("fedavg+dp(noise=5)", out=tmp_path / "whole", batch=1000, **how)
    whole = audit_run(tmp_path / "whole")
    assert whole.claimed is not None
    assert whole.canaries is not None
    assert whole.canaries.power
    assert not whole.canaries.refuted
    assert whole.rows()[-1][1] == "canaries"
    assert "refuted" not in whole.sentences[0]
    assert all(item.epsilon is None or item.epsilon <= whole.claimed for item in whole.findings)
