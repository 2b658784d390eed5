"""The disclosure page as a PDF of A4 sheets, with text that can be searched and copied.

The file embeds Noto Sans (Latin, Greek, Cyrillic and Devanagari) and, for letters that Noto Sans
lacks, FiraGO (Arabic, Hebrew, Thai and Georgian). Both come from the package `pymupdf-fonts` under
the SIL Open Font License 1.1. A letter that neither font has, for instance a Chinese one, is
printed as a replacement character, and the last lines of the file list all such letters.
"""

from __future__ import annotations

import logging
import unicodedata
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from comity.charts.themes import LIGHT
from comity.disclosure.content import Page
from comity.reporting.blocks import Table, Text

if TYPE_CHECKING:
    from fpdf import FPDF

WIDTH, HEIGHT, MARGIN = 842.0, 595.0, 36.0  # points: A4, landscape
SHADES = {"warning": "#fdf1e7", "missing": "#eef3f9"}
"""Background of highlighted paragraphs, as on the report's page."""
FONTS = {"noto": {"": "notos", "B": "notosbo"}, "firago": {"": "figo", "B": "figbo"}}
"""The font families in order of preference: by style, the font's code in `pymupdf_fonts`."""
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
MISSING = (
    f"The fonts of this file lack some letters, which are printed as {REPLACEMENT}. The page in"
    " HTML shows them. They are"
)
"""How the list of letters that could not be printed begins."""


class Sheets:
    """An A4 document under construction, written from the top down."""

    def __init__(self, title: str) -> None:
        self.document = _new_document(title)
        self.y = 0.0
        """Distance from the top of the sheet to where the next line begins."""
        self.missing: dict[str, None] = {}
        """The letters that no font has, in the order in which they occurred."""
        fonts: Any = self.document.fonts
        self._code_points = {
            style: set[int]().union(*(fonts[f"{family}{style}"].cmap for family in FONTS))
            for style in ("", "B")
        }
        """By style: the code points that at least one font has."""
        self._add_sheet()

    def _add_sheet(self) -> None:
        self.document.add_page()
        self.y = MARGIN

    def make_room(self, height: float) -> bool:
        """Begin a new sheet if `height` points do not fit on this one; return whether it did."""
        if self.y + height <= HEIGHT - MARGIN:
            return False
        self._add_sheet()
        return True

    def printable(self, text: str, bold: bool = False) -> str:
        """`text` with a replacement character for each letter that no font has."""
        code_points = self._code_points["B" if bold else ""]
        self.missing |= dict.fromkeys(c for c in text if ord(c) not in code_points)
        return "".join(c if ord(c) in code_points else REPLACEMENT for c in text)

    def width(self, text: str, size: float, bold: bool = False) -> float:
        """The width of a line of text, in points."""
        self.document.set_font("noto", "B" if bold else "", size)
        return self.document.get_string_width(text)

    def wrap(self, text: str, room: float, size: float, bold: bool = False) -> list[str]:
        """Break `text` into lines of at most `room` points; a longer word is cut."""
        lines: list[str] = []
        line = ""
        for word in self.printable(" ".join(text.split()), bold).split(" "):
            longer = f"{line} {word}"
            if line and self.width(longer, size, bold) <= room:
                line = longer
                continue
            if line:
                lines.append(line)
            rest = word
            while len(rest) > 1 and self.width(rest, size, bold) > room:
                ends = accumulate(self.width(character, size, bold) for character in rest)
                fitting = max(1, sum(end <= room for end in ends))
                lines.append(rest[:fitting])
                rest = rest[fitting:]
            line = rest
        return [*lines, line] if line else lines or [""]

    def write_line(
        self, x: float, y: float, line: str, size: float, bold: bool = False, colour: str = "@text"
    ) -> None:
        """Write a line of text; `y` is the upper edge of the letters."""
        self.document.set_font("noto", "B" if bold else "", size)
        self.document.set_text_color(LIGHT[colour])
        self.document.set_xy(x, y)
        self.document.cell(self.document.get_string_width(line), size, line)

    def paragraph(
        self,
        text: str,
        size: float = 9,
        bold: bool = False,
        colour: str = "@text",
        kind: str = "",
        gap: float = 6,
    ) -> None:
        """Write text across the sheet; the kinds of `SHADES` get a background."""
        inset = 6 if kind in SHADES else 0
        lines = self.wrap(text, WIDTH - 2 * MARGIN - 2 * inset, size, bold)
        step = size * 1.35
        self.make_room(min(len(lines), 3) * step + 6)
        while lines:
            fitting = max(1, int((HEIGHT - MARGIN - self.y) / step))
            here, lines = lines[:fitting], lines[fitting:]
            if inset:
                self.document.set_fill_color(SHADES[kind])
                box = (MARGIN, self.y - 2, WIDTH - 2 * MARGIN, len(here) * step + 4)
                self.document.rect(*box, style="F")
            for line in here:
                self.write_line(MARGIN + inset, self.y, line, size, bold, colour)
                self.y += step
            if lines:
                self._add_sheet()
        self.y += gap

    def table(
        self,
        heads: Sequence[str],
        rows: Sequence[Sequence[str]],
        shares: Sequence[float],
        size: float = 8,
    ) -> None:
        """Write a table, with its heads repeated on every sheet that it reaches.

        Arguments:
            heads: the heading of each column
            rows: the cells of each row
            shares: the width of each column, relative to the others
            size: the size of the letters, in points
        """
        whole = WIDTH - 2 * MARGIN
        widths = [whole * share / sum(shares) for share in shares]
        self._row(heads, widths, size, bold=True)
        for row in rows:
            self._row(row, widths, size, heads=heads)
        self.y += 6

    def _row(
        self,
        cells: Sequence[str],
        widths: Sequence[float],
        size: float,
        bold: bool = False,
        heads: Sequence[str] = (),
    ) -> None:
        """Write one row; a row that is higher than a sheet continues on the next one."""
        step = size * 1.25
        columns = [
            self.wrap(cell, width - 8, size, bold)
            for cell, width in zip(cells, widths, strict=True)
        ]
        lines_left = max(map(len, columns))
        most_lines = int((HEIGHT - 2 * MARGIN) / step) - 3
        if self.make_room(min(lines_left, most_lines) * step + 6) and heads:
            self._row(heads, widths, size, bold=True)
        first = 0
        while lines_left > 0:
            fitting = min(lines_left, max(1, int((HEIGHT - MARGIN - self.y - 4) / step)))
            x = MARGIN
            for column, width in zip(columns, widths, strict=True):
                for k, line in enumerate(column[first : first + fitting]):
                    colour = "@soft" if bold else "@text"
                    self.write_line(x, self.y + k * step + 2, line, size, bold, colour)
                x += width
            self.y += fitting * step + 4
            self.document.set_draw_color(LIGHT["@line"])
            self.document.line(MARGIN, self.y, WIDTH - MARGIN, self.y)
            first += fitting
            lines_left -= fitting
            if lines_left > 0:
                self._add_sheet()


