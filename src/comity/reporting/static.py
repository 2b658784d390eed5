"""Figures and tables for papers: the page's charts as files, the ranking as Markdown or LaTeX."""

from __future__ import annotations

import copy
import re
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from comity.charts.chart import Chart, VegaSpec
from comity.charts.encodings import SHOWN_METHODS
from comity.charts.render import KINDS, complete, picture
from comity.charts.themes import CONFIG, LIGHT
from comity.errors import UsageError, unknown
from comity.reporting.blocks import Block, Section, Table, Text
from comity.reporting.charts import unique_name
from comity.reporting.federations import critical_difference, win_matrix, win_reading
from comity.reporting.gather import RunGroup, file_problems, gather
from comity.reporting.labels import Labels, check_labels, method_label
from comity.reporting.sections.answer import (
    AGAINST,
    IDEAS,
    MEASURES,
)
from comity.reporting.sections.answer import methods as methods_section
from comity.safe_files import make_folder, write_atomically
from comity.text import markdown_table

COLUMN = 252
"""The width of a column in the two-column formats of IEEE and ACM, in points."""
ROOM_FOR_AXIS = 70
"""What the vertical axis and its labels take of it."""
NOTE_LETTERS = 64
"""How many letters of a note below a figure fit in a column."""
CAPTIONS = "captions.md"


def draw(
    groups: Sequence[tuple[RunGroup, list[Section]]],
    folder: Path,
    kind: str,
    labels: Labels | None = None,
    together: Sequence[Block] = (),
) -> list[Path]:
    """Write every chart to a folder, with the width of a column, and return the paths.

    `labels` are other names for methods, which the blocks about all groups `together` already have.
    `captions.md` in the folder says what each file shows: its title and figures in words, and which
    parties are drawn if not all are.
    """
    paths: list[Path] = []
    captions: list[str] = []
    blocks: list[tuple[str, list[str], Block]] = [("", [], block) for block in together]
    for group, sections in groups:
        prefix = f"{group.name}-" if len(groups) > 1 else ""
        blocks += [(prefix, group.names, b) for section in sections for b in section.blocks]
    for prefix, methods, chart in blocks:
        if not isinstance(chart, Chart):
            continue
        name = re.sub(r"[^\w+.-]+", "-", f"{prefix}{chart.name}").strip("-")
        name = unique_name(name, {path.stem for path in paths})
        path = folder / f"{name}.{kind}"
        make_folder(folder)
        write_atomically(path, picture(figure(chart, methods, labels), kind))
        paths.append(path)
        captions.append(f"- `{path.name}`: {chart.title}. {chart.caption}\n")
    if captions:
        write_atomically(folder / CAPTIONS, "".join(captions))
    return paths


def check_kind(kind: str) -> None:
    """Raise UsageError if figures cannot be of this kind."""
    if kind not in KINDS:
        raise UsageError(f"Figures are {', '.join(KINDS)}, not {kind!r}.")


