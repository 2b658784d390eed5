"""Charts as static figures, and tables as Markdown and LaTeX: every chart draws its data, and every
file has the format that its name says.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import vl_convert
from report_page import run_comparison

from comity.charts.chart import Chart
from comity.errors import UsageError
from comity.reporting import build_sections, report, static
from comity.reporting.blocks import Table
from comity.reporting.gather import RunGroup, gather
from comity.reporting.static import figure, ranking

SVG = "{http://www.w3.org/2000/svg}"
LEAVE_ONE_OUT = """method,left_out,party,effect,low,high,seed
fedavg+dbe,p0,p1,0.10,0.02,0.18,0
fedavg+dbe,p1,p0,-0.05,-0.1,0.0,0
fedavg+dbe,p2,p0,0.0,-0.1,0.1,0
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    comparison_folder = tmp_path_factory.mktemp("static")
    run_comparison(comparison_folder, ["fedavg+dbe", "fed-sps", "adcol"])
    (comparison_folder / "leave-one-out.csv").write_text(LEAVE_ONE_OUT, encoding="utf-8")
    return comparison_folder


@pytest.fixture(scope="module")
def charts(folder: Path) -> dict[str, tuple[Chart, RunGroup]]:
    (group,) = gather(folder)
    sections = build_sections(group, folder, ["fedavg+dbe"], None, False, False)
    return {
        b.name: (b, group) for section in sections for b in section.blocks if isinstance(b, Chart)
    }


def marks(svg: str) -> int:
    """Number of shapes that represent data."""
    root = ElementTree.fromstring(svg)
    return sum(len(g) for g in root.iter(f"{SVG}g") if "role-mark" in g.get("class", ""))


def test_every_chart_draws_its_data(charts: dict[str, tuple[Chart, RunGroup]]) -> None:
    assert {"accuracy-by-round", "accuracy-by-bytes", "gains-adcol", "helps-fedavg+dbe", "classes", "sizes", "distances",
            "space-fedavg+dbe-before", "space-fedavg+dbe-after", "overlap-fed-sps", "discriminator", "offsets-fedavg+dbe",
            "bytes", "bytes-by-round", "bytes-by-party"} <= set(charts)  # fmt: skip
    for name, (chart, group) in charts.items():
        svg = vl_convert.vegalite_to_svg(figure(chart, group.names))
        assert marks(svg) > 0, f"{name} is empty"
        assert not re.search(r"\bNaN\b|\bnan\b|undefined|Infinity", svg), name
        assert "@" not in svg.replace("@font", ""), f"{name} has a colour without a theme"
        assert len(chart.alt) > 30
        assert chart.alt.endswith("."), chart.alt
        assert "nan" not in chart.alt


def test_every_checkbox_changes_its_chart(charts: dict[str, tuple[Chart, RunGroup]]) -> None:
    """A checkbox changes the chart, and its initial state is that of the initial chart."""
    boxes = 0
    for chart, _ in charts.values():
        for option in chart.checkboxes:
            for path, on, off in option.sets:
                place: Any = chart.spec
                for step in path[:-1]:
                    place = place[step]
                assert place[path[-1]] == (on if option.ticked else off)
                boxes += 1
            assert any(on != off for _, on, off in option.sets)
    assert boxes >= 4


BEGINNING = {"pdf": b"%PDF-", "svg": b"<svg ", "png": b"\x89PNG\r\n\x1a\n"}


@pytest.mark.parametrize("kind", BEGINNING)
def test_figures_as_files(kind: str, folder: Path) -> None:
    report(folder / "solo", quick=True, figures=kind)
    files = list((folder / "solo" / "figures").glob(f"*.{kind}"))
    assert {path.stem for path in files} == {"accuracy-by-round", "parties", "sizes"}
    for path in files:
        body = path.read_bytes()
        assert body.startswith(BEGINNING[kind])
        if kind == "svg":
            assert marks(body.decode()) > 0
        elif kind == "pdf":
            assert body.rstrip().endswith(b"%%EOF")
        else:
            assert body.endswith(b"IEND\xaeB`\x82")


def test_invalid_arguments_are_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="Figures are pdf, svg, png, not 'gif'"):
        report(folder, figures="gif")
    with pytest.raises(UsageError, match="markdown, latex or siunitx, not 'html'"):
        ranking(folder, "html")
    with pytest.raises(UsageError, match="holds no runs"):
        ranking(tmp_path, "latex")


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_markdown(folder: Path) -> None:
    title, _, heads, rule, *lines = ranking(folder, "markdown").splitlines()
    assert title == "digits, iid\\|keep(samples=40), 3 parties, mlp2(width=8), 2 rounds"
    (group,) = gather(folder)
    table = next(
        b
        for b in build_sections(group, folder, [], None, True, False)[1].blocks
        if isinstance(b, Table) and b.name == "ranking"
    )
    assert cells(heads) == list(table.heads)
    assert cells(rule) == ["---", *["---:"] * (len(table.heads) - 1)]
    assert [cells(line) for line in lines] == [list(row) for row in table.rows]


