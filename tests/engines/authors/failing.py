"""A user's own file: FedAvg whose loss fails.

Idea: by an error of its author's, or by one of torch's; its work may catch it and train on the
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
    caught: bool = option(False, "whether the work goes on")

    async def train_locally(self, theta: Params, m: Model, party: Party, key: Key) -> Params:
        try:
            return (await party.fit(self.loss, theta, key)).theta
        except (ValueError, RuntimeError):
            if not self.caught:
                raise
        return (await party.fit(plain, theta, key)).theta

    def loss(self, task: LearningTask, theta: Params, batch: Batch, own: None) -> Tensor:
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
