"""The pages of `docs/results`: one per reproduced table, and one with all claims of all papers."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from comity.measure.conventions import mean_curve
from comity.papers import Claim, Kind, PaperTable, benefit_map, board
from comity.papers.cells import ACCURACIES, Cell
from comity.papers.claims import ClaimVerdict, untested, verdicts
from comity.papers.coverage import coverage_table
from comity.papers.joining import join as join_parts
from comity.papers.reproduce import ABSENT, implemented
from comity.papers.reproduction import RESULT, Reproduction, read
from comity.safe_files import write_atomically
from comity.text import markdown_table
from comity.units import duration, size

DATA_FOLDER = "data"
"""The folder beside the pages with the files that they are generated from."""
WORDS = ("intro.txt", "prices.txt")
"""Handwritten files in it: the first and the last part of the page of all claims."""
OWN_NAMES = {benefit_map.MAP: "when-it-helps", board.NAME: "board"}
"""The file names of pages that do not have the name of their table."""
COURSE = 8
"""The number of evenly spaced rounds in the table of a run's course."""
VERDICT = ("printed", "measured (95% interval)", "seeds", "verdict", "remarks")
HEADS = (
    "column",
    "method",
    "paper",
    "measured",
    "difference",
    "agrees",
    "last tenth",
    "swing",
)

SCATTERED = 5
"""The sample standard deviation over seeds, in points, above which a page warns of an accuracy."""
LEGEND = (
    "*Measured* figures are means ± sample standard deviations over seeds. The paper's ± is its"
    " own. A figure *agrees* if the difference is at most √(a² + b²). Here a is two printed"
    " standard deviations, and b is half of our 95% interval over seeds. An asterisk means that the"
    " paper prints no spread, so only ours counts. The *last tenth* is the mean over the evaluated"
    " rounds in the last tenth of a run and over seeds. The *swing* is the sample standard"
    " deviation from evaluation to evaluation."
)
"""What the columns of a page's table mean."""
EQUAL_ROUNDS = (
    "All methods have the same rounds and local epochs or steps, except where the settings above"
    " say otherwise. Their gradient evaluations therefore differ: papers compare so, and"
    " `comity compare --equal-steps` makes them equal."
)
"""Why the results are not those of equal computation."""
NOT_COUNTED = "These runs are from before gradient evaluations were counted."
"""The text of a page without counts."""


def format_cells(cells: Sequence[Cell]) -> list[list[str]]:
    """Return one row of text per cell, ordered by column."""

    def number(value: float | None, std: float | None = None, sign: str = "") -> str:
        return (
            "" if value is None else f"{value:{sign}.2f}" + ("" if std is None else f" ± {std:.2f}")
        )

    rows = []
    for cell in cells:
        mean_text = number(cell.mean, cell.std) or _why(cell)
        agrees = {True: "yes", False: "no", None: ""}[cell.agrees]
        if agrees and cell.paper[1] is None:
            agrees += " *"
        ends = number(fmean(cell.ends.values()) if cell.ends else None)
        figures = [
            number(*cell.paper),
            mean_text,
            number(cell.difference, sign="+"),
            agrees,
            ends,
            number(cell.swing),
        ]
        rows.append([cell.column.title, cell.row.title, *figures])
    return rows


def _why(cell: Cell) -> str:
    """Return why a cell has no figures, as of today."""
    since = cell.why == ABSENT and implemented(cell.row.algorithm)
    return "not run: implemented since" if since else cell.why


def write_csv(path: Path, cells: Sequence[Cell]) -> None:
    """Write the cells as CSV, with the values of all seeds."""
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(
        (
            "column",
            "row",
            "algorithm",
            "paper",
            "paper_std",
            "measured",
            "measured_std",
            "seeds",
            "note",
        )
    )
    for cell in cells:
        values = " ".join(f"{v:.6g}" for v in cell.values)
        which = cell.column.name, cell.row.name, cell.row.algorithm
        writer.writerow((*which, *cell.paper, cell.mean, cell.std, values, cell.why))
    write_atomically(path, text.getvalue())


