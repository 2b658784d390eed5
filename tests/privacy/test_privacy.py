"""Mechanisms and accounts against published figures, numerical integrals and explicit computation."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

import comity
from comity.algorithms.adcol import Adcol, Judges
from comity.components.discriminator import discriminator
from comity.core import Batch, FitRequest, Key, LearningTask, Params, Samples, Training, plain
from comity.models import build
from comity.privacy.accounting import (
    ORDERS,
    gaussian_delta,
    gaussian_sigma,
    sampled_gaussian_epsilon,
    sampled_gaussian_rdp,
)
from comity.privacy.mechanisms import add_noise, bound_rows
from comity.training.descent import train
from comity.training.requests import Private

GRID = np.linspace(-60, 60, 400_001)
STEP = GRID[1] - GRID[0]


def density(x: np.ndarray, mean: float, sigma: float) -> np.ndarray:
    return np.exp(-((x - mean) ** 2) / (2 * sigma**2)) / (sigma * math.sqrt(2 * math.pi))


# --- accounting


def test_moments_accountant_of_abadi_et_al() -> None:
    """CCS 2016, section 3.2: q = 0.01, sigma = 4, 10,000 steps, delta = 1e-5 give epsilon = 1.26."""
    classic = min(
        10_000 * sampled_gaussian_rdp(0.01, 4.0, a) + math.log(1e5) / (a - 1) for a in ORDERS
    )
    assert classic == pytest.approx(1.26, abs=0.01)
    assert sampled_gaussian_epsilon(0.01, 4.0, 10_000, 1e-5) < classic


@pytest.mark.parametrize(
    ("rate", "noise", "order"), [(0.1, 1.0, 2), (0.3, 2.0, 5), (0.02, 1.5, 16), (1.0, 3.0, 7)]
)
def test_renyi_divergence_by_integration(rate: float, noise: float, order: int) -> None:
    noise_density = density(GRID, 0, noise)
    mixture = (1 - rate) * noise_density + rate * density(GRID, 1, noise)
    inside = np.where(
        noise_density > 0,
        noise_density * (mixture / np.where(noise_density > 0, noise_density, 1)) ** order,
        0,
    )
    assert sampled_gaussian_rdp(rate, noise, order) == pytest.approx(
        math.log(inside.sum() * STEP) / (order - 1), rel=1e-6
    )


@pytest.mark.parametrize(("sigma", "epsilon"), [(1.0, 0.5), (3.73, 1.0), (0.8, 4.0)])
def test_gaussian_delta_by_integration(sigma: float, epsilon: float) -> None:
    gap = density(GRID, 1, sigma) - math.exp(epsilon) * density(GRID, 0, sigma)
    assert gaussian_delta(sigma, epsilon) == pytest.approx(
        np.maximum(gap, 0).sum() * STEP, rel=1e-4
    )


@given(st.floats(0.1, 10), st.floats(1e-8, 0.1), st.floats(0.1, 5))
def test_gaussian_sigma_is_the_smallest_sufficient(
    epsilon: float, delta: float, sensitivity: float
) -> None:
    sigma = gaussian_sigma(epsilon, delta, sensitivity)
    assert gaussian_delta(sigma, epsilon, sensitivity) <= delta * (1 + 1e-9)
    assert gaussian_delta(0.999 * sigma, epsilon, sensitivity) > delta


def test_accounts_grow_with_steps_and_shrink_with_noise() -> None:
    epsilons = [sampled_gaussian_epsilon(0.05, 1.0, steps, 1e-5) for steps in (0, 1, 10, 100)]
    assert epsilons[0] == 0
    assert epsilons == sorted(epsilons)
    assert sampled_gaussian_epsilon(0.05, 2.0, 100, 1e-5) < epsilons[-1]
    assert sampled_gaussian_epsilon(0.05, 0.0, 1, 1e-5) == math.inf


# --- mechanisms


@given(
    st.integers(0, 1000), st.sampled_from([("lap_l1", 1), ("gauss_l2", 2)]), st.floats(0.01, 100)
)
def test_two_bounded_rows_differ_by_at_most_one(
    seed: int, kind: tuple[str, int], scale: float
) -> None:
    how, order = kind
    z = bound_rows(scale * torch.randn(2, 9, generator=Key(seed).generator()), how)
    assert torch.linalg.vector_norm(z[0] - z[1], ord=order) <= 1 + 1e-5


def test_large_rows_are_scaled_to_the_bound() -> None:
    z = torch.tensor([[0.1, -0.2], [3.0, 4.0]])
    torch.testing.assert_close(bound_rows(z, "gauss_l2"), torch.tensor([[0.1, -0.2], [0.3, 0.4]]))
    torch.testing.assert_close(
        bound_rows(z, "lap_l1"), torch.tensor([[0.1, -0.2], [3 / 14, 4 / 14]])
    )
    torch.testing.assert_close(
        bound_rows(torch.tensor([[1.0, 3.0, 2.0]]), "paper"), torch.tensor([[0.0, 1.0, 0.5]])
    )
    assert torch.equal(bound_rows(z, "none"), z)
    assert add_noise(z, "none", 1.0, 0.1, Key(0)) is z


def test_sensitivity_of_the_rows_of_the_paper_is_their_width() -> None:
    """Entries are from 0 to 1: (0, 1, 1, ...) and (1, 0, 0, ...) have l1 distance d, so a release
    costs d times the epsilon in the paper.
    """
    z = bound_rows(torch.tensor([[0.0, 5.0, 5.0, 5.0], [5.0, 0.0, 0.0, 0.0]]), "paper")
    assert (z[0] - z[1]).abs().sum() == 4
    for kind, costs in (("paper", 8.0), ("lap_l1", 2.0)):
        (release,) = Adcol(noise=kind, epsilon=2.0).row_releases("Reps.z", 4)["Reps.z"]  # type: ignore[arg-type]
        assert 1 / release.multiplier == costs


@pytest.mark.parametrize("how", ["paper", "lap_l1"])
def test_laplace_noise_has_the_scale_one_over_epsilon(how: str) -> None:
    z = torch.rand(200, 300, generator=Key(1).generator())
    noise = add_noise(z, how, 4.0, 0.1, Key(2)) - bound_rows(z, how)
    assert noise.mean().item() == pytest.approx(0, abs=0.01)
    assert noise.abs().mean().item() == pytest.approx(0.25, rel=0.02)
    assert noise.square().mean().item() == pytest.approx(2 * 0.25**2, rel=0.05)


def test_gaussian_noise_has_the_analytic_scale() -> None:
    z = torch.rand(200, 300, generator=Key(1).generator())
    noise = add_noise(z, "gauss_l2", 1.0, 1e-5, Key(2)) - bound_rows(z, "gauss_l2")
    assert noise.std().item() == pytest.approx(
        3.7306, rel=0.02
    )  # Balle and Wang's mechanism at (1, 1e-5)


def _task() -> tuple[LearningTask, Samples]:
    task = discriminator("linear", 3, 0, 2)
    return task, Samples(torch.randn(12, 3, generator=Key(3).generator()), torch.arange(12) % 2)


def private_fit(
    task: LearningTask,
    theta: Params,
    data: Samples,
    key: Key,
    training: Training,
    clip: float,
    noise: float,
) -> Params:
    """The weights after DP-SGD."""
    private = Private(data, clip, noise, [])
    return train(FitRequest(plain, theta, data, key, training, task, None, private=private)).theta


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_dp_sgd_without_noise_and_clipping_equals_ordinary_training(
    optimizer: str,
) -> None:
    """Also with momentum and weight decay."""
    task, data = _task()
    training = Training(
        optimizer,  # type: ignore[arg-type]
        lr=0.3,
        momentum=0.9 if optimizer == "sgd" else 0.0,
        decay=0.01,
        batch=12,
        epochs=4,
    )
    theta = task.init(Key(1))
    usual = train(FitRequest(plain, theta, data, Key(4), training, task, None)).theta
    private = private_fit(task, theta, data, Key(4), training, clip=1e6, noise=0.0)
    for name, value in usual.items():
        torch.testing.assert_close(private[name], value, rtol=0, atol=1e-5)


def test_dp_sgd_clips_each_sample() -> None:
    task, data = _task()
    theta, clip = task.init(Key(1)), 0.2
    total = {k: torch.zeros_like(v) for k, v in theta.items()}
    for x, y in zip(data.x, data.y, strict=True):
        parameters = {k: v.clone().requires_grad_() for k, v in theta.items()}
        logits = F.linear(x[None], parameters["out.weight"], parameters["out.bias"])
        grads = torch.autograd.grad(F.cross_entropy(logits, y[None]), list(parameters.values()))
        size = torch.sqrt(sum((g.square().sum() for g in grads), torch.zeros(())))
        assert size > clip
        for name, g in zip(parameters, grads, strict=True):
            total[name] += g * clip / size
    fitted_theta = private_fit(
        task, theta, data, Key(4), Training(lr=0.5, batch=12), clip=clip, noise=0.0
    )
    for name, value in theta.items():
        torch.testing.assert_close(
            fitted_theta[name], value - 0.5 * total[name] / 12, rtol=0, atol=1e-6
        )


def test_dp_sgd_noise_has_the_scale_of_the_clip() -> None:
    network = build("linear", (500,), 100)
    task, data = (
        LearningTask(network, 100, network.cut),
        Samples(torch.zeros(4, 500), torch.arange(4)),
    )
    theta, training = task.init(Key(1)), Training(lr=1.0, batch=4)
    without_noise, with_noise = (
        private_fit(task, theta, data, Key(4), training, clip=0.5, noise=n)["fc.weight"]
        for n in (0.0, 3.0)
    )
    assert (with_noise - without_noise).std().item() == pytest.approx(3.0 * 0.5 / 4, rel=0.02)


# --- ADCOL, B.12


def test_b12_penalty_uses_the_bounded_representation_without_noise() -> None:
    network = build("mlp2(width=5)", (6,), 3)
    task = LearningTask(network, 3, network.cut)
    x, y = torch.randn(7, 6, generator=Key(1).generator()), torch.arange(7) % 3
    theta, disc = task.init(Key(2)), discriminator("mlp", 5, 8, 4)
    D = disc.init(Key(3))
    batch = Batch(x, y, torch.arange(7), 0, {})
    value = Adcol(mu=2.0, hidden=8, noise="gauss_l2", epsilon=0.01).eq2(
        task, theta, batch, Judges([D], None)
    )
    z = task.features(theta, x)
    shrunk = z * (0.5 / z.norm(dim=1, keepdim=True).clamp(min=0.5))
    log_p = disc.logits(D, shrunk).log_softmax(1)
    expected = F.cross_entropy(task.head(theta, z), y) + 2.0 * (-math.log(4) - log_p.mean())
    assert value.item() == pytest.approx(expected.item(), abs=1e-6)


@pytest.fixture(scope="module")
def federation() -> comity.Federation:
    return comity.load("digits").partition("iid", parties=3, seed=0)


def test_b12_epsilon_of_a_row_adds_up_over_rounds(
    federation: comity.Federation,
) -> None:
    """Each round releases the same samples again. Parallel composition, as in the paper, needs
    disjoint data.
    """
    with pytest.warns(UserWarning, match="nothing is guaranteed for the record"):
        result = comity.run(
            "adcol", federation, rounds=2, noise="lap_l1", epsilon=0.5, model="mlp2", hidden=16
        )
    guarantee = result.summary["privacy"]
    assert guarantee["unit"] == "row"
    assert guarantee["epsilon"] == pytest.approx(2 * 0.5, rel=1e-3)


def test_b12_dp_sgd_on_the_discriminator_is_accounted_for(federation: comity.Federation) -> None:
    with pytest.warns(UserWarning, match="the server must be trusted"):
        result = comity.run(
            "adcol",
            federation,
            rounds=2,
            disc_steps="epochs",
            disc_noise=1.5,
            disc="linear",
            model="mlp2(width=8)",
            batch=40,
            budget="delta=1e-4",
        )
    rows = sum(federation.sizes)
    expected = sampled_gaussian_epsilon(40 / rows, 1.5, 2 * math.ceil(rows / 40), 1e-4)
    guarantee = result.summary["privacy"]
    assert guarantee["epsilon"] == "infinite"  # the server gets the rows without noise
    assert 0.8 * expected < guarantee["trusted_server"]["epsilon"] <= expected
    assert guarantee["trusted_server"]["unit"] == "row"


def test_without_noise_there_is_no_guarantee(
    federation: comity.Federation, recwarn: pytest.WarningsRecorder, tmp_path: Path
) -> None:
    result = comity.run(
        "adcol", federation, rounds=2, disc="linear", model="mlp2(width=8)", out=tmp_path / "run"
    )
    assert not [w for w in recwarn if issubclass(w.category, UserWarning)]
    guarantee = result.summary["privacy"]
    assert (guarantee["epsilon"], guarantee["unprotected"], guarantee["trusted_server"]) == (
        "infinite",
        ["Reps.z (local)"],
        None,
    )
    lines = (tmp_path / "run" / "privacy.csv").read_text().splitlines()
    assert len(lines) == 1 + 3  # one row per party: an infinite epsilon is listed once
