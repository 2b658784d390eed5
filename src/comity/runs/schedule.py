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
    ends_early: bool = False
    """Whether the run ends before the number of rounds that was set. In checkpoints: `stopped`."""

    def enter(self, t: int) -> None:
        """Begin round t, which may become the last."""
        if (
            self.patience is not None
            and t <= self.rounds
            and self.evaluated - self.best_round >= self.patience
        ):
            self.rounds = t
            self.ends_early = True

    def record(self, t: int, goodness: float) -> None:
        """Record the goodness of a round. A NaN, of a diverged round, is never the best."""
        self.evaluated = t
        if goodness > (-math.inf if self.best is None else self.best):
            self.best = goodness
            self.best_round = t

    def dump(self) -> dict[str, Any]:
        """The values for a checkpoint."""
        values = asdict(self)
        values["stopped"] = values.pop("ends_early")
        return values

    def load(self, saved: Mapping[str, Any]) -> None:
        """Restore the values of a checkpoint."""
        values = dict(saved)
        # Checkpoints of early versions have no entry `stopped`.
        self.ends_early = values.pop("stopped", saved["rounds"] < self.rounds)
        if not self.ends_early:
            del values["rounds"]
        for name, value in values.items():
            setattr(self, name, value)
