"""Coverage: how many of a paper's printed cells have a measured neighbour, by table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from comity import papers
from comity.papers.reproduction import Reproduction
from comity.text import markdown_table

Place = tuple[str, str, str]
"""The names of a table, a row and a column."""


@dataclass(frozen=True)
class Coverage:
    """The number of printed cells, and of those that have a measured neighbour."""

    printed: int = 0
    measured: int = 0
    """Cells with a measured figure at any scale."""
    at_scale: int = 0
    """Cells with a measured figure at the full scale."""

    def __add__(self, other: Coverage) -> Coverage:
        return Coverage(
            self.printed + other.printed,
            self.measured + other.measured,
            self.at_scale + other.at_scale,
        )


def printed_cells(name: str) -> set[Place]:
    """Return the cells that the paper prints in a table.

    Figures that the table's file repeats from another table, or derives from printed ones, do not
    count.
    """
    table = papers.table(name)
    derived = {column.name for column in table.columns if column.derived}
    return {
        (name, row.name, column)
        for row in table.rows
        if not row.repeats
        for column in row.paper
        if column not in derived
    }


def by_table(reproductions: Sequence[Reproduction]) -> dict[str, Coverage]:
    """Return the coverage of all tables with printed figures, by the name of the table.

    A measured row that repeats printed figures of another table counts there, if its row and
    column have the same names.
    """
    with_figures: set[Place] = set()
    at_scale: set[Place] = set()
    for reproduction in reproductions:
        places = {
            (cell.row.repeats or reproduction.name, cell.row.name, cell.column.name)
            for cell in reproduction.cells
            if cell.figures
        }
        with_figures |= places
        at_scale |= places if reproduction.as_printed else set()
    return {
        name: Coverage(len(printed), len(printed & with_figures), len(printed & at_scale))
        for name in papers.names()
        if (printed := printed_cells(name))
    }


def coverage_table(reproductions: Sequence[Reproduction]) -> str:
    """Return a table in Markdown, with totals; empty if none of the reproductions is of a paper."""
    covered = by_table(reproductions)
    if not any(coverage.measured for coverage in covered.values()):
        return ""
    heads = ["paper", "table", "printed cells", "measured", "share", "of these at full scale"]
    rows = [_row("**all papers**", "", sum(covered.values(), Coverage()))]
    for paper in dict.fromkeys(name.partition("/")[0] for name in covered):
        of_paper = {
            name: coverage for name, coverage in covered.items() if name.startswith(f"{paper}/")
        }
        rows.append(_row(f"**{paper}**", "", sum(of_paper.values(), Coverage())))
        rows += [_row("", name, coverage) for name, coverage in of_paper.items()]
    return markdown_table(heads, rows)


def _row(paper: str, table: str, coverage: Coverage) -> list[str]:
    share = f"{coverage.measured / coverage.printed:.0%}"
    figures = (coverage.printed, coverage.measured, share, coverage.at_scale)
    return [*map(str, (paper, table, *figures))]
