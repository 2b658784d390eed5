"""The pages in docs/results are generated from the data beside them."""

from __future__ import annotations

from pathlib import Path

import pytest

from comity.papers import pages
from comity.papers.reproduction import read

RESULTS = Path(__file__).parents[2] / "docs" / "results"
RESULT_FILES = sorted((RESULTS / pages.DATA_FOLDER).glob("*.json"))


@pytest.mark.parametrize("result_file", RESULT_FILES, ids=lambda path: path.stem)
def test_page_matches_its_data(result_file: Path) -> None:
    reproduction = read(result_file)
    assert result_file.stem == Path(pages.file_of(reproduction.name)).stem
    for name, text in pages.files(reproduction).items():
        assert (RESULTS / name).read_text(encoding="utf-8") == text, "run: comity reproduce --table"


@pytest.mark.parametrize("result_file", RESULT_FILES, ids=lambda path: path.stem)
def test_the_tables_settings_are_those_of_the_runs(result_file: Path) -> None:
    assert read(result_file).stale() == [], (
        "the table's file was changed after its runs: run it again"
    )


def test_overview_matches_all_data() -> None:
    words = [
        (RESULTS / pages.DATA_FOLDER / name).read_text(encoding="utf-8") for name in pages.WORDS
    ]
    text = pages.overview([read(path) for path in RESULT_FILES], *words)
    assert (RESULTS / "README.md").read_text(encoding="utf-8") == text, (
        "run: comity reproduce --table"
    )


def test_every_page_has_data() -> None:
    others = {
        "README",
        "advise",
        "audit",
        "clusters",
        "five-methods",
        "frameworks",
        "methods-beside",
        "performance",
    }
    assert {path.stem for path in RESULTS.glob("*.md")} - others == {
        path.stem for path in RESULT_FILES
    }
