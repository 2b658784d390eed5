"""Samples that cannot be read: what a party function gets in place of the data during private
training.
"""

from __future__ import annotations

from typing import Any, NoReturn

from comity.base.samples import PartyData, Samples
from comity.core.party import NOT_PRIVATE
from comity.errors import UsageError


class HiddenSamples(Samples):
    """Samples of which only the count is known.

    Whatever a party function computed from a sample itself would leave without noise.
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
        f"{NOT_PRIVATE}: it reads a party's samples itself, and what it computes from them would"
        " leave without noise."
    )


def hide_samples(data: PartyData) -> PartyData:
    """A party's data of which only the numbers of samples are known."""
    return PartyData(
        HiddenSamples(len(data.train)),
        HiddenSamples(len(data.validation)),
        HiddenSamples(len(data.test)),
    )
