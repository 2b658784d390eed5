"""The server's optimizers: each line of Algorithm 2 on a number, the reduction to the host, and
around whom they go.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from toys import distance, federation, quadratic, rounds, rows, same, server_of

import comity
from comity.algorithms import compose
from comity.core import Params, Training, UsageError

pytestmark = pytest.mark.quick

SETTINGS: dict[str, Any] = {
    "model": "mlp2(width=7)",
    "rounds": 3,
    "engine": "loop",
    "lr": 0.1,
    "batch": 4,
}
TAU, BETA2 = 0.001, 0.99


def run_method(method: str, **settings: Any) -> comity.Result:
    return comity.run(method, federation((9, 14, 6)), **SETTINGS | settings)


def second(optimizer: str, v: float, square: float) -> float:
    return {
        "adagrad": v + square,
        "yogi": v - (1 - BETA2) * square * math.copysign(1, v - square),
        "adam": BETA2 * v + (1 - BETA2) * square,
    }[optimizer]


@pytest.mark.parametrize(
    ("optimizer", "beta1", "eta"), [("adam", 0.9, 0.1), ("yogi", 0.9, 0.01), ("adagrad", 0.0, 0.1)]
)
def test_algorithm_2_on_a_quadratic(optimizer, beta1, eta):
    """Parties that reach their optima in one step: Δ = mean b − w, three rounds with the defaults."""
    method = compose(f"fedavg+serveropt(optimizer={optimizer})")
    server, s = server_of(
        method, quadratic(), [rows(2.0, 1.0, 1), rows(2.0, 5.0, 3)], Training(lr=0.5, batch=8)
    )
    w, m, v = 0.0, 0.0, TAU**2
    for t in range(1, 4):
        s = rounds(method, server, s, 1, first=t)
        delta = 4.0 - w
        m, v = beta1 * m + (1 - beta1) * delta, second(optimizer, v, delta**2)
        w += eta * m / (math.sqrt(v) + TAU)
        assert s.host["body.w"].item() == pytest.approx(w, rel=1e-12)


def test_fedavgm_on_a_quadratic():
    method = compose("fedavg+serveropt(beta1=0.5,server_lr=0.8)")
    server, s = server_of(
        method, quadratic(), [rows(2.0, 1.0, 1), rows(2.0, 5.0, 3)], Training(lr=0.5, batch=8)
    )
    w = m = 0.0
    for t in range(1, 4):
        s = rounds(method, server, s, 1, first=t)
        m = 0.5 * m + 4.0 - w
        w += 0.8 * m
        assert s.host["body.w"].item() == pytest.approx(w, rel=1e-12)


def test_fedavgm_is_the_method_of_the_guide(tmp_path):
    """CONTRIBUTING.md has FedAvgM as a method of its own."""
    text = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text(encoding="utf-8")
    begin = text.index('"""FedAvgM')
    (tmp_path / "fedavgm.py").write_text(text[begin : text.index("```", begin)], encoding="utf-8")
    theirs = run_method(str(tmp_path / "fedavgm.py")).model("p0").theta
    ours = run_method("fedavg+serveropt").model("p0").theta
    assert distance(ours, theirs) < 1e-6
    assert distance(ours, run_method("fedavg").model("p0").theta) > 1e-3


@pytest.mark.parametrize("host", ["fedavg", "fedprox", "moon", "fedper", "ditto", "fedavg+dbe"])
def test_a_step_of_1_without_momentum_is_the_host(host):
    plain, with_serveropt = run_method(host), run_method(f"{host}+serveropt(beta1=0)")
    for name in plain.job.info.names:
        assert same(with_serveropt.model(name).theta, plain.model(name).theta)
    assert with_serveropt.summary["bytes"] == plain.summary["bytes"]
    assert with_serveropt.job.algorithm.traits.one_model == plain.job.algorithm.traits.one_model
    no_effect_warnings = [
        text for text in with_serveropt.job.warnings() if "changes nothing" in text
    ]
    assert len(no_effect_warnings) == 1


def test_options_are_not_without_effect():
    def end(options: str) -> Params:
        return run_method(f"fedavg+serveropt({options})").model("p0").theta

    usual = {name: end(f"optimizer={name}") for name in ("momentum", "adam", "yogi", "adagrad")}
    for name, others in {
        "momentum": "server_lr beta1",
        "adam": "server_lr beta1 beta2 tau",
    }.items():
        for other in others.split():
            assert distance(usual[name], end(f"optimizer={name},{other}=0.3")) > 1e-6, other
    for optimizer, other_optimizer in (("momentum", "adam"), ("adam", "yogi"), ("adam", "adagrad")):
        assert distance(usual[optimizer], usual[other_optimizer]) > 1e-6


def test_statistics_are_averaged():
    """BatchNorm's: the host's, whatever the server's step, in the first round, in which all else
    that is trained is the same.
    """
    pictures = federation((12, 9), shape=(1, 8, 8))
    settings = SETTINGS | {"model": "fedbn-cnn(scale=0.06)", "rounds": 1}
    both = ("fedavg", "fedavg+serveropt(optimizer=adam)")
    plain, other = (comity.run(text, pictures, **settings).model("p0").theta for text in both)
    assert all(torch.equal(plain[k], other[k]) == ("~" in k) for k in plain)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("scaffold+serveropt", "has another way to average"),
        ("relay+serveropt", "keeps all weights at the party"),
        ("solo+serveropt", "shares nothing"),
        ("fedreptile+serveropt", "a round of its own"),
        ("q-ffl+serveropt", "a round of its own"),
        ("fedavg+serveropt+serveropt", "has a serveropt already"),
        ("serveropt", "wraps another method"),
        ("fedavg+serveropt(beta1=1)", "beta1 must be at most"),
        ("fedavg+serveropt(tau=0)", "tau must be greater than 0"),
        ("fedavg+serveropt(optimizer=sgd)", "optimizer of serveropt"),
    ],
)
def test_unsupported_compositions_are_refused(text, why):
    with pytest.raises(UsageError, match=why):
        compose(text)


PRIVATE = [
    "fedavg+dp(noise=1,level=party)+serveropt",
    "fedavg+serveropt+dp(noise=1)",
    "fedavg+dp(noise=1)+serveropt",
]


@pytest.mark.parametrize("text", PRIVATE)
def test_private_training_within_and_without(text):
    privacy = run_method(text).summary["privacy"]
    assert privacy == run_method(text.replace("+serveropt", "")).summary["privacy"]
    assert "level=party" in text or math.isfinite(
        privacy["epsilon"]
    )  # there the server sees every party's model


def test_around_a_wrapped_host():
    """DBE's offset stays where it is, and what is averaged within it gets the server's step."""
    plain, with_serveropt = (
        run_method(text).model("p0") for text in ("fedavg+prbm", "fedavg+prbm+serveropt")
    )
    assert plain.theta.keys() == with_serveropt.theta.keys()
    assert distance(plain.theta, with_serveropt.theta) > 1e-3


def test_around_a_robust_mean_or_within_one():
    """The step is made of the median, whichever of the two is named first."""
    around, within = (
        run_method(text).model("p0").theta
        for text in ("fedavg+median+serveropt", "fedavg+serveropt+median")
    )
    assert same(around, within)
    assert distance(around, run_method("fedavg+serveropt").model("p0").theta) > 1e-4
