"""The page as a PDF of A4 sheets, with text that can be searched and copied: headings, paragraphs
and tables, and no more.

It uses Helvetica, which every reader of PDF has and no file need contain. That font knows the
letters of western Europe only: others are shown as question marks, and then a line at the end says
so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from comity.disclosure.content import Page
from comity.reporting.blocks import Table, Text
from comity.reporting.themes import LIGHT

WIDTH, HEIGHT, MARGIN = 842.0, 595.0, 36.0  # points: A4, landscape
SHADES = {"warning": "#fdf1e7", "missing": "#eef3f9"}
"""Behind paragraphs that are set off, as on the report's page."""
ENCODING = "cp1252"
LOST = (
    "Letters that this font does not have are shown as question marks here: the page in HTML has"
    " them."
)
WIDTHS = [
    *(
        278,
        278,
        355,
        556,
        556,
        889,
        667,
        191,
        333,
        333,
        389,
        584,
        278,
        333,
        278,
        278,
        *[556] * 10,
        278,
        278,
        584,
        584,
        584,
        556,
    ),
    *(
        1015,
        667,
        667,
        722,
        722,
        667,
        611,
        778,
        722,
        278,
        500,
        667,
        556,
        833,
        722,
        778,
        667,
        778,
        722,
        667,
        611,
        722,
        667,
        944,
    ),
    *(
        667,
        667,
        611,
        278,
        278,
        278,
        469,
        556,
        333,
        556,
        556,
        500,
        556,
        556,
        278,
        556,
        556,
        222,
        222,
        500,
        222,
        833,
        556,
        556,
    ),
    *(556, 556, 333, 500, 278, 556, 500, 722, 500, 500, 500, 334, 260, 334, 584),
]
"""Of Helvetica's letters from the space to the tilde, in thousandths of its size; others are taken
for wide ones.
"""
WIDE, BOLDER = 1000, 1.1


def width(text: str, size: float, bold: bool = False) -> float:
    """How wide a line is, in points; of bold letters and rare ones at most."""
    total = sum(WIDTHS[ord(c) - 32] if 32 <= ord(c) < 127 else WIDE for c in text)
    return total * size / 1000 * (BOLDER if bold else 1)


def wrapped(text: str, room: float, size: float, bold: bool = False) -> list[str]:
    """Text in lines that fit; a word that is wider than a line is cut."""
    lines, line = [], ""
    for word in text.split():
        left = word
        if line and width(f"{line} {left}", size, bold) <= room:
            line = f"{line} {left}"
            continue
        if line:
            lines.append(line)
        while width(left, size, bold) > room and len(left) > 1:
            fit = max(
                1,
                sum(
                    total <= room for total in accumulate(width(sign, size, bold) for sign in left)
                ),
            )
            lines.append(left[:fit])
            left = left[fit:]
        line = left
    return [*lines, line] if line else lines or [""]


@dataclass
class Sheets:
    """Sheets under construction, from the top down."""

    done: list[list[str]] = field(default_factory=lambda: [[]])
    y: float = HEIGHT - MARGIN
    lost: bool = False

    def room(self, height: float) -> bool:
        """Begin a new sheet if so much does not fit on this one; whether one was begun."""
        if self.y - height >= MARGIN:
            return False
        self.done.append([])
        self.y = HEIGHT - MARGIN
        return True

    def text(
        self, x: float, y: float, line: str, size: float, bold: bool = False, colour: str = "@text"
    ) -> None:
        """One line of text."""
        self.lost |= line.encode(ENCODING, "replace").decode(ENCODING) != line
        shown = line.encode(ENCODING, "replace").decode("latin-1")
        for sign in "\\()":
            shown = shown.replace(sign, f"\\{sign}")
        font = "F2" if bold else "F1"
        self.done[-1].append(
            f"{_rgb(LIGHT[colour])} rg BT /{font} {size:g} Tf {x:.2f} {y:.2f} Td ({shown}) Tj ET"
        )

    def shade(self, y: float, height: float, colour: str) -> None:
        """A bar of colour across the sheet, to be written upon."""
        self.done[-1].append(
            f"{_rgb(colour)} rg {MARGIN:g} {y:.2f} {WIDTH - 2 * MARGIN:g} {height:.2f} re f"
        )

    def rule(self) -> None:
        """A thin line across the sheet."""
        self.done[-1].append(
            f"{_rgb(LIGHT['@line'])} RG 0.5 w {MARGIN:g} {self.y:.2f} m {WIDTH - MARGIN:g}"
            f" {self.y:.2f} l S"
        )

    def paragraph(
        self,
        text: str,
        size: float = 9,
        bold: bool = False,
        colour: str = "@text",
        kind: str = "",
        gap: float = 6,
    ) -> None:
        """Text across the sheet, set off if it is a warning or says what is missing."""
        inset = 6 if kind in SHADES else 0
        lines = wrapped(text, WIDTH - 2 * MARGIN - 2 * inset, size, bold)
        step = size * 1.35
        self.room(min(len(lines), 3) * step + 6)
        while lines:
            fitting = max(1, int((self.y - MARGIN) / step))
            here, lines = lines[:fitting], lines[fitting:]
            if inset:
                self.shade(self.y - len(here) * step - 3, len(here) * step + 4, SHADES[kind])
            for line in here:
                self.y -= step
                self.text(MARGIN + inset, self.y + size * 0.2, line, size, bold, colour)
            if lines:
                self.room(HEIGHT)
        self.y -= gap

    def table(
        self,
        heads: Sequence[str],
        rows: Sequence[Sequence[str]],
        shares: Sequence[float],
        size: float = 8,
    ) -> None:
        """Rows of cells, each as high as its longest cell; one that does not fit goes on the next
        sheet, with the heads again.
        """
        whole = WIDTH - 2 * MARGIN
        widths = [whole * share / sum(shares) for share in shares]
        self._row(heads, widths, size, bold=True)
        for row in rows:
            self._row(row, widths, size, heads=heads)
        self.y -= 6

    def _row(
        self,
        cells: Sequence[str],
        widths: Sequence[float],
        size: float,
        bold: bool = False,
        heads: Sequence[str] = (),
    ) -> None:
        step = size * 1.25
        columns = [
            wrapped(cell, wide - 8, size, bold) for cell, wide in zip(cells, widths, strict=True)
        ]
        left = max(map(len, columns))
        if self.room(min(left, int((HEIGHT - 2 * MARGIN) / step) - 3) * step + 6) and heads:
            self._row(heads, widths, size, bold=True)
        first = 0
        while left > 0:
            fitting = min(left, max(1, int((self.y - MARGIN - 4) / step)))
            x = MARGIN
            for column, wide in zip(columns, widths, strict=True):
                for k, line in enumerate(column[first : first + fitting]):
                    self.text(
                        x, self.y - (k + 1) * step, line, size, bold, "@soft" if bold else "@text"
                    )
                x += wide
            self.y -= fitting * step + 4
            self.rule()
            first, left = first + fitting, left - fitting
            if left > 0:
                self.room(HEIGHT)


