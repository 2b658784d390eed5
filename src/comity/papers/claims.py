"""Tests of a paper's claims that one method is better than another: paired over seeds, with an
interval and a verdict.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from comity.measure.seeds import interval_over_seeds
from comity.papers import Claim, PaperTable
from comity.papers.cells import LESS_IS_BETTER, ROUNDING, Cell

WORDS = ("reproduced", "direction reproduced", "contradicted", "undecided")

MOST_NAMED = 4
"""The most constants that a remark names; the page of the table names all of them."""


@dataclass(frozen=True)
class ClaimVerdict:
    """The verdict on one claim in one column.

    The claim is *reproduced* if the setting is that of the paper, the 95% interval of the
    difference lies on the claimed side, and what was measured agrees with what is printed: both
    figures (`Cell.agrees`) and their difference. Its *direction* is reproduced if only the interval
    lies on the claimed side. It is *contradicted* if the interval lies on the other side, and
    *undecided* if it contains zero or there are too few seeds.
    """

    claim: str
    column: str
    differences: tuple[float, ...]
    """The differences between the better and the worse method, one per seed. A difference above
    zero supports the claim, also for measures of which lower values are better.
    """
    printed: float | None
    """The difference of the printed figures, where the paper prints both."""
    slack: float
    """Twice the printed standard deviations of both figures, added in quadrature."""
    figures_agree: bool
    """Whether both measured figures agree with the printed ones."""
    as_printed: bool
    """Whether the setting is that of the paper."""
    remarks: str = ""
    """What a reader of the verdict should know: constants of our choice and others than the paper
    states, printed figures that were copied from another paper or have no spread.
    """

    @property
    def mean(self) -> float:
        """The mean difference over seeds."""
        return statistics.fmean(self.differences)

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95% interval over paired seeds; None if there are too few."""
        return interval_over_seeds(self.differences)

    @property
    def word(self) -> str:
        """One of `WORDS`."""
        if self.interval is None or self.interval[0] <= 0 <= self.interval[1]:
            return "undecided"
        low, high = self.interval
        if high < 0:
            return "contradicted"
        half = (high - low) / 2
        allowed = math.hypot(half, self.slack) + 2 * ROUNDING  # a difference of two rounded figures
        agrees = self.printed is not None and abs(self.mean - self.printed) <= allowed
        reproduced = self.as_printed and self.figures_agree and agrees
        return "reproduced" if reproduced else "direction reproduced"

    @property
    def text(self) -> str:
        """The difference, with its interval or the number of seeds."""
        if self.interval is None:
            return (
                f"{self.mean:+.2f} ({len(self.differences)}"
                f" seed{'s' if len(self.differences) > 1 else ''})"
            )
        return f"{self.mean:+.2f} ({self.interval[0]:+.2f} to {self.interval[1]:+.2f})"

    def __str__(self) -> str:
        printed = "" if self.printed is None else f", printed {self.printed:+.2f}"
        remarks = f" ({self.remarks})" if self.remarks else ""
        return f"{self.claim} in {self.column}: {self.word}, {self.text}{printed}{remarks}"


def verdicts(table: PaperTable, cells: Sequence[Cell], as_printed: bool) -> list[ClaimVerdict]:
    """Return the verdicts on the claims that could be tested, one for each of their columns."""
    by = {(cell.column.name, cell.row.name): cell for cell in cells}
    results = []
    for text in table.claims:
        better, worse, only = Claim(text).parts
        for column in dict.fromkeys(
            cell.column.name for cell in cells if only in ("", cell.column.name)
        ):
            high, low = by.get((column, better)), by.get((column, worse))
            if high and low and (verdict := _verdict(table, high, low, as_printed)):
                results.append(verdict)
    return results


def untested(table: PaperTable, results: Sequence[ClaimVerdict]) -> list[str]:
    """Return the claims that were tested in no column."""
    return [
        text
        for text in table.claims
        if not any(Claim(text).covers(verdict.claim, verdict.column) for verdict in results)
    ]


def _verdict(table: PaperTable, better: Cell, worse: Cell, as_printed: bool) -> ClaimVerdict | None:
    """Compare two cells of a column, by the seeds that both have; None if there are none."""
    sign = -1 if better.column.measure.partition(":")[0] in LESS_IS_BETTER else 1
    high, low = better.compared, worse.compared
    differences = tuple(sign * (high[seed] - low[seed]) for seed in high if seed in low)
    if not differences:
        return None
    (above, above_std), (below, below_std) = better.paper, worse.paper
    printed = None if above is None or below is None else sign * (above - below)
    return ClaimVerdict(
        f"{better.row.name} > {worse.row.name}",
        better.column.name,
        differences,
        printed,
        slack=2 * math.hypot(above_std or 0, below_std or 0),
        figures_agree=better.agrees is True and worse.agrees is True,
        as_printed=as_printed and not table.constants_of("differs", [better.row, worse.row]),
        remarks="; ".join(_remarks(table, better, worse)),
    )


def _remarks(table: PaperTable, better: Cell, worse: Cell) -> Iterator[str]:
    """Yield what a reader of the verdict on two cells should know."""
    both = (better, worse)
    if rows := table.constants_of("chosen", [cell.row for cell in both]):
        several = f"{len(rows)} constants are our choice"
        yield several if len(rows) > MOST_NAMED else f"our choice: {', '.join(rows)}"
    if differs := table.constants_of("differs", [cell.row for cell in both]):
        yield f"other than the paper states: {', '.join(differs)}"
    for cell in both:
        copied = table.source_of(cell.row.name, cell.column.name)
        if copied and cell.paper[0] is not None:
            source = f"{copied.source} ({copied.where})"
            yield f"{cell.row.title}'s printed figure is copied from {source}"
    if None not in (better.paper[0], worse.paper[0]) and (
        bare := [cell.row.title for cell in both if cell.paper[1] is None]
    ):
        yield f"no printed spread of {' and '.join(bare)}"
