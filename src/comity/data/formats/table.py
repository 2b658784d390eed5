"""Tables: csv, parquet and Excel files as named columns, and columns as numbers or codes."""

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
    check_unpacked,
    existing_file,
    file_error,
    import_optional,
    open_binary,
    quote,
    wrap_parse_errors,
    wrap_read_errors,
)
from comity.data.preparation import DECIMAL_COMMA, NUMBER, detect_separator, without_decimal_comma
from comity.text import join_names

MISSING = ("", "?")
MARKUP = ("<!doctype", "<html", "<?xml")
"""How the first line of a page begins that was saved in place of a table."""
MOST_BLANK = 1_000_000


@dataclass(frozen=True, eq=False)
class RawTable:
    """Named columns of the same length. Text is str, and '' where it is missing."""

    path: Source
    names: list[str]
    columns: list[Array] = field(repr=False)
    rows: NDArray[np.int64] | None = field(default=None, repr=False)
    """The numbers of the rows in the file, from 0 below the header, if some were left out."""

    @cached_property
    def _positions(self) -> dict[str, int]:
        return {name: place for place, name in enumerate(self.names)}

    def __len__(self) -> int:
        return len(self.columns[0])

    def __contains__(self, name: str) -> bool:
        return name in self._positions

    def __getitem__(self, name: str) -> Array:
        """The column of that name."""
        if name not in self:
            raise file_error(
                self.path, f"has no column called {quote(name)}; it has {join_names(self.names)}"
            )
        return self.columns[self._positions[name]]

    def numeric(self, name: str) -> NDArray[np.float64]:
        """The column as numbers, NaN where it is missing."""
        return numeric(self[name], self.place(name))

    def codes(self, name: str, values: Sequence[str]) -> NDArray[np.int64]:
        """The column as positions in `values`, -1 where it is missing."""
        return codes(self[name], values, self.place(name))

    def take(self, rows: NDArray[np.int64]) -> RawTable:
        """The table with these rows only."""
        numbers = rows if self.rows is None else self.rows[rows]
        return RawTable(self.path, self.names, [column[rows] for column in self.columns], numbers)

    def place(self, name: str) -> str:
        """The name of a column in messages."""
        return f"The column {name!r} of {self.path}"


def numeric(column: Array, what: str = "The column") -> NDArray[np.float64]:
    """Convert a column to numbers, NaN where missing.

    Raises:
        UsageError: if a cell is not a number; names its row, counted from 1 below the header.
    """
    if column.dtype.kind in "biuf":
        return column.astype(np.float64)
    values = np.full(len(column), np.nan)
    for row, cell in enumerate(map(str, column)):
        if cell in MISSING:
            continue
        if not NUMBER.fullmatch(cell) or not isfinite(value := float(cell)):
            raise file_error(what, f"has {quote(cell)} in row {row + 1}, which is not a number")
        values[row] = value
    return values


def codes(column: Array, values: Sequence[str], what: str = "The column") -> NDArray[np.int64]:
    """The position of each cell in `values`, -1 where missing.

    Raises:
        UsageError: if a cell is not one of `values`; names its row.
    """
    positions = dict.fromkeys(MISSING, -1) | {value: i for i, value in enumerate(values)}
    result = np.empty(len(column), np.int64)
    for row, cell in enumerate(map(str, column)):
        if cell not in positions:
            choice = f": it must be one of {', '.join(values)}" if len(values) <= 12 else ""
            raise file_error(
                what, f"has {quote(cell)} in row {row + 1}, which is not a known value{choice}"
            )
        result[row] = positions[cell]
    return result


def read_csv(
    path: Source,
    header: Sequence[str] | None = None,
    delimiter: str | None = ",",
    ignore: tuple[str, ...] = (),
) -> RawTable:
    """Read a csv file (or csv.gz) in UTF-8.

    Cells are stripped str; a missing cell ('?' or empty) is ''.

    Args:
        path: the file.
        header: the column names. Default: the first row.
        delimiter: separator of cells. None: detect it in the first line; if it is not a comma,
            3,5 becomes 3.5.
        ignore: lines that begin with one of these are ignored, as are blank lines.
    """
    # Tuples of str, unlike lists, are not tracked by the garbage collector.
    rows: list[tuple[str, ...]] = []
    names = None if header is None else list(header)
    blank = 0
    marks = DecimalMarks(path)
    with open_binary(path) as stream, io.TextIOWrapper(stream, "utf-8-sig", newline="") as text:
        first_line = next(text, "")
        _refuse_markup(path, first_line)
        separator = detect_separator(first_line) if delimiter is None else delimiter
        convert = without_decimal_comma if delimiter is None and separator != "," else str
        # An ignored line becomes a blank line, so that line numbers stay those of the file.
        lines = csv.reader(
            ("\n" if line.startswith(ignore) else line for line in chain([first_line], text)),
            delimiter=separator,
            skipinitialspace=True,
            strict=True,
        )
        try:
            for row in lines:
                cells = [cell.strip() for cell in row]
                if any("\0" in cell for cell in cells):  # numpy would truncate the cell there
                    raise file_error(
                        path,
                        f"has a NUL byte in line {lines.line_num}: it is not text, or {DAMAGED}",
                    )
                if not any(cells) and len(cells) <= 1:
                    blank += 1
                    if blank > MOST_BLANK:
                        raise file_error(
                            path, f"has more than {MOST_BLANK:,} blank lines: remove them"
                        )
                    continue
                if names is None:
                    names = cells
                elif len(cells) != len(names):
                    quotes = (
                        f"; a cell with a {separator!r} in it must stand in quotes"
                        if len(cells) > len(names)
                        else ""
                    )
                    raise file_error(
                        path,
                        f"has {len(cells)} cells in line {lines.line_num}, but {len(names)}"
                        f" columns{quotes}",
                    )
                else:
                    if convert is not str:
                        marks.check(cells, lines.line_num)
                    rows.append(tuple("" if cell in MISSING else convert(cell) for cell in cells))
        except csv.Error as error:
            raise file_error(
                path,
                f"has a cell in line {lines.line_num} that is too long, or whose quotes do not"
                " match",
            ) from error
    if not rows or names is None:
        raise file_error(path, "has no rows")
    _check_names(path, names)
    return RawTable(path, names, [np.array(column, np.str_) for column in zip(*rows, strict=True)])


