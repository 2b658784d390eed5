"""The report: one HTML page about a run or a folder of runs, and figures and tables for papers.

`gather` reads the folder, `sections` turns its content into text, tables and charts, and `page`
puts them into one file. `comity report DIR` and `comity.report` call `report`.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from comity.checksums import UNREADABLE, read_json
from comity.errors import UsageError, describe, unknown
from comity.reporting.blocks import Block, Section, Table, Text
from comity.reporting.federations import over_federations
from comity.reporting.gather import Method, RunGroup, file_problems, gather
from comity.reporting.labels import check_labels
from comity.reporting.page import Page
from comity.reporting.sections.again import again
from comity.reporting.sections.answer import answer, rank_methods
from comity.reporting.sections.answer import methods as methods_section
from comity.reporting.sections.curves import curves
from comity.reporting.sections.data import data
from comity.reporting.sections.gains import gains
from comity.reporting.sections.space import space
from comity.reporting.sections.wire import wire
from comity.reporting.static import check_kind, draw
from comity.safe_files import write_atomically
from comity.studies.tune import TUNED
from comity.units import spread

PAGE = "report.html"
PATIENCE = 8.0
"""CPU seconds after which the page starts no further map of representations. All settings of a page
share them. Methods that are requested by name have no limit.
"""


def report(
    folder: str | Path,
    *,
    methods: Sequence[str] | None = None,
    target: float | None = None,
    quick: bool = False,
    samples: bool = True,
    figures: str | None = None,
    labels: Mapping[str, str] | None = None,
    out: str | Path | None = None,
    trust: bool = False,
    warn: Callable[[str], None] = lambda text: None,
    announce: Callable[[str], None] = lambda text: None,
) -> Path:
    """Write the page of a folder and return its path.

    Args:
        folder: a run's folder, or a folder with runs
        methods: methods whose representations are drawn (default: the best three and SOLO)
        target: accuracy to which rounds and bytes are counted (default: the accuracy of SOLO)
        quick: show only what the files say, without opening data or models
        samples: show some of the parties' samples
        figures: also write every chart to FOLDER/figures, as `pdf`, `svg` or `png`
        labels: other names for methods in these figures, and in what is said of all federations
            together
        out: the page's file (default: FOLDER/report.html)
        trust: allow runs of other people to execute the Python files that their settings name.
            Without it, the page leaves out what needs these files.
        warn: called with a sentence that says what the page leaves out
        announce: called with the answer of each setting, if the folder has several

    Raises:
        UsageError: if an argument is invalid, or the folder has no runs
    """
    folder = Path(folder)
    if figures is not None:
        check_kind(figures)
    if target is not None and not 0 < target <= 1:
        raise UsageError(f"A target is an accuracy between 0 and 1, not {target:g}.")
    groups = gather(folder, trust)
    check_labels(labels or {}, [group.names for group in groups])
    finished = {m.name for group in groups for m in group.methods if m.finished}
    for name in methods or ():
        if name not in finished:
            raise unknown("finished method called", name, finished)
    seconds = None if methods else PATIENCE / len(groups)
    pairs = [
        (group, build_sections(group, folder, methods, target, quick, samples, seconds))
        for group in groups
    ]
    if not quick:
        _warn_of_closed_runs(groups, warn)
    path = Path(out) if out else folder / PAGE
    together = over_federations(groups, labels or {})
    page = Page().html(folder.resolve().name, folder, pairs, front_matter(folder), together)
    write_atomically(path, page)
    for name, headline in headlines(pairs).items():
        announce(f"{name}: {headline}")
    if figures is not None:
        draw(pairs, folder / "figures", figures, labels, together)
    return path


def _warn_of_closed_runs(groups: Sequence[RunGroup], warn: Callable[[str], None]) -> None:
    """Say why the page leaves out what needs runs that could not be opened."""
    reasons = [run.closed for group in groups for run in group.runs if run.closed]
    if not reasons:
        return
    more = f" The same holds for {len(reasons) - 1} more." if len(reasons) > 1 else ""
    warn(
        "The page is incomplete: everything that needs the data, the models or the closed form of"
        f" bytes is left out. {reasons[0]}{more}"
    )


def build_sections(
    group: RunGroup,
    folder: Path,
    methods: Sequence[str] | None,
    target: float | None,
    quick: bool,
    samples: bool,
    seconds: float | None = None,
) -> list[Section]:
    """Return the sections of a group. A section that fails shows the reason in its place."""
    quick = quick or group.between_sites  # the data and the models are at the sites

    def build_space() -> Section:
        mapped = [] if quick else methods_to_map(group, methods)
        return space(group, mapped, seconds, not quick)

    builders: list[tuple[str, str, Callable[[], Section]]] = [
        ("answer", "The answer", lambda: answer(group, folder)),
        ("methods", "The methods", lambda: methods_section(group, folder, target)),
        ("curves", f"How {group.metric.title} grows", lambda: curves(group)),
        ("gains", "Who gains", lambda: gains(group, folder)),
        ("data", "The data", lambda: data(group, not quick, samples)),
        ("space", "The representation space", build_space),
        ("wire", "What crossed the wire", lambda: wire(group, not quick)),
        ("again", "How to get this again", lambda: again(group, folder)),
    ]
    omitted = {"space"} if group.between_sites else set()
    if group.site and not (group.baseline and group.others):
        omitted |= {"gains"}  # a site has nothing to compare its figures with
    sections = []
    for name, title, build in builders:
        if name in omitted:
            continue
        try:
            sections.append(build())
        except Exception as why:  # one damaged file must not cost the page
            reason = Text(f"This part cannot be shown: {describe(why)}", "missing")
            sections.append(Section(name, title, [reason]))
    sections[0].blocks[:0] = [Text(text, "missing") for text in file_problems(group, folder)]
    return sections


def methods_to_map(group: RunGroup, names: Sequence[str] | None) -> list[Method]:
    """Return the methods whose representations are drawn: the named ones, or the best and SOLO."""
    finished = {m.name: m for m in group.methods if m.finished}
    if names is not None:
        return [finished[name] for name in names if name in finished]
    ranked = [row.method for row in rank_methods(group)[0] if row.method.finished]
    ranked = [m for m in ranked if not m.of_scikit_learn]  # they have no representations
    return [*[m for m in ranked if not m.alone][:3], *[m for m in ranked if m.alone]]


def headlines(pairs: Sequence[tuple[RunGroup, list[Section]]]) -> dict[str, str]:
    """Return the answer of each setting by the setting's name; empty if there is one setting."""
    if len(pairs) == 1:
        return {}
    return {
        group.name or group.title: sections[0].headline
        for group, sections in pairs
        if sections[0].headline
    }


