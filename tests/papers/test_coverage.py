"""Coverage: how many of a paper's printed cells have a measured neighbour."""

from __future__ import annotations

from pathlib import Path

from comity import papers
from comity.papers.coverage import Coverage, by_table, coverage_table, printed_cells
from comity.papers.reproduction import Reproduction, read

DATA = Path(__file__).parents[2] / "docs" / "results" / "data"
REPRODUCTIONS = [read(path) for path in sorted(DATA.glob("*.json"))]


def find(name: str) -> Reproduction:
    return next(reproduction for reproduction in REPRODUCTIONS if reproduction.name == name)


def test_printed_cells_are_those_of_the_paper() -> None:
    assert len(printed_cells("relay/table1")) == 5 * 9
    assert len(printed_cells("adcol/table20")) == 2 * 6  # not the mean of four, which is ours
    assert len(printed_cells("adcol/table19")) == 6  # the other rows are printed in Table 1
    assert printed_cells("dbe/components") == set()
    assert printed_cells("comity/all") == set()


def test_a_repeated_row_covers_the_cell_where_it_is_printed() -> None:
    covered = by_table([find("dbe/components")])
    assert covered["dbe/table5"].measured == 2
    assert "dbe/components" not in covered


def test_coverage_adds_up() -> None:
    covered = by_table(REPRODUCTIONS)
    assert sum(coverage.printed for coverage in covered.values()) == sum(
        len(printed_cells(name)) for name in papers.names()
    )
    measured = [cell for cell in find("relay/table1").cells if cell.figures and cell.row.paper]
    assert covered["relay/table1"] == Coverage(45, len(measured), len(measured))
    assert covered["adcol/table20"].at_scale == 0  # at a smaller scale only
    assert covered["adcol/table20"].measured > 0
    assert covered["fedufo/table6"].measured == 0
    assert all(c.at_scale <= c.measured <= c.printed for c in covered.values())


def test_table_has_a_total_for_each_paper_and_for_all() -> None:
    text = coverage_table(REPRODUCTIONS)
    total = sum(by_table(REPRODUCTIONS).values(), Coverage())
    assert f"| **all papers** |  | {total.printed} | {total.measured} |" in text
    relay = coverage_table([find("relay/table1")])
    assert "| **relay** |  | 109 |" in relay
    assert "|  | relay/table1 | 45 |" in relay
    assert coverage_table([]) == ""


def test_repeated_figures_are_those_of_the_other_table() -> None:
    for name in papers.names():
        for row in papers.table(name).rows:
            if row.repeats:
                printed = {
                    figure
                    for other in papers.table(row.repeats).rows
                    for figure in other.paper.values()
                }
                assert set(row.paper.values()) <= printed, (name, row.name)
