"""A user method: FedAvg whose loss writes to its arguments.

Idea: it writes to a message, to a party's values or to the dict of weights; every engine refuses.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from comity.algorithms.fedavg import FedAvg
from comity.core import Batch, Key, LearningTask, Model, Params, Party, algorithm, option, record


@record
class Given:
    """Values that a loss must not write to."""

    table: dict[str, float]
    nested: list[dict[str, float]]
    notes: list[int]
    mine: Tensor
    common: Tensor
    array: np.ndarray[Any, Any]


COMMON = torch.zeros(2)


@algorithm
class Writing(FedAvg):
    to: Literal[
        "dict", "nested", "list", "tensor", "common", "array", "theta", "message", "late"
    ] = option("dict", "what it writes to")

    async def train_locally(self, theta: Params, m: Model, party: Party, key: Key) -> Params:
        if self.to == "message":
            return (await party.fit(self.write_to_message, theta, key, m)).theta
        aux = Given(
            {"a": 1.0}, [{"a": 1.0}], [1], torch.full((2,), float(party.id)), COMMON, np.zeros(2)
        )
        return (await party.fit(self.loss, theta, key, aux)).theta

    def loss(self, task: LearningTask, theta: Params, batch: Batch, aux: Given) -> Tensor:
        match self.to:
            case "dict":
                aux.table["a"] = 2.0
            case "nested":
                aux.nested[0]["a"] = 2.0
            case "list":
                aux.notes.append(2)
            case "tensor":
                aux.mine.add_(1)
            case "common":
                aux.common.add_(1)
            case "late" if batch.number == 2 and len(batch.y) == 10:
                aux.mine.add_(1)
            case "array":
                aux.array[0] = 2
            case "theta":
                theta["fc3.bias"] = theta["fc3.bias"] * 2
        return task.loss(theta, batch)

    def write_to_message(
        self, task: LearningTask, theta: Params, batch: Batch, aux: Model
    ) -> Tensor:
        aux.theta["fc3.bias"].mul_(0.5)
        return task.loss(theta, batch)
