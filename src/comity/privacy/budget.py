"""The most that a run may give away of any party, as a user writes it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from comity.errors import UsageError
from comity.spec import call, parse


@dataclass(frozen=True)
class Budget:
    """ε at most, and the δ at which it is counted."""

    epsilon: float = math.inf
    delta: float = 1e-5

    @staticmethod
    def read(text: str | None) -> Budget:
        """`epsilon=8,delta=1e-5`; without a word, no bound."""
        made = call(parse(f"budget({text or ''})"), Budget)
        if not (made.epsilon > 0 and 0 < made.delta < 1):
            raise UsageError(
                "A budget is epsilon > 0 at a delta between 0 and 1, as in epsilon=8,delta=1e-5,"
                f" not {text}."
            )
        return made

    def __str__(self) -> str:
        return f"epsilon={self.epsilon:g},delta={self.delta:g}"
