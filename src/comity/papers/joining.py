"""Join the parts of a paper's table that were run separately, such as seeds, rows or columns.

The page of a joined table names all commands and commits. Of a run that is in two parts, the first
counts, and the page says how far the two differ: processors of different kinds round differently,
and a change of the code would show, too. Measures that depend on other runs of the column are
joined only if both parts have the same rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from comity.errors import UsageError
from comity.papers.cells import AGAINST_OTHERS, Cell, Figure
from comity.papers.reproduction import Reproduction

AND = " && "
"""The separator between the commands of the parts."""
OF_LIST = " and "
"""The separator of commits, and of processors."""
EARLIER = "a processor that was not recorded"
"""What stands for the processor of a part of an earlier version."""
SAME = 1e-9
"""The largest difference, in percent, at which two figures count as equal."""
ByRun = Mapping[str, Mapping[str, Mapping[str, Any]]]


def join(first: Reproduction, more: Reproduction) -> Reproduction:
    """Join two parts into one reproduction; a part that was joined before is not joined again.

    Raises UsageError if the parts differ in table, scale or settings.
    """
    if (first.name, first.scale, first.changes) != (more.name, more.scale, more.changes):
        raise UsageError(
            f"Only parts of one table at one scale can be joined, not those of '{first.command}'"
            f" and '{more.command}'."
        )
    settings = _settings(first.name, first.settings, more.settings)
    both = _in_both(first, more)
    if more.command in first.command.split(AND) and len(both) == sum(
        len(cell.figures) for cell in more.cells
    ):
        return first
    return replace(
        first,
        command=f"{first.command}{AND}{more.command}",
        code=_either(first.code, more.code),
        processors=_either(first.processors or EARLIER, more.processors or EARLIER)
        if first.processors or more.processors
        else "",
        seconds=round(first.seconds + more.seconds, 1),
        memory=max(first.memory, more.memory),
        settings=settings,
        cells=_cells(first, more),
        warning=" ".join(filter(None, (first.warning, _apart(both), more.warning))),
    )


def _either(first: str, more: str) -> str:
    """Join two lists that are texts, each entry once."""
    return OF_LIST.join(dict.fromkeys([*first.split(OF_LIST), *more.split(OF_LIST)]))


def _settings(table: str, first: ByRun, more: ByRun) -> ByRun:
    """Return the settings of all runs; those of a run in both parts must be equal."""
    settings_by_run = {run: dict(rows) for run, rows in first.items()}
    for run, rows in more.items():
        by_row = settings_by_run.setdefault(run, {})
        for row, settings in rows.items():
            if by_row.setdefault(row, settings) != settings:
                raise UsageError(
                    f"{table}: {row} on {run} was run with other settings before, so the parts"
                    " cannot be joined."
                )
    return settings_by_run


def _cells(first: Reproduction, more: Reproduction) -> list[Cell]:
    """Return all cells in the order of the table."""
    table = first.table
    first_cells, more_cells = _by_place(first), _by_place(more)
    cells = []
    for column in table.columns:
        rows = [
            {row for name, row in part if name == column.name} for part in (first_cells, more_cells)
        ]
        if all(rows) and rows[0] != rows[1] and column.measure.partition(":")[0] in AGAINST_OTHERS:
            raise UsageError(
                f"{first.name}: {column.title} is measured against all rows at once, so the parts"
                " cannot be joined."
            )
        for row in table.rows:
            parts = [
                part[column.name, row.name]
                for part in (first_cells, more_cells)
                if (column.name, row.name) in part
            ]
            if parts:
                cells.append(_cell(parts))
    return cells


def _cell(parts: list[Cell]) -> Cell:
    """Return a cell with the seeds of all its parts."""
    figures = {seed: figure for part in reversed(parts) for seed, figure in part.figures.items()}
    why = "; ".join(
        dict.fromkeys(part.why for part in parts if part.why and (part.figures or not figures))
    )
    return replace(parts[0], figures=dict(sorted(figures.items())), why=why)


def _by_place(part: Reproduction) -> dict[tuple[str, str], Cell]:
    """Return the cells by column and row."""
    return {(cell.column.name, cell.row.name): cell for cell in part.cells}


def _in_both(first: Reproduction, more: Reproduction) -> list[tuple[Figure, Figure]]:
    """Return the figures of the runs that are in both parts, as pairs."""
    cells = _by_place(first)
    return [
        (cells[place].figures[seed], figure)
        for place, cell in _by_place(more).items()
        for seed, figure in cell.figures.items()
        if place in cells and seed in cells[place].figures
    ]


def _apart(both: Sequence[tuple[Figure, Figure]]) -> str:
    """Return a sentence on how far the runs that are in both parts differ."""
    if not both:
        return ""
    gaps = [abs(a.value - b.value) for a, b in both]
    same = sum(gap < SAME for gap in gaps)
    text = f"Of {len(gaps)} figures that two parts have both, {same} came out the same"
    if same < len(gaps):
        text += (
            f", the others at most {max(gaps):.2f} apart, as on a processor of another kind or with"
            " other code"
        )
    return f"{text}."
