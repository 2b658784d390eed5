"""Which counts of a column may be shown.

The rows of a column are divided into cells: its words, or its bins, and the missing ones. A count
is shown only if its cell has at least as many records (or patients) as the minimum group size. The
count of any other cell, 0 included, is withheld. If withheld cells are smaller than that even when
they are taken together, their rows are counted in a cell that is shown. So no difference of counts
tells anything about fewer records, and an empty cell looks like one with few records.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import floor, sqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from comity.base.samples import Ints

NOISE_FACTOR = 3.0
"""A noisy count is shown if it exceeds so many standard deviations of its noise."""


@dataclass(frozen=True)
class Counts:
    """The rows of a column by cell.

    Args:
        cell_of: the number of each row's cell
        cells: how many cells there are
        patients: the patient of each row, if the data name patients
        noise: noise to be added to the count of each cell, and its standard deviation
    """

    cell_of: Ints
    cells: int
    patients: Ints | None = None
    noise: NDArray[np.float64] | None = None
    deviation: float = 0.0
    by_cell: NDArray[np.float64] = field(init=False)

    def __post_init__(self) -> None:
        exact = np.bincount(self.cell_of, minlength=self.cells).astype(np.float64)
        object.__setattr__(self, "by_cell", exact if self.noise is None else exact + self.noise)

    def rows(self, group: Iterable[int]) -> float:
        """The number of rows in some cells, with noise if there is any."""
        return float(self.by_cell[list(group)].sum())

    def is_enough(self, group: Sequence[int], records: int) -> bool:
        """Whether some cells together have at least `records` records, or patients."""
        if self.noise is not None:
            least = max(records, NOISE_FACTOR * self.deviation * sqrt(len(group)))
            return self.rows(group) >= least
        if self.patients is None or self.rows(group) < records:
            return self.rows(group) >= records
        return len(np.unique(self.patients[np.isin(self.cell_of, list(group))])) >= records


def round_count(count: float, rounding: int) -> int:
    """A count as a multiple of `rounding`; a count above 0 is never rounded to 0."""
    multiple = max(1, rounding)
    whole = floor(max(0.0, count) / multiple + 0.5) * multiple
    return max(whole, multiple) if count > 0 else whole


def shown_cells(counts: Counts, records: int) -> dict[int, float | None]:
    """The count of each cell, where cells have no order (words); None if it is withheld."""
    cells = range(counts.cells)
    if records <= 1 and counts.noise is None:
        return {cell: counts.rows([cell]) for cell in cells}
    large = [cell for cell in cells if counts.is_enough([cell], records)]
    small = [cell for cell in cells if cell not in large]
    rows_by_cell = {cell: counts.rows([cell]) for cell in large}
    if rows_by_cell and small and not counts.is_enough(small, records):
        rows_by_cell[min(rows_by_cell, key=lambda cell: rows_by_cell[cell])] += counts.rows(small)
    return {cell: rows_by_cell.get(cell) for cell in cells}


class BinGroup(NamedTuple):
    """Neighbouring bins whose rows are counted together; `rows` is None if they are withheld."""

    bins: Sequence[int]
    rows: float | None


class ShownBins(NamedTuple):
    """The counts of a column of numbers that may be shown."""

    groups: Sequence[BinGroup]
    missing: float | None


def shown_bins(counts: Counts, records: int) -> ShownBins:
    """The counts of a column of numbers: its bins in order, then one cell for missing values.

    The bins are halved again and again. A half with too few records is withheld, unless it has
    enough of them together with withheld neighbours. If both halves have too few, they are counted
    together. The limits of groups therefore never tell where a single record is. Rows of withheld
    bins are counted in the next group, and few missing values in the smallest one. A column with
    too few values is shown as missing altogether.
    """
    missing_cell = counts.cells - 1
    bins = list(range(missing_cell))
    missing = counts.rows([missing_cell])
    if records <= 1 and counts.noise is None:
        full = [k for k in bins if counts.rows([k])]
        used = range(full[0], full[-1] + 1) if full else range(0)
        return ShownBins([BinGroup([k], counts.rows([k])) for k in used], missing)
    groups = _join_withheld(counts, _group_bins(counts, bins, records), records)
    groups = _move_withheld(counts, groups)
    with_rows = [group for group in groups if group.rows is not None]
    if not with_rows:
        return ShownBins([], counts.rows([*bins, missing_cell]))
    if counts.is_enough([missing_cell], records):
        return ShownBins(groups, missing)
    smallest = min(with_rows, key=lambda group: group.rows or 0.0)
    assert smallest.rows is not None
    larger = smallest._replace(rows=smallest.rows + missing)
    return ShownBins([larger if group is smallest else group for group in groups], None)


def _group_bins(counts: Counts, bins: Sequence[int], records: int) -> list[BinGroup]:
    """Divide bins into groups that have enough records, and groups that are withheld."""
    if not counts.is_enough(bins, records):
        return [BinGroup(bins, None)]
    halves = bins[: len(bins) // 2], bins[len(bins) // 2 :]
    if not any(half and counts.is_enough(half, records) for half in halves) or len(bins) == 1:
        return [BinGroup(bins, counts.rows(bins))]
    return [group for half in halves for group in _group_bins(counts, half, records)]


def _join_withheld(counts: Counts, groups: Sequence[BinGroup], records: int) -> list[BinGroup]:
    """Join withheld groups that are neighbours; they are shown if they have enough records then."""
    merged: list[BinGroup] = []
    for group in groups:
        if group.rows is None and merged and merged[-1].rows is None:
            merged[-1] = BinGroup([*merged[-1].bins, *group.bins], None)
        else:
            merged.append(group)
    return [
        group._replace(rows=counts.rows(group.bins))
        if group.rows is None and counts.is_enough(group.bins, records)
        else group
        for group in merged
    ]


def _move_withheld(counts: Counts, groups: list[BinGroup]) -> list[BinGroup]:
    """Count the rows of withheld groups in the next shown group on the side of the fullest one."""
    places = [k for k, group in enumerate(groups) if group.rows is not None]
    if not places:
        return groups
    fullest = max(places, key=lambda place: groups[place].rows or 0.0)
    changes = dict.fromkeys(places, 0.0)
    for k, group in enumerate(groups):
        if group.rows is None:
            inner = [p for p in places if (p > k if k < fullest else p < k)]
            changes[min(inner) if k < fullest else max(inner)] += counts.rows(group.bins)
    return [
        group if group.rows is None else group._replace(rows=group.rows + changes[k])
        for k, group in enumerate(groups)
    ]
