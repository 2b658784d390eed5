"""A user method that breaks one of the rules for party functions.

Idea: each breach is refused on every engine, with the line that breaks the rule.
"""

from __future__ import annotations

import random
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from comity.algorithms.fedavg import FedAvg
from comity.core import Batch, Key, LearningTask, Model, Params, Party, algorithm, option


@algorithm
class Impure(FedAvg):
    breach: Literal[
        "torch", "numpy", "python", "loss", "tensor", "entry", "state", "deployed", "server", "none"
    ] = option("none", "the rule that is broken")

    def init_party(self, key: Key, party: Party) -> Params:
        return super().init_party(key, party) | {"own": torch.zeros(2)}

    async def train_locally(self, theta: Params, m: Model, party: Party, key: Key) -> Params:
        theta = {k: v for k, v in theta.items() if k != "own"}
        match self.breach:
            case "torch":
                theta = {k: v + 0.1 * torch.randn(v.shape) for k, v in theta.items()}  # torch
            case "numpy":
                theta = {k: v * np.random.uniform() for k, v in theta.items()}  # noqa: NPY002 # numpy
            case "python":
                theta = {k: v * random.random() for k, v in theta.items()}  # python
            case "tensor":
                m.theta["fc3.bias"].add_(1)  # tensor
            case "entry":
                m.theta["fc3.bias"] = m.theta["fc3.bias"] + 1  # entry
        return (await party.fit(self.loss, theta, key)).theta

    def loss(self, task: LearningTask, theta: Params, batch: Batch, aux: None) -> Tensor:
        value = task.loss(theta, batch)
        if self.breach == "loss":
            value = value * torch.rand(())  # loss
        return value

    async def local(self, state: Params, m: Model, party: Party, key: Key) -> tuple[Params, Model]:
        if self.breach == "state":
            state["own"] += 1  # state
        return await super().local(state, m, party, key)

    def deployed_model(self, state: Params, m: Model, party: Party) -> Params:
        if self.breach == "deployed":
            m.theta["fc3.bias"].mul_(0)  # deployed
        return dict(m.theta)

    def round(self, s: Any, server: Any, t: int) -> Any:
        if self.breach == "server":
            torch.randn(2)  # server
        return super().round(s, server, t)
