"""The pages of `docs/results`: a table's reproduction for people, and all claims of all papers on
one page.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from comity.measure.conventions import mean_curve
from comity.papers import Claim, benefit_map
from comity.papers.cells import Cell
from comity.papers.claims import Verdict, untested, verdicts
from comity.papers.joining import joined
from comity.papers.reproduction import RESULT, Reproduction, read
from comity.runs.checkpoint import write_atomically
from comity.units import duration, size

KEPT = "data"
"""The folder beside the pages that holds what they are made of."""
WORDS = ("intro.txt", "prices.txt")
"""What is written by hand there: the first and the last words of the page of all claims."""
OWN_NAMES = {benefit_map.MAP: "when-it-helps"}
"""Tables whose page is not called as they are."""
COURSE = 8
"""So many rounds of a run are shown, evenly spread."""
VERDICT = ("printed", "measured (95% interval)", "seeds", "verdict")
HEADS = (
    "column",
    "method",
    "paper",
    "measured",
    "difference",
    "within 2 std",
    "last tenth",
    "swing",
)


def lines(cells: Sequence[Cell]) -> list[list[str]]:
    """The cells as text: one line each, columns one below the other."""

    def number(value: float | None, std: float | None = None, sign: str = "") -> str:
        return (
            "" if value is None else f"{value:{sign}.2f}" + ("" if std is None else f" ± {std:.2f}")
        )

    made = []
    for cell in cells:
        measured = number(cell.mean, cell.std) or cell.why
        within = {True: "yes", False: "no", None: ""}[cell.within]
        ends = number(fmean(cell.ends.values()) if cell.ends else None)
        figures = [
            number(*cell.paper),
            measured,
            number(cell.difference, sign="+"),
            within,
            ends,
            number(cell.swing),
        ]
        made.append([cell.column.title, cell.row.title, *figures])
    return made


def markdown(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    every = [heads, ("---",) * len(heads), *rows]
    return (
        "\n".join(
            "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in every
        )
        + "\n"
    )


def write_csv(path: Path, cells: Sequence[Cell]) -> None:
    """The table for programs: numbers in full, every seed."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
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
            each = " ".join(f"{v:.6g}" for v in cell.measured)
            which = cell.column.name, cell.row.name, cell.row.algorithm
            writer.writerow((*which, *cell.paper, cell.mean, cell.std, each, cell.why))


def page(made: Reproduction) -> str:
    """A table's reproduction: what was run, what it cost, every cell, the course of the runs, what
    became of the claims.
    """
    table = made.table
    found = verdicts(table, made.cells, made.as_printed)
    seeds = ", ".join(map(str, made.seeds))
    parts = [
        f"# {made.name}: {table.title}",
        f"{table.source}. Scale {made.scale}, seeds {seeds}; {cost(made)}.",
        made.origin,
        table.notes,
        "Settings of each run:",
        "\n".join(f"- {text}" for text in settings_of(made.settings)),
        markdown(HEADS, lines(made.cells)).rstrip(),
        (
            "*last tenth*: mean over the evaluated rounds in the last tenth of a run and over"
            " seeds; *swing*: the standard deviation from evaluation to evaluation."
        ),
        *_course(made.cells),
        *_claims(found, untested(table, found), made),
        *(["## What we make of it", table.findings] if table.findings else []),
    ]
    return "\n\n".join(parts) + "\n"


def cost(made: Reproduction) -> str:
    """What a reproduction took: its runs' times added up, as the clock had them, whatever else the
    machine was doing.
    """
    return f"{duration(made.seconds)} of all runs together, at most {size(made.memory)} of memory"


