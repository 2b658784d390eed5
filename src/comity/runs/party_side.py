"""A party's half of a run before it begins: the party itself, from the common ground, its number
and its own data.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from comity.base.key import Key
from comity.metrics.metrics import METRICS
from comity.core.party import Party
from comity.base.samples import PartyData
from comity.training.task import LearningTask
from comity.training.settings import Training
from comity.errors import UsageError
from comity.runs.context import RunContext


def make_party(common: RunContext, number: int, data: PartyData) -> Party:
    """The party with that number in the run."""
    seats = common.seats
    name = seats.names[number]
    task = common.task(name)
    training = training_of(common, number, len(data.train))
    place, metric = seats.places[number], METRICS[common.experiment.metric].name
    own_start = common.experiment.init == "own"
    key = Key.root(common.experiment.seed).fold("party", place, "outside of works")
    return Party(
        number, name, task, training, data, seats.from_start, {}, place, metric, own_start, key
    )


def training_of(common: RunContext, number: int, samples: int) -> Training:
    """How the party with that number trains on so many samples."""
    return _with_least_batch(
        common, common.task(common.seats.names[number]), _own_training(common, number), samples
    )


def _own_training(common: RunContext, number: int) -> Training:
    """How the party trains: as all do, but for its own settings; a newcomer has its warm-up."""
    experiment = common.experiment
    own = experiment.party.get(common.seats.names[number])
    changes: dict[str, Any] = (
        own.model_dump(exclude={"model", "peers"}, exclude_none=True) if own else {}
    )
    if "epochs" in changes:
        changes["steps"] = None  # a party's own epochs come before the experiment's steps
    if number >= common.seats.from_start:
        changes |= {"epochs": experiment.join_epochs, "steps": None}
    return replace(common.training, augment=common.augment, **changes)


def _with_least_batch(
    common: RunContext, task: LearningTask, training: Training, samples: int
) -> Training:
    """The same training with the smallest batch that the settings and the network allow."""
    least = min(training.batch, samples) if common.experiment.last_batch == "drop" else 1
    least = max(least, 2 if task.network.norms else 1)
    if training.batch < least:
        raise UsageError(
            f"{task.network.name} has BatchNorm, which needs batches of at least 2: raise --batch."
        )
    return replace(training, min_batch=least)