def pdf(page: Page) -> bytes:
    """The page as the bytes of a PDF file."""
    sheets = Sheets(page.title)
    sheets.paragraph(page.title, 18, bold=True)
    for name, text in page.facts.rows.items():
        sheets.paragraph(f"{name}: {text}", gap=1)
    for section in page.sections:
        sheets.make_room(70)  # keeps a heading on the sheet of its first lines
        sheets.y += 6
        sheets.paragraph(section.title, 13, bold=True)
        for block in section.blocks:
            if isinstance(block, Text):
                sheets.paragraph(block.text, 10 if block.kind == "lead" else 9, kind=block.kind)
            elif isinstance(block, Table):
                sheets.table(block.heads, block.rows, _shares(block))
    sheets.paragraph(page.foot, 8, colour="@soft")
    if sheets.missing:
        names = ", ".join(map(_describe_character, sheets.missing))
        sheets.paragraph(f"{MISSING} {names}.", 8, colour="@bad")
    # FiraGO and Noto Sans have tables of hints that the subsetter drops, with a warning for each.
    logging.getLogger("fontTools.subset").setLevel(logging.ERROR)
    return bytes(sheets.document.output())


def _describe_character(character: str) -> str:
    """A letter that cannot be printed: its code point and its name in Unicode."""
    name = unicodedata.name(character, "")
    return f"U+{ord(character):04X}{f' ({name})' if name else ''}"


def _shares(table: Table) -> list[float]:
    """The relative widths of a table's columns: by their longest cell, within limits."""
    longest = [max(len(row[k]) for row in table.rows) for k in range(len(table.heads))]
    return [min(150, max(45, most)) for most in longest]


def _new_document(title: str) -> FPDF:
    """An empty document with its fonts and a footer that numbers the sheets."""
    # Imported here: fpdf loads fontTools and Pillow, which would slow down every command's start.
    from fpdf import FPDF
    from pymupdf_fonts import fontbuffers

    class Document(FPDF):
        def footer(self) -> None:
            self.set_font("noto", "", 7)
            self.set_text_color(LIGHT["@soft"])
            self.set_xy(MARGIN, HEIGHT - MARGIN / 2 - 7)
            self.cell(WIDTH - 2 * MARGIN, 7, f"sheet {self.page_no()} of {{nb}}", align="R")

    document = Document(orientation="landscape", unit="pt", format="A4")
    document.set_auto_page_break(False)
    document.set_title(title.encode("utf-8", "replace").decode())
    document.set_producer("Comity")
    document.set_lang("en")
    document.set_line_width(0.5)
    document.c_margin = 0
    with TemporaryDirectory(prefix="comity-fonts-") as folder:  # fpdf reads fonts from files only
        for family, styles in FONTS.items():
            for style, code in styles.items():
                file = Path(folder) / f"{code}.ttf"
                file.write_bytes(fontbuffers[code]())
                document.add_font(family, style, file)
    document.set_fallback_fonts(["firago"])
    return document
