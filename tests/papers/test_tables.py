"""The papers' tables as data: each is valid, names existing methods and datasets, and has the
printed figures.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from comity import algorithms, papers
from comity.data.library import _library
from comity.errors import ComityError
from comity.measure.conventions import last_tenth
from comity.papers import Claim, PaperTable
from comity.papers.cells import CONVENTIONS, FIGURES, NONE, is_weaker
from comity.papers.pages import page
from comity.papers.reproduction import read
from comity.runs.config import experiment
from comity.spec import parse, split

NAMES = papers.names()
RESULTS = Path(__file__).parents[2] / "docs" / "results" / "data"
ELSEWHERE = {"party", "rounds_to_lowest", "mdl", "mAP"}


@pytest.fixture(params=NAMES)
def table(request: pytest.FixtureRequest) -> PaperTable:
    return papers.table(request.param)


def test_every_main_table_exists() -> None:
    expected = (
        {f"dbe/table{n}" for n in range(1, 10)}
        | {f"fedufo/table{n}" for n in range(1, 7)}
        | {"relay/table1"}
    )
    expected |= {f"adcol/table{n}" for n in (1, 2, *range(4, 22))} | {
        f"fed-sps/table{n}" for n in (1, 2, 3, 4, 5, 6, 7, 9, 10, 11)
    }
    assert expected <= set(NAMES)


def test_names_are_unique_and_figures_belong_to_columns(table: PaperTable) -> None:
    columns, rows = [c.name for c in table.columns], [r.name for r in table.rows]
    assert len(set(columns)) == len(columns)
    assert len(set(rows)) == len(rows)
    for row in table.rows:
        assert set(row.paper) <= set(columns)
        assert all(std is None or std >= 0 for _, std in map(row.printed, columns))
    for scale in papers.SCALES:
        overrides = table.at(scale)
        assert set(overrides.get("columns", ())) <= set(columns)
        assert set(overrides.get("rows", ())) <= set(rows)
        assert table.seeds(scale) >= 1


def test_claims_name_rows_and_columns(table: PaperTable) -> None:
    for text in table.claims:
        better, worse, column = Claim(text).parts
        assert {better, worse} <= {r.name for r in table.rows}
        assert column in {"", *(c.name for c in table.columns)}


def test_printed_claims_hold_in_the_paper_itself(table: PaperTable) -> None:
    """A claimed order must be that of the printed figures, where the paper prints both."""
    rows = {r.name: r for r in table.rows}
    lower_is_better = {
        "std",
        "rounds_to_lowest",
        "seconds_per_round",
        "minutes_per_round",
        "mbytes",
        "steps",
        "server_steps",
        "mdl",
    }
    for text in table.claims:
        better, worse, only = Claim(text).parts
        for column in table.columns:
            a, b = (rows[name].printed(column.name)[0] for name in (better, worse))
            if only in ("", column.name) and a is not None and b is not None:
                assert a >= b or column.measure.partition(":")[0] in lower_is_better, (
                    text,
                    column.name,
                )


def test_every_measure_is_known(table: PaperTable) -> None:
    measures = {*CONVENTIONS, *FIGURES, *NONE, *ELSEWHERE}
    assert {c.measure.partition(":")[0] for c in table.columns} <= measures


def test_is_weaker() -> None:
    assert is_weaker("row", "record")
    assert not is_weaker("party", "record")
    assert not is_weaker("record", "record")


@cache
def check_method(text: str) -> None:
    """Compose a method, once for all tables."""
    algorithms.compose(text, {})


@pytest.mark.parametrize("scale", papers.SCALES)
def test_every_run_is_an_experiment(table: PaperTable, scale: papers.Scale) -> None:
    checked_settings: set[str] = set()  # columns of one row often have the same settings
    for column in table.columns:
        for row in table.rows:
            settings = table.run_settings(column.runs, row, scale)
            if (text := repr(settings)) in checked_settings:
                continue
            checked_settings.add(text)
            experiment(settings)
            assert parse(settings["data"]).name in _library()
            check_method(row.algorithm)


def test_smoke_needs_no_files(table: PaperTable) -> None:
    columns, rows = table.select("smoke")
    datasets = {table.run_settings(c.runs, r, "smoke")["data"] for c in columns for r in rows}
    assert all(_library()[parse(name).name].make for name in datasets), datasets


PRINTED = {
    ("dbe/table5", "practical-fmnist", "fedavg+dbe"): 97.69,
    ("dbe/table5", "practical-fmnist", "fedavg"): 85.85,
    ("relay/table1", "mnist-10", "relay"): 82.07,
    ("relay/table1", "mnist-5", "solo"): 85.26,
    ("fedufo/table1", "mnist", "feduad"): 96.70,
    ("adcol/table20", "avg", "adcol"): 88.1,
}


@pytest.mark.parametrize("where", PRINTED, ids=lambda where: "-".join(where).replace("/", "-"))
def test_some_figures_as_printed(where: tuple[str, str, str]) -> None:
    name, column, algorithm = where
    rows = [
        r
        for r in papers.table(name).rows
        if "+".join(parse(p).name for p in split(r.algorithm, "+")) == algorithm
    ]
    assert PRINTED[where] in [row.printed(column)[0] for row in rows]


def test_candidates_have_validation_samples_of_the_same_data(table: PaperTable) -> None:
    """At every scale the candidates of a `best_of` row have validation samples, and the same
    data.
    """
    rows = {row.name: row for row in table.rows}
    for scale in papers.SCALES:
        columns, selected = table.select(scale)
        for row in (row for row in selected if row.best_of):
            assert set(row.best_of) <= {candidate.name for candidate in selected}
            for column in columns:
                candidates = [
                    table.run_settings(column.runs, rows[name], scale) for name in row.best_of
                ]
                assert all(settings["validation"] > 0 for settings in candidates)
                assert len({repr({**settings, "algorithm": ""}) for settings in candidates}) == 1


@pytest.mark.parametrize("name", ["adcol/table1", "adcol/table20"])
def test_a_mean_of_four_sources_is_compared_with_the_mean_of_the_same_four(name: str) -> None:
    table = papers.table(name)
    four = next(column for column in table.columns if column.name == "avg-4")
    sources = four.measure.removeprefix("party:").split(",")
    printed_rows = [row for row in table.rows if row.paper]
    assert len(printed_rows) > 1
    for row in printed_rows:
        values = [row.printed(source)[0] for source in sources]
        assert row.printed("avg-4")[0] == pytest.approx(
            sum(value or 0 for value in values) / 4, abs=1e-3
        )
    assert "avg" not in [column.name for column in table.select("reduced")[0]]


@pytest.mark.parametrize("name", ["adcol/table1", "adcol/table20"])
@pytest.mark.parametrize("scale", ["reduced", "full"])
def test_last_tenth_of_a_run_has_three_evaluations(name: str, scale: papers.Scale) -> None:
    table = papers.table(name)
    for row in table.rows:
        settings = table.run_settings("digits", row, scale)
        evaluated_rounds = [
            t
            for t in range(1, settings["rounds"] + 1)
            if t % settings["eval_every"] == 0 or t == settings["rounds"]
        ]
        assert len(last_tenth(dict.fromkeys(evaluated_rounds, 0.0), settings["rounds"])) >= 3


GRIDDED = """
title = "t"
source = "s"
[[columns]]
name = "first"
title = "First"
measure = "mean"
[[grids]]
name = "g-{parties}-{alpha}"
title = "{parties} parties, {alpha}"
measure = "mean"
axes = {parties = [5, 20], alpha = [0.1, 1]}
settings = {parties = "{parties}", partition = "dirichlet(alpha={alpha})", lr = 0.1}
[[rows]]
name = "solo"
title = "SOLO"
algorithm = "solo"
"""


def test_a_grid_is_a_column_for_each_combination(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(GRIDDED, encoding="utf-8")
    table = papers.table(str(tmp_path / "mine.toml"))
    assert [c.name for c in table.columns] == ["first", "g-5-0.1", "g-5-1", "g-20-0.1", "g-20-1"]
    assert table.columns[3].title == "20 parties, 0.1"
    assert table.run_settings("g-20-0.1", table.rows[0], "full") == {
        "parties": 20, "partition": "dirichlet(alpha=0.1)", "lr": 0.1, "algorithm": "solo",
    }  # fmt: skip
    (tmp_path / "only.toml").write_text(
        GRIDDED[: GRIDDED.index("[[columns]]")] + GRIDDED[GRIDDED.index("[[grids]]") :]
    )
    assert len(papers.table(str(tmp_path / "only.toml")).columns) == 4


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('name = "g-{parties}-{alpha}"', 'name = "g-{alpha}"', "two columns are called g-0.1"),
        (
            "dirichlet(alpha={alpha})",
            "dirichlet(alpha={beta})",
            "{beta} is no axis of the grid: parties, alpha",
        ),
        ("axes = {parties = [5, 20], alpha = [0.1, 1]}", "axes = {}", "axes"),
        (
            "axes = {parties = [5, 20], alpha = [0.1, 1]}",
            "axes = {parties = [], alpha = [1]}",
            "axes",
        ),
        ('measure = "mean"\naxes', "axes", "measure"),
    ],
)
def test_invalid_grid_is_refused(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in GRIDDED
    (tmp_path / "mine.toml").write_text(GRIDDED.replace(old, new), encoding="utf-8")
    with pytest.raises(ComityError, match=re.escape(message)):
        papers.table(str(tmp_path / "mine.toml"))


def test_table_of_all_methods_has_all_but_newer_ones() -> None:
    """The page is made from runs, so a new method is missing until all methods are run again."""
    all_methods = {
        f"fedavg+{name}" if algorithms.card(name).wrapper else name for name in algorithms.names()
    }
    wants_a_budget = {"fedavg+dp", "fedavg+ldp"}
    rows = {row.algorithm.partition("(")[0] for row in papers.table("comity/all").rows}
    assert rows <= all_methods - wants_a_budget
    assert len(rows) >= 48


def test_every_table_fixes_its_experiment_before_its_runs(table: PaperTable) -> None:
    """Seeds, rounds, readings and claims are written in the file, at every scale that is run."""
    assert {"trials", "claims", "notes"} <= table.model_fields_set
    assert table.notes
    for column in table.columns:
        for row in table.rows:
            for scale in papers.SCALES:
                assert "rounds" in table.run_settings(column.runs, row, scale)


@pytest.mark.parametrize("result_file", sorted(RESULTS.glob("*.json")), ids=lambda path: path.stem)
def test_published_runs_have_the_seeds_and_rounds_of_the_file(result_file: Path) -> None:
    """Seeds that were planned may be missing: then the page says how many there are."""
    reproduction = read(result_file)
    planned = reproduction.table.seeds(reproduction.scale)
    assert reproduction.seeds == list(range(len(reproduction.seeds)))
    assert len(reproduction.seeds) <= planned
    sentence = f"{len(reproduction.seeds)} of {planned} planned seeds"
    assert (sentence in page(reproduction)) == (len(reproduction.seeds) < planned)
    assert not reproduction.changes
