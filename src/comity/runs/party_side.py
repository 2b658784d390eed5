"""A party's side of a run before it starts: the party, from the run context, its number and its
data.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from comity.base.key import Key
from comity.base.samples import PartyData
from comity.core.party import Party
from comity.errors import UsageError
from comity.metrics.calibration import NONE
from comity.metrics.metrics import METRICS
from comity.runs.context import RunContext
from comity.training.settings import Training
from comity.training.task import LearningTask


def make_party(context: RunContext, number: int, data: PartyData) -> Party:
    """The party with this number in the run."""
    roster = context.roster
    name = roster.names[number]
    task = context.task(name)
    training = training_of(context, number, len(data.train))
    place, metric = roster.places[number], METRICS[context.experiment.metric].name
    own_start = context.experiment.init == "own"
    # A newcomer's model is compared with others before and after it joins, as they are.
    calibrate = context.experiment.calibrate if number < roster.from_start else NONE
    key = Key.root(context.experiment.seed).fold("party", place, "outside of works")
    return Party(
        number,
        name,
        task,
        training,
        data,
        federation_size=roster.from_start,
        place=place,
        metric=metric,
        calibrate=calibrate,
        own_start=own_start,
        key=key,
    )


def training_of(context: RunContext, number: int, samples: int) -> Training:
    """The training settings of the party with this number and this many samples."""
    return _with_least_batch(
        context, context.task(context.roster.names[number]), _own_training(context, number), samples
    )


def _own_training(context: RunContext, number: int) -> Training:
    """The common training settings with the party's own changes. A newcomer has its warm-up."""
    experiment = context.experiment
    settings = experiment.party.get(context.roster.names[number])
    changes: dict[str, Any] = (
        settings.model_dump(exclude={"model", "peers"}, exclude_none=True) if settings else {}
    )
    if "epochs" in changes:
        changes["steps"] = None  # a party's epochs override the experiment's steps
    if number >= context.roster.from_start:
        changes |= {"epochs": experiment.join_epochs, "steps": None}
    return replace(context.training, augment=context.augment, **changes)


def _with_least_batch(
    context: RunContext, task: LearningTask, training: Training, samples: int
) -> Training:
    """The same training with the smallest batch that the settings and the network allow."""
    least = min(training.batch, samples) if context.experiment.last_batch == "drop" else 1
    least = max(least, 2 if task.network.norms else 1)
    if training.batch < least:
        raise UsageError(
            f"{task.network.name} has BatchNorm, which needs batches of at least 2: raise --batch."
        )
    return replace(training, min_batch=least)
