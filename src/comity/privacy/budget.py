"""The privacy budget of a run, as a user writes it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from comity.errors import UsageError
from comity.spec import call, parse


@dataclass(frozen=True)
class Budget:
    """The largest ε that a run may have for any party, and the δ at which it is computed."""

    epsilon: float = math.inf
    delta: float = 1e-5

    @staticmethod
    def read(text: str | None) -> Budget:
        """Parse a text such as `epsilon=8,delta=1e-5`; without a text there is no bound."""
        budget = call(parse(f"budget({text or ''})"), Budget)
        if not (budget.epsilon > 0 and 0 < budget.delta < 1):
            raise UsageError(
                "A budget is epsilon > 0 at a delta between 0 and 1, as in epsilon=8,delta=1e-5,"
                f" not {text}."
            )
        return budget

    def __str__(self) -> str:
        return f"epsilon={self.epsilon:g},delta={self.delta:g}"
