"""Samples that nobody may look at: what a work has of a party's data while that trains so that no
record tells.
"""

from __future__ import annotations

from typing import Any, NoReturn

from comity.base.samples import PartyData, Samples
from comity.core.party import NOT_PRIVATE
from comity.errors import UsageError


class Guarded(Samples):
    """As many samples as there are, none of which can be seen: whatever came of one would leave
    without noise.
    """

    def __init__(self, count: int) -> None:
        object.__setattr__(self, "_count", count)

    def __len__(self) -> int:
        return int(self._count)

    def __getattribute__(self, name: str) -> Any:
        if name in ("x", "y", "rows", "shape", "take", "digest"):
            _refuse()
        return super().__getattribute__(name)


def _refuse() -> NoReturn:
    raise UsageError(
        f"{NOT_PRIVATE}: it looks at a party's samples itself, and what comes of that would leave"
        " without noise."
    )


def guarded(data: PartyData) -> PartyData:
    """A party's data, of which only how many they are can be told."""
    return PartyData(
        Guarded(len(data.train)), Guarded(len(data.validation)), Guarded(len(data.test))
    )
