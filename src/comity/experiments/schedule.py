"""How long a run goes on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
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
        return asdict(self)

    def load(self, saved: Mapping[str, Any]) -> None:
        """Back from a checkpoint."""
        for name, value in saved.items():
            setattr(self, name, value)
