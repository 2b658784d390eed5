"""Discriminators: networks that predict which party a representation comes from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from comity.core import (
    Batch,
    Info,
    LearningTask,
    Params,
    Samples,
    Training,
    UsageError,
    mean_cross_entropy,
    mixin,
    on_device,
    option,
    record,
)
from comity.models.stack import Builder, conv, flat, image, linear, mean_over_image, relu
from comity.training.gradient_count import SEVERAL

HIDDEN = {"linear": 0, "shallow": 1, "mlp": 2, "deep": 4}


@mixin
class DiscriminatorSteps:
    """How long a discriminator is trained in a round.

    A discriminator that takes many more steps than the models that it judges predicts every party
    with certainty, and its gradient then destroys their representations. So it takes as many steps
    as they do, unless the user says otherwise.
    """

    disc_steps: int | Literal["party", "epochs"] = option(
        "party",
        "steps on D in a round: as many as a party's model takes, disc_epochs passes, or a number",
        minimum=0,
    )
    disc_epochs: int = option(
        1, "passes over D's data in a round, with disc_steps=epochs", minimum=0
    )

    def check_disc_steps(self) -> None:
        """Raise UsageError if `disc_epochs` is given but would have no effect."""
        if self.disc_epochs != 1 and self.disc_steps != "epochs":
            raise UsageError(
                f"disc_epochs={self.disc_epochs} counts with disc_steps=epochs only: write"
                f" disc_steps=epochs,disc_epochs={self.disc_epochs}, or disc_steps=NUMBER."
            )

    def disc_training(self, how: Training) -> Training:
        """How D is trained in a round, if `how` gives it as many steps as a party's model takes."""
        if self.disc_steps == "party":
            return how
        if self.disc_steps == "epochs":
            return replace(how, epochs=self.disc_epochs, steps=None)
        return replace(how, steps=self.disc_steps)

    def disc_warnings(self, how: Training, rows: int) -> list[str]:
        """A warning if D, which has `rows` samples in a round, takes several times the steps of a
        party's model, which `how` would give it.
        """
        steps, party_steps = self.disc_training(how).steps_for(rows), how.steps_for(rows)
        if steps < SEVERAL * max(1, party_steps):
            return []
        return [
            f"the discriminator takes {steps:,} steps a round and a party's model {party_steps:,}:"
            " so strong a discriminator can destroy the representations. disc_steps=party gives"
            " both the same number."
        ]


def as_many_steps_as_a_party(info: Info, cohort: Sequence[int]) -> Training:
    """The training of a model at the server that takes as many steps as a party's model, averaged
    over the cohort.
    """
    steps = [info.training.steps_for(info.sizes[i]) for i in cohort]
    return replace(info.training, steps=round(sum(steps) / len(steps)))


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
        return mean_cross_entropy(disc.logits(D, z), owner.expand(len(z)))

    value = owner_loss(batch.x, owners.me)
    theirs = [
        owner_loss(batch.rows[f"{OTHERS}{n}"], owner) for n, owner in enumerate(owners.others)
    ]
    return value + torch.stack(theirs).mean() if theirs else value
