"""The gradient of a dense first layer: each of its rows is a linear combination of the inputs of
the batch.
"""

from __future__ import annotations

from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from comity.base.record import Params
from comity.training.task import LearningTask

NEGLIGIBLE = 1e-5  # of the largest singular value: what is less is rounding


class FirstLayer(NamedTuple):
    """The gradient of a dense first layer: weights (units, inputs) and bias."""

    weight: Tensor
    bias: Tensor | None


def first_layer(task: LearningTask, shape: tuple[int, ...], grads: Params) -> FirstLayer | None:
    """The gradient of the first layer; None if its weights are no matrix with a column for each
    value of a sample.
    """
    name = next(iter(task.shapes))
    weight = grads.get(name)
    if weight is None or weight.dim() != 2 or weight.shape[1] != prod(shape):
        return None
    return FirstLayer(
        weight.double(),
        bias.double() if (bias := grads.get(name.replace("weight", "bias"))) is not None else None,
    )


def span(weight: Tensor) -> tuple[Tensor, Tensor]:
    """A basis of the rows (rank, inputs), and the rows of the units in this basis (units, rank).

    Both are empty if the weights are all zero.
    """
    left_vectors, singular_values, right_vectors = torch.linalg.svd(weight, full_matrices=False)
    rank = (
        int((singular_values > NEGLIGIBLE * singular_values[0]).sum())
        if singular_values[0] > 0
        else 0
    )
    return right_vectors[:rank], left_vectors[:, :rank] * singular_values[:rank]
