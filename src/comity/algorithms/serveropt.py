"""FedOpt: Reddi et al., Adaptive Federated Optimization, ICLR 2021. A wrapper.

Idea: the change of the model by the parties' average is treated as a gradient, with which the
server's own optimizer makes a step.

Change: Δ = Σ_{i∈S} (n_i / n_S) w_i − w, or whatever else the host's average is. FedAvgM (Hsu et
al., Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification,
2019): m ← β₁ m + Δ; w ← w + η m.
Algorithm 2: m ← β₁ m + (1 − β₁) Δ; w ← w + η m / (√v + τ), with v = τ² before round 1 and
FedAdagrad: v ← v + Δ².
FedYogi: v ← v − (1 − β₂) Δ² sign(v − Δ²).
FedAdam: v ← β₂ v + (1 − β₂) Δ².

Symbols: w = the server's theta; η = server_lr; β₁, β₂ = beta1, beta2; τ = tau.
Deviations: none in the lines above (no bias correction, as printed). The paper tunes η; by default
it is that of flwr (0.1, for yogi 0.01), and 1 for momentum as in Hsu et al. β₁ = 0 for adagrad, as
in flwr. BatchNorm's statistics are averaged.
At a glance: personal = as the host; exchanged = as the host; kept = as the host (the server: m and
v); steps = as the host.
Compared: the same as Flower's and fluke's after these were changed to start with v = τ², as in
Algorithm 2 (both: 0). Flower has Adam's bias correction; fluke also multiplies Δ by η, and its
FedAvgM drops round 1. See docs/results/methods-beside.md.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import torch

from comity.components.server_steps import check_averages, momentum_step
from comity.core import *
from comity.core.wrapper import AsHost, chain

STEPS = {"momentum": 1.0, "adam": 0.1, "yogi": 0.01, "adagrad": 0.1}


@record
class Remembered:
    """The state of the server's optimizer: m and, except for momentum, v."""

    m: Params
    v: Params


@algorithm
class ServerOpt(AsHost[Remembered]):
    host: AnyAlgorithm
    optimizer: Literal["momentum", "adam", "yogi", "adagrad"] = option(
        "momentum", "FedAvgM, FedAdam, FedYogi or FedAdagrad"
    )
    server_lr: float | Literal["auto"] = option(
        "auto", "η; auto: 1 for momentum, 0.01 for yogi, 0.1 for the others", above=0
    )
    beta1: float | Literal["auto"] = option(
        "auto", "β₁; auto: 0 for adagrad, 0.9 for the others", minimum=0, maximum=0.9999
    )
    beta2: float = option(0.99, "β₂ of adam and yogi", minimum=0, maximum=0.9999)
    tau: float = option(0.001, "τ, how adaptive it is: the smaller the more", above=0)

    @classmethod
    def check_host(cls, host: AnyAlgorithm, name: str, wrapper: str) -> None:
        check_averages(host, name, wrapper)
        if any(isinstance(layer, ServerOpt) for layer in chain(host)):
            raise UsageError(f"{name} has a {wrapper} already.")

    @property
    def eta(self) -> float:
        return STEPS[self.optimizer] if self.server_lr == "auto" else self.server_lr

    @property
    def decay(self) -> float:
        """β₁."""
        return (0.0 if self.optimizer == "adagrad" else 0.9) if self.beta1 == "auto" else self.beta1

    def round(
        self, s: Wrapped[Remembered | None], server: Server, t: int
    ) -> Wrapped[Remembered | None]:
        averaged = self.host.round(s.host, server, t)
        w, extra = self.step(weights(s.host), weights(averaged), s.extra or Remembered({}, {}))
        return Wrapped(with_weights(averaged, w), extra)

    def step(self, w: Params, mean: Params, before: Remembered) -> tuple[Params, Remembered]:
        """The server's step from w, given the host's average."""
        if self.optimizer == "momentum":
            w, m = momentum_step(w, mean, before.m, self.eta, self.decay)
            return w, Remembered(m, {})
        delta = {k: mean[k] - now for k, now in trainable(w).items()}
        m = {
            k: self.decay * before.m.get(k, torch.zeros_like(d)) + (1 - self.decay) * d
            for k, d in delta.items()
        }
        v = {
            k: self.second(before.v.get(k, torch.full_like(d, self.tau**2)), d.square())
            for k, d in delta.items()
        }
        new_w = {k: w[k] + self.eta * m[k] / (v[k].sqrt() + self.tau) for k in delta}
        return mean | new_w, Remembered(m, v)

    def second(self, v: torch.Tensor, square: torch.Tensor) -> torch.Tensor:
        """The new v, given Δ²."""
        if self.optimizer == "adagrad":
            return v + square
        if self.optimizer == "yogi":
            return v - (1 - self.beta2) * square * torch.sign(v - square)
        return self.beta2 * v + (1 - self.beta2) * square

    # -- declarations ------------------------------------------------------------------------------

    traits = Traits(start_weights="", bytes_formula="the host's")


@accounts_for(ServerOpt)
class ServerOptAccounting(WrapperAccounting[ServerOpt]):
    def warnings(self, info: Info) -> list[str]:
        plain = (
            self.method.optimizer == "momentum" and self.method.eta == 1 and not self.method.decay
        )
        return ["with a step of 1 and no momentum serveropt changes nothing."] if plain else []


def weights(s: Any) -> Params:
    """The weights that the innermost server averages, without the states of wrappers."""
    theta: Params = weights(s.host) if isinstance(s, Wrapped) else s
    return theta


def with_weights(s: Any, w: Params) -> Any:
    return replace(s, host=with_weights(s.host, w)) if isinstance(s, Wrapped) else w
