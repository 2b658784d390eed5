"""When a measured figure agrees with the printed one, and when a claim counts as reproduced."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace

import pytest

from comity.papers import Column, MethodRow, PaperTable
from comity.papers.cells import ROUNDING, Cell, Figure
from comity.papers.claims import ClaimVerdict, verdicts
from comity.papers.pages import _scattered, format_cells

COLUMN = Column(name="c", title="C", measure="mean")
Printed = float | tuple[float, float] | None


def cell(values: tuple[float, ...], printed: Printed = None, row: str = "a") -> Cell:
    """A cell of one seed per value."""
    return Cell(
        COLUMN,
        MethodRow(
            name=row,
            title=row.upper(),
            algorithm="fedavg",
            paper={} if printed is None else {"c": printed},
        ),
        {seed: Figure(value, 20, 0, 0.0) for seed, value in enumerate(values)},
    )


def judge(better: Cell, worse: Cell, as_printed: bool = True) -> ClaimVerdict:
    """The verdict on the claim that the row a is above the row b."""
    table = PaperTable(
        title="",
        source="",
        trials=3,
        claims=("a > b",),
        columns=(COLUMN,),
        rows=(cell(()).row, cell((), row="b").row),
    )
    (verdict,) = verdicts(table, [better, worse], as_printed)
    return verdict


def test_spread_over_seeds_is_the_sample_standard_deviation() -> None:
    assert cell((50.0, 52.0)).std == pytest.approx(math.sqrt(2))
    assert cell((50.0,)).std is None


def test_allowed_distance_adds_both_spreads_in_quadrature() -> None:
    values = (50.0, 51.0, 52.0)
    half = 4.302653 * statistics.stdev(values) / math.sqrt(3)  # Student's t, two degrees
    allowed = math.hypot(half, 2 * 1.5) + ROUNDING
    assert cell(values, (51 - allowed + 1e-3, 1.5)).agrees is True
    assert cell(values, (51 - allowed - 1e-3, 1.5)).agrees is False


def test_without_a_printed_spread_only_ours_counts() -> None:
    values = (50.0, 51.0, 52.0)
    half = 4.302653 / math.sqrt(3)
    assert cell(values, 51 - half).agrees is True
    assert cell(values, 51 - half - 2 * ROUNDING).agrees is False
    assert format_cells([cell(values, 51.0)])[0][5] == "yes *"
    assert format_cells([cell(values, (51.0, 1.0))])[0][5] == "yes"


def test_without_any_spread_there_is_no_answer() -> None:
    assert cell((50.0, 52.0), 51.0).agrees is None  # two seeds have no usable interval
    assert cell((50.0,), (51.0, 1.0)).agrees is True  # by the printed spread alone
    assert cell((50.0, 51.0, 52.0)).agrees is None  # nothing is printed


def test_reproduced_compares_both_figures_with_the_printed_ones() -> None:
    """A difference of the right size between two figures of the wrong size is none."""
    measured = cell((63.0, 64.0, 65.0)), (61.0, 61.0, 61.0)
    near = judge(cell((63.0, 64.0, 65.0), 64.5), cell(measured[1], 61.0, "b"))
    assert near.word == "reproduced"
    far = judge(cell((63.0, 64.0, 65.0), 84.5), cell(measured[1], 81.0, "b"))
    assert far.printed == near.printed
    assert far.word == "direction reproduced"


def test_printed_difference_is_compared_in_quadrature() -> None:
    """Twice the sum of the printed spreads, 2 (1 + 1), would allow for 4 points more."""
    better, worse = (
        cell((90.0, 91.0, 92.0), (94.0, 1.0)),
        cell((80.0, 81.0, 82.0), (80.0, 1.0), "b"),
    )
    verdict = judge(better, worse)
    assert verdict.differences == (10.0, 10.0, 10.0)
    assert (better.agrees, worse.agrees) == (True, True)
    assert verdict.slack == pytest.approx(2 * math.sqrt(2))
    assert verdict.printed == 14.0
    assert verdict.word == "direction reproduced"


def test_only_the_papers_setting_reproduces() -> None:
    better, worse = cell((3.0, 4.0, 5.0), 4.0), cell((1.0, 1.0, 1.0), 1.0, "b")
    assert judge(better, worse).word == "reproduced"
    assert judge(better, worse, as_printed=False).word == "direction reproduced"


def test_a_page_warns_of_figures_that_scatter_over_seeds() -> None:
    calm, wild = cell((50.0, 52.0, 54.0)), cell((40.0, 50.0, 60.0), row="b")
    assert _scattered([calm]) == []
    before, figures, after = _scattered([calm, wild])
    assert before.endswith("more than 5 points:")
    assert figures == "- B in C (10.0)"
    assert after.startswith("They are of one machine.")
    bytes_sent = Column(name="c", title="C", measure="mbytes")
    assert _scattered([replace(wild, column=bytes_sent)]) == []
