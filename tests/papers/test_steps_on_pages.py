"""The gradient evaluations on the pages of results."""

from __future__ import annotations

from pathlib import Path

from comity import papers
from comity.papers.cells import Cell, Figure
from comity.papers.pages import NOT_COUNTED, page
from comity.papers.reproduction import Reproduction, read

NAME = "dbe/components"


def reproduction(*steps: tuple[float, float] | None) -> Reproduction:
    """Results of the table's first row, with one seed for each entry of `steps`."""
    table = papers.table(NAME)
    figures = {
        seed: Figure(50.0, 20, 0, 0.0, steps=count and count[0], server_steps=count and count[1])
        for seed, count in enumerate(steps)
    }
    cells = [Cell(table.columns[0], table.rows[0], figures)]
    return Reproduction(NAME, "reduced", "comity reproduce", "commit 0", 1.0, 1, {}, {}, cells)


def test_a_page_shows_the_gradient_evaluations_of_each_method() -> None:
    text = page(reproduction((1000.0, 30.0), (1200.0, 50.0)))
    title = papers.table(NAME).rows[0].title
    assert f"| {title} | 1,100 | 40 |" in text
    assert "--equal-steps" in text
    assert NOT_COUNTED not in text


def test_a_page_of_runs_that_did_not_count_says_so() -> None:
    assert NOT_COUNTED in page(reproduction(None))


def test_seeds_that_did_not_count_do_not_hide_those_that_did() -> None:
    title = papers.table(NAME).rows[0].title
    assert f"| {title} | 1,000 | 30 |" in page(reproduction((1000.0, 30.0), None))


def test_the_file_keeps_the_counts(tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    reproduction((1000.0, 30.0), None).write(file)
    first, second = read(file).cells[0].figures.values()
    assert (first.steps, first.server_steps) == (1000.0, 30.0)
    assert (second.steps, second.server_steps) == (None, None)
