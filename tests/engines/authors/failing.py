"""A user method: FedAvg whose loss fails.

Idea: the method or torch raises the error; the party function may catch it and train with the
plain loss instead.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from comity.algorithms.fedavg import FedAvg
from comity.core import Batch, Key, LearningTask, Model, Params, Party, algorithm, option, plain


@algorithm
class Failing(FedAvg):
    how: Literal["raised", "shapes", "in torch"] = option("raised", "what goes wrong in the loss")
    caught: bool = option(False, "whether the party function catches the error")

    async def train_locally(self, theta: Params, m: Model, party: Party, key: Key) -> Params:
        try:
            return (await party.fit(self.loss, theta, key)).theta
        except (ValueError, RuntimeError):
            if not self.caught:
                raise
        return (await party.fit(plain, theta, key)).theta

    def loss(self, task: LearningTask, theta: Params, batch: Batch, aux: None) -> Tensor:
        value = task.loss(theta, batch)
        if batch.number == 1:
            match self.how:
                case "raised":
                    raise ValueError("the author's words")  # raised
                case "shapes":
                    return value + (torch.ones(2) @ torch.ones(3))  # shapes
                case "in torch":
                    return F.cross_entropy(task.logits(theta, batch.x), batch.y[:-1])  # in torch
        return value
