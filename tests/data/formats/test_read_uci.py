"""The Adult dataset in the layout of UCI."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from comity.data.formats import read_adult

ROW = (
    "39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, Not-in-family, White, Male,"
    " 2174, 0, 40, {}, {}\n"
)
TRAIN = ROW.format("United-States", "<=50K") + ROW.format("?", ">50K") + "\n"
TEST = "|1x3 Cross validator\n" + TRAIN.replace("50K", "50K.")


class TestAdult:
    @pytest.mark.parametrize(("name", "text"), [("adult.data", TRAIN), ("adult.test", TEST)])
    def test_good(self, name: str, text: str, tmp_path: Path) -> None:
        (tmp_path / name).write_text(text)
        table = read_adult(tmp_path / name)
        assert len(table) == 2
        assert table["income"].tolist() == ["<=50K", ">50K"]
        assert table["native_country"].tolist() == ["United-States", ""]
        assert table.numeric("capital_gain").tolist() == [2174, 2174]
        assert table["workclass"].tolist() == ["State-gov"] * 2

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("|1x3 Cross validator\n", "no rows"),
            (TRAIN + "39, State-gov\n", "2 cells in line 4, but 15"),
            (TEST + "39, State-gov\n", "2 cells in line 5, but 15"),
            (TRAIN.replace(">50K", "50K"), "'income'"),
            (TRAIN.replace(">50K", "?"), "missing in row 2"),
            (TRAIN.replace("39", "old"), "'old' in row 1"),
            (TRAIN.replace("39", "?"), "missing in row 1"),
        ],
    )
    def test_bad_files(self, text: str, words: str, tmp_path: Path, refuses: Any) -> None:
        path = tmp_path / "adult.data"
        path.write_text(text)
        with refuses(path, words):
            read_adult(path)


PATIENT = "63.0,1.0,1.0,145.0,233.0,1.0,2.0,150.0,0.0,2.3,3.0,0.0,6.0,{}\n"
POOR = "28,1,2,130,-9,?,2,185,0,-1.5,?,?,-9.0,{}\n"
