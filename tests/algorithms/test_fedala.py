"""FedALA: eqs. 4 and 5 on quadratics, when W is learnt and for how long, and the reduction to
FedAvg.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from toys import federation, party_of, quadratic, rounds, rows, run_call, same, server_of, task_of

import comity
from comity.algorithms.fedala import STEADY, AlaState, Both, FedAla, converged, merge
from comity.core import Key, Model, Params, Training, is_buffer

pytestmark = pytest.mark.quick

SIZES = (9, 14, 6)
SETTINGS: dict[str, Any] = {
    "model": "mlp2(width=7)",
    "rounds": 3,
    "engine": "loop",
    "lr": 0.1,
    "batch": 4,
}
NAME = "body.w"
SINGLE = Training(lr=0.1, batch=1)


def weight(value: float) -> Params:
    return {NAME: torch.tensor([value], dtype=torch.float64)}


def learnt_weight(
    method: FedAla,
    previous: float,
    received: float,
    W: float | None,
    a: float = 1.0,
    b: float = 0.0,
) -> float:
    """W of a party whose loss is a/2 (w − b)²."""
    state = AlaState({}, weight(previous), {} if W is None else weight(W))
    party = party_of(quadratic(), rows(a, b), SINGLE)
    return run_call(method.weights(state, Both(weight(previous), weight(received)), party, Key(1)))[
        NAME
    ].item()


def weights(method: str, **settings: object) -> list[Params]:
    result = comity.run(method, federation(SIZES), **SETTINGS | settings)
    return [result.model(name).theta for name in result.job.info.names]


def test_eq4_by_hand_and_exact_at_both_ends() -> None:
    for w, expected in ((0.0, 0.1), (1.0, 0.7), (0.25, 0.25)):
        assert merge(Both(weight(0.1), weight(0.7)), weight(w))[NAME].item() == (
            expected if w in (0, 1) else pytest.approx(expected)
        )


def test_eq5_one_step_by_hand() -> None:
    """∂L/∂W = a (Θ̂ − b) (Θ − Θ_i) = 2 · (3 − 1) · (3 − 2.5) = 2 at W = 1: W ← 1 − 0.1 · 2."""
    assert learnt_weight(FedAla(eta=0.1), previous=2.5, received=3, W=1, a=2, b=1) == pytest.approx(
        0.8
    )


@pytest.mark.parametrize(
    ("previous", "received", "expected"), [(-1.0, 3.0, 0.25), (1.0, 3.0, 0.0), (-3.0, -1.0, 1.0)]
)
def test_eq5_converges_to_the_best_mixture_within_0_and_1(
    previous: float, received: float, expected: float
) -> None:
    """The optimum 0 lies a quarter of the way from −1 to 3; from 1 to 3 and from −3 to −1 it lies
    outside.
    """
    W = 1.0
    for _ in range(60):
        W = learnt_weight(FedAla(eta=0.05), previous, received, W)
    assert pytest.approx(expected, abs=1e-3) == W


def test_alg1_l8_the_first_time_w_is_learnt_until_losses_are_steady() -> None:
    """Losses spread by less than 0.1 at once here, so that it takes the 11 epochs that are looked
    at.
    """
    W = 1.0
    for _ in range(STEADY + 1):
        W = learnt_weight(FedAla(eta=0.01), 2.0, 2.5, W)
    assert learnt_weight(FedAla(eta=0.01), 2.0, 2.5, None) == pytest.approx(W)
    assert learnt_weight(FedAla(eta=0.01, start_epochs=1), 2.0, 2.5, None) == pytest.approx(
        learnt_weight(FedAla(eta=0.01), 2.0, 2.5, 1.0)
    )


def test_converged() -> None:
    assert not converged([1.0] * 10)
    assert converged([1.0] * 11)
    assert not converged([*[1.0] * 10, 2.0])
    assert converged([*[1.0] * 10, 1.2])  # 0.06 for nine of 1 and one of 1.2


def test_alg1_round_by_round() -> None:
    """First round: as received. Second: W from 1. What is trained from is eq. 4, and what is
    deployed is, with the newest Θ.
    """
    method = FedAla(eta=0.1)
    data = [rows(1, 4), rows(1, -2)]
    server, s = server_of(method, quadratic(), data, SINGLE)
    s = rounds(method, server, s, 1)
    assert server.state(0).previous[NAME].item() == pytest.approx(0.4)  # 0 + 0.1 · 4
    assert not server.state(0).W
    assert s[NAME].item() == pytest.approx(0.1)  # (0.4 − 0.2) / 2
    s = rounds(method, server, s, 1, first=2)
    W = 1.0
    for _ in range(STEADY + 1):
        W = min(1.0, max(0.0, W - 0.1 * (0.4 + (0.1 - 0.4) * W - 4) * (0.1 - 0.4)))
    assert server.state(0).W[NAME].item() == pytest.approx(W)
    start = 0.4 + (0.1 - 0.4) * W
    assert server.state(0).previous[NAME].item() == pytest.approx(start - 0.1 * (start - 4))
    state = server.state(0)
    deployed = method.deployed_model(state, Model(s), server.engine.sites[0].party)[NAME].item()
    assert deployed == pytest.approx(
        state.previous[NAME].item() + (s[NAME].item() - state.previous[NAME].item()) * W
    )


@pytest.mark.parametrize(("p", "stages"), [(1, "3"), (2, "23"), (3, "123"), (9, "123")])
def test_p_counts_layers_from_the_top(p: int, stages: str) -> None:
    names = FedAla(p=p).highest(task_of("mlp2(width=5)", (6,), 3))
    assert names == {f"fc{stage}.{kind}" for stage in stages for kind in ("weight", "bias")}


def test_neither_statistics_nor_what_is_private_is_mixed() -> None:
    task = task_of("fedbn-cnn(scale=0.06)", (1, 8, 8), 3)
    names = FedAla(p=9).highest(task.keeping(frozenset({"fc3.bias"})))
    assert names == {k for k in task.shapes if not is_buffer(k) and k != "fc3.bias"}


def test_lower_layers_are_the_global_models() -> None:
    a, b, _ = weights("fedala")
    assert {k.partition(".")[0] for k in a if not torch.equal(a[k], b[k])} == {"fc3"}


@pytest.mark.parametrize("optimizer", ["sgd", "sgd(momentum=0.9)", "adam"])
def test_eta_0_is_fedavg(optimizer: str) -> None:
    """Also with an optimizer that keeps moments: learning W does not change them, however many
    epochs it takes.
    """
    keeping = {"optimizer": optimizer, "opt_state": "keep", "rounds": 4}
    assert all(
        same(a, b)
        for a, b in zip(
            weights("fedala", eta=0, **keeping), weights("fedavg", **keeping), strict=True
        )
    )


@pytest.mark.parametrize("option", [{"eta": 0.1}, {"p": 2}, {"s": 40}, {"start_epochs": 2}])
def test_no_option_is_without_effect(option: dict[str, float]) -> None:
    assert not all(
        same(a, b) for a, b in zip(weights("fedala", **option), weights("fedala"), strict=True)
    )


@pytest.mark.parametrize("option", ["p=0", "s=0", "s=101", "eta=-1", "start_epochs=0"])
def test_options_out_of_range_are_refused(option: str) -> None:
    with pytest.raises(comity.UsageError, match="must be"):
        weights(f"fedala({option})")


def test_batched_training_prints_no_warning_of_torch(tmp_path: Path) -> None:
    """torch tells users to file an issue about operations that vmap does one by one."""
    words = [
        "run",
        "fedala",
        "--data",
        "digits",
        "--partition",
        "iid",
        "--parties",
        "3",
        "--model",
        "mlp2(width=7)",
        "--rounds",
        "2",
        "--engine",
        "stacked",
        "--out",
    ]
    run = subprocess.run(
        [sys.executable, "-m", "comity.cli", *words, tmp_path / "run"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "performance drop" not in run.stdout + run.stderr
