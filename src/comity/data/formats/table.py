"""Tables: csv and parquet files as columns with names, and columns as numbers or codes."""

from __future__ import annotations

import csv
import io
import re
import zipfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from functools import cached_property
from itertools import chain
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from comity.data.formats.common import (
    DAMAGED,
    Array,
    Source,
    bad,
    check_unpacked,
    few,
    opened,
    optional,
    parsing,
    present,
    reading,
    quote,
)
from comity.data.preparation import DECIMAL_COMMA, NUMBER, separator_of, without_decimal_comma

MISSING = ("", "?")
MOST_BLANK = 1_000_000


@dataclass(frozen=True, eq=False)
class Table:
    """Columns with names, all of one length. Text is str, and '' where it is missing."""

    path: Source
    names: list[str]
    columns: list[Array] = field(repr=False)

    @cached_property
    def _places(self) -> dict[str, int]:
        return {name: place for place, name in enumerate(self.names)}

    def __len__(self) -> int:
        return len(self.columns[0])

    def __contains__(self, name: str) -> bool:
        return name in self._places

    def __getitem__(self, name: str) -> Array:
        """The column of that name."""
        if name not in self:
            raise bad(self.path, f"has no column called {quote(name)}; it has {few(self.names)}")
        return self.columns[self._places[name]]

    def numeric(self, name: str) -> NDArray[np.float64]:
        """The column as numbers, NaN where it is missing."""
        return numeric(self[name], self.place(name))

    def codes(self, name: str, values: Sequence[str]) -> NDArray[np.int64]:
        """The column as positions in `values`, -1 where it is missing."""
        return codes(self[name], values, self.place(name))

    def place(self, name: str) -> str:
        """How a sentence calls the column."""
        return f"The column {name!r} of {self.path}"


def numeric(column: Array, what: str = "The column") -> NDArray[np.float64]:
    """Numbers, NaN where missing; anything else is refused by its row, counted from 1 below the
    header.
    """
    if column.dtype.kind in "biuf":
        return column.astype(np.float64)
    made = np.full(len(column), np.nan)
    for row, cell in enumerate(map(str, column)):
        if cell in MISSING:
            continue
        if not NUMBER.fullmatch(cell) or not isfinite(value := float(cell)):
            raise bad(what, f"has {quote(cell)} in row {row + 1}, which is not a number")
        made[row] = value
    return made


def codes(column: Array, values: Sequence[str], what: str = "The column") -> NDArray[np.int64]:
    """The position of each cell in `values`, -1 where missing; anything else is refused by its row."""
    known = dict.fromkeys(MISSING, -1) | {value: i for i, value in enumerate(values)}
    made = np.empty(len(column), np.int64)
    for row, cell in enumerate(map(str, column)):
        if cell not in known:
            choice = f": it must be one of {', '.join(values)}" if len(values) <= 12 else ""
            raise bad(
                what, f"has {quote(cell)} in row {row + 1}, which is not a known value{choice}"
            )
        made[row] = known[cell]
    return made


def read_csv(
    path: Source,
    header: Sequence[str] | None = None,
    delimiter: str | None = ",",
    ignore: tuple[str, ...] = (),
) -> Table:
    """The columns of a csv file (or csv.gz) in UTF-8, by name, as str without spaces around;
    missing ('?' or nothing) is ''.

    Its first row names the columns, unless `header` does. Blank lines, and lines that begin with
    one of `ignore`, are passed over. Without a `delimiter` its first line shows what separates the
    cells; where that is no comma, 3,5 is 3.5.
    """
    rows: list[
        tuple[str, ...]
    ] = []  # lists would be looked through by the garbage collector again and again
    names = None if header is None else list(header)
    blank = 0
    points = Points(path)
    with opened(path) as stream, io.TextIOWrapper(stream, "utf-8-sig", newline="") as text:
        first = next(text, "")
        between = separator_of(first) if delimiter is None else delimiter
        plain = without_decimal_comma if delimiter is None and between != "," else str
        # A line that is passed over becomes a blank one, so that the reader's count stays that of
        # the file.
        lines = csv.reader(
            ("\n" if line.startswith(ignore) else line for line in chain([first], text)),
            delimiter=between,
            skipinitialspace=True,
            strict=True,
        )
        try:
            for row in lines:
                cells = [cell.strip() for cell in row]
                if any("\0" in cell for cell in cells):  # numpy would cut the cell off there
                    raise bad(
                        path,
                        f"has a NUL byte in line {lines.line_num}: it is no text, or {DAMAGED}",
                    )
                if not any(cells) and len(cells) <= 1:
                    blank += 1
                    if blank > MOST_BLANK:
                        raise bad(path, f"has more than {MOST_BLANK:,} blank lines: remove them")
                    continue
                if names is None:
                    names = cells
                elif len(cells) != len(names):
                    quotes = (
                        f"; a cell with a {between!r} in it must stand in quotes"
                        if len(cells) > len(names)
                        else ""
                    )
                    raise bad(
                        path,
                        f"has {len(cells)} cells in line {lines.line_num}, but {len(names)}"
                        f" columns{quotes}",
                    )
                else:
                    if plain is not str:
                        points.look(cells, lines.line_num)
                    rows.append(tuple("" if cell in MISSING else plain(cell) for cell in cells))
        except csv.Error as why:
            raise bad(
                path,
                f"has a cell in line {lines.line_num} that is too long, or whose quotes do not"
                " match",
            ) from why
    if not rows or names is None:
        raise bad(path, "has no rows")
    _check_names(path, names)
    return Table(path, names, [np.array(column, np.str_) for column in zip(*rows, strict=True)])


