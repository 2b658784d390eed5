"""`comity report DIR`: one page that shows what came out of a run, or of a folder of runs, and
figures and tables for papers.

`gather` reads the folder, `sections` make text, tables and charts of it, `page` puts them into one
file.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from comity.checksums import without_crc
from comity.errors import UsageError, describe, unknown
from comity.reporting.blocks import Block, Section, Table, Text
from comity.reporting.gather import Group, Method, complaints, gather
from comity.reporting.page import Page
from comity.reporting.sections.again import again
from comity.reporting.sections.answer import answer, standings
from comity.reporting.sections.curves import curves
from comity.reporting.sections.data import data
from comity.reporting.sections.gains import gains
from comity.reporting.sections.space import space
from comity.reporting.sections.wire import wire
from comity.reporting.static import check_kind, draw
from comity.runs.checkpoint import write_atomically
from comity.studies.tune import TUNED
from comity.units import spread

PAGE = "report.html"
PATIENCE = 8.0
"""Seconds of computing after which no further method's representations are begun, unless methods
are asked for by name; several settings share them.
"""


def report(
    folder: str | Path,
    *,
    methods: Sequence[str] | None = None,
    target: float | None = None,
    quick: bool = False,
    samples: bool = True,
    figures: str | None = None,
    out: str | Path | None = None,
    trust: bool = False,
    told: Callable[[str], None] = lambda text: None,
    answered: Callable[[str], None] = lambda text: None,
) -> Path:
    """Write a folder's page and return its path.

    `methods` are those whose representations are drawn (the best three and SOLO unless told);
    `target` is the accuracy to which rounds and bytes are counted (SOLO's unless told); `quick`
    shows only what the files say, without opening data or models; `samples=False` keeps parties'
    samples off the page; `figures` (pdf, svg or png) also writes every chart to DIR/figures. A
    stranger's run that names Python files is not opened unless `trust` says that these may run; the
    page shows what it can without, and `told` hears what is left out. Of several settings,
    `answered` hears each one's answer.
    """
    folder = Path(folder)
    if figures is not None:
        check_kind(figures)
    if target is not None and not 0 < target <= 1:
        raise UsageError(f"A target is an accuracy between 0 and 1, not {target:g}.")
    groups = gather(folder, trust)
    for name in methods or ():
        known = {m.name for group in groups for m in group.methods if m.finished}
        if name not in known:
            raise unknown("finished method called", name, known)
    seconds = None if methods else PATIENCE / len(groups)
    made = [
        (group, sections_of(group, folder, methods, target, quick, samples, seconds))
        for group in groups
    ]
    if not quick and (
        left_out := [run.closed for group in groups for run in group.runs if run.closed]
    ):
        more = f" So it is with {len(left_out) - 1} more." if len(left_out) > 1 else ""
        told(
            "What takes the data, the models or the closed form of bytes is left out of the page."
            f" {left_out[0]}{more}"
        )
    path = Path(out) if out else folder / PAGE
    write_atomically(path, Page().html(folder.resolve().name, folder, made, front(folder)))
    for name, said in headlines(made).items():
        answered(f"{name}: {said}")
    if figures is not None:
        draw(made, folder / "figures", figures)
    return path


def sections_of(
    group: Group,
    folder: Path,
    methods: Sequence[str] | None,
    target: float | None,
    quick: bool,
    samples: bool,
    seconds: float | None = None,
) -> list[Section]:
    """A group's sections; one that fails says why, in its place."""
    quick = quick or group.between_sites  # neither data nor models are here
    parts: list[tuple[str, str, Callable[[], Section]]] = [
        ("answer", "The answer", lambda: answer(group, folder, target)),
        ("curves", f"How {group.metric.title} grows", lambda: curves(group)),
        ("gains", "Who gains", lambda: gains(group, folder)),
        ("data", "The data", lambda: data(group, not quick, samples)),
        (
            "space",
            "The representation space",
            lambda: space(group, [] if quick else chosen(group, methods), seconds, not quick),
        ),
        ("wire", "What crossed the wire", lambda: wire(group, not quick)),
        ("again", "How to get this again", lambda: again(group, folder)),
    ]
    left_out = {"space"} if group.between_sites else set()
    if group.site and not (group.solo and group.others):
        left_out |= {"gains"}  # it knows neither others nor what training alone would have given
    made = []
    for name, title, part in parts:
        if name in left_out:
            continue
        try:
            made.append(part())
        except Exception as why:  # one damaged file must not cost the page
            made.append(
                Section(
                    name, title, [Text(f"This part cannot be shown: {describe(why)}", "missing")]
                )
            )
    made[0].blocks[:0] = [Text(text, "missing") for text in complaints(group, folder)]
    return made


def chosen(group: Group, names: Sequence[str] | None) -> list[Method]:
    """The methods whose representations are drawn."""
    finished = {m.name: m for m in group.methods if m.finished}
    if names is not None:
        return [finished[name] for name in names if name in finished]
    ranked = [s.method for s in standings(group)[0] if s.method.finished]
    return [*[m for m in ranked if not m.alone][:3], *[m for m in ranked if m.alone]]


def headlines(made: Sequence[tuple[Group, list[Section]]]) -> dict[str, str]:
    """Each setting's answer, if there are several."""
    return (
        {group.name or group.title: some[0].headline for group, some in made if some[0].headline}
        if len(made) > 1
        else {}
    )


def front(folder: Path) -> list[Block]:
    """What stands before all groups: a reproduction's table, or what a tuning chose."""
    return [*_reproduced(folder / "table.csv"), *_tuned(folder / TUNED)]


def _tuned(path: Path) -> list[Block]:
    """All trials by what they were chosen by."""
    if not path.exists():
        return []
    try:
        told = without_crc(json.loads(path.read_text(encoding="utf-8")))
        heads = list(told["trials"][0]["settings"])
        rows = [
            [
                *(str(one["settings"][head]) for head in heads),
                *(spread(one[k]) for k in ("validations", "tests")),
                _rounds(one),
            ]
            for one in told["trials"]
        ]
        verdict = str(told["verdict"])
    except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError):
        return [Text(f"{path.name} is damaged: what was chosen cannot be shown.", "missing")]
    columns = [*heads, "validation", "test", "round"]
    about = (
        "Both are means over parties after the round that is best on all validation samples. The"
        " ranking below is by test samples after the last round, by which nothing was chosen."
    )
    return [
        Text(verdict, "lead"),
        Table("trials", "What was tried", columns, rows, words=len(heads)),
        Text(about),
    ]


def _rounds(trial: dict[str, Any]) -> str:
    return ", ".join(map(str, trial["rounds"]))


def _reproduced(path: Path) -> list[Block]:
    """Paper beside measured."""
    if not path.exists():
        return []
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = [_beside(row) for row in csv.DictReader(file)]
    except (OSError, ValueError, KeyError, TypeError, csv.Error):
        rows = []
    if not rows:
        return [Text("table.csv is damaged.", "missing")]
    return [
        Table(
            "paper",
            "Paper beside measured",
            ["column", "method", "paper", "measured", "difference"],
            rows,
            words=2,
        )
    ]


def _beside(row: dict[str, str]) -> list[str]:
    """A line of a reproduction's table."""
    paper, measured = (
        (
            f"{float(row[name]):.2f}"
            + (f" ± {float(row[f'{name}_std']):.2f}" if row[f"{name}_std"] else "")
            if row[name]
            else ""
        )
        for name in ("paper", "measured")
    )
    difference = (
        f"{float(row['measured']) - float(row['paper']):+.2f}"
        if row["paper"] and row["measured"]
        else ""
    )
    return [row["column"], row["row"], paper, measured or row["note"], difference]
