"""Discriminators: networks that predict which party a representation comes from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from comity.core import (
    Batch,
    LearningTask,
    Params,
    Samples,
    UsageError,
    cross_entropy,
    on_device,
    record,
)
from comity.models.stack import Builder, conv, flat, image, linear, mean_over_image, relu

HIDDEN = {"linear": 0, "shallow": 1, "mlp": 2, "deep": 4}


class Discriminator(LearningTask):
    """The task of a discriminator. Its passes are not counted: a step on D counts as one gradient
    evaluation, however many representations each sample has.
    """

    def features(self, theta: Params, x: Tensor, train: bool = False) -> Tensor:
        """The values before D's last layers."""
        return self.network.run(theta, x, train, 0, self._cut_index)


@cache
def discriminator(kind: str, width: int, hidden: int, outputs: int) -> Discriminator:
    """Build a discriminator. linear, shallow, mlp and deep have 1, 2, 3 and 5 fully connected
    layers with ReLU between them; conv takes the values as an image and has two convolutions.
    """
    build = Builder("discriminator", (width,)).stage("input", flat)
    if kind == "conv":
        build = build.stage("conv1", image, conv(32, 3, 1), relu).stage(
            "conv2", conv(64, 3, 1), relu, mean_over_image
        )
    elif kind in HIDDEN:
        for k in range(HIDDEN[kind]):
            build = build.stage(f"fc{k + 1}", linear(hidden), relu)
    else:
        raise UsageError(f"There is no discriminator called {kind!r}.")
    network = build.stage("out", linear(outputs)).build()
    return Discriminator(network, classes=outputs, cut=network.cut)


def label_by_owner(representations: Mapping[int, Tensor]) -> Samples:
    """Representations labelled with the numbers of their owners, as training data of a
    discriminator.
    """
    z = torch.cat(list(representations.values()))
    owners = [torch.full((len(rows),), i) for i, rows in representations.items()]
    return Samples(z, torch.cat(owners).to(z.device))


def shares_of(data: Samples) -> Tensor:
    """A factor for each label, so that each label's mean has the same weight, however many rows it
    has.
    """
    return len(data) / torch.bincount(data.y).to(data.x.dtype)


def both_sides(task: LearningTask, D: Params, batch: Batch, shares: Tensor) -> Tensor:
    """The sum over labels of the mean cross entropy of a label's rows."""
    return F.cross_entropy(task.logits(D, batch.x), batch.y, weight=shares, reduction="sum") / len(
        batch.y
    )


def carry_over(old: Params, fresh: Params, how: str) -> Params:
    """Transfer the weights of a discriminator whose outputs change their meaning: all but the
    output layer (`trunk`), all that fit (`keep`), or none (`reinit`).
    """
    fresh = on_device(fresh, old["out.bias"].device)
    names = {
        "trunk": {k for k in old if not k.startswith("out.")},
        "keep": set(old),
        "reinit": set[str](),
    }[how]
    return {k: old[k] if k in names and old[k].shape == v.shape else v for k, v in fresh.items()}


OTHERS = "others."


@record
class Owners:
    """The labels of features: the party's own number, and the others' numbers in the order of their
    features.
    """

    me: Tensor
    others: Tensor


def with_others(data: Samples, features: Sequence[Tensor]) -> Samples:
    """Add the features that others' extractors compute of the same samples."""
    return replace(data, rows={f"{OTHERS}{n}": z for n, z in enumerate(features)})


def tell_apart(disc: LearningTask, D: Params, batch: Batch, owners: Owners) -> Tensor:
    """FedUFO's eq. 5: the loss of D, which predicts the owner of the party's features and of
    others' features of the same samples.
    """

    def owner_loss(z: Tensor, owner: Tensor) -> Tensor:
        return cross_entropy(disc.logits(D, z), owner.expand(len(z)))

    value = owner_loss(batch.x, owners.me)
    theirs = [
        owner_loss(batch.rows[f"{OTHERS}{n}"], owner) for n, owner in enumerate(owners.others)
    ]
    return value + torch.stack(theirs).mean() if theirs else value
