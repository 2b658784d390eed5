"""The board: its page, its data, and the equal steps of its rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from comity import papers
from comity.papers import board, pages
from comity.papers.board import KINDS, STEPS, board_of
from comity.papers.cells import Cell, Figure
from comity.papers.reproduce import federation_for
from comity.papers.reproduction import Reproduction, read
from comity.runs.build import prepare
from comity.runs.config import experiment
from comity.studies.board import BOARD, Description, read_board
from comity.studies.equal_steps import equal_steps

TABLE = papers.table(board.NAME)
ROWS = {row.name: row for row in TABLE.rows}
COLUMNS = {column.name: column for column in TABLE.columns}
FEDERATIONS = [name for name in COLUMNS if not name.endswith(STEPS)]
SAVED = Path(__file__).parents[2] / "docs" / "results" / "data" / "board.json"
LARGEST = 200_000


def reproduction_of(figures: Mapping[str, Mapping[str, Sequence[float]]]) -> Reproduction:
    """A reproduction with these accuracies, one per seed, by federation and row."""
    cells = []
    for name, rows in figures.items():
        for row, values in rows.items():
            for column, of_column in ((name, values), (name + STEPS, [120.0] * len(values))):
                total_bytes = 0 if row == "solo" else 8000
                of_seed = {
                    seed: Figure(value, 15, total_bytes, 1.0)
                    for seed, value in enumerate(of_column)
                }
                cells.append(Cell(COLUMNS[column], ROWS[row], of_seed))
    settings = {
        name: {row: TABLE.run_settings(name, ROWS[row], "reduced") for row in rows}
        for name, rows in figures.items()
    }
    return Reproduction(
        board.NAME, "reduced", "comity reproduce comity/board", "abc", 60.0, 1, {}, settings, cells
    )


def about(parties: int) -> Description:
    return Description(
        "digits", "iid", parties, 40.0, 30, 10, 0.1, 0.02, "linear", "linear", 650, False
    )


ALONE = (70.0, 71.0, 72.0)
SURE = (74.0, 75.1, 75.9)
"""About four points above `ALONE`, under each seed."""
UNSURE = (60.0, 80.0, 71.0)
WORSE = (50.0, 51.2, 51.8)
METHODS = {"solo": ALONE, "ditto": SURE, "fedavg": WORSE, "relay": UNSURE}


def test_gains_intervals_steps_and_bytes() -> None:
    result = board_of(reproduction_of({"alike": METHODS}), {"alike": about(8)})
    (federation,) = result.federations
    assert (federation.solo, federation.steps, federation.seeds) == (71.0, 120.0, (0, 1, 2))
    assert set(federation.methods) == {"ditto", "fedavg", "relay"}
    ditto, relay = federation.methods["ditto"], federation.methods["relay"]
    assert ditto.gain == pytest.approx(4.0)
    assert ditto.low is not None
    assert ditto.low > 0
    assert relay.low is not None
    assert relay.high is not None
    assert relay.low < 0 < relay.high
    assert (ditto.steps, ditto.bytes, ditto.algorithm) == (120.0, 1000, "ditto")


def test_two_seeds_have_no_interval() -> None:
    methods = {row: values[:2] for row, values in METHODS.items()}
    result = board_of(reproduction_of({"alike": methods}), {"alike": about(8)})
    assert result.federations[0].methods["ditto"].low is None


def test_a_federation_without_solo_is_left_out() -> None:
    only = reproduction_of({"alike": {"ditto": SURE}})
    assert board_of(only, {"alike": about(8)}).federations == ()
    assert "0 of 13 federations, 0 of" in board.page(only)


def test_board_that_is_written_is_read_again(tmp_path: Path) -> None:
    result = board_of(reproduction_of({"alike": METHODS}), {"alike": about(8)})
    (tmp_path / "board.json").write_text(result.to_text(), encoding="utf-8")
    assert read_board(tmp_path / "board.json") == result


def test_page_names_who_helps_and_who_hurts() -> None:
    """Five federations are enough for ranks: ditto is ahead in all of them, fedavg last."""
    names = ("labels-strong", "labels-mild", "sizes", "inputs", "alike")
    text = board.page(reproduction_of(dict.fromkeys(names, METHODS)))
    assert "5 of 13 federations, 3 of 49 methods beside SOLO, seeds 0, 1, 2." in text
    assert "Methods not run so far: ADCOL;" in text
    assert "Friedman's test: p = 0.00" in text
    ranked = [line for line in text.splitlines() if line.startswith(("| Ditto | ", "| FedAvg | "))]
    assert ranked[0].startswith("| Ditto | 1.0 | +4.0 | 5 of 5 | 0 of 5 | 1.00 | 1 kB |")
    assert ranked[1].startswith("| FedAvg | 4.0 | -20.0 | 0 of 5 | 5 of 5 | 1.00 | 1 kB |")
    assert "Not clearly different from each other: Ditto, " in text
    assert "No method is clearly above SOLO" in text
    assert "Best in the mean of 2 federations:\n\n- Ditto: +4.0, clear in 2\n" in text
    assert "Clearly worse than SOLO in all of them: FedAvg." in text
    assert "Clearly worse than SOLO here: FedAvg." in text
    assert "Of 15 figures, 5 clearly help and 5 clearly hurt" in text


def test_few_federations_have_no_ranks() -> None:
    text = board.page(reproduction_of({"alike": METHODS}))
    assert "Friedman" not in text
    assert "| Ditto |  | +4.0 |" in text


def test_where_nothing_helps_the_page_says_stay_alone() -> None:
    text = board.page(reproduction_of({"alike": {"solo": ALONE, "fedavg": WORSE, "relay": UNSURE}}))
    assert "None of them clearly helps anywhere: stay alone." in text


def test_every_federation_has_a_kind_and_a_column_of_steps() -> None:
    assert sorted(name for names in KINDS.values() for name in names) == sorted(FEDERATIONS)
    for name in FEDERATIONS:
        assert COLUMNS[name + STEPS].runs == name
        assert COLUMNS[name + STEPS].measure == "steps"
    assert len(FEDERATIONS) >= 12


@pytest.mark.long
def test_rounds_of_all_rows_are_those_of_equal_steps() -> None:
    """The rounds in the file are those that --equal-steps measures on the federation that the notes
    name.
    """
    solo = TABLE.run_settings("labels-strong", ROWS["solo"], "reduced")
    partition = "dirichlet(alpha=0.3,min=20)|keep(fraction=0.5)"
    for row in TABLE.rows:
        settings = {**solo, "partition": partition, "algorithm": row.algorithm}
        of_row = experiment(settings)
        expected = equal_steps(prepare(of_row, federation_for(of_row))).rounds
        own = TABLE.run_settings("labels-strong", row, "reduced")["rounds"]
        assert own == expected, row.name


@pytest.mark.skipif(not SAVED.exists(), reason="the board was not run")
def test_shipped_board_is_that_of_the_saved_figures() -> None:
    reproduction, shipped = read(SAVED), read_board()
    described = {federation.name: federation.description for federation in shipped.federations}
    expected = board_of(reproduction, described).to_text()
    assert BOARD.read_text(encoding="utf-8") == expected, "run: python -m comity.papers.board"
    assert set(described) == set(board._gains(reproduction))
    assert len(expected) < LARGEST


def test_page_is_called_board() -> None:
    assert set(pages.files(reproduction_of({"alike": METHODS}))) == {"board.md"}
