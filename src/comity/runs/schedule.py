"""The number of rounds of a run, and early stopping."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass
class Schedule:
    """The number of rounds: as set, or fewer after `patience` rounds without improvement; then one
    more round is the last.
    """

    rounds: int
    patience: int | None
    best: float | None = None
    """The goodness of the best round; higher is better."""
    best_round: int = 0
    evaluated: int = 0
    """The last evaluated round. Rounds that are not evaluated do not count against patience."""
    stopped: bool = False
    """Whether the run ends early."""

    def enter(self, t: int) -> None:
        """Begin round t, which may become the last."""
        if (
            self.patience is not None
            and t <= self.rounds
            and self.evaluated - self.best_round >= self.patience
        ):
            self.rounds = t
            self.stopped = True

    def record(self, t: int, goodness: float) -> None:
        """Record the goodness of a round. A NaN, of a diverged round, is never the best."""
        self.evaluated = t
        if goodness > (-math.inf if self.best is None else self.best):
            self.best = goodness
            self.best_round = t

    def dump(self) -> dict[str, Any]:
        """The values for a checkpoint."""
        return asdict(self)

    def load(self, saved: Mapping[str, Any]) -> None:
        """Restore the values of a checkpoint."""
        stopped = saved.get(
            "stopped", saved["rounds"] < self.rounds
        )  # earlier versions did not say
        for name, value in {
            **saved,
            "stopped": stopped,
            "rounds": saved["rounds"] if stopped else self.rounds,
        }.items():
            setattr(self, name, value)