def page(reproduction: Reproduction) -> str:
    """Return the page of a table: settings, cost, cells, curves, and verdicts on the claims."""
    table = reproduction.table
    results = verdicts(table, reproduction.cells, reproduction.as_printed)
    seeds = ", ".join(map(str, reproduction.seeds))
    seed_count = table.seeds(reproduction.scale)
    if len(reproduction.seeds) < seed_count:
        seeds += f" ({len(reproduction.seeds)} of {seed_count} planned seeds)"
    parts = [
        f"# {heading(reproduction.name, table.title)}",
        f"{table.source}. Scale {reproduction.scale}, seeds {seeds}; {cost(reproduction)}.",
        reproduction.origin,
        table.notes,
        "Settings of each run:",
        _bullets(format_settings(reproduction.settings)),
        "Where the constants come from:",
        _constants(table),
        _bullets([*_copied(table), *_changed(reproduction)]),
        markdown_table(HEADS, format_cells(reproduction.cells)),
        LEGEND,
        *_scattered(reproduction.cells),
        *_steps(reproduction),
        *_course(reproduction.cells),
        *_claims(results, untested(table, results), reproduction),
        *(["## What we make of it", table.findings] if table.findings else []),
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


PAPERS = {
    "adcol": "ADCOL",
    "dbe": "DBE",
    "fed-sps": "Fed-SPS",
    "fedufo": "FedUFO",
    "relay": "Representation sharing",
}
"""The papers of the tables, by the first part of a table's name, as headings name them."""


def heading(name: str, title: str) -> str:
    """Return the heading of a table's page: the paper, the table's number if any, and the title.

    Examples:
        >>> heading("adcol/table16", "Digits")
        'ADCOL, Table 16: Digits'
        >>> heading("dbe/components", "Fashion-MNIST")
        'DBE: Fashion-MNIST'
        >>> heading("comity/all", "All methods")
        'All methods'
        >>> heading("./mine.toml", "My table")
        './mine.toml: My table'
    """
    paper, _, table = name.partition("/")
    if paper == "comity":
        return title
    if paper not in PAPERS:
        return f"{name}: {title}"
    numbered = re.fullmatch(r"(table|figure)(\d+\w?)", table)
    place = f", {numbered[1].capitalize()} {numbered[2]}" if numbered else ""
    return f"{PAPERS[paper]}{place}: {title}"


def _bullets(lines: Sequence[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


MARKS: dict[Kind, str] = {
    "stated": "Stated by the paper",
    "chosen": "Our choice",
    "differs": "Other than the paper states",
}


def describe_constants(table: PaperTable) -> list[str]:
    """Return sentences on where the constants come from, and which figures were copied."""
    lines = [
        f"{text}: {', '.join(f'`{name}` ({why})' for name, why in marks.items())}."
        for kind, text in MARKS.items()
        if (marks := getattr(table, kind))
    ]
    return [*lines, *_copied(table)] or [NO_PAPER]


NO_PAPER = "All constants are our choice: there is no paper."


def _constants(table: PaperTable) -> str:
    """Return a table of where the constants come from."""
    rows = [
        [f"`{name}`", text, why]
        for kind, text in MARKS.items()
        for name, why in getattr(table, kind).items()
    ]
    return _table(("constant", "its origin", "place or reason"), rows) or NO_PAPER


def _copied(table: PaperTable) -> list[str]:
    """Return a sentence for each paper that printed figures were copied from."""
    lines = []
    titles = {entry.name: entry.title for entry in (*table.rows, *table.columns)}
    for copied in table.copied:
        rows = ", ".join(titles[name] for name in copied.rows)
        columns = ", ".join(titles[name] for name in copied.columns)
        where = f" in {columns}" if columns else ""
        lines.append(
            f"Copied from {copied.source} ({copied.where}): the printed figures of {rows}{where}."
        )
    return lines


def _changed(reproduction: Reproduction) -> list[str]:
    """Return a sentence on the constants that are not those of the full scale."""
    table = reproduction.table
    if names := reproduction.changed():
        of_paper = "the paper's scale" if table.stated else "the full scale"
        return [f"Changed from {of_paper}: {', '.join(f'`{name}`' for name in names)}."]
    return []


def cost(reproduction: Reproduction) -> str:
    """Return the time and memory of a reproduction as text.

    The time is the sum of the wall-clock times of all runs.
    """
    time, memory = duration(reproduction.seconds), size(reproduction.memory)
    return f"{time} of all runs together, at most {memory} of memory"


def format_settings(settings: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> list[str]:
    """Return lines with the settings of each run: those of all rows, then those that differ."""
    lines = []
    for name, rows in settings.items():
        by_row = {
            row: {k: v for k, v in of_row.items() if k not in ("algorithm", "seed")}
            for row, of_row in rows.items()
        }
        first, *others = by_row.values()
        shared = {k: v for k, v in first.items() if all(other.get(k) == v for other in others)}
        lines.append(f"{name}: {_list(shared)}")
        lines += [
            f"{name}, {row}: {_list(different)}"
            for row, of_row in by_row.items()
            if (different := {k: v for k, v in of_row.items() if k not in shared and v})
        ]
    return lines


def _list(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in settings.items())


def _scattered(cells: Sequence[Cell]) -> list[str]:
    """Return a list of the accuracies that differ much from seed to seed, and what that means."""
    rows = [
        f"{cell.row.title} in {cell.column.title} ({cell.std:.1f})"
        for cell in cells
        if cell.std is not None
        and cell.std > SCATTERED
        and cell.column.measure.partition(":")[0] in ACCURACIES
    ]
    if not rows:
        return []
    return [
        f"Over seeds, these figures have a sample standard deviation of more than {SCATTERED}"
        " points:",
        _bullets(rows),
        "They are of one machine. Seeds draw other data, and this may explain the spread. But where"
        " training itself is unstable, the rounding of another processor can move a figure as far"
        " as another seed does. Compare by the intervals below.",
    ]


def _steps(reproduction: Reproduction) -> list[str]:
    """Return a section on the gradient evaluations of each method.

    Empty for tables that have a column of them.
    """
    measures = {column.measure for column in reproduction.table.columns}
    if "steps" in measures:
        return []
    parts = [EQUAL_ROUNDS]
    cells = {
        (cell.column.runs, cell.row.name): cell
        for cell in reversed(reproduction.cells)
        if cell.steps is not None and not cell.row.best_of
    }
    with_figures = any(cell.figures for cell in reproduction.cells)
    if not cells:
        return [*parts, NOT_COUNTED] if with_figures else []
    titles = _titles(reproduction)
    rows = []
    for (run, _), cell in reversed(cells.items()):
        assert cell.steps is not None
        of_party, of_server = cell.steps
        rows.append([titles.get(run, run), cell.row.title, f"{of_party:,.0f}", f"{of_server:,.0f}"])
    heads = ["runs", "method", "gradient evaluations of a party", "at the server"]
    return [*parts, markdown_table(heads, rows)]


def _course(cells: Sequence[Cell]) -> list[str]:
    """Return tables of accuracy and loss by round, where at least three were evaluated."""
    parts = []
    for name in dict.fromkeys(cell.column.name for cell in cells):
        of_column = [cell for cell in cells if cell.column.name == name and cell.figures]
        if not of_column:
            continue
        rounds = _spread(list(mean_curve([f.curve for f in of_column[0].figures.values()])))
        if len(rounds) < 3:  # the first and the last round alone show no course
            continue
        rows = []
        for cell in of_column:
            accuracy = mean_curve([figure.curve for figure in cell.figures.values()])
            loss = mean_curve([figure.loss for figure in cell.figures.values()])
            rows.append([cell.row.title, *(_both(accuracy.get(t), loss.get(t)) for t in rounds)])
        parts += [
            (
                f"{of_column[0].column.title} by round, with the parties' mean test loss in"
                " brackets, mean over seeds:"
            ),
            markdown_table(["method", *map(str, rounds)], rows),
        ]
    return parts


def _both(accuracy: float | None, loss: float | None) -> str:
    return (
        "" if accuracy is None else f"{accuracy:.1f}" + ("" if loss is None else f" ({loss:.2f})")
    )


def _spread(rounds: Sequence[int]) -> list[int]:
    """Return at most `COURSE` evenly spaced rounds, including the last."""
    if len(rounds) <= COURSE:
        return list(rounds)
    return [rounds[round((k + 1) * len(rounds) / COURSE) - 1] for k in range(COURSE)]


def _claims(
    results: Sequence[ClaimVerdict], not_tested: Sequence[str], reproduction: Reproduction
) -> list[str]:
    """Return the section on the claims: the verdicts, and the claims that were not tested."""
    if not results and not not_tested:
        return []
    titles = _titles(reproduction)
    rows = [
        [
            _with_titles(verdict.claim, titles),
            titles[verdict.column],
            *_verdict_cells(verdict, "**"),
        ]
        for verdict in results
    ]
    parts = ["## The claims", *filter(None, [_table(("claim", "column", *VERDICT), rows)])]
    if not_tested:
        method_names = {name for text in not_tested for name in Claim(text).parts[:2]}
        run = {cell.row.name for cell in reproduction.cells if cell.figures}
        absent = [row.title for row in reproduction.table.rows if row.name in method_names - run]
        why = f" Not run: {', '.join(absent)}." if absent else ""
        parts.append(f"Claims that were not tested.{why}")
        parts.append(_bullets([_with_titles(text, titles) for text in not_tested]))
    return parts


def _verdict_cells(verdict: ClaimVerdict, mark: str = "") -> list[str]:
    """Return the cells of the columns `VERDICT`."""
    printed = "" if verdict.printed is None else f"{verdict.printed:+.2f}"
    return [
        printed,
        verdict.text,
        str(len(verdict.differences)),
        f"{mark}{verdict.word}{mark}",
        verdict.remarks,
    ]


def _titles(reproduction: Reproduction) -> dict[str, str]:
    """Return the titles of rows and columns, by name."""
    return {
        entry.name: entry.title for entry in (*reproduction.table.rows, *reproduction.table.columns)
    }


def _with_titles(claim: str, titles: Mapping[str, str]) -> str:
    """Return a claim with titles in place of names."""
    order, at, column = claim.partition(" @ ")
    text = " > ".join(titles.get(name.strip(), name) for name in order.split(">"))
    return f"{text} ({titles.get(column, column)})" if at else text


def overview(reproductions: Sequence[Reproduction], intro: str, prices: str) -> str:
    """Return the page of all claims.

    It has the main claims, all claims of the papers, our own questions, and `prices`, a text on
    experiments that were too expensive to run.
    """
    own_questions = [
        reproduction for reproduction in reproductions if reproduction.name.startswith("comity/")
    ]
    sections = {
        "The main claims": _table(
            ("what is claimed", "where", *VERDICT, "time of all runs"), _headlines(reproductions)
        ),
        "All claims of the papers that were put to the test": _tested(
            [reproduction for reproduction in reproductions if reproduction not in own_questions]
        ),
        "Questions of our own": _tested(own_questions),
        "Coverage": _coverage(reproductions),
    }
    parts = [
        intro.rstrip(),
        *(f"## {title}\n\n{table}" for title, table in sections.items() if table),
        prices.rstrip(),
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def _coverage(reproductions: Sequence[Reproduction]) -> str:
    """Return a section on how many printed cells were measured."""
    table = coverage_table(reproductions)
    text = (
        "Of the cells that the papers print, those that have a measured figure beside them, at any"
        " scale. Cells that a table's file repeats from another table, or computes from printed"
        " cells, are not counted."
    )
    return f"{text}\n\n{table}" if table else ""


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown; an empty text if there are no rows."""
    return markdown_table(heads, rows) if rows else ""


def _headlines(reproductions: Sequence[Reproduction]) -> list[list[str]]:
    """Return a row for each main claim and each of its columns."""
    rows = []
    for reproduction in reproductions:
        titles = _titles(reproduction)
        results = verdicts(reproduction.table, reproduction.cells, reproduction.as_printed)
        for claim, sentence in reproduction.table.headlines.items():
            of_claim = [
                verdict for verdict in results if Claim(claim).covers(verdict.claim, verdict.column)
            ]
            link = f"[{reproduction.name}]({file_of(reproduction.name)})"
            rows += [
                [
                    f"{sentence} ({link})",
                    titles[verdict.column],
                    *_verdict_cells(verdict),
                    duration(reproduction.seconds),
                ]
                for verdict in of_claim
            ] or [[f"{sentence} ({link})", "", "", "not run", "", "", "", ""]]
    return rows


def _tested(reproductions: Sequence[Reproduction]) -> str:
    """Return a table of all claims that were tested."""
    rows = []
    for reproduction in reproductions:
        titles = _titles(reproduction)
        for k, verdict in enumerate(
            verdicts(reproduction.table, reproduction.cells, reproduction.as_printed)
        ):
            link = f"[{reproduction.name}]({file_of(reproduction.name)})" if k == 0 else ""
            time = duration(reproduction.seconds) if k == 0 else ""
            rows.append(
                [
                    link,
                    _with_titles(verdict.claim, titles),
                    titles[verdict.column],
                    *_verdict_cells(verdict),
                    time,
                ]
            )
    return _table(("table", "claim", "column", *VERDICT, "time of all runs"), rows)


OWN_PAGES: dict[str, Callable[[Reproduction], str]] = {
    benefit_map.MAP: benefit_map.page,
    board.NAME: board.page,
}
"""Functions for the pages of tables with another layout, by name."""
PICTURES: dict[str, Callable[[Reproduction], str]] = {benefit_map.MAP: benefit_map.picture}
"""Functions for the SVG pictures of tables that have one, by name."""


def files(reproduction: Reproduction) -> dict[str, str]:
    """Return the page of a table, and its picture if it has one, by file name."""
    name = file_of(reproduction.name)
    contents = {name: OWN_PAGES.get(reproduction.name, page)(reproduction)}
    if reproduction.name in PICTURES:
        contents[str(Path(name).with_suffix(".svg"))] = PICTURES[reproduction.name](reproduction)
    return contents


def write_reproduction(reproduction: Reproduction, folder: Path) -> None:
    """Write a reproduction beside its runs: a page, a table as text and CSV, and `result.json`."""
    reproduction.write(folder / RESULT)
    write_atomically(folder / "table.md", page(reproduction))
    if reproduction.name in OWN_PAGES:
        for name, text in files(reproduction).items():
            write_atomically(folder / name, text)
    texts = [HEADS, *format_cells(reproduction.cells)]
    write_atomically(folder / "table.txt", "\n".join("\t".join(row) for row in texts) + "\n")
    write_csv(folder / "table.csv", reproduction.cells)


def file_of(name: str) -> str:
    """Return the file name of a table's page: dbe-table9.md, or the name of the user's file."""
    if name.endswith(".toml"):
        return f"{Path(name).stem}.md"
    return f"{OWN_NAMES.get(name, name.replace('/', '-'))}.md"


def rewrite_pages(pages: Path, runs: Path | None, join: bool = False) -> list[Path]:
    """Write all pages, from the data beside them and from reproductions below `runs`.

    The new reproductions are copied to the data. They replace the previous data of their table or,
    with `join`, are joined with them. Returns the paths of the pages.
    """
    data = pages / DATA_FOLDER
    data.mkdir(parents=True, exist_ok=True)
    updates: dict[Path, Reproduction] = {}
    for result in sorted(runs.rglob(RESULT)) if runs else ():
        new = read(result)
        path = data / Path(file_of(new.name)).with_suffix(".json")
        before = updates.get(path) or (read(path) if path.exists() else None)
        updates[path] = join_parts(before, new) if join and before else new
    # Nothing is written before all parts are joined, as that may fail.
    for path, reproduction in updates.items():
        reproduction.write(path)
    all_data = [read(path) for path in sorted(data.glob("*.json"))]
    contents = {
        pages / name: text
        for reproduction in all_data
        for name, text in files(reproduction).items()
    }
    contents[pages / "README.md"] = overview(all_data, *(_read_text(data / name) for name in WORDS))
    for path, text in contents.items():
        write_atomically(path, text)
    return list(contents)


def _read_text(path: Path) -> str:
    """Return the text of a file; an empty text if there is no file."""
    return path.read_text(encoding="utf-8") if path.exists() else ""
