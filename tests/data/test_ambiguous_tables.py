"""Ambiguous or incomplete tables are refused in a sentence that names the file, the place and what
to do.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import comity
from comity.data.formats.table import read_csv, read_xlsx
from comity.data.importing import import_federation


def assert_refused(reading: Any, *words: str) -> None:
    with pytest.raises(comity.ComityError) as caught:
        reading()
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("rows", ["1.234;a\n3,5;b\n", "3,5;a\n-12.000.500;b\n"])
def test_ambiguous_thousands_separator_is_refused(rows: str, tmp_path: Path) -> None:
    file = tmp_path / "n.csv"
    file.write_text(f"x;label\n{rows}")
    assert_refused(
        lambda: read_csv(file, delimiter=None),
        str(file),
        "line 2",
        "line 3",
        "may separate thousands",
    )


@pytest.mark.parametrize("rows", ["1.5;a\n3,5;b\n", "1.234;a\n2.500;b\n", "3,5;a\n1234;b\n"])
def test_unambiguous_numbers_are_read(rows: str, tmp_path: Path) -> None:
    file = tmp_path / "n.csv"
    file.write_text(f"x;label\n{rows}")
    assert len(read_csv(file, delimiter=None)) == 2


def test_rows_of_different_lengths_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "n.csv"
    file.write_text("x,label\n1,2,a\n")
    assert_refused(lambda: read_csv(file), str(file), "3 cells in line 2", "2 columns", "quotes")


def book(path: Path, rows: list[list[Any]], more: list[list[Any]] | None = None) -> Path:
    openpyxl = pytest.importorskip("openpyxl")
    workbook = openpyxl.Workbook()
    for row in rows:
        workbook.active.append(row)
    if more is not None:
        other = workbook.create_sheet("second")
        for row in more:
            other.append(row)
    workbook.save(path)
    return path


def test_second_sheet_is_refused(tmp_path: Path) -> None:
    file = book(tmp_path / "n.xlsx", [["x", "label"], [1, "a"]], [["x", "label"], [2, "b"]])
    assert_refused(lambda: read_xlsx(file), str(file), "second", "file of its own")
    assert len(read_xlsx(book(tmp_path / "m.xlsx", [["x", "label"], [1, "a"]], []))) == 1


def test_formula_without_a_value_is_refused(tmp_path: Path) -> None:
    file = book(tmp_path / "n.xlsx", [["x", "label"], [1, "a"], ["=A2+1", "b"]])
    assert_refused(lambda: read_xlsx(file), str(file), "cell A3", "save it again")
    assert (
        len(read_xlsx(book(tmp_path / "m.xlsx", [["x", "label"], [None, "a"], [1, "b"]]))) == 2
    ), "an empty cell is refused"


def test_folder_of_tables_is_refused(tmp_path: Path) -> None:
    for party in ("north", "south"):
        (tmp_path / "all" / party).mkdir(parents=True)
        (tmp_path / "all" / party / "1.csv").write_text("x,label\n1,a\n")
    file = tmp_path / "all" / "north" / "1.csv"
    assert_refused(
        lambda: import_federation(tmp_path / "all", tmp_path / "out"),
        str(file),
        str(tmp_path / "all" / "north.csv"),
    )
