"""The blocks that a section consists of: text, tables, charts (`comity.charts.chart`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from comity.charts.chart import Chart


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
