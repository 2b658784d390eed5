"""Canaries against the trainer of a private run, with the run's clipping norm, noise, sampling rate
and steps.

All releases of the party with the largest epsilon are attacked together, as the account composes
them. The trainer itself runs, on a loss whose gradients are its inputs (`canaries.row_loss`).
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import torch
from torch import Tensor

from comity.auditing.canaries import CANARIES, CanaryResult, Mechanism, Step, attack, row_loss
from comity.auditing.finding import Untried
from comity.auditing.view import View
from comity.base.key import Key
from comity.base.samples import Samples
from comity.core.release import RECORD_UNITS
from comity.privacy.account import PrivacyCharge
from comity.training.descent import train
from comity.training.requests import FitRequest, Fitted, Private
from comity.training.settings import Training
from comity.training.task import LearningTask

ATTACK = "canaries"
WIDTH = 8
MOST_STEPS = 2000
"""The largest number of steps with the run's noise; as many are made with a tenth of it."""
MOST_TRIALS, LEAST_TRIALS = 4000, 200
Trainer = Callable[[FitRequest[None]], Fitted]


def attack_private_training(view: View, trainer: Trainer = train) -> CanaryResult | Untried | None:
    """Attack private training with canaries; None if the run claims nothing for a record."""
    if view.claimed is None or view.unit not in RECORD_UNITS:
        return None
    if view.unit == "patient":
        return Untried(ATTACK, "they are single records, and the run claims to protect patients")
    epsilons = view.summary["privacy"]["parties"]
    worst = max(epsilons, key=lambda name: epsilons[name])
    rows = [
        row for row in view.folder.read_privacy() if row.party == worst and row.unit == "record"
    ]
    kinds = {(row.mechanism, row.sensitivity, row.noise, row.rate) for row in rows}
    if len(kinds) != 1 or rows[0].mechanism != "gaussian" or not rows[0].steps:
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
    gradients = torch.randn(
        size - CANARIES, WIDTH, generator=view.key.fold("gradients").generator()
    )
    return attack(
        mechanism(rows[0], steps, size, view.party(i).task, view.key.fold(ATTACK), trainer),
        gradients,
        view.claimed,
        view.delta,
        whole=rows[0].rate >= 1,
        trials=min(MOST_TRIALS, trials),
    )


def mechanism(
    row: PrivacyCharge,
    steps: int,
    size: int,
    task: LearningTask,
    key: Key,
    trainer: Trainer = train,
) -> Mechanism:
    """A trainer as a mechanism that makes all `steps` of a release at once, on as many rows as the
    party has records.
    """
    calls = count()

    def with_noise(factor: float) -> Step:
        def step(rows: Tensor) -> Tensor:
            samples = Samples(rows, torch.zeros(len(rows), dtype=torch.int64))
            private = Private(samples, row.sensitivity, factor * row.noise / row.sensitivity, [])
            how = Training("sgd", lr=1.0, batch=max(1, round(row.rate * size)), steps=steps)
            begin = {"w": torch.zeros(rows.shape[1])}
            request = FitRequest(
                row_loss, begin, samples, key.fold(next(calls)), how, task, None, private=private
            )
            return -trainer(request).theta["w"]

        return step

    return with_noise
