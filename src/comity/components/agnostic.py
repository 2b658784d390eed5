"""Agnostic methods: they minimise the worst loss over mixtures of the parties. The weights λ of the
mixture lie on the simplex and rise where the loss is high.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from comity.components.averaged import AveragesWeights
from comity.components.overlap import eval_loss
from comity.core import (
    Batch,
    Info,
    Key,
    LearningTask,
    M,
    Params,
    Party,
    Samples,
    Server,
    mixin,
    option,
    record,
)


@record
class Mixture:
    """The server's state: the model, and λ with one weight per party."""

    theta: Params
    lam: list[float]


def onto_simplex(u: Tensor) -> Tensor:
    """The Euclidean projection of u onto the simplex: max(u − θ, 0) with θ such that the
    sum is 1.
    """
    falling = u.sort(descending=True).values
    thresholds = (falling.cumsum(0) - 1) / torch.arange(
        1, len(u) + 1, dtype=u.dtype, device=u.device
    )
    # max{j : u_j − (Σ_{r≤j} u_r − 1)/j > 0}: it holds up to there, and not after
    rho = int((falling > thresholds).sum())
    return (u - thresholds[rho - 1]).clamp(min=0)


def mean_loss(task: LearningTask, theta: Params, data: Samples, rows: int = 512) -> float:
    """F_i(w): the mean loss over all of a party's samples, in evaluation mode."""
    with torch.no_grad():
        parts = [
            len(y) * eval_loss(task, theta, Batch(x, y, torch.arange(len(y)), 0, {}))
            for x, y in zip(data.x.split(rows), data.y.split(rows), strict=True)
        ]
    return (torch.stack(parts).sum() / len(data)).item()


@mixin
class Agnostic(AveragesWeights[Mixture, Params, M]):
    """The common part of methods for min_w max_λ Σ_i λ_i F_i(w). All parties deploy w."""

    lam_lr: float = option(0.1, "γ_λ, step size of λ", minimum=0)
    begin: Literal["uniform", "samples"] = option(
        "uniform", "λ before round 1: all alike, or by sample counts"
    )

    def init_server(self, key: Key, info: Info) -> Mixture:
        first = info.sizes if self.begin == "samples" else (1,) * len(info.names)
        return Mixture(
            self.shared_part(info.task.init(key), info.task),
            [weight / sum(first) for weight in first],
        )

    def init_party(self, key: Key, party: Party) -> Params:
        return self.private_part(party.task.init(key), party.task)

    def newcomer_state(self, state: Params, theta: Params) -> Params:
        return theta | state

    def raise_weights(
        self, lam: Sequence[float], losses: Mapping[int, float], step: float, server: Server
    ) -> list[float]:
        """Π(λ + step · F). F is 0 for parties whose loss is unknown."""
        up = [weight + step * losses.get(i, 0.0) for i, weight in enumerate(lam)]
        new: list[float] = onto_simplex(torch.tensor(up, dtype=torch.float64)).tolist()
        for i, weight in enumerate(new):
            server.note("lambda", weight, party=i)
        return new

    traits = replace(AveragesWeights.traits, also_leaves=("means",))
