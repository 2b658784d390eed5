"""What a section is made of: text, tables, charts. A chart is a Vega-Lite specification over one of
the page's tables of data.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

VegaSpec = dict[str, Any]


@dataclass(frozen=True)
class Data:
    """A table of data behind one or more charts, by columns; readers may download it as csv."""

    name: str
    columns: Mapping[str, Sequence[Any]]

    @staticmethod
    def of(name: str, rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> Data:
        """A table of these columns, from rows; what a row does not have is None."""
        return Data(name, {column: [row.get(column) for row in rows] for column in columns})

    def rows(self) -> list[dict[str, Any]]:
        """The table row by row, each by column."""
        return [
            dict(zip(self.columns, row, strict=True))
            for row in zip(*self.columns.values(), strict=True)
        ]


@dataclass(frozen=True)
class Checkbox:
    """A box to tick above a chart: it changes one or several places of the specification."""

    label: str
    sets: tuple[tuple[tuple[str | int, ...], Any, Any], ...]
    """Of each place: the way to it, what stands there if the box is ticked, and what if not."""
    ticked: bool = False


@dataclass(frozen=True)
class Chart:
    """A picture. `alt` says in words what is to be seen, with figures."""

    name: str
    title: str
    alt: str
    data: Data
    spec: VegaSpec
    checkboxes: tuple[Checkbox, ...] = ()
    half: bool = False
    """Whether two of its kind stand side by side."""
    method: str = ""
    """The one method that it is about: without its box ticked, the chart goes."""

    def method_summary(self) -> VegaSpec:
        """The specification with its data inside: complete, for a file of its own."""
        spec = copy.deepcopy(self.spec)
        spec["data"] = {"values": self.data.rows()}
        return spec


@dataclass(frozen=True)
class Table:
    """Figures in rows; the first column names the row."""

    name: str
    title: str
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    words: int = 1
    """How many columns are words, not figures."""
    figures: Sequence[str] = ()
    """Heads of columns that are figures although they stand among the words."""
    best: int | None = None
    """The row to set off."""
    folded: bool = False
    """Whether a reader has to ask for it."""
    minor: Sequence[str] = ()
    """Heads of columns that a narrow screen leaves out until they are asked for."""

    def is_figure(self, k: int) -> bool:
        """Whether the k-th column holds figures."""
        return k >= self.words or self.heads[k] in self.figures


@dataclass(frozen=True)
class Text:
    """A paragraph; a warning or a note of something missing looks different."""

    text: str
    kind: Literal["plain", "lead", "warning", "missing"] = "plain"


@dataclass(frozen=True)
class Facts:
    """Questions with their answers, in large letters: what is read first."""

    rows: Mapping[str, str]


@dataclass(frozen=True)
class Pictures:
    """Images made here, as data addresses, a named row each, with the share of the row's width that
    they fill.
    """

    title: str
    alt: str
    rows: Mapping[str, tuple[str, float]]


@dataclass(frozen=True)
class Code:
    """Commands, or a file, to copy."""

    title: str
    text: str


Block = Chart | Table | Text | Facts | Pictures | Code


@dataclass
class Section:
    """A part of the page."""

    name: str
    title: str
    blocks: list[Block] = field(default_factory=list)
    folded: str = ""
    """What is in it, in a line, if it opens only for who asks."""
    headline: str = ""
    """What it says, in a sentence, to whoever reads no further."""

    def say(
        self, text: str, kind: Literal["plain", "lead", "warning", "missing"] = "plain"
    ) -> None:
        """Add a paragraph."""
        self.blocks.append(Text(text, kind))
