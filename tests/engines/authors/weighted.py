"""A user method: FedAvg whose loss weights classes by numpy arrays.

Idea: rare classes get larger weights: from an array per party, from one array for all parties, or
from a closure.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch.nn.functional as F
from torch import Tensor, from_numpy

from comity.algorithms.fedavg import FedAvg
from comity.core import Batch, Key, LearningTask, Model, Params, Party, algorithm, option, record


@record
class ClassWeights:
    """A weight for each class."""

    weights: np.ndarray[Any, Any]


@algorithm
class Weighted(FedAvg):
    way: Literal["own", "common", "closure"] = option("own", "where the loss finds its weights")

    async def train_locally(self, theta: Params, m: Model, party: Party, key: Key) -> Params:
        counts = np.bincount(party.data.train.y.numpy(), minlength=party.task.classes)
        if self.way == "common":
            counts = np.arange(party.task.classes)
        weights = (1 / (1 + counts)).astype(np.float32)

        def closure_loss(task: LearningTask, theta: Params, batch: Batch, aux: None) -> Tensor:
            return F.cross_entropy(task.logits(theta, batch.x), batch.y, weight=from_numpy(weights))

        if self.way == "closure":
            return (await party.fit(closure_loss, theta, key)).theta
        return (await party.fit(self.loss, theta, key, ClassWeights(weights))).theta

    def loss(self, task: LearningTask, theta: Params, batch: Batch, aux: ClassWeights) -> Tensor:
        return F.cross_entropy(task.logits(theta, batch.x), batch.y, weight=from_numpy(aux.weights))
