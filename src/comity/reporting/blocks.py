"""The blocks that a section consists of: text, tables, charts.

A chart is a Vega-Lite specification over one of the page's data tables.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

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
    method: str = ""
    """The method that the chart is about, if it is about one. The page hides the chart when the
    method's box is not ticked.
    """

    def standalone_spec(self) -> VegaSpec:
        """Return the specification with the data inside, complete for a file."""
        spec = copy.deepcopy(self.spec)
        spec["data"] = {"values": self.data.rows()}
        return spec


@dataclass(frozen=True)
class Table:
    """A table of text cells. The first column names the row."""

    name: str
    title: str
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    words: int = 1
    """How many columns at the left hold words instead of figures."""
    figures: Sequence[str] = ()
    """Heads of columns that hold figures although they are among the first `words` columns."""
    best: int | None = None
    """The index of the row to highlight."""
    folded: bool = False
    """Whether the table is collapsed until the reader opens it."""
    minor: Sequence[str] = ()
    """Heads of columns that a narrow screen hides until the reader asks for all columns."""

    def is_figure(self, k: int) -> bool:
        """Whether the k-th column holds figures."""
        return k >= self.words or self.heads[k] in self.figures


@dataclass(frozen=True)
class Text:
    """A paragraph. Warnings and statements about missing content have a style of their own."""

    text: str
    kind: Literal["plain", "lead", "warning", "missing"] = "plain"


@dataclass(frozen=True)
class Facts:
    """Questions with their answers in large letters, for what a reader should see first."""

    rows: Mapping[str, str]


@dataclass(frozen=True)
class Pictures:
    """Strips of images. A row has a name, a data URL, and the fraction of the width it fills."""

    title: str
    alt: str
    rows: Mapping[str, tuple[str, float]]


@dataclass(frozen=True)
class Code:
    """Commands, or the content of a file, to copy."""

    title: str
    text: str


Block = Chart | Table | Text | Facts | Pictures | Code


@dataclass
class Section:
    """A section of the page."""

    name: str
    title: str
    blocks: list[Block] = field(default_factory=list)
    folded: str = ""
    """A line about the content, if the section is collapsed until the reader opens it."""
    headline: str = ""
    """The section's message in one sentence."""

    def say(
        self, text: str, kind: Literal["plain", "lead", "warning", "missing"] = "plain"
    ) -> None:
        """Add a paragraph."""
        self.blocks.append(Text(text, kind))
