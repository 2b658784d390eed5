"""Each constant of a paper's table says where it comes from: the paper, or us."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from comity import algorithms, papers
from comity.errors import ComityError
from comity.papers import KINDS, Column, MethodRow, PaperTable
from comity.papers.cells import Cell, Figure
from comity.papers.claims import verdicts
from comity.papers.pages import describe_constants
from comity.runs.config import Experiment
from comity.spec import parse, split

PAPERS = [name for name in papers.names() if not name.startswith("comity/")]
MARKED = """
title = "t"
source = "s"
trials = 3
claims = ["adcol > fedavg"]
[settings]
lr = 0.1
eval_every = 5
[stated]
data = "section 1"
partition = "section 1"
test = "section 1"
model = "section 1"
rounds = "section 1"
epochs = "section 1"
batch = "section 1"
optimizer = "section 1"
[chosen]
lr = "not stated"
"adcol.mu" = "not stated"
init = "not stated; all start alike"
[[copied]]
source = "Somebody 2020"
where = "A.1"
rows = ["fedavg"]
[[columns]]
name = "c"
title = "C"
measure = "mean"
[[rows]]
name = "fedavg"
title = "FedAvg"
algorithm = "fedavg"
paper = {c = [1, 0.5]}
[[rows]]
name = "adcol"
title = "ADCOL"
algorithm = "adcol(mu=1)"
paper = {c = 3}
[[rows]]
name = "fedprox"
title = "FedProx"
algorithm = "fedprox"
"""


def load(folder: Path, text: str) -> PaperTable:
    path = folder / "mine.toml"
    path.write_text(text, encoding="utf-8")
    return papers.table(str(path))


@pytest.mark.parametrize("name", PAPERS)
def test_every_table_of_a_paper_marks_its_constants(name: str) -> None:
    table = papers.table(name)
    marks = {mark: text for kind in KINDS for mark, text in getattr(table, kind).items()}
    assert marks.keys() >= set(table.constants)
    assert all(marks.values())


@pytest.mark.parametrize("name", PAPERS)
def test_every_mark_is_of_a_setting_or_an_option(name: str) -> None:
    """Also of one that the file leaves at its default."""
    table = papers.table(name)
    methods = {parse(part).name for row in table.rows for part in split(row.algorithm, "+")}
    options = {
        f"{method}.{option}"
        for method in methods
        for option in algorithms.options(algorithms.find(method))
    }
    known = {*Experiment.model_fields, *options, *table.constants}
    assert {mark for kind in KINDS for mark in getattr(table, kind)} <= known


def test_constants_are_settings_and_options(tmp_path: Path) -> None:
    table = load(tmp_path, MARKED)
    assert set(table.constants) == {*papers.BASIC, "adcol.mu"}  # not how often it is evaluated


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('lr = "not stated"\n', "", "nothing says where lr comes from"),
        ('"adcol.mu" = "not stated"\n', "", "nothing says where adcol.mu comes from"),
        ("[chosen]\n", '[chosen]\ndata = "also"\n', "the constant data is marked twice"),
        ('rows = ["fedavg"]', 'rows = ["fedavgg"]', "copied names fedavgg"),
    ],
)
def test_a_table_with_unclear_constants_is_refused(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    assert old in MARKED
    with pytest.raises(ComityError, match=re.escape(message)):
        load(tmp_path, MARKED.replace(old, new, 1))


def test_a_table_without_printed_figures_needs_no_marks(tmp_path: Path) -> None:
    text = re.sub(r"(?ms)^\[stated\].*?^\[\[columns\]\]", "[[columns]]", MARKED)
    with pytest.raises(ComityError, match="nothing says where"):
        load(tmp_path, text)
    assert load(tmp_path, re.sub(r"paper = .*\n", "", text)).chosen == {}


def cells(table: PaperTable) -> list[Cell]:
    column: Column = table.columns[0]
    by_row = {"fedavg": (1.0, 1.1, 0.9), "adcol": (3.0, 3.1, 2.9)}
    rows: dict[str, MethodRow] = {row.name: row for row in table.rows}
    return [
        Cell(column, rows[name], {k: Figure(value, 20, 0, 0.0) for k, value in enumerate(values)})
        for name, values in by_row.items()
    ]


def test_a_verdict_names_our_choices_and_copied_figures(tmp_path: Path) -> None:
    table = load(tmp_path, MARKED)
    (verdict,) = verdicts(table, cells(table), True)
    assert verdict.word == "reproduced"
    assert verdict.remarks == (
        "our choice: lr, adcol.mu, init; FedAvg's printed figure is copied from Somebody 2020 (A.1);"
        " no printed spread of ADCOL"
    )
    assert verdict.remarks in str(verdict)
    without = table.model_copy(update={"copied": (), "chosen": {"fedprox.mu": "not stated"}})
    (verdict,) = verdicts(without, cells(table), True)
    assert verdict.remarks == "no printed spread of ADCOL"  # FedProx is not part of this claim


def test_a_constant_that_differs_from_the_paper_is_not_its_setting(tmp_path: Path) -> None:
    table = load(
        tmp_path,
        MARKED.replace("[chosen]\n", '[differs]\nlr = "the paper has 1"\n[chosen]\n').replace(
            'lr = "not stated"\n', ""
        ),
    )
    (verdict,) = verdicts(table, cells(table), True)
    assert verdict.word == "direction reproduced"
    assert "other than the paper states: lr" in verdict.remarks


def test_constants_are_described(tmp_path: Path) -> None:
    lines = describe_constants(load(tmp_path, MARKED))
    assert lines[0].startswith("Stated by the paper: `data` (section 1), ")
    assert lines[1] == (
        "Our choice: `lr` (not stated), `adcol.mu` (not stated), `init` (not stated; all start"
        " alike)."
    )
    assert lines[2] == "Copied from Somebody 2020 (A.1): the printed figures of FedAvg."
    assert describe_constants(papers.table("comity/all")) == [
        "All constants are our choice: there is no paper."
    ]
