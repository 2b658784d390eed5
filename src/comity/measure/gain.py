"""Does collaborating help each party? Its accuracy against SOLO's on the very same test samples."""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass
from pathlib import Path

from comity.errors import ComityError

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
    b, c, n = better + 0.5, worse + 0.5, count + 2.0
    middle = (b - c) / n
    half = Z95 * math.sqrt(max(b + c - (b - c) ** 2 / n, 0.0)) / n
    return max(-1.0, middle - half), min(1.0, middle + half)


def outcomes(folder: Path) -> dict[str, list[int]]:
    """Which test samples a finished run got right, by party."""
    found: dict[str, list[int]] = {}
    try:
        with (folder / "outcomes.csv").open(encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                found.setdefault(row["party"], []).append(int(row["correct"]))
    except (OSError, KeyError, ValueError) as why:
        raise ComityError(f"{folder / 'outcomes.csv'} cannot be read: the run is not finished, or damaged.") from why
    return found


def gains(run: Path, solo: Path) -> list[Gain]:
    """Every party's gain of one run over a SOLO run on the same split."""
    ours, alone = outcomes(run), outcomes(solo)
    return [paired(party, right, alone[party]) for party, right in ours.items()]


def paired(party: str, now: list[int], before: list[int]) -> Gain:
    """A party's gain, from which of the same test samples were right now and before."""
    pairs = list(zip(now, before, strict=True))
    better, worse = sum(a > b for a, b in pairs), sum(a < b for a, b in pairs)
    return Gain(party, (better - worse) / len(pairs), *paired_interval(better, worse, len(pairs)))
