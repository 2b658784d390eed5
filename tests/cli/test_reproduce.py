"""`comity reproduce`: tables of papers, how they are resumed and joined, and verdicts on claims."""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from harness import OWN as OWN_METHOD
from harness import comity, one_sentence, succeed

from comity import machine, papers
from comity.errors import ComityError, UsageError
from comity.papers import Column, MethodRow, reproduce
from comity.papers.cells import Cell, Figure
from comity.papers.claims import ClaimVerdict, untested, verdicts
from comity.papers.pages import format_cells, page, rewrite_pages
from comity.papers.reproduce import implemented
from comity.papers.reproduction import Reproduction, read

COLUMN = Column(name="c", title="C", measure="mean")


def cell(
    values: tuple[float, ...],
    paper: float | tuple[float, float] | None = None,
    row: str = "a",
    why: str = "",
) -> Cell:
    paper_values = {} if paper is None else {"c": paper}
    figures = {seed: Figure(value, 20, 0, 0.0) for seed, value in enumerate(values)}
    return Cell(
        COLUMN,
        MethodRow(name=row, title=row.upper(), algorithm="fedavg", paper=paper_values),
        figures,
        why,
    )


OWN = """
title = "Two methods"
source = "Nobody, Table 1"
trials = 2
claims = ["fedavg > solo", "fedavg > unheard"]
headlines = {"fedavg > solo" = "Together is better", "fedavg > unheard" = "Nobody has heard of it"}
[settings]
data = "digits"
partition = "iid|keep(samples=20)"
parties = 2
model = "linear"
rounds = 40
validation = 0
[stated]
data = "section 1"
partition = "section 1"
parties = "section 1"
model = "section 1"
rounds = "section 1"
batch = "section 1"
"unheard.q" = "section 1"
[chosen]
test = "not stated"
epochs = "not stated"
optimizer = "not stated"
lr = "not stated"
validation = "not stated"
[reduced]
rounds = 3
seeds = 1
[smoke]
rounds = 1
[[columns]]
name = "mean"
title = "Mean"
measure = "mean"
run = "digits"
[[columns]]
name = "first"
title = "First party"
measure = "party:p0"
run = "digits"
[[columns]]
name = "far"
title = "Far"
measure = "mean"
settings = {data = "tiny-imagenet"}
[[rows]]
name = "solo"
title = "SOLO"
algorithm = "solo"
paper = {mean = 10, first = [20, 0.5]}
[[rows]]
name = "fedavg"
title = "FedAvg"
algorithm = "fedavg"
settings = {rounds = 50}
reduced = {lr = 0.2}
paper = {mean = [50, 100]}
[[rows]]
name = "unheard"
title = "q-FFL"
algorithm = "unheard(q=2)"
paper = {mean = 30}
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("COMITY_DATA", raising=False)
    path = tmp_path / "own.toml"
    path.write_text(OWN, encoding="utf-8")
    return path


def test_difference_from_the_printed_figure() -> None:
    assert cell((50.0, 52.0), (50.0, 0.5)).difference == 1.0
    assert cell((), (50.0, 1.0), why="no data: mnist").difference is None
    assert cell((82.49,), (82.5, 0.0)).agrees is True  # printed figures are rounded
    assert cell((82.44,), (82.5, 0.0)).agrees is False


def test_lines_say_why_nothing_was_measured() -> None:
    (row,) = format_cells([cell((), 50.0, why="no data: mnist")])
    assert row == ["C", "A", "50.00", "no data: mnist", "", "", "", ""]
    absent = cell((), 50.0, why=reproduce.ABSENT)
    assert format_cells([absent])[0][3] == "not run: implemented since"
    unheard = replace(absent, row=absent.row.model_copy(update={"algorithm": "unheard"}))
    assert format_cells([unheard])[0][3] == "not yet implemented"
    assert format_cells([cell((1.0, 3.0), (5.0, 0.25))]) == [
        ["C", "A", "5.00 ± 0.25", "2.00 ± 1.41", "-3.00", "no", "", ""]
    ]


def test_a_figure_of_the_last_round_is_judged_over_the_last_tenth() -> None:
    curve = {t: float(t) for t in range(2, 42, 2)}  # of 40 rounds: 38 and 40 are beyond nine tenths
    figure = Figure(40.0, 40, 0, 0.0, curve)
    assert figure.end == [38.0, 40.0]
    assert replace(figure, tuned=True).end == [
        40.0
    ]  # the final model is tuned after the last round
    row = MethodRow(name="a", title="A", algorithm="fedavg")
    last, best = (
        Cell(Column(name="c", title="C", measure=m), row, {0: figure})
        for m in ("mean", "best_mean")
    )
    assert last.compared == {0: 39.0}
    assert best.compared == {0: 40.0}  # which is a figure of the whole run
    assert last.values == best.values == [40.0]
    assert last.swing == pytest.approx(2**0.5)
    assert format_cells([last])[0][-2:] == ["39.00", "1.41"]


def judge(
    better: tuple[float, ...],
    worse: tuple[float, ...],
    paper_values: tuple[Any, Any] = (None, None),
    own: bool = True,
) -> ClaimVerdict:
    (verdict,) = verdicts(
        CLAIMS, [cell(better, paper_values[0]), cell(worse, paper_values[1], row="b")], own
    )
    return verdict


CLAIMS = papers.PaperTable(
    title="",
    source="",
    claims=("a > b",),
    columns=(COLUMN,),
    rows=(cell(()).row, cell((), row="b").row),
)


def test_verdicts() -> None:
    clear = judge((3.0, 4.0, 5.0), (1.0, 1.0, 1.0))
    assert clear.differences == (2.0, 3.0, 4.0)
    assert clear.interval == pytest.approx(
        (3 - 4.3027 / 3**0.5, 3 + 4.3027 / 3**0.5), abs=1e-4
    )  # t of two degrees of freedom
    assert clear.word == "direction reproduced"  # the paper prints no figure to compare with
    assert judge((1.0, 1.0, 1.0), (3.0, 4.0, 5.0)).word == "contradicted"
    assert judge((3.0, 1.0, 2.0), (1.0, 2.0, 2.0)).word == "undecided"
    assert judge((9.0, 9.0), (1.0, 1.1)).word == "undecided"  # two seeds
    assert (
        str(judge((9.0,), (1.0,), ((3, 1), (2, 1))))
        == "a > b in c: undecided, +8.00 (1 seed), printed +1.00"
    )
    assert str(clear) == "a > b in c: direction reproduced, +3.00 (+0.52 to +5.48)"


def test_seeds_are_paired_and_less_may_be_better() -> None:
    better, worse = cell((3.0, 4.0, 5.0)), cell((1.0, 1.0, 1.0), row="b")
    fewer = replace(
        worse, figures={seed: figure for seed, figure in worse.figures.items() if seed != 1}
    )
    (verdict,) = verdicts(CLAIMS, [better, fewer], True)
    assert verdict.differences == (2.0, 4.0)
    column = Column(name="c", title="C", measure="mbytes")
    (verdict,) = verdicts(
        CLAIMS, [replace(better, column=column), replace(worse, column=column)], True
    )
    assert verdict.word == "contradicted"


def test_untested_claims_are_listed(own: Path) -> None:
    table = CLAIMS.model_copy(update={"claims": ("a > b", "b > a @ c", "a > b @ d", "a > nobody")})
    tested_claims = verdicts(table, [cell((3.0, 5.0)), cell((2.0, 2.0), row="b")], True)
    assert [(v.claim, v.column) for v in tested_claims] == [("a > b", "c"), ("b > a", "c")]
    assert untested(table, tested_claims) == ["a > b @ d", "a > nobody"]


def test_settings_of_table_column_row_and_scale(own: Path) -> None:
    table = papers.table(str(own))
    solo, fedavg, _ = table.rows
    assert table.run_settings("digits", solo, "full")["rounds"] == 40
    assert table.run_settings("digits", fedavg, "full")["rounds"] == 50  # the row's own
    assert table.run_settings("digits", fedavg, "reduced") | {} == table.run_settings("digits", solo, "reduced") | {
        "algorithm": "fedavg", "lr": 0.2,
    }  # the scale comes last, and a row's own at that scale after it  # fmt: skip
    assert table.run_settings("far", solo, "full")["data"] == "tiny-imagenet"
    assert table.seeds("full") == 2
    assert table.seeds("reduced") == 1


def test_implemented() -> None:
    assert implemented("fedavg+dbe(kappa=1)")
    assert not implemented("unheard")
    assert not implemented("fedavg+nothing")


def test_reproduce_a_table_and_resume_it(own: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    output = succeed("reproduce", own, "--scale", "reduced", "--out", out).out
    assert "not yet implemented" in output
    assert "no data: tiny-imagenet" in output
    assert "Our choice: `test` (not stated), " in output
    rows = {
        (r["column"], r["row"]): r
        for r in csv.DictReader((out / "table.csv").open(encoding="utf-8"))
    }
    assert len(rows) == 9
    assert float(rows["mean", "solo"]["measured"]) > 10
    assert rows["first", "solo"]["paper_std"] == "0.5"
    assert rows["mean", "unheard"]["note"] == "not yet implemented"
    assert rows["far", "fedavg"]["note"] == "no data: tiny-imagenet"
    text = (out / "table.md").read_text(encoding="utf-8")
    assert "comity reproduce" in text
    assert "Claims that were not tested. Not run: q-FFL.\n\n- FedAvg > q-FFL\n" in text
    assert "fedavg > unheard: not tested" in output
    assert "seeds 0" in text
    reproduction = read(out / "result.json")
    assert page(reproduction) == text
    assert not reproduction.stale()
    assert not reproduction.as_printed
    assert (out / "digits" / "fedavg" / "seed-0" / "summary.json").exists()
    before = (out / "digits" / "fedavg" / "seed-0" / "summary.json").stat().st_mtime_ns
    (
        out / "digits" / "solo" / "seed-0" / "summary.json"
    ).unlink()  # as if it had been killed at its end
    again = succeed("reproduce", own, "--scale", "reduced", "--out", out).out
    assert (out / "digits" / "fedavg" / "seed-0" / "summary.json").stat().st_mtime_ns == before
    assert again.splitlines()[3:8] == output.splitlines()[3:8]


def test_pages_are_rewritten_from_saved_results(own: Path, tmp_path: Path) -> None:
    runs, pages = tmp_path / "runs", tmp_path / "pages"
    succeed(
        "reproduce",
        own,
        "--scale",
        "smoke",
        "--columns",
        "mean",
        "--seeds",
        "0,1,2",
        "--out",
        runs / "mine",
    )
    (pages / "data").mkdir(parents=True)
    (pages / "data" / "intro.txt").write_text("# What came out\n", encoding="utf-8")
    (pages / "data" / "prices.txt").write_text("## What was not afforded\n", encoding="utf-8")
    succeed("reproduce", runs, "--table", "--out", pages)
    (saved_result,) = (pages / "data").glob("*.json")
    table_page = pages / "own.md"
    before = {path: path.read_text(encoding="utf-8") for path in (table_page, pages / "README.md")}
    assert before[table_page] == (runs / "mine" / "table.md").read_text(encoding="utf-8")
    assert before[pages / "README.md"].startswith("# What came out\n")
    first, _, rest = before[pages / "README.md"].partition("## All claims of the papers")
    assert "| Together is better ([" in first
    assert "| Nobody has heard of it ([" in first
    assert "| not run |" in first
    assert "FedAvg > SOLO" in rest
    assert "FedAvg > SOLO" not in first
    assert rest.rstrip().endswith("## What was not afforded")
    table_page.write_text("stale", encoding="utf-8")
    rewrite_pages(pages, None)
    assert {path: path.read_text(encoding="utf-8") for path in before} == before
    own.write_text(
        OWN.replace("rounds = 1", "rounds = 2"), encoding="utf-8"
    )  # the table's file changes after its runs
    assert read(saved_result).stale() == ["digits, solo", "digits, fedavg"]
    saved_result.write_text(
        saved_result.read_text(encoding="utf-8").replace('"rounds":1', '"rounds":3'),
        encoding="utf-8",
    )
    assert "is damaged" in one_sentence(comity("reproduce", "--table", "--out", pages), 1, 2)


PART = ("--scale", "smoke", "--columns", "mean")


@pytest.fixture
def result_pages(own: Path, tmp_path: Path) -> Path:
    """Result pages of SOLO only, with seeds 0 and 1."""
    succeed(
        "reproduce", own, *PART, "--rows", "solo", "--seeds", "0,1", "--out", tmp_path / "first"
    )
    (tmp_path / "pages" / "data").mkdir(parents=True)
    succeed("reproduce", tmp_path / "first", "--table", "--out", tmp_path / "pages")
    return tmp_path / "pages"


def test_joined_parts_equal_the_whole(own: Path, result_pages: Path, tmp_path: Path) -> None:
    """Parts with other seeds, another row and another column give the figures and verdicts of one
    reproduction of all.
    """
    whole, parts, both = (
        tmp_path / "whole",
        tmp_path / "parts",
        ("--rows", "solo,fedavg", "--seeds", "0,1,2"),
    )
    succeed("reproduce", own, "--scale", "smoke", "--columns", "mean,first", *both, "--out", whole)
    succeed("reproduce", own, *PART, "--rows", "solo", "--seeds", "2", "--out", parts / "a")
    succeed("reproduce", own, *PART, "--rows", "fedavg", "--seeds", "0,1,2", "--out", parts / "b")
    succeed("reproduce", own, "--scale", "smoke", "--columns", "first", *both, "--out", parts / "c")
    seconds = {"a": 1.5, "b": 20.3, "c": 300.1}
    for name, run_seconds in seconds.items():
        result = parts / name / "result.json"
        assert read(result).processors == machine.processor()
        part_on_other = replace(read(result), processors="A processor of another kind")
        part = part_on_other if name == "b" else read(result)
        replace(part, seconds=run_seconds).write(result)
    (path,) = (result_pages / "data").glob("*.json")
    before = read(path).seconds
    succeed("reproduce", parts, "--table", "--join", "--out", result_pages)
    together, once = read(path), read(whole / "result.json")
    assert together.command.count(" && ") == 3
    assert together.seeds == [0, 1, 2]
    assert together.processors == f"{machine.processor()} and A processor of another kind"
    assert f" on {together.processors}." in together.origin
    assert together.settings == once.settings
    assert format_cells(together.cells) == format_cells(once.cells)
    assert verdicts(together.table, together.cells, False) == verdicts(
        once.table, once.cells, False
    )
    assert together.seconds == pytest.approx(before + sum(seconds.values()), abs=1e-6)
    assert not together.stale()


def test_a_part_of_an_earlier_version_has_no_processor(result_pages: Path, tmp_path: Path) -> None:
    (path,) = (result_pages / "data").glob("*.json")
    later = read(tmp_path / "first" / "result.json")
    replace(read(path), processors="", command="earlier").write(path)
    assert " on " not in read(path).origin
    (tmp_path / "other").mkdir()
    later.write(tmp_path / "other" / "result.json")
    succeed("reproduce", tmp_path / "other", "--table", "--join", "--out", result_pages)
    assert read(path).processors == f"a processor that was not recorded and {machine.processor()}"


def test_without_join_new_results_replace_the_old(
    own: Path, result_pages: Path, tmp_path: Path
) -> None:
    succeed("reproduce", own, *PART, "--rows", "solo", "--seeds", "2", "--out", tmp_path / "second")
    succeed("reproduce", tmp_path / "second", "--table", "--out", result_pages)
    (path,) = (result_pages / "data").glob("*.json")
    assert read(path).seeds == [2]


@pytest.mark.parametrize(("change", "expected"), [
    (lambda reproduction: replace(reproduction, settings={"digits": {"solo": {"rounds": 7}}}), "solo on digits was run with other settings"),
    (lambda reproduction: replace(reproduction, scale="reduced"), "Only parts of one table at one scale can be joined"),
], ids=["settings", "scale"])  # fmt: skip
def test_parts_that_disagree_are_not_joined(
    change: Callable[[Reproduction], Reproduction],
    expected: str,
    result_pages: Path,
    tmp_path: Path,
) -> None:
    before = {path: path.read_bytes() for path in result_pages.rglob("*") if path.is_file()}
    (tmp_path / "other").mkdir()
    change(read(tmp_path / "first" / "result.json")).write(tmp_path / "other" / "result.json")
    assert expected in one_sentence(
        comity("reproduce", tmp_path / "other", "--table", "--join", "--out", result_pages), 1, 2
    )
    assert {path: path.read_bytes() for path in result_pages.rglob("*") if path.is_file()} == before


def test_figures_of_two_parts_keep_the_first_value_and_report_the_difference(
    result_pages: Path, tmp_path: Path
) -> None:
    (path,) = (result_pages / "data").glob("*.json")
    (before,) = read(path).cells
    assert read(path).warning == ""
    (tmp_path / "other").mkdir()
    first = read(tmp_path / "first" / "result.json")
    first.write(tmp_path / "other" / "result.json")
    content_before = path.read_bytes()
    succeed("reproduce", tmp_path / "other", "--table", "--join", "--out", result_pages)
    assert path.read_bytes() == content_before, "the same part and its time were added twice"
    replace(first, command="the same elsewhere").write(tmp_path / "other" / "result.json")
    succeed("reproduce", tmp_path / "other", "--table", "--join", "--out", result_pages)
    assert read(path).warning == "Of 2 figures that two parts have both, 2 came out the same."
    figures = {
        0: before.figures[0],
        1: replace(before.figures[1], value=before.figures[1].value + 1.25),
        5: before.figures[0],
    }
    replace(first, cells=[replace(before, figures=figures)]).write(
        tmp_path / "other" / "result.json"
    )
    succeed("reproduce", tmp_path / "first", "--table", "--out", result_pages)
    succeed("reproduce", tmp_path / "other", "--table", "--join", "--out", result_pages)
    reproduction = read(path)
    assert reproduction.cells[0].figures == {**before.figures, 5: before.figures[0]}
    assert (
        "Of 2 figures that two parts have both, 1 came out the same, the others at most 1.25 apart"
        in reproduction.warning
    )
    assert reproduction.warning in (result_pages / "own.md").read_text(encoding="utf-8")


def test_measures_over_all_rows_are_not_joined(own: Path, tmp_path: Path) -> None:
    own.write_text(
        OWN.replace('measure = "mean"', 'measure = "rounds_to_lowest"', 1), encoding="utf-8"
    )
    for row in ("solo", "fedavg"):
        succeed("reproduce", own, *PART, "--rows", row, "--out", tmp_path / "parts" / row)
    (tmp_path / "pages" / "data").mkdir(parents=True)
    message = one_sentence(
        comity("reproduce", tmp_path / "parts", "--table", "--join", "--out", tmp_path / "pages"),
        1,
        2,
    )
    assert "Mean is measured against all rows at once" in message


def test_a_headline_is_one_of_the_claims(own: Path) -> None:
    own.write_text(
        OWN.replace(
            '"Together is better"',
            '"Together is better", "solo > fedavg" = "Alone is"',
        ),
        encoding="utf-8",
    )
    assert "the headline solo > fedavg is none of the claims" in one_sentence(
        comity("reproduce", str(own)), 1, 2
    )


def test_only_some_rows_and_columns(own: Path, tmp_path: Path) -> None:
    options = ("--rows", "solo", "--columns", "mean", "--seeds", "0,1")
    succeed("reproduce", own, "--scale", "reduced", *options, "--out", tmp_path / "o")
    (row,) = csv.DictReader((tmp_path / "o" / "table.csv").open(encoding="utf-8"))
    assert len(row["seeds"].split()) == 2


def test_plan_option_runs_nothing(own: Path, tmp_path: Path) -> None:
    output = succeed(
        "reproduce", own, "--scale", "full", "--plan", "--columns", "mean", "--out", tmp_path / "o"
    ).out
    assert "in total about" in output
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize(("arguments", "expected"), [
    ([], "Name an experiment, as in dbe/table5: 'comity list experiments' lists them all."),
    (["nowhere", "--table", "--out", "docs/results"], "There is no folder nowhere"),
    (["OWN", "--join"], "--join needs --table"),
    (["--table", "--out", "src"], "src has no folder data with saved results: choose another with --out."),
    (["dbe/table55"], "There is no experiment 'dbe/table55'. Did you mean 'dbe/table5'?"),
    (["OWN", "--scale", "tiny"], "--scale must be one of smoke, reduced, full, not 'tiny'."),
    (["OWN", "--rows", "fedavgg"], "There is no row called 'fedavgg'. Did you mean 'fedavg'?"),
    (["OWN", "--columns", "mea"], "There is no column called 'mea'. Did you mean 'mean'?"),
    (["OWN", "--columns", "far"], "Nothing of OWN can be run here: no data: tiny-imagenet."),
])  # fmt: skip
def test_invalid_arguments_are_refused(own: Path, arguments: list[str], expected: str) -> None:
    message = one_sentence(
        comity("reproduce", *[str(own) if a == "OWN" else a for a in arguments]), 1, 2
    )
    assert expected.replace("OWN", str(own)) in message


def test_a_broken_table_is_refused(own: Path) -> None:
    own.write_text(OWN.replace("measure = ", "measures = ", 1), encoding="utf-8")
    with pytest.raises(ComityError, match=r"is not a paper's table: columns\.0\.measure"):
        papers.table(str(own))


def test_unknown_measure_is_reported(own: Path, tmp_path: Path) -> None:
    own.write_text(OWN.replace('measure = "party:p0"', 'measure = "beauty"'), encoding="utf-8")
    output = succeed(
        "reproduce", own, "--scale", "smoke", "--rows", "solo", "--out", tmp_path / "o"
    ).out
    assert "beauty cannot be measured yet." in output


@pytest.mark.parametrize(
    "name", ["relay/table1", "adcol/table2", "dbe/table5", "fed-sps/table1", "fedufo/table2"]
)
def test_smoke(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One table of each paper, in its smallest form, on the embedded data."""
    monkeypatch.delenv("COMITY_DATA", raising=False)
    succeed("reproduce", name, "--scale", "smoke", "--out", tmp_path / "o")
    rows = list(csv.DictReader((tmp_path / "o" / "table.csv").open(encoding="utf-8")))
    measured_rows = [r for r in rows if r["measured"]]
    assert measured_rows
    assert all(r["note"] == reproduce.ABSENT for r in rows if not r["measured"])


def test_unknown_experiment_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COMITY_DATA", raising=False)
    with pytest.raises(UsageError, match="no experiment"):
        papers.table("nothing/table1")


def test_own_table_may_name_own_files(tmp_path: Path) -> None:
    mine = tmp_path / "mine_in_table.py"
    mine.write_text(OWN_METHOD.format("pass"), encoding="utf-8")
    table = tmp_path / "mine.toml"
    table.write_text(
        f"""
title = "Mine"
source = "Nobody"
[settings]
data = "digits"
partition = "iid|keep(samples=20)"
parties = 2
model = "linear"
rounds = 1
[[columns]]
name = "mean"
title = "Mean"
measure = "mean"
[[rows]]
name = "mine"
title = "Mine"
algorithm = "{mine}"
""",
        encoding="utf-8",
    )
    out = tmp_path / "out"
    succeed("reproduce", table, "--seeds", "0", "--no-report", "--out", out)
    (row,) = csv.DictReader((out / "table.csv").open(encoding="utf-8"))
    assert float(row["measured"]) > 0
