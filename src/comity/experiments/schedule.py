"""How long a run goes on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass
class Schedule:
    """How long a run goes on: its rounds, or fewer when it got no better for `patience` of them; then one more is the last."""

    rounds: int
    patience: int | None
    best: float = -1.0
    best_round: int = 0
    evaluated: int = 0
    """The last round that was evaluated: what nobody looked at did not get worse."""

    def enter(self, t: int) -> None:
        """Begin round t, which may turn out to be the last."""
        if self.patience is not None and t <= self.rounds and self.evaluated - self.best_round >= self.patience:
            self.rounds = t

    def seen(self, t: int, accuracy: float) -> None:
        """Remember the best round so far; `accuracy` is what rounds are chosen by."""
        self.evaluated = t
        if accuracy > self.best:
            self.best = accuracy
            self.best_round = t

    def dump(self) -> dict[str, Any]:
        """For the checkpoint."""
        return {
            "rounds": self.rounds,
            "patience": self.patience,
            "best": self.best,
            "best_round": self.best_round,
            "judged": self.evaluated,  # as checkpoints have always called it
        }

    def load(self, saved: Mapping[str, Any]) -> None:
        """Back from a checkpoint; those of the first versions had no schedule."""
        if saved:
            self.rounds = saved["rounds"]
            self.patience = saved["patience"]
            self.best = saved["best"]
            self.best_round = saved["best_round"]
            self.evaluated = saved["judged"]
