"""A paper's table that was run in parts, some seeds, rows or columns at a time, put together again.

The page of what was joined names all commands and commits. A run that is in two parts counts as it
was first, and the page says how far such runs came out apart: a processor of another kind rounds in
its own way, and other code would show there, too. What is measured against other runs of its column
is joined only with the same rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from comity.errors import UsageError
from comity.papers.cells import AGAINST_OTHERS, Cell, Figure
from comity.papers.reproduction import Reproduction

AND = " && "
"""Between the commands of what was joined."""
SAME = 1e-9
"""Percent: below this two figures are one."""
ByRun = Mapping[str, Mapping[str, Mapping[str, Any]]]


def joined(first: Reproduction, more: Reproduction) -> Reproduction:
    """Both parts as one reproduction, whose command is both commands; what was joined before is not
    joined again.
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
        code=" and ".join(dict.fromkeys([*first.code.split(" and "), *more.code.split(" and ")])),
        seconds=round(first.seconds + more.seconds, 1),
        memory=max(first.memory, more.memory),
        settings=settings,
        cells=_cells(first, more),
        warning=" ".join(filter(None, (first.warning, _apart(both), more.warning))),
    )


def _settings(table: str, first: ByRun, more: ByRun) -> ByRun:
    """Of all runs; those of one that is in both must be the same."""
    made = {run: dict(rows) for run, rows in first.items()}
    for run, rows in more.items():
        mine = made.setdefault(run, {})
        for row, settings in rows.items():
            if mine.setdefault(row, settings) != settings:
                raise UsageError(
                    f"{table}: {row} on {run} was run with other settings before, so the parts"
                    " cannot be joined."
                )
    return made


def _cells(first: Reproduction, more: Reproduction) -> list[Cell]:
    """All cells in the table's order."""
    table = first.table
    one, two = _by_place(first), _by_place(more)
    made = []
    for column in table.columns:
        rows = [{row for name, row in part if name == column.name} for part in (one, two)]
        if all(rows) and rows[0] != rows[1] and column.measure.partition(":")[0] in AGAINST_OTHERS:
            raise UsageError(
                f"{first.name}: {column.title} is measured against all rows at once, so the parts"
                " cannot be joined."
            )
        for row in table.rows:
            parts = [
                part[column.name, row.name]
                for part in (one, two)
                if (column.name, row.name) in part
            ]
            if parts:
                made.append(_cell(parts))
    return made


def _cell(parts: list[Cell]) -> Cell:
    """A cell with the seeds of all its parts."""
    figures = {seed: figure for part in reversed(parts) for seed, figure in part.figures.items()}
    why = "; ".join(
        dict.fromkeys(part.why for part in parts if part.why and (part.figures or not figures))
    )
    return replace(parts[0], figures=dict(sorted(figures.items())), why=why)


def _by_place(part: Reproduction) -> dict[tuple[str, str], Cell]:
    """Its cells by column and row."""
    return {(cell.column.name, cell.row.name): cell for cell in part.cells}


def _in_both(first: Reproduction, more: Reproduction) -> list[tuple[Figure, Figure]]:
    """What came of the runs that are in both parts: in the first, in the other."""
    known = _by_place(first)
    return [
        (known[place].figures[seed], figure)
        for place, cell in _by_place(more).items()
        for seed, figure in cell.figures.items()
        if place in known and seed in known[place].figures
    ]


def _apart(both: Sequence[tuple[Figure, Figure]]) -> str:
    """How far runs that are in both parts came out apart."""
    if not both:
        return ""
    gaps = [abs(one.value - two.value) for one, two in both]
    same = sum(gap < SAME for gap in gaps)
    told = f"Of {len(gaps)} figures that two parts have both, {same} came out the same"
    if same < len(gaps):
        told += (
            f", the others at most {max(gaps):.2f} apart, as on a processor of another kind or with"
            " other code"
        )
    return f"{told}."
