"""Canaries against the trainer that a run trained privately with, with its clip, noise, chance of a
record and steps.

Of the party with the largest epsilon all releases are taken together, as the account does. The
trainer itself runs, on a loss whose gradients are what it is given (`canaries.row_loss`).
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import torch
from torch import Tensor

from comity.audit.canaries import CANARIES, Mechanism, Shown, Step, attack, row_loss
from comity.audit.finding import Untried
from comity.audit.view import View
from comity.base.key import Key
from comity.base.samples import Samples
from comity.privacy.account import PrivacyCharge
from comity.training.descent import train
from comity.training.requests import FitRequest, Fitted, Private
from comity.training.settings import Training
from comity.training.task import LearningTask

ATTACK = "canaries"
WIDTH = 8
MOST_STEPS = 2000
"""That are made to see what the noise is like, and as many with a tenth of it."""
MOST_TRIALS, LEAST_TRIALS = 4000, 200
Trainer = Callable[[FitRequest[None]], Fitted]


def private_training(view: View, trainer: Trainer = train) -> Shown | Untried | None:
    """What canaries show of a run's private training; None if it claims nothing for a record."""
    if view.claimed is None or view.unit != "record":
        return None
    worst = max(view.summary["privacy"]["parties"].items(), key=lambda one: one[1])[0]
    rows = [
        row for row in view.folder.read_privacy() if row.party == worst and row.unit == "record"
    ]
    alike = {(row.mechanism, row.sensitivity, row.noise, row.rate) for row in rows}
    if len(alike) != 1 or rows[0].mechanism != "gaussian" or not rows[0].steps:
        return Untried(
            ATTACK, "not all that protects a record is training with one and the same noise"
        )
    steps = sum(row.steps for row in rows)
    trials = MOST_STEPS // steps * CANARIES // 2
    if trials < LEAST_TRIALS:
        return Untried(ATTACK, f"{steps:,} steps are too many to be made often enough")
    i = view.job.info.names.index(worst)
    size = len(view.party(i).data.train)
    if size <= CANARIES:
        return Untried(
            ATTACK,
            f"{worst} has no more than {CANARIES} records, and as many canaries are tried at once",
        )
    made = mechanism(rows[0], steps, size, view.party(i).task, view.key.fold(ATTACK), trainer)
    gradients = torch.randn(
        size - CANARIES, WIDTH, generator=view.key.fold("gradients").generator()
    )
    whole = rows[0].rate >= 1
    return attack(
        made, gradients, view.claimed, view.delta, whole=whole, trials=min(MOST_TRIALS, trials)
    )


def mechanism(
    row: PrivacyCharge, steps: int, size: int, task: LearningTask, key: Key, trainer: Trainer = train
) -> Mechanism:
    """A trainer as a mechanism: all `steps` of a release's kind at once, on as many rows as the
    party has records.
    """
    calls = count()

    def with_noise(factor: float) -> Step:
        def step(rows: Tensor) -> Tensor:
            samples = Samples(rows, torch.zeros(len(rows), dtype=torch.int64))
            private = Private(samples, row.sensitivity, factor * row.noise / row.sensitivity, [])
            how = Training("sgd", lr=1.0, batch=max(1, round(row.rate * size)), steps=steps)
            begin = {"w": torch.zeros(rows.shape[1])}
            asked = FitRequest(
                row_loss, begin, samples, key.fold(next(calls)), how, task, None, private=private
            )
            return -trainer(asked).theta["w"]

        return step

    return with_noise
