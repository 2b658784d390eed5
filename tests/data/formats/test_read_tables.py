"""Tables: csv, parquet, and columns as numbers or codes."""

from __future__ import annotations

import gzip
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from comity.data.formats import codes, numeric, read_csv, read_parquet


def write(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


class TestCsv:
    def test_good(self, tmp_path: Path) -> None:
        table = read_csv(
            write(
                tmp_path / "a.csv",
                '\ufeffage, job ,text\r\n 39 ,?,"a, ""b""\nc"\r\n\r\n-1.5e1,clerk,\r\n',
            )
        )
        assert table.names == ["age", "job", "text"]
        assert [column.tolist() for column in table.columns] == [
            ["39", "-1.5e1"],
            ["", "clerk"],
            ['a, "b"\nc', ""],
        ]
        assert all(column.dtype.kind == "U" for column in table.columns)
        assert len(table) == 2
        assert table.numeric("age").tolist() == [39, -15]
        assert table.codes("job", ["baker", "clerk"]).tolist() == [-1, 1]

    def test_gzip_header_delimiter_and_lines_passed_over(self, tmp_path: Path) -> None:
        path = write(tmp_path / "a.csv.gz", gzip.compress(b"|a comment, here\n1;2\n3;4"))
        table = read_csv(path, header=["a", "b"], delimiter=";", ignore=("|",))
        assert table["b"].tolist() == ["2", "4"]

    @pytest.mark.parametrize(
        ("content", "words"),
        [
            ("a,b\n1,2\n3\n", "1 cells in line 3, but 2 columns"),
            ("a,b\n1,2\n\n3,4,5\n", "3 cells in line 4"),
            ("a,b\n", "no rows"),
            ("\n\n \n", "no rows"),
            ("a,a\n1,2\n", "two columns called 'a'"),
            ("a,\n1,2\n", "no name for column 2"),
            ('a,b\n1,"2\n3,4\n', "quotes"),
            ('a,b\n1,"2"x\n', "line 2"),
            (f"a,b\n1,{'x' * 200_000}\n", "too long"),
            (b"a,b\n1,\xff\n", "UTF-8"),
            (gzip.compress(b"a,b\n1,2\n", mtime=0)[:-3], "damaged"),
            (gzip.compress(b"a,b\n1,2\n" * 999, mtime=0)[:-60], "damaged"),
            (gzip.compress(b"", mtime=0), "no rows"),
        ],
    )
    def test_bad_files(
        self, content: str | bytes, words: str, tmp_path: Path, refuses: Any
    ) -> None:
        path = write(tmp_path / "a.csv", content)
        with refuses(path, words):
            read_csv(path)

    @pytest.mark.parametrize(
        "cell", ["x", "nan", "inf", "1e999", "1_000", "1,5", "0x10", "٣", "--1", "."]
    )
    def test_not_a_number(self, cell: str, tmp_path: Path, refuses: Any) -> None:
        path = write(tmp_path / "a.csv", f'a,b\n1,2\n?,3\n"{cell}",4\n')
        with refuses(path, "'a'", repr(cell), "row 3"):
            read_csv(path).numeric("a")

    def test_not_a_known_value_and_not_a_column(self, tmp_path: Path, refuses: Any) -> None:
        table = read_csv(write(tmp_path / "a.csv", "a,b\n1,no\n2,maybe\n"))
        with refuses("a.csv", "'maybe' in row 2", "one of no, yes"):
            table.codes("b", ["no", "yes"])
        with refuses("a.csv", "no column called 'c'; it has a, b"):
            table["c"]


def test_columns_alone() -> None:
    assert np.array_equal(
        numeric(np.array(["1", "", "+.5", "2."])), [1, np.nan, 0.5, 2], equal_nan=True
    )
    assert numeric(np.array([True, False])).tolist() == [1, 0]
    assert codes(np.array(["b", "?", "a"]), ["a", "b"]).tolist() == [1, -1, 0]


class TestParquet:
    def save(self, path: Path, **columns: Any) -> Path:
        arrow = pytest.importorskip("pyarrow")
        pytest.importorskip("pyarrow.parquet").write_table(arrow.table(columns), path)
        return path

    def test_good(self, tmp_path: Path) -> None:
        arrow = pytest.importorskip("pyarrow")
        words = arrow.array(["x", None, "z"]).dictionary_encode()
        table = read_parquet(
            self.save(
                tmp_path / "a.parquet",
                i=[1, 2, 3],
                j=[1, None, 3],
                f=[0.5, None, 2.0],
                s=["a", None, "c"],
                w=words,
                b=[True, False, True],
                t=arrow.array([1, 2, 3], arrow.int8()),
            )
        )
        assert table.names == ["i", "j", "f", "s", "w", "b", "t"]
        assert [column.dtype.kind for column in table.columns] == [
            "i",
            "f",
            "f",
            "U",
            "U",
            "b",
            "i",
        ]
        assert table["s"].tolist() == ["a", "", "c"]
        assert table["w"].tolist() == ["x", "", "z"]
        assert np.array_equal(table.numeric("j"), [1, np.nan, 3], equal_nan=True)
        assert table.numeric("b").tolist() == [1, 0, 1]

    @pytest.mark.parametrize(
        "columns", [{"a": [{"bytes": b"x"}]}, {"a": [[1, 2]]}, {"a": [b"x"]}, {"a": [None]}]
    )
    def test_columns_that_are_neither_numbers_nor_text(
        self, columns: dict[str, Any], tmp_path: Path, refuses: Any
    ) -> None:
        path = self.save(tmp_path / "a.parquet", **columns)
        with refuses(path, "'a'", "only numbers and text"):
            read_parquet(path)

    def test_no_rows(self, tmp_path: Path, refuses: Any) -> None:
        path = self.save(tmp_path / "a.parquet", a=[])
        with refuses(path, "no rows"):
            read_parquet(path)

    @pytest.mark.parametrize(
        "spoil",
        [
            lambda content: content[: len(content) // 2],
            lambda content: content[:4] + b"\xff" * 40 + content[44:],
            lambda content: b"a,b\n1,2\n" * 9,
        ],
        ids=["half", "garbage", "csv"],
    )
    def test_damaged(self, spoil: Any, tmp_path: Path, refuses: Any) -> None:
        path = self.save(tmp_path / "a.parquet", a=list(range(100)), s=["x"] * 100)
        path.write_bytes(spoil(path.read_bytes()))
        with refuses(path, "not a parquet file"):
            read_parquet(path)

    def test_without_pyarrow(
        self, tmp_path: Path, refuses: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = write(tmp_path / "a.parquet", b"PAR1")
        monkeypatch.setitem(sys.modules, "pyarrow", None)
        with refuses(path, "pyarrow", "pip install 'comity[data]'"):
            read_parquet(path)
