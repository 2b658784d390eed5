"""Adult and Heart Disease as UCI gives them."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from comity.data.formats import read_adult, read_heart, read_heart_site

ROW = "39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, Not-in-family, White, Male, 2174, 0, 40, {}, {}\n"
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


class TestHeart:
    def test_one_hospital(self, tmp_path: Path) -> None:
        path = tmp_path / "processed.hungarian.data"
        path.write_text(PATIENT.format(4) + POOR.format(0))
        x, y = read_heart_site(path)
        nan = np.nan
        assert y.tolist() == [4, 0]
        assert np.array_equal(x[1], [28, 1, 2, 130, nan, nan, 2, 185, 0, -1.5, nan, nan, nan], equal_nan=True)

    def test_all_hospitals(self, tmp_path: Path, refuses: Any) -> None:
        for k, name in enumerate(["cleveland", "hungarian", "switzerland"]):
            (tmp_path / f"processed.{name}.data").write_text(PATIENT.format(k) * (k + 1))
        with refuses("processed.va.data", "There is no file"):
            read_heart(tmp_path)
        (tmp_path / "processed.va.data.gz").write_bytes(gzip.compress(PATIENT.format(3).encode()))
        x, y, site = read_heart(tmp_path)
        assert x.shape == (7, 13)
        assert y.tolist() == [0, 1, 1, 2, 2, 2, 3]
        assert site.tolist() == [0, 1, 1, 2, 2, 2, 3]

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            (PATIENT.format(5), "num 5 in row 1"),
            (PATIENT.format("?"), "num nan in row 1"),
            (PATIENT.format(0) + PATIENT.format(0).replace(",", " "), "1 cells in line 2, but 14"),
            (PATIENT.format(0).replace("233.0", "high"), "'chol'"),
        ],
    )
    def test_bad_files(self, text: str, words: str, tmp_path: Path, refuses: Any) -> None:
        path = tmp_path / "processed.va.data"
        path.write_text(text)
        with refuses(path, words):
            read_heart_site(path)
