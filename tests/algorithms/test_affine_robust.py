"""FLRA: descent on the weights and ascent on the change of the inputs, in one step. With a large
penalty on the change it is FedAvg.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from test_reductions import assert_same, run_method
from torch import Tensor
from toys import OneNumber, rounds, server_of

from comity.algorithms.affine_robust import CHANGE, OFFSET, AffineRobust
from comity.core import Batch, LearningTask, Params, Samples, Training, UsageError

pytestmark = pytest.mark.quick

FULL_BATCH = Training(lr=0.1, batch=10, epochs=1)


@dataclass(frozen=True)
class Line(LearningTask):
    """f(w; x) = (w x − 1)²/2."""

    def loss(self, theta: Params, batch: Batch) -> Tensor:
        return ((theta["body.w"] * batch.x.squeeze(1) - 1).square() / 2).mean()


def at(*x: float) -> Samples:
    return Samples(
        torch.tensor([[value] for value in x], dtype=torch.float64),
        torch.zeros(len(x), dtype=torch.int64),
    )


@pytest.mark.parametrize("shift", ["diagonal", "full"])
def test_fedrobust_two_steps_by_hand(shift: str) -> None:
    """w = 1, x = 2: slopes are 2 in w, 2 in Λ and 1 in δ; w ← 0.8, Λ ← 1.1, δ ← 0.05. Then Λx + δ =
    2.25.
    """
    algorithm = AffineRobust(lam=1.0, ascent_lr=0.05, shift=shift)  # type: ignore[arg-type]
    server, s = server_of(
        algorithm, Line(OneNumber(1.0), classes=1, cut="body"), [at(2.0)], FULL_BATCH
    )
    expected = [
        (0.8, 0.1, 0.05),
        (
            0.8 - 0.1 * 0.8 * 2.25,
            0.1 + 0.05 * (0.8 * 0.8 * 2 - 0.2),
            0.05 + 0.05 * (0.8 * 0.8 - 0.1),
        ),
    ]
    for t, (w, change, delta) in enumerate(expected, 1):
        s = rounds(algorithm, server, s, 1, first=t)
        assert s["body.w"].item() == pytest.approx(w, abs=1e-7)
        assert server.state(0).shift[CHANGE].item() == pytest.approx(change, abs=1e-6)
        assert server.state(0).shift[OFFSET].item() == pytest.approx(delta, abs=1e-6)


def test_the_inner_maximum_is_found() -> None:
    """With w held (lr → 0) Λ and δ climb to the maximum of (w((1 + D)x + δ) − 1)²/2 − λ(D² + δ²): D
    = gwx/(2λ), δ = gw/(2λ).
    """
    algorithm = AffineRobust(lam=3.0, ascent_lr=0.1)
    how = Training(lr=1e-12, batch=10, epochs=60)
    server, s = server_of(algorithm, Line(OneNumber(0.5), classes=1, cut="body"), [at(1.0)], how)
    rounds(algorithm, server, s, 1)
    shift = server.state(0).shift
    gap = -0.5 / (1 - 2 * 0.5**2 / (2 * 3.0))  # g = w((1 + D)x + δ) − 1 with D and δ inserted
    assert shift[CHANGE].item() == pytest.approx(gap * 0.5 / 6, abs=1e-5)
    assert shift[OFFSET].item() == pytest.approx(gap * 0.5 / 6, abs=1e-5)


@pytest.mark.parametrize("participation", [1.0, 0.5])
@pytest.mark.parametrize("model", ["mlp2", "batchnorm"])
def test_a_large_penalty_is_fedavg(model: str, participation: float) -> None:
    """λ → ∞, bit for bit."""
    assert_same(
        run_method("affine-robust(lam=1e30)", model, participation),
        run_method("fedavg", model, participation),
    )


@pytest.mark.parametrize("text", ["lam=0.1", "ascent_lr=0.01", "shift=full"])
def test_no_option_is_without_effect(text: str) -> None:
    methods = ("affine-robust", f"affine-robust({text})")
    usual, other = (
        run_method(method, "mlp2", 1.0).model("p0").theta["fc1.weight"] for method in methods
    )
    assert not torch.equal(usual, other)


def test_settings_that_cannot_converge_are_refused() -> None:
    with pytest.raises(UsageError, match="at most 1/lam"):
        run_method("affine-robust(lam=10,ascent_lr=0.2)", "mlp2", 1.0)
    with pytest.raises(UsageError, match="--optimizer sgd"):
        run_method("affine-robust", "mlp2", 1.0, optimizer="adam")
