"""What became of a paper's claims: one method above another, seed by seed, with an interval and one
of four words.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from comity.measure.seeds import interval_over_seeds
from comity.papers import Claim, Table
from comity.papers.cells import LESS_IS_BETTER, Cell

LEAST_SEEDS = 3
"""With fewer, an interval over seeds is wider than anything that it could tell."""
WORDS = ("reproduced", "direction reproduced", "contradicted", "undecided")


@dataclass(frozen=True)
class Verdict:
    """What became of one claim in one column.

    The claim is *reproduced* if the 95% interval of the difference lies on the claimed side and the
    printed difference within it, allowing for two of the printed standard deviations, in the
    paper's own setting; its *direction* is, if only the first holds. It is *contradicted* if the
    interval lies on the other side, and *undecided* if it holds zero or seeds are too few.
    """

    claim: str
    column: str
    differences: tuple[float, ...]
    """Better less worse, a figure a seed; what is better is above zero, whatever the measure's
    direction.
    """
    printed: float | None
    """The same of the paper's figures, where it prints both."""
    slack: float
    """Two of the standard deviations that the paper prints for them, together."""
    as_printed: bool
    """Whether the setting is the paper's own."""

    @property
    def mean(self) -> float:
        """Over seeds."""
        return statistics.fmean(self.differences)

    @property
    def interval(self) -> tuple[float, float] | None:
        """95%, over paired seeds; None if they are too few."""
        return (
            interval_over_seeds(self.differences) if len(self.differences) >= LEAST_SEEDS else None
        )

    @property
    def word(self) -> str:
        """One of `WORDS`."""
        if self.interval is None or self.interval[0] <= 0 <= self.interval[1]:
            return "undecided"
        low, high = self.interval
        if high < 0:
            return "contradicted"
        known = self.printed is not None and low - self.slack <= self.printed <= high + self.slack
        return "reproduced" if self.as_printed and known else "direction reproduced"

    @property
    def shown(self) -> str:
        """The difference, with its interval or how few seeds there are."""
        if self.interval is None:
            return (
                f"{self.mean:+.2f} ({len(self.differences)}"
                f" seed{'s' if len(self.differences) > 1 else ''})"
            )
        return f"{self.mean:+.2f} ({self.interval[0]:+.2f} to {self.interval[1]:+.2f})"

    def __str__(self) -> str:
        printed = "" if self.printed is None else f", printed {self.printed:+.2f}"
        return f"{self.claim} in {self.column}: {self.word}, {self.shown}{printed}"


def verdicts(table: Table, cells: Sequence[Cell], as_printed: bool) -> list[Verdict]:
    """Each claim that was put to the test, in each of its columns."""
    by = {(cell.column.name, cell.row.name): cell for cell in cells}
    made = []
    for text in table.claims:
        better, worse, only = Claim(text).parts
        for column in dict.fromkeys(
            cell.column.name for cell in cells if only in ("", cell.column.name)
        ):
            both = by.get((column, better)), by.get((column, worse))
            if (
                both[0]
                and both[1]
                and (verdict := _verdict(f"{better} > {worse}", both[0], both[1], as_printed))
            ):
                made.append(verdict)
    return made


def untested(table: Table, found: Sequence[Verdict]) -> list[str]:
    """The claims that were put to the test in no column."""
    return [
        text
        for text in table.claims
        if not any(Claim(text).covers(verdict.claim, verdict.column) for verdict in found)
    ]


def _verdict(claim: str, better: Cell, worse: Cell, as_printed: bool) -> Verdict | None:
    """What two cells of a column say, by the seeds that both have; None if they have none."""
    sign = -1 if better.column.measure.partition(":")[0] in LESS_IS_BETTER else 1
    one, two = better.judged, worse.judged
    differences = tuple(sign * (one[seed] - two[seed]) for seed in one if seed in two)
    if not differences:
        return None
    (above, its), (below, their) = better.paper, worse.paper
    printed = None if above is None or below is None else sign * (above - below)
    return Verdict(
        claim, better.column.name, differences, printed, 2 * ((its or 0) + (their or 0)), as_printed
    )