def test_latex(folder: Path) -> None:
    lines = ranking(folder, "latex").splitlines()
    assert lines[0].startswith("% digits")
    assert lines[1] == "\\begin{tabular}{l" + "r" * 11 + "}"
    assert lines[-1] == "\\end{tabular}"
    body = [line for line in lines if line.endswith(r" \\")]
    assert len(body) == 5
    assert all(line.count(" & ") == 11 for line in body)
    assert all(re.search(r"\d\\%", line) for line in body[1:])
    assert not any(re.search(r"(?<!\\)[%#_]|±", line) for line in body)


SPECIAL_CHARACTERS = r"a_b&c%d$e#f{g}~h^i\j|k*l`m<n>"


TIED = Table(
    "ranking",
    "t",
    ["method", "accuracy", "over SOLO", "worst"],
    [
        ["solo", "82.1%", "", "70.0%"],
        ["a", "83.1%", "-17.2 (±79.4)", "71.0%"],
        ["b-1", "83.1%", "+2.5 (±3.0)", "71.0%"],
        ["c", "80.0%", "+2.5 (±1.0)", "60.0%"],
    ],
    best=1,
)


@pytest.mark.parametrize("numbers", [False, True])
def test_all_equal_best_figures_are_bold(numbers: bool) -> None:
    text = static._latex(TIED, numbers=numbers)
    bold = [[("bf" in cell) for cell in line.split(" & ")] for line in text.splitlines()]
    rows = [line for line in bold if len(line) == 4][1:]
    assert rows == [
        [False, False, False, False],
        [False, True, False, True],
        [False, True, True, True],
        [False, False, True, False],
    ]


def test_negative_numbers_have_a_minus_sign() -> None:
    text = static._latex(TIED)
    assert "$-17.2$ ($\\pm$79.4)" in text
    assert "b-1 &" in text
    wins = Table("wins", "t", ["method", "a", "b"], [["a", "", "3-2-1"], ["b", "1-2-3", ""]])
    assert "3-2-1" in static._latex(wins)


def test_siunitx_keeps_the_plus() -> None:
    assert "retain-explicit-plus" in static.PREAMBLE


def test_the_note_below_a_table_has_labels_too(tmp_path: Path) -> None:
    run_comparison(tmp_path, ["fedprox(mu=5)"], lr=0.2, rounds=3)
    text = ranking(tmp_path, "siunitx", labels={"fedprox": "Ours", "solo": "Alone"})
    assert "Ours" in text
    assert "fedprox" not in text
    names = ["fedavg", "fedavg+dbe", "mine(lr=0.05)"]
    labels = {"fedavg": "FedAvg", "mine": "Mine"}
    note = "fedavg, fedavg+dbe, mine(lr=0.05) and mine(lr=0.5)"
    assert static._with_labels(note, names, labels) == "FedAvg, fedavg+dbe, Mine and mine(lr=0.5)"


def test_titles_do_not_name_folders(tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    data = tmp_path / "files" / "my_set.py"
    data.write_text(
        "from comity.data import load as known\ndef load(): return known('digits')\n",
        encoding="utf-8",
    )
    partition = tmp_path / "files" / "halves.py"
    partition.write_text(
        "def partition(y, parties, rng, step: int = 40):\n"
        "    return [range(step * i, step * i + step) for i in range(parties)]\n",
        encoding="utf-8",
    )
    run_comparison(tmp_path / "c", ["fedavg"], data=str(data), partition=f"{partition}(step=30)")
    title = ranking(tmp_path / "c", "latex").splitlines()[0]
    assert title.startswith("% my_set.py, halves.py(step=30), 3 parties")


def test_special_characters_are_escaped(folder: Path) -> None:
    before, after = folder / "adcol", folder / SPECIAL_CHARACTERS
    before.rename(after)
    try:
        latex, markdown = ranking(folder, "latex"), ranking(folder, "markdown")
    finally:
        after.rename(before)
    assert (
        r"a\_b\&c\%d\$e\#f\{g\}\textasciitilde{}h\textasciicircum{}i\textbackslash{}j|k*l`m<n>"
        in latex
    )
    (line,) = [line for line in markdown.splitlines() if "a\\_b" in line]
    plain = re.sub(r"\\([!-/:-@\[-`{-~])", r"\1", line)  # as CommonMark reads it
    assert SPECIAL_CHARACTERS in plain
    assert not re.search(r"(?<!\\)[*`<_]", line)
    assert len(re.split(r"(?<!\\)\|", line.strip("|"))) == 12