def _refuse_markup(path: Source, first_line: str) -> None:
    """Refuse a page that was saved in place of a table."""
    if first_line.lstrip().lower().startswith(MARKUP):
        raise file_error(path, "is a web page or another kind of markup, not a table")


THOUSANDS = re.compile(r"[-+]?\d{1,3}(\.\d{3})+")


@dataclass
class DecimalMarks:
    """Decimal commas and points of a file.

    In a file with decimal commas (3,5), the point of 1.234 may separate thousands or decimals.
    """

    path: Source
    comma: str = ""
    point: str = ""

    def check(self, cells: Iterable[str], line: int) -> None:
        """Refuse a file in which decimal commas and such points occur."""
        for cell in cells:
            if not self.comma and DECIMAL_COMMA.fullmatch(cell):
                self.comma = f"{quote(cell)} in line {line}"
            elif not self.point and THOUSANDS.fullmatch(cell):
                self.point = f"{quote(cell)} in line {line}"
            else:
                continue
            if self.comma and self.point:
                raise file_error(
                    self.path,
                    f"has {self.point}, and {self.comma} with a decimal comma: the point may"
                    " separate thousands or decimals, so write numbers without thousands"
                    " separators, and all with a comma or all with a point",
                )


def read_parquet(path: Source) -> RawTable:
    """Read the columns of numbers and text of a parquet file.

    Missing text is ''; a column with missing numbers becomes float64 with NaN.
    """
    file = existing_file(path)
    arrow = import_optional("pyarrow", path)
    parquet = import_optional("pyarrow.parquet", path)
    with wrap_read_errors(path):
        with wrap_parse_errors(path, f"is not a parquet file, or {DAMAGED}"):
            packed = parquet.ParquetFile(file)
            check_unpacked(
                path, packed.metadata.num_rows * packed.metadata.num_columns, file.stat().st_size
            )
            table = packed.read()
        if not table.num_rows or not table.num_columns:
            raise file_error(path, "has no rows")
        _check_names(path, table.column_names)
        kinds = arrow.types
        columns = []
        for name, column in zip(table.column_names, table.columns, strict=True):
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
                raise file_error(
                    path,
                    f"has a column {name!r} of type {quote(str(values.type))}, but only numbers and"
                    " text can be read",
                )
    return RawTable(path, list(table.column_names), columns)


def read_xlsx(path: Source) -> RawTable:
    """Read the first sheet of an Excel file, whose first row names the columns.

    Formulas are read as their values.
    """
    file = existing_file(path)
    openpyxl = import_optional("openpyxl", path)
    with (
        wrap_read_errors(path),
        wrap_parse_errors(path, f"is not an Excel file (.xlsx), or {DAMAGED}"),
    ):
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
            other_sheets = [
                sheet.title
                for sheet in book.worksheets[1:]
                if any(any(row) for row in sheet.iter_rows(values_only=True))
            ]
            book.close()
        has_empty_cells = any(cell is None for row in rows for cell in row) or not rows
        formula = _formula_without_value(openpyxl, file) if has_empty_cells else ""
    if other_sheets:
        raise file_error(
            path,
            f"has other sheets than its first ({join_names(other_sheets, 5)}): save the sheet to"
            " read in a file of its own",
        )
    if formula:
        raise file_error(
            path,
            f"has a formula without a value in cell {formula}: open it in Excel or LibreOffice and"
            " save it again",
        )
    if len(rows) < 2:
        raise file_error(path, "has no rows")
    names = [_text(cell) for cell in rows[0]]
    while names and not names[-1]:
        names.pop()
    if any(cell is not None for row in rows[1:] for cell in row[len(names) :]):
        raise file_error(path, f"has cells beyond its {len(names)} named columns")
    _check_names(path, names)
    return RawTable(
        path,
        names,
        [np.array([_text(row[k]) for row in rows[1:]], np.str_) for k in range(len(names))],
    )


def _formula_without_value(openpyxl: Any, file: Path) -> str:
    """The first cell with a formula that was never evaluated, as in files written by programs."""
    with file.open("rb") as values, file.open("rb") as formulas:
        books = [
            openpyxl.load_workbook(stream, read_only=True, data_only=data_only)
            for stream, data_only in ((values, True), (formulas, False))
        ]
        pairs = zip(*(book.worksheets[0].iter_rows() for book in books), strict=True)
        empty_formulas = (
            (a, b)
            for row in pairs
            for a, b in zip(*row, strict=True)
            if b.data_type == "f" and a.value is None
        )
        return next((str(b.coordinate) for _, b in empty_formulas), "")


def _text(cell: object) -> str:
    """The text of a cell of a sheet."""
    if cell is None:
        return ""
    if isinstance(cell, datetime | date):
        return cell.isoformat()
    return str(int(cell)) if isinstance(cell, bool) else str(cell).strip()


def _check_names(path: Source, names: Iterable[str]) -> None:
    """Refuse empty and duplicate column names."""
    known_names: set[str] = set()
    for number, name in enumerate(names, 1):
        if not name:
            raise file_error(path, f"has no name for column {number}")
        if name in known_names:
            raise file_error(path, f"has two columns called {quote(name)}")
        known_names.add(name)
