"""Figures and tables for papers: every chart of the page as a file, the ranking as markdown or
LaTeX.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from comity.errors import UsageError
from comity.reporting.blocks import Chart, Section, Table, VegaSpec
from comity.reporting.charts import SHOWN, unused
from comity.reporting.gather import Group, complaints, gather
from comity.reporting.sections.answer import ANSWERS, IDEAS, MEASURES, answer
from comity.reporting.themes import CONFIG, LIGHT, coloured

KINDS = ("pdf", "svg", "png")
COLUMN = 252
"""Points: the width of a column in the two-column formats of IEEE and ACM."""


def draw(groups: Sequence[tuple[Group, list[Section]]], folder: Path, kind: str) -> list[Path]:
    """Write every chart to a folder, a column wide."""
    made: list[Path] = []
    for group, sections in groups:
        for chart in (
            block for section in sections for block in section.blocks if isinstance(block, Chart)
        ):
            plain = f"{group.name}-{chart.name}" if len(groups) > 1 else chart.name
            name = unused(re.sub(r"[^\w+.-]+", "-", plain).strip("-"), {path.stem for path in made})
            made.append(_write(folder, name, kind, figure(chart, group)))
    return made


def check_kind(kind: str) -> None:
    """Refuse what figures cannot be."""
    if kind not in KINDS:
        raise UsageError(f"Figures are {', '.join(KINDS)}, not {kind!r}.")


def figure(chart: Chart, group: Group) -> VegaSpec:
    """A chart as it stands in a paper: as wide as a column, with its own legend."""
    spec = chart.method_summary()
    _with_legend(spec, group.names)
    spec = {
        "$schema": "https://vega.github.io/schema/vega-lite/v6.json",
        "width": COLUMN - 70,
        "padding": 2,
        **spec,
    }
    if spec.get("height", 0) >= 200 and "y" not in spec.get("encoding", {}):
        spec["height"] = 150
    small = {"labelFontSize": 8, "titleFontSize": 8}
    config = CONFIG | {
        "axis": CONFIG["axis"] | small | {"labelColor": "#000000", "titleColor": "#000000"},
        "line": {"strokeWidth": 1.3},
        "legend": CONFIG["legend"] | small | {"orient": "bottom", "columns": 3, "symbolSize": 40},
    }
    made: VegaSpec = coloured(spec | {"config": config, "background": "#ffffff"}, LIGHT)
    return made


def _with_legend(spec: Any, methods: list[str]) -> None:
    """The page's boxes are the legend there; here each chart that colours methods needs its own."""
    if isinstance(spec, dict):
        if spec.get("field") == "method" and "scale" in spec and spec.get("legend", 0) is None:
            spec["legend"] = {"title": None}
        if spec.get("name") == SHOWN:
            spec["value"] = methods
        for part in spec.values():
            _with_legend(part, methods)
    elif isinstance(spec, list):
        for part in spec:
            _with_legend(part, methods)


def _write(folder: Path, name: str, kind: str, spec: VegaSpec) -> Path:
    import vl_convert

    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.{kind}"
    if kind == "svg":
        path.write_text(vl_convert.vegalite_to_svg(spec), encoding="utf-8")
    else:
        path.write_bytes(
            vl_convert.vegalite_to_pdf(spec)
            if kind == "pdf"
            else vl_convert.vegalite_to_png(spec, ppi=300)
        )
    return path


def ranking(folder: str | Path, kind: str, target: float | None = None) -> str:
    """The first table of every group, as markdown or LaTeX; before it, what is wrong with the files
    that it is made of.
    """
    if kind not in ("markdown", "latex"):
        raise UsageError(f"A table is printed as markdown or latex, not {kind!r}.")
    write, warning = (_markdown, "> ") if kind == "markdown" else (_latex, "% ")
    parts = []
    for group in gather(Path(folder)):
        tables = [
            block
            for block in answer(group, Path(folder), target).blocks
            if isinstance(block, Table)
        ]
        parts += [warning + sentence for sentence in complaints(group, Path(folder))]
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