def pdf(page: Page) -> bytes:
    """The page as a file."""
    sheets = Sheets()
    sheets.paragraph(page.title, 18, bold=True)
    for name, text in page.facts.rows.items():
        sheets.paragraph(f"{name}: {text}", gap=1)
    for section in page.sections:
        sheets.room(70)  # a heading is not left alone at the foot of a sheet
        sheets.y -= 6
        sheets.paragraph(section.title, 13, bold=True)
        for block in section.blocks:
            if isinstance(block, Text):
                sheets.paragraph(block.text, 10 if block.kind == "lead" else 9, kind=block.kind)
            elif isinstance(block, Table):
                sheets.table(block.heads, block.rows, _shares(block))
    sheets.paragraph(page.foot, 8, colour="@soft")
    if sheets.lost:
        sheets.paragraph(LOST, 8, colour="@bad")
    return _file(page.title, sheets.done)


def _shares(table: Table) -> list[float]:
    """How wide columns are: by what is in them, but none is crowded out."""
    longest = [max(len(row[k]) for row in table.rows) for k in range(len(table.heads))]
    return [min(150, max(45, most)) for most in longest]


def _rgb(colour: str) -> str:
    return " ".join(f"{int(colour[k : k + 2], 16) / 255:.3f}" for k in (1, 3, 5))


def _file(title: str, sheets: Sequence[Sequence[str]]) -> bytes:
    """The objects of a PDF file: catalogue, list of sheets, two fonts, about; then each sheet and
    what is on it.
    """
    count, first = len(sheets), 6
    kids = " ".join(f"{first + 2 * k} 0 R" for k in range(count))
    named = f"<feff{title.encode('utf-16-be', 'replace').hex()}>"
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R /Lang (en) >>",
        f"<< /Type /Pages /Kids [{kids}] /Count {count} /MediaBox [0 0 {WIDTH:g} {HEIGHT:g}] "
        "/Resources << /Font << /F1 3 0 R /F2 4 0 R >> >> >>".encode(),
        *(
            f"<< /Type /Font /Subtype /Type1 /BaseFont /{font} /Encoding /WinAnsiEncoding >>".encode()
            for font in ("Helvetica", "Helvetica-Bold")
        ),
        f"<< /Title {named} /Producer (Comity) >>".encode(),
    ]
    for k, lines in enumerate(_numbered(sheets)):
        stream = "\n".join(lines).encode("latin-1")
        objects.append(
            f"<< /Type /Page /Parent 2 0 R /Contents {first + 2 * k + 1} 0 R >>".encode()
        )
        objects.append(b"<< /Length %d >>\nstream\n%s\nendstream" % (len(stream), stream))
    made = bytearray(b"%PDF-1.4\n%\xe2\xe3\xcf\xd3\n")
    places = []
    for number, content in enumerate(objects, 1):
        places.append(len(made))
        made += b"%d 0 obj\n%s\nendobj\n" % (number, content)
    index = len(made)
    made += b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1)
    made += b"".join(b"%010d 00000 n \n" % place for place in places)
    made += b"trailer\n<< /Size %d /Root 1 0 R /Info 5 0 R >>\nstartxref\n%d\n%%%%EOF\n" % (
        len(objects) + 1,
        index,
    )
    return bytes(made)


def _numbered(sheets: Sequence[Sequence[str]]) -> Iterator[list[str]]:
    """Each sheet with its number at the foot."""
    for k, lines in enumerate(sheets, 1):
        text = f"sheet {k} of {len(sheets)}"
        x = WIDTH - MARGIN - width(text, 7)
        yield [
            *lines,
            f"{_rgb(LIGHT['@soft'])} rg BT /F1 7 Tf {x:.2f} {MARGIN / 2:.2f} Td ({text}) Tj ET",
        ]
