"""The pages in docs/results are made of what is kept beside them and of nothing else: one that says
anything else is stale.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from comity.papers import pages
from comity.papers.reproduction import read

RESULTS = Path(__file__).parents[2] / "docs" / "results"
KEPT = sorted((RESULTS / pages.DATA_FOLDER).glob("*.json"))


@pytest.mark.parametrize("kept", KEPT, ids=lambda path: path.stem)
def test_a_page_is_that_of_its_data(kept: Path) -> None:
    made = read(kept)
    assert kept.stem == Path(pages.file_of(made.name)).stem
    for name, text in pages.files(made).items():
        assert (RESULTS / name).read_text(encoding="utf-8") == text, (
            "comity reproduce --table writes it again"
        )


@pytest.mark.parametrize("kept", KEPT, ids=lambda path: path.stem)
def test_the_tables_settings_are_those_of_the_runs(kept: Path) -> None:
    assert read(kept).stale() == [], "the table's file was changed after its runs: run it again"


def test_the_overview_is_that_of_all_data() -> None:
    words = [
        (RESULTS / pages.DATA_FOLDER / name).read_text(encoding="utf-8") for name in pages.WORDS
    ]
    text = pages.overview([read(path) for path in KEPT], *words)
    assert (RESULTS / "README.md").read_text(encoding="utf-8") == text, (
        "comity reproduce --table writes it again"
    )


def test_there_is_no_page_without_data() -> None:
    assert {path.stem for path in RESULTS.glob("*.md")} - {"README"} == {path.stem for path in KEPT}