THOUSANDS = re.compile(r"[-+]?\d{1,3}(\.\d{3})+")


@dataclass
class Points:
    """What a file means by a point: where 3,5 has a decimal comma, 1.234 may be a thousand and
    more, or little more than one.
    """

    path: Source
    comma: str = ""
    point: str = ""

    def look(self, cells: Iterable[str], line: int) -> None:
        """Refuse a file in which both occur."""
        for cell in cells:
            if not self.comma and DECIMAL_COMMA.fullmatch(cell):
                self.comma = f"{quote(cell)} in line {line}"
            elif not self.point and THOUSANDS.fullmatch(cell):
                self.point = f"{quote(cell)} in line {line}"
            else:
                continue
            if self.comma and self.point:
                raise bad(
                    self.path,
                    f"has {self.point}, and {self.comma} with a decimal comma: whether the point"
                    " stands between thousands cannot be told, so write numbers without points"
                    " between thousands, and all with a comma or all with a point",
                )


def read_parquet(path: Source) -> Table:
    """A parquet file's columns of numbers and text, by name; a missing number is NaN (its column
    float64), missing text ''.
    """
    file = present(path)
    arrow = optional("pyarrow", path)
    parquet = optional("pyarrow.parquet", path)
    with reading(path):
        with parsing(path, f"is no parquet file, or {DAMAGED}"):
            packed = parquet.ParquetFile(file)
            check_unpacked(
                path, packed.metadata.num_rows * packed.metadata.num_columns, file.stat().st_size
            )
            held = packed.read()
        if not held.num_rows or not held.num_columns:
            raise bad(path, "has no rows")
        _check_names(path, held.column_names)
        kinds = arrow.types
        columns = []
        for name, column in zip(held.column_names, held.columns, strict=True):
            values = (
                column.cast(column.type.value_type) if kinds.is_dictionary(column.type) else column
            )
            if kinds.is_string(values.type) or kinds.is_large_string(values.type):
                columns.append(np.array([cell or "" for cell in values.to_pylist()], np.str_))
            elif (
                kinds.is_integer(values.type)
                or kinds.is_floating(values.type)
                or kinds.is_boolean(values.type)
            ):
                columns.append(
                    (values.cast(arrow.float64()) if values.null_count else values).to_numpy()
                )
            else:
                raise bad(
                    path,
                    f"has a column {name!r} of type {quote(str(values.type))}, but only numbers and"
                    " text can be read",
                )
    return Table(path, list(held.column_names), columns)


def read_xlsx(path: Source) -> Table:
    """The first sheet of an Excel file: its first row names the columns; what formulas made is
    read, not the formulas.
    """
    file = present(path)
    openpyxl = optional("openpyxl", path)
    with reading(path), parsing(path, f"is no Excel file (.xlsx), or {DAMAGED}"):
        with zipfile.ZipFile(file) as packed:
            check_unpacked(
                path, sum(part.file_size for part in packed.infolist()), file.stat().st_size
            )
        with file.open("rb") as stream:
            book = openpyxl.load_workbook(stream, read_only=True, data_only=True)
            rows = [
                row
                for row in book.worksheets[0].iter_rows(values_only=True)
                if any(cell is not None for cell in row)
            ]
            others = [
                sheet.title
                for sheet in book.worksheets[1:]
                if any(any(row) for row in sheet.iter_rows(values_only=True))
            ]
            book.close()
        lacking = any(cell is None for row in rows for cell in row) or not rows
        formula = _formula_without_value(openpyxl, file) if lacking else ""
    if others:
        raise bad(
            path,
            f"has other sheets than its first ({few(others, 5)}): save the one to read in a file of"
            " its own",
        )
    if formula:
        raise bad(
            path,
            f"has a formula without a value in cell {formula}: open it in Excel or LibreOffice and"
            " save it again",
        )
    if len(rows) < 2:
        raise bad(path, "has no rows")
    names = [_text(cell) for cell in rows[0]]
    while names and not names[-1]:
        names.pop()
    if any(cell is not None for row in rows[1:] for cell in row[len(names) :]):
        raise bad(path, f"has cells beyond its {len(names)} named columns")
    _check_names(path, names)
    return Table(
        path,
        names,
        [np.array([_text(row[k]) for row in rows[1:]], np.str_) for k in range(len(names))],
    )


def _formula_without_value(openpyxl: Any, file: Path) -> str:
    """The first cell of the first sheet whose formula was never worked out, as in files that
    programs write.
    """
    with file.open("rb") as values, file.open("rb") as formulas:
        books = [
            openpyxl.load_workbook(one, read_only=True, data_only=only)
            for one, only in ((values, True), (formulas, False))
        ]
        pairs = zip(*(book.worksheets[0].iter_rows() for book in books), strict=True)
        found = (
            (a, b)
            for row in pairs
            for a, b in zip(*row, strict=True)
            if b.data_type == "f" and a.value is None
        )
        return next((str(b.coordinate) for _, b in found), "")


def _text(cell: object) -> str:
    """A cell of a sheet as text."""
    if cell is None:
        return ""
    if isinstance(cell, datetime | date):
        return cell.isoformat()
    return str(int(cell)) if isinstance(cell, bool) else str(cell).strip()


def _check_names(path: Source, names: Iterable[str]) -> None:
    """Each column must have a name of its own."""
    seen: set[str] = set()
    for number, name in enumerate(names, 1):
        if not name:
            raise bad(path, f"has no name for column {number}")
        if name in seen:
            raise bad(path, f"has two columns called {quote(name)}")
        seen.add(name)
