"""Figures and tables for papers: the page's charts as files, the ranking as Markdown or LaTeX."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from comity.charts.chart import Chart, VegaSpec
from comity.charts.encodings import SHOWN_METHODS
from comity.charts.render import KINDS, complete, picture
from comity.charts.themes import CONFIG, LIGHT
from comity.errors import UsageError
from comity.reporting.blocks import Section, Table
from comity.reporting.charts import unique_name
from comity.reporting.gather import Group, file_problems, gather
from comity.reporting.sections.answer import ANSWERS, IDEAS, MEASURES, answer
from comity.safe_files import make_folder, write_atomically

COLUMN = 252
"""The width of a column in the two-column formats of IEEE and ACM, in points."""


def draw(groups: Sequence[tuple[Group, list[Section]]], folder: Path, kind: str) -> list[Path]:
    """Write every chart to a folder, with the width of a column, and return the paths."""
    paths: list[Path] = []
    for group, sections in groups:
        blocks = [block for section in sections for block in section.blocks]
        for chart in (block for block in blocks if isinstance(block, Chart)):
            name = f"{group.name}-{chart.name}" if len(groups) > 1 else chart.name
            name = re.sub(r"[^\w+.-]+", "-", name).strip("-")
            name = unique_name(name, {path.stem for path in paths})
            path = folder / f"{name}.{kind}"
            make_folder(folder)
            write_atomically(path, picture(figure(chart, group), kind))
            paths.append(path)
    return paths


def check_kind(kind: str) -> None:
    """Raise UsageError if figures cannot be of this kind."""
    if kind not in KINDS:
        raise UsageError(f"Figures are {', '.join(KINDS)}, not {kind!r}.")


def figure(chart: Chart, group: Group) -> VegaSpec:
    """Return a chart's specification for a paper: of the width of a column, with a legend."""
    spec = copy.deepcopy(chart.spec)
    _add_legends(spec, group.names)
    if spec.get("height", 0) >= 200 and "y" not in spec.get("encoding", {}):
        spec["height"] = 150
    small = {"labelFontSize": 8, "titleFontSize": 8}
    config = CONFIG | {
        "axis": CONFIG["axis"] | small | {"labelColor": "#000000", "titleColor": "#000000"},
        "line": {"strokeWidth": 1.3},
        "legend": CONFIG["legend"] | small | {"orient": "bottom", "columns": 3, "symbolSize": 40},
    }
    narrow = replace(chart, spec=spec)
    frame = {"width": COLUMN - 70, "padding": 2, "background": "#ffffff"}
    return complete(narrow, LIGHT, config, **frame)


def _add_legends(spec: Any, methods: list[str]) -> None:
    """Add a legend to each colour encoding by method, in place: a file has no boxes as a legend."""
    if isinstance(spec, dict):
        if spec.get("field") == "method" and "scale" in spec and spec.get("legend", 0) is None:
            spec["legend"] = {"title": None}
        if spec.get("name") == SHOWN_METHODS:
            spec["value"] = methods
        for part in spec.values():
            _add_legends(part, methods)
    elif isinstance(spec, list):
        for part in spec:
            _add_legends(part, methods)


def ranking(folder: str | Path, kind: str, target: float | None = None) -> str:
    """Return the ranking of every group as Markdown or LaTeX.

    Before each ranking stand the problems of the files that it was made from.

    Args:
        folder: a run's folder, or a folder with runs
        kind: `markdown` or `latex`
        target: accuracy to which rounds and bytes are counted (default: the accuracy of SOLO)

    Raises:
        UsageError: if the kind is another one, or the folder has no runs
    """
    if kind not in ("markdown", "latex"):
        raise UsageError(f"A table is printed as markdown or latex, not {kind!r}.")
    write, comment = (_markdown, "> ") if kind == "markdown" else (_latex, "% ")
    parts = []
    for group in gather(Path(folder)):
        blocks = answer(group, Path(folder), target).blocks
        tables = [block for block in blocks if isinstance(block, Table)]
        parts += [comment + sentence for sentence in file_problems(group, Path(folder))]
        parts += [write(table) for table in tables if table.name not in (ANSWERS, IDEAS, MEASURES)]
    return "\n\n".join(parts)


def _markdown(table: Table) -> str:
    def cell(text: str) -> str:
        return re.sub(r"[\\|*_`<\[]", r"\\\g<0>", " ".join(text.split()))

    def line(cells: Iterable[str]) -> str:
        return f"| {' | '.join(cells)} |"

    rule = ["---:" if table.is_figure(k) else "---" for k in range(len(table.heads))]
    body = [line(map(cell, row)) for row in table.rows]
    return "\n".join([cell(table.title), "", line(table.heads), line(rule), *body])


def _latex(table: Table) -> str:
    def cell(text: str) -> str:
        special = {
            "&": "\\&",
            "%": "\\%",
            "$": "\\$",
            "#": "\\#",
            "_": "\\_",
            "{": "\\{",
            "}": "\\}",
            "~": "\\textasciitilde{}",
            "^": "\\textasciicircum{}",
            "\\": "\\textbackslash{}",
            "±": "$\\pm$",
        }
        return "".join(special.get(c, c) for c in " ".join(text.split()))

    def line(cells: Sequence[str]) -> str:
        return "  " + " & ".join(map(cell, cells)) + " \\\\"

    form = "".join("r" if table.is_figure(k) else "l" for k in range(len(table.heads)))
    return "\n".join(
        [
            f"% {' '.join(table.title.split())}",
            f"\\begin{{tabular}}{{{form}}}",
            "  \\toprule",
            line(table.heads),
            "  \\midrule",
            *map(line, table.rows),
            "  \\bottomrule",
            "\\end{tabular}",
        ]
    )