def settings_of(settings: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> list[str]:
    """What each run's settings are: once what all its rows share, and a row's own where it differs."""
    told = []
    for name, rows in settings.items():
        every = {
            row: {k: v for k, v in mine.items() if k not in ("algorithm", "seed")}
            for row, mine in rows.items()
        }
        first, *others = every.values()
        shared = {k: v for k, v in first.items() if all(other.get(k) == v for other in others)}
        told.append(f"{name}: {_list(shared)}")
        told += [
            f"{name}, {row}: {_list(own)}"
            for row, mine in every.items()
            if (own := {k: v for k, v in mine.items() if k not in shared and v})
        ]
    return told


def _list(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in settings.items())


def _course(cells: Sequence[Cell]) -> list[str]:
    """Accuracy and loss by round, where several rounds were looked at."""
    told = []
    for name in dict.fromkeys(cell.column.name for cell in cells):
        mine = [cell for cell in cells if cell.column.name == name and cell.figures]
        rounds = _some(
            list(mean_curve([f.curve for f in mine[0].figures.values()])) if mine else []
        )
        if len(rounds) < 3:  # a beginning and an end are no course
            continue
        rows = []
        for cell in mine:
            accuracy = mean_curve([figure.curve for figure in cell.figures.values()])
            loss = mean_curve([figure.loss for figure in cell.figures.values()])
            rows.append([cell.row.title, *(_both(accuracy.get(t), loss.get(t)) for t in rounds)])
        told += [
            (
                f"{mine[0].column.title} by round, with the parties' mean test loss in brackets,"
                " mean over seeds:"
            ),
            markdown(["method", *map(str, rounds)], rows).rstrip(),
        ]
    return told


def _both(accuracy: float | None, loss: float | None) -> str:
    return (
        "" if accuracy is None else f"{accuracy:.1f}" + ("" if loss is None else f" ({loss:.2f})")
    )


def _some(rounds: Sequence[int]) -> list[int]:
    """Some of the rounds, evenly spread, with the last among them."""
    if len(rounds) <= COURSE:
        return list(rounds)
    return [rounds[round((k + 1) * len(rounds) / COURSE) - 1] for k in range(COURSE)]


def _claims(found: Sequence[Verdict], rest: Sequence[str], made: Reproduction) -> list[str]:
    """What became of the claims, and of which nothing is known."""
    if not found and not rest:
        return []
    titles = _titles(made)
    rows = [
        [_titled(verdict.claim, titles), titles[verdict.column], *_judged(verdict, "**")]
        for verdict in found
    ]
    told = ["## The claims", *filter(None, [_table(("claim", "column", *VERDICT), rows)])]
    if rest:
        told.append(
            "Not put to the test: " + "; ".join(_titled(text, titles) for text in rest) + "."
        )
    return told


def _judged(verdict: Verdict, mark: str = "") -> list[str]:
    """What stands below the heads of `VERDICT`."""
    printed = "" if verdict.printed is None else f"{verdict.printed:+.2f}"
    return [printed, verdict.shown, str(len(verdict.differences)), f"{mark}{verdict.word}{mark}"]


def _titles(made: Reproduction) -> dict[str, str]:
    """What rows and columns are called, by name."""
    return {entry.name: entry.title for entry in (*made.table.rows, *made.table.columns)}


def _titled(claim: str, titles: Mapping[str, str]) -> str:
    """A claim with the rows' titles."""
    order, at, column = claim.partition(" @ ")
    named = " > ".join(titles.get(name.strip(), name) for name in order.split(">"))
    return f"{named} ({titles.get(column, column)})" if at else named


def overview(every: Sequence[Reproduction], intro: str, prices: str) -> str:
    """All claims on one page: first the main ones, then all of theirs, then our own questions, last
    what was too dear.
    """
    own = [made for made in every if made.name.startswith("comity/")]
    sections = {
        "The main claims": _table(
            ("what is claimed", "where", *VERDICT, "time of all runs"), _headlines(every)
        ),
        "All claims of the papers that were put to the test": _tested(
            [made for made in every if made not in own]
        ),
        "Questions of our own": _tested(own),
    }
    parts = [
        intro.rstrip(),
        *(f"## {title}\n\n{table}" for title, table in sections.items() if table),
        prices.rstrip(),
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown; nothing, if there is nothing in it."""
    return markdown(heads, rows).rstrip() if rows else ""


def _headlines(every: Sequence[Reproduction]) -> list[list[str]]:
    """What each table is known for, in words, and what became of it in each of its columns."""
    rows = []
    for made in every:
        titles = _titles(made)
        found = verdicts(made.table, made.cells, made.as_printed)
        for claim, sentence in made.table.headlines.items():
            mine = [
                verdict for verdict in found if Claim(claim).covers(verdict.claim, verdict.column)
            ]
            link = f"[{made.name}]({file_of(made.name)})"
            rows += [
                [
                    f"{sentence} ({link})",
                    titles[verdict.column],
                    *_judged(verdict),
                    duration(made.seconds),
                ]
                for verdict in mine
            ] or [[f"{sentence} ({link})", "", "", "not run", "", "", ""]]
    return rows


def _tested(every: Sequence[Reproduction]) -> str:
    """A table of all claims that were put to the test."""
    rows = []
    for made in every:
        titles = _titles(made)
        for k, verdict in enumerate(verdicts(made.table, made.cells, made.as_printed)):
            link = f"[{made.name}]({file_of(made.name)})" if k == 0 else ""
            time = duration(made.seconds) if k == 0 else ""
            rows.append(
                [
                    link,
                    _titled(verdict.claim, titles),
                    titles[verdict.column],
                    *_judged(verdict),
                    time,
                ]
            )
    return _table(("table", "claim", "column", *VERDICT, "time of all runs"), rows)


OWN_PAGES: dict[str, Callable[[Reproduction], str]] = {benefit_map.MAP: benefit_map.page}
"""Tables whose page is made in another way, by name."""
PICTURES: dict[str, Callable[[Reproduction], str]] = {benefit_map.MAP: benefit_map.picture}
"""Tables with a picture, as SVG, beside their page and called as it is."""


def files(made: Reproduction) -> dict[str, str]:
    """A table's page, and its picture where it has one, by the files' names."""
    name = file_of(made.name)
    written = {name: OWN_PAGES.get(made.name, page)(made)}
    if made.name in PICTURES:
        written[str(Path(name).with_suffix(".svg"))] = PICTURES[made.name](made)
    return written


def leave(made: Reproduction, folder: Path) -> None:
    """A reproduction beside its runs: a page for people, the same for programs, and what other
    pages are made of.
    """
    made.write(folder / RESULT)
    write_atomically(folder / "table.md", page(made))
    if made.name in OWN_PAGES:
        for name, text in files(made).items():
            write_atomically(folder / name, text)
    texts = [HEADS, *lines(made.cells)]
    write_atomically(folder / "table.txt", "\n".join("\t".join(row) for row in texts) + "\n")
    write_csv(folder / "table.csv", made.cells)


def file_of(name: str) -> str:
    """The page of a table: dbe-table9.md; that of a user's own by its file's name alone."""
    own = OWN_NAMES.get(name, name.replace("/", "-"))
    return f"{Path(name).stem if name.endswith('.toml') else own}.md"


def rewrite(pages: Path, runs: Path | None, join: bool = False) -> list[Path]:
    """Write all pages again, from what is kept beside them and what lies below `runs`, which is
    kept from now on.

    It takes the place of what was kept of its table, or, where asked to `join`, is added to it.
    """
    kept = pages / KEPT
    kept.mkdir(parents=True, exist_ok=True)
    made: dict[Path, Reproduction] = {}
    for result in sorted(runs.rglob(RESULT)) if runs else ():
        new = read(result)
        path = kept / Path(file_of(new.name)).with_suffix(".json")
        before = made.get(path) or (read(path) if path.exists() else None)
        made[path] = joined(before, new) if join and before else new
    for (
        path,
        one,
    ) in (
        made.items()
    ):  # all or none: a part that cannot be joined is found before anything is written
        one.write(path)
    every = [read(path) for path in sorted(kept.glob("*.json"))]
    written = {pages / name: text for made in every for name, text in files(made).items()}
    written[pages / "README.md"] = overview(every, *(_words(kept / name) for name in WORDS))
    for path, text in written.items():
        write_atomically(path, text)
    return list(written)


def _words(path: Path) -> str:
    """What somebody wrote by hand for the page of all claims; nothing, if nobody has."""
    return path.read_text(encoding="utf-8") if path.exists() else ""
