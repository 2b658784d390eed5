"""What optimizers remember, within a training and from round to round."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass

from comity.core.record import Params, record


@record
class Moments:
    """What an optimizer remembers: momentum, or Adam's first and second moments and its step count."""

    first: Params
    second: Params
    count: int


@dataclass
class Memory:
    """The moments of a party's optimizers: one for each `fit` of each work, found again by its place there."""

    moments: dict[str, Moments]
    work: str
    uses: int = 0

    def recall(self, params: Params) -> tuple[str, Moments | None]:
        """The place of the next `fit` of this work, and what was kept there if it trains the same tensors."""
        place = f"{self.work}.{self.uses}"
        self.uses += 1
        kept = self.moments.get(place)
        known = kept and {k: v.shape for k, v in kept.first.items()} == {k: v.shape for k, v in params.items()}
        return place, kept if known else None


MEMORY: ContextVar[Memory] = ContextVar("memory")
