"""The description of a chart: a data table, and a Vega-Lite specification over it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

VegaSpec = dict[str, Any]


@dataclass(frozen=True)
class Data:
    """A data table behind one or more charts, by columns. Readers can download it as CSV."""

    name: str
    columns: Mapping[str, Sequence[Any]]

    @staticmethod
    def of(name: str, rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> Data:
        """Return the table of these columns from rows. A value that a row lacks becomes None."""
        return Data(name, {column: [row.get(column) for row in rows] for column in columns})

    def rows(self) -> list[dict[str, Any]]:
        """Return the table as a list of rows, each a dict by column."""
        return [
            dict(zip(self.columns, row, strict=True))
            for row in zip(*self.columns.values(), strict=True)
        ]


@dataclass(frozen=True)
class Checkbox:
    """A checkbox above a chart, which changes values at one or more paths of the specification."""

    label: str
    sets: tuple[tuple[tuple[str | int, ...], Any, Any], ...]
    """For each path: the path, its value if the box is ticked, and its value otherwise."""
    ticked: bool = False


@dataclass(frozen=True)
class Chart:
    """A chart. `alt` describes in words, with figures, what the chart shows."""

    name: str
    title: str
    alt: str
    data: Data
    spec: VegaSpec
    checkboxes: tuple[Checkbox, ...] = ()
    half: bool = False
    """Whether the chart takes half of the page's width."""
    selection: str = ""
    """Which parties are drawn, in a sentence, if not all are. It is part of the caption, and in the
    figure itself where that is a file.
    """
    method: str = ""
    """The method that the chart is about, if it is about one. The page hides the chart when the
    method's box is not ticked.
    """

    @property
    def caption(self) -> str:
        """What the chart shows in words, and which parties are drawn if not all are."""
        return f"{self.alt} {self.selection}".rstrip()
