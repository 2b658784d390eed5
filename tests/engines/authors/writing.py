"""A user's own file: FedAvg whose loss writes to what it is given.

Idea: what it writes to is a letter's or a party's, or the weights' dict: no engine lets it.
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
    """Things that could be written to."""

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
        "dict", "nested", "list", "tensor", "common", "array", "theta", "letter", "late"
    ] = option("dict", "what it writes to")

    async def train_locally(self, theta: Params, m: Model, party: Party, key: Key) -> Params:
        if self.to == "letter":
            return (await party.fit(self.to_letter, theta, key, m)).theta
        own = Given(
            {"a": 1.0}, [{"a": 1.0}], [1], torch.full((2,), float(party.id)), COMMON, np.zeros(2)
        )
        return (await party.fit(self.loss, theta, key, own)).theta

    def loss(self, task: LearningTask, theta: Params, batch: Batch, own: Given) -> Tensor:
        match self.to:
            case "dict":
                own.table["a"] = 2.0
            case "nested":
                own.nested[0]["a"] = 2.0
            case "list":
                own.notes.append(2)
            case "tensor":
                own.mine.add_(1)
            case "common":
                own.common.add_(1)
            case "late" if batch.number == 2 and len(batch.y) == 10:
                own.mine.add_(1)
            case "array":
                own.array[0] = 2
            case "theta":
                theta["fc3.bias"] = theta["fc3.bias"] * 2
        return task.loss(theta, batch)

    def to_letter(self, task: LearningTask, theta: Params, batch: Batch, own: Model) -> Tensor:
        own.theta["fc3.bias"].mul_(0.5)
        return task.loss(theta, batch)