def front_matter(folder: Path) -> list[Block]:
    """Return what stands before all groups: the table of a reproduction, the result of a tuning."""
    return [*_reproduction(folder / "table.csv"), *_tuning(folder / TUNED)]


def _tuning(path: Path) -> list[Block]:
    """Return the verdict of a tuning and the table of its trials."""
    if not path.exists():
        return []
    try:
        content = read_json(path)
        settings = list(content["trials"][0]["settings"])
        rows = [
            [
                *(str(trial["settings"][name]) for name in settings),
                *(spread(trial[key]) for key in ("validations", "tests")),
                _rounds(trial),
            ]
            for trial in content["trials"]
        ]
        verdict = str(content["verdict"])
    except UNREADABLE:
        return [Text(f"{path.name} is damaged: what was chosen cannot be shown.", "missing")]
    heads = [*settings, "validation", "test", "round"]
    about = (
        "Validation and test are means over parties after the round that is best on all validation"
        " samples. The ranking below is by test samples after the last round; nothing was chosen"
        " by it."
    )
    return [
        Text(verdict, "lead"),
        Table("trials", "What was tried", heads, rows, words=len(settings)),
        Text(about),
    ]


def _rounds(trial: dict[str, Any]) -> str:
    return ", ".join(map(str, trial["rounds"]))


def _reproduction(path: Path) -> list[Block]:
    """Return the table of a reproduction, with the paper's figures beside the measured ones."""
    if not path.exists():
        return []
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = [_reproduced_row(row) for row in csv.DictReader(file)]
    except (OSError, ValueError, KeyError, TypeError, csv.Error):
        rows = []
    if not rows:
        return [Text("table.csv is damaged.", "missing")]
    heads = ["column", "method", "paper", "measured", "difference"]
    return [Table("paper", "Paper beside measured", heads, rows, words=2)]


def _reproduced_row(row: dict[str, str]) -> list[str]:
    """Return the cells of one row of `table.csv`."""
    paper_text, measured_text = _mean_and_std(row, "paper"), _mean_and_std(row, "measured")
    difference = ""
    if paper_text and measured_text:
        difference = f"{float(row['measured']) - float(row['paper']):+.2f}"
    return [row["column"], row["row"], paper_text, measured_text or row["note"], difference]


def _mean_and_std(row: dict[str, str], name: str) -> str:
    if not row[name]:
        return ""
    std = f" ± {float(row[f'{name}_std']):.2f}" if row[f"{name}_std"] else ""
    return f"{float(row[name]):.2f}{std}"
