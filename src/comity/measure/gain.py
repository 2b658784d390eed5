"""Does collaborating help each party? Its accuracy against SOLO's on the very same test samples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from comity.experiments.folder import RunFolder

Z95 = 1.959963984540054


@dataclass(frozen=True)
class Gain:
    """A party's gain over SOLO with its 95% interval."""

    party: str
    gain: float
    low: float
    high: float

    @property
    def helped(self) -> bool:
        """Whether the interval lies above zero."""
        return self.low > 0

    @property
    def hurt(self) -> bool:
        """Whether the interval lies below zero."""
        return self.high < 0


def paired_interval(better: int, worse: int, count: int) -> tuple[float, float]:
    """95% interval for a difference of paired proportions (Agresti and Min 2005: half a sample added to each of four cells).

    `better` samples were right only now, `worse` only before. The plain Wald interval is too narrow for the small test sets
    parties have; adding to the cells repairs that.
    """
    b = better + 0.5
    c = worse + 0.5
    n = count + 2.0
    middle = (b - c) / n
    half = Z95 * math.sqrt(max(b + c - (b - c) ** 2 / n, 0.0)) / n
    return max(-1.0, middle - half), min(1.0, middle + half)


def gains(run: Path, solo: Path) -> list[Gain]:
    """The gain of every party that was heard at the end of one run and of a SOLO run on the same split."""
    ours = RunFolder(run).read_outcomes()
    theirs = RunFolder(solo).read_outcomes()
    return [paired(party, right, theirs[party]) for party, right in ours.items() if party in theirs]


def paired(party: str, now: Sequence[int], before: Sequence[int]) -> Gain:
    """A party's gain, from which of the same test samples were right now and before."""
    better, worse = counted(now, before)
    return Gain(party, (better - worse) / len(now), *paired_interval(better, worse, len(now)))


def counted(now: Sequence[int], before: Sequence[int]) -> tuple[int, int]:
    """How many of the same test samples were right only now, and how many only before."""
    pairs = list(zip(now, before, strict=True))
    return sum(a > b for a, b in pairs), sum(a < b for a, b in pairs)
