"""How long a run goes on."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass
class Schedule:
    """How long a run goes on: its rounds, or fewer when it got no better for `patience` of them;
    then one more is the last.
    """

    rounds: int
    patience: int | None
    best: float | None = None
    """How good the best round was, by what rounds are chosen by; more is better."""
    best_round: int = 0
    evaluated: int = 0
    """The last round that was evaluated: what nobody looked at did not get worse."""
    stopped: bool = False
    """Whether it ends because it got no better."""

    def enter(self, t: int) -> None:
        """Begin round t, which may turn out to be the last."""
        if (
            self.patience is not None
            and t <= self.rounds
            and self.evaluated - self.best_round >= self.patience
        ):
            self.rounds = t
            self.stopped = True

    def seen(self, t: int, goodness: float) -> None:
        """Remember the best round so far; of what has diverged, a NaN, none is."""
        self.evaluated = t
        if goodness > (-math.inf if self.best is None else self.best):
            self.best = goodness
            self.best_round = t

    def dump(self) -> dict[str, Any]:
        """For the checkpoint."""
        return asdict(self)

    def load(self, saved: Mapping[str, Any]) -> None:
        """Back from a checkpoint. How many rounds there are is for the settings to say, unless
        patience has said it.
        """
        stopped = saved.get(
            "stopped", saved["rounds"] < self.rounds
        )  # earlier versions did not say
        for name, value in {
            **saved,
            "stopped": stopped,
            "rounds": saved["rounds"] if stopped else self.rounds,
        }.items():
            setattr(self, name, value)