def figure(chart: Chart, methods: Sequence[str], labels: Labels | None = None) -> VegaSpec:
    """Return a chart's specification for a paper: of the width of a column, with a legend of the
    methods, and with a line that says which parties are drawn if not all are.
    """
    names = {name: method_label(name, labels or {}) for name in methods}
    spec = copy.deepcopy(chart.spec)
    _add_legends(spec, list(methods))
    if chart.selection:
        spec["title"] = {
            "text": textwrap.wrap(chart.selection, NOTE_LETTERS),
            "orient": "bottom",
            "anchor": "start",
            "frame": "bounds",
            "fontSize": 7,
            "fontWeight": "normal",
            "offset": 4,
        }
    # as many entries a row as the longest name leaves room for, at 8 points
    legend_columns = max(1, min(3, COLUMN // (24 + 5 * max(map(len, names.values()), default=1))))
    if spec.get("height", 0) >= 200 and "y" not in spec.get("encoding", {}):
        spec["height"] = 150
    legend = {
        "orient": "bottom",
        "columns": legend_columns,
        "symbolSize": 40,
        "labelLimit": COLUMN,
    }
    small = {"labelFontSize": 8, "titleFontSize": 8}
    config = CONFIG | {
        "axis": CONFIG["axis"] | small | {"labelColor": "#000000", "titleColor": "#000000"},
        "line": {"strokeWidth": 1.3},
        "legend": CONFIG["legend"] | small | legend,
    }
    narrow = replace(chart, spec=spec)
    width = COLUMN if "autosize" in spec else COLUMN - ROOM_FOR_AXIS
    frame = {"width": width, "padding": 2, "background": "#ffffff"}
    whole = complete(narrow, LIGHT, config, **frame)
    renamed: VegaSpec = _rename(whole, {k: v for k, v in names.items() if k != v})
    return renamed


def _rename(spec: Any, names: Labels) -> Any:
    """Return a specification in which methods have other names."""
    if not names:
        return spec
    if isinstance(spec, dict):
        return {names.get(key, key): _rename(value, names) for key, value in spec.items()}
    if isinstance(spec, list):
        return [_rename(part, names) for part in spec]
    return names.get(spec, spec) if isinstance(spec, str) else spec


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


TABLE_KINDS = ("markdown", "latex", "siunitx")
PREAMBLE = (
    "% \\usepackage{booktabs,siunitx}"
    " \\sisetup{separate-uncertainty,detect-weight,mode=text,retain-explicit-plus}"
)


def ranking(
    folder: str | Path,
    kind: str,
    target: float | None = None,
    columns: Sequence[str] | None = None,
    labels: Labels | None = None,
    wins: bool = False,
) -> str:
    """Return the ranking of every group as Markdown or LaTeX.

    Before each ranking stand the problems of the files that it was made from.

    Args:
        folder: a run's folder, or a folder with runs
        kind: `markdown`, `latex`, or `siunitx` (LaTeX with its S columns)
        target: accuracy to which rounds and bytes are counted (default: the accuracy of SOLO)
        columns: the columns of the ranking beside the method (default: all)
        labels: other names for methods, as in {"mine": "Ours"}
        wins: print instead how often each method is clearly better, over all groups

    Raises:
        UsageError: if the kind is another one, the folder has no runs, or a name is unknown
    """
    if kind not in TABLE_KINDS:
        raise UsageError(f"A table is printed as markdown, latex or siunitx, not {kind!r}.")
    comment = "> " if kind == "markdown" else "% "
    groups = gather(Path(folder))
    check_labels(labels or {}, [group.names for group in groups])
    if wins:
        matrix = win_matrix(groups, labels or {})
        diagram = critical_difference(groups, labels or {})
        ranks = diagram.text if isinstance(diagram, Text) else diagram.caption
        notes = [f"{comment}{sentence}" for sentence in (win_reading(matrix), ranks)]
        return "\n\n".join([_write(matrix, kind), *notes])
    parts = [PREAMBLE] if kind == "siunitx" else []
    for group in groups:
        blocks = methods_section(group, Path(folder), target).blocks
        parts += [comment + sentence for sentence in file_problems(group, Path(folder))]
        for table, after in zip(blocks, [*blocks[1:], None], strict=True):
            if not isinstance(table, Table) or table.name in (IDEAS, MEASURES):
                continue
            selection = _select(table, columns) if table.name != AGAINST else table
            text = _write(_relabel(selection, labels or {}), kind)
            if kind == "siunitx" and isinstance(after, Text):  # what the columns mean
                text += f"\n% {_with_labels(after.text, group.names, labels or {})}"
            parts.append(text)
    return "\n\n".join(parts)


def _write(table: Table, kind: str) -> str:
    return _markdown(table) if kind == "markdown" else _latex(table, numbers=kind == "siunitx")


def _select(table: Table, columns: Sequence[str] | None) -> Table:
    """Return a table with these columns only, in this order, behind that of the methods."""
    if columns is None:
        return table
    for name in columns:
        if name not in table.heads:
            raise unknown("column of the ranking called", name, table.heads)
    places = [0, *(table.heads.index(name) for name in columns if name != table.heads[0])]
    rows = [[row[k] for k in places] for row in table.rows]
    return replace(table, heads=[table.heads[k] for k in places], rows=rows)


def _relabel(table: Table, labels: Labels) -> Table:
    rows = [[method_label(row[0], labels), *row[1:]] for row in table.rows]
    first, separator, rest = table.title.partition(" against each")
    title = f"{method_label(first, labels)}{separator}{rest}" if separator else table.title
    return replace(table, rows=rows, title=title)


def _with_labels(text: str, names: Sequence[str], labels: Labels) -> str:
    """Return a text in which methods have their labels."""
    renamed = {name: method_label(name, labels) for name in names}
    for name in sorted((n for n in names if renamed[n] != n), key=len, reverse=True):
        whole_name = rf"(?<![\w+-]){re.escape(name)}(?![\w+(-])"
        text = renamed[name].join(re.split(whole_name, text))
    return text


def _markdown(table: Table) -> str:
    def escape(text: str) -> str:  # except |, which `markdown_table` escapes
        return re.sub(r"[\\*_`<\[]", r"\\\g<0>", " ".join(text.split()))

    numeric = [k for k in range(len(table.heads)) if table.is_figure(k)]
    rows = [[escape(text) for text in row] for row in table.rows]
    title = escape(table.title).replace("|", "\\|")
    return f"{title}\n\n{markdown_table(table.heads, rows, numeric)}"


def _latex(table: Table, numbers: bool = False) -> str:
    """Return a table in LaTeX, with the best figures in bold; with `numbers`, in siunitx's S
    columns.
    """
    bold = _best_cells(table)
    is_number = [
        numbers
        and any(row[k] for row in table.rows)
        and all(NUMBER.fullmatch(row[k]) for row in table.rows if row[k])
        for k in range(len(table.heads))
    ]

    def head(k: int) -> str:
        percent = ["%"] if is_number[k] and any("%" in row[k] for row in table.rows) else []
        about = ", ".join([*percent, *_meaning_of_spread([row[k] for row in table.rows])])
        text = _escape(table.heads[k] + (f" ({about})" if about else ""))
        return f"{{{text}}}" if is_number[k] else text

    def cell(row: int, k: int) -> str:
        text = table.rows[row][k]
        is_best = (row, k) in bold
        if not is_number[k] or not text:
            content = _with_minus(_escape(text)) if table.is_figure(k) else _escape(text)
            return f"\\textbf{{{content}}}" if is_best and text else content
        match = NUMBER.fullmatch(text)
        assert match
        spread = f" \\pm {match[2]}" if match[2] else ""
        weight = "\\bfseries " if is_best else ""
        return f"{weight}{match[1].replace(',', '')}{spread}"

    forms = ["S" if n else "r" if table.is_figure(k) else "l" for k, n in enumerate(is_number)]
    columns = range(len(table.heads))
    body = [[cell(row, k) for k in columns] for row in range(len(table.rows))]
    return "\n".join(
        [
            f"% {' '.join(table.title.split())}",
            f"\\begin{{tabular}}{{{''.join(forms)}}}",
            "  \\toprule",
            *(f"  {' & '.join(cells)} \\\\" for cells in [[head(k) for k in columns]]),
            "  \\midrule",
            *(f"  {' & '.join(cells)} \\\\" for cells in body),
            "  \\bottomrule",
            "\\end{tabular}",
        ]
    )


NUMBER = re.compile(r"([+-]?\d[\d,.]*)%?(?: (?:± |\(±)([\d.]+)\)?)?")
"""A figure of the ranking: 84.3%, 84.3% ± 1.2, +6.7 (±6.6), 1,234."""


def _meaning_of_spread(cells: Iterable[str]) -> list[str]:
    """Return what ± means in a column: it has two meanings, by how the cells write it."""
    text = " ".join(cells)
    return (["± half of 95% interval"] if "(±" in text else []) + (
        ["± SD over seeds"] if "% ± " in text else []
    )


BOLD = ("over SOLO", "over own model", "worst")
"""The columns beside the metric's whose largest figure is in bold."""


def _best_cells(table: Table) -> set[tuple[int, int]]:
    """Return the places (row, column) of the best figures, also of equal ones: of the metric, and
    of `BOLD`.
    """
    places: set[tuple[int, int]] = set()
    if table.best is not None and len(table.heads) > 1:
        figures = _figures(table, 1)
        best = figures.get(table.best)
        places = {(table.best, 1)} | {(row, 1) for row in figures if figures[row] == best}
    for k in (k for k, head in enumerate(table.heads) if head in BOLD):
        figures = _figures(table, k)
        places |= {(row, k) for row in figures if figures[row] == max(figures.values())}
    return places


def _figures(table: Table, k: int) -> dict[int, float]:
    """Return the figures of a column as they are printed, by row."""
    matches = {row: NUMBER.fullmatch(cells[k]) for row, cells in enumerate(table.rows)}
    return {row: float(match[1].replace(",", "")) for row, match in matches.items() if match}


def _with_minus(text: str) -> str:
    """Return a cell in LaTeX whose negative numbers have a minus sign and not a hyphen."""
    return re.sub(r"(?<![\w.,-])-(\d[\d.,]*)", r"$-\1$", text)


def _escape(text: str) -> str:
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
