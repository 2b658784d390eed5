"""The page of `comity/board`: all methods on federations of different kinds, and `board.json`,
the same figures as data that the package ships (see `comity.studies.board`).

All conclusions on the page are computed from the figures.

`python -m comity.papers.board` writes `board.json` again from `docs/results/data`. It measures the
federations' descriptions, for which it needs their data; of those whose data are missing it keeps
the old ones.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from comity import papers
from comity.errors import CorruptedFile
from comity.measure.mean_ranks import (
    FEWEST_FEDERATIONS,
    FEWEST_METHODS,
    MeanRanks,
    mean_ranks,
)
from comity.measure.seeds import interval_over_seeds
from comity.names import SOLO
from comity.papers.benefit_map import BY_CHANCE, MethodGain, numeric_table
from comity.papers.cells import Cell
from comity.papers.reproduce import federation_for
from comity.papers.reproduction import Reproduction, read
from comity.runs.build import prepare
from comity.runs.config import experiment
from comity.safe_files import write_atomically
from comity.studies.board import (
    BOARD,
    ROUNDED,
    Board,
    BoardFederation,
    Description,
    MethodOnFederation,
    describe,
    read_board,
)
from comity.text import join_names
from comity.units import size

NAME = "comity/board"
STEPS = "-steps"
"""What the name of a column with steps has behind that of its federation."""
KINDS: Mapping[str, tuple[str, ...]] = {
    "Labels differ": ("labels-strong", "labels-mild", "two-classes", "fashion-mild"),
    "Sizes differ": ("sizes", "census"),
    "Inputs differ": ("inputs", "sources", "both"),
    "Natural parties: people, writers, hospitals": ("sensors", "writers", "hospitals"),
    "Nothing differs": ("alike",),
}
"""The federations by kind, a table each."""
NAMED = 5
"""How many of the best methods of a kind are named."""


def board_of(reproduction: Reproduction, descriptions: Mapping[str, Description]) -> Board:
    """Return the board of a reproduction, of those federations that have a description."""
    cells = {(cell.column.name, cell.row.name): cell for cell in reproduction.cells}
    titles = {column.name: column.title for column in reproduction.table.columns}
    federations = []
    for name, description in descriptions.items():
        solo, steps_alone = cells.get((name, SOLO)), cells.get((name + STEPS, SOLO))
        if solo is None or not solo.figures or steps_alone is None:
            continue
        methods = {}
        for row in reproduction.table.rows:
            of_row, steps = cells.get((name, row.name)), cells.get((name + STEPS, row.name))
            if row.name == SOLO or of_row is None or not of_row.figures or steps is None:
                continue
            methods[row.name] = _method_on_federation(of_row, steps, solo, description.parties)
        federations.append(
            BoardFederation(
                name,
                titles[name],
                description,
                round(steps_alone.mean or 0.0, 1),
                tuple(sorted(solo.figures)),
                round(solo.mean or 0.0, ROUNDED),
                methods,
            )
        )
    return Board(reproduction.command, reproduction.code, tuple(federations))


def _method_on_federation(cell: Cell, steps: Cell, solo: Cell, parties: int) -> MethodOnFederation:
    """Return what one method gained over SOLO on one federation."""
    gain = _gain(cell, solo, parties)
    low, high = interval_over_seeds(gain.gains) or (None, None)
    mean_steps = round(steps.mean or 0.0, 1)
    return MethodOnFederation(
        cell.row.algorithm,
        round(gain.mean, ROUNDED),
        None if low is None else round(low, ROUNDED),
        None if high is None else round(high, ROUNDED),
        mean_steps,
        round(gain.bytes),
    )


def _gain(cell: Cell, solo: Cell, parties: int) -> MethodGain:
    per_party = statistics.fmean(figure.bytes for figure in cell.figures.values()) / parties
    values = {seed: figure.value for seed, figure in cell.figures.items()}
    alone = {seed: figure.value for seed, figure in solo.figures.items()}
    return MethodGain(cell.row.title, values, alone, per_party)


def _gains(reproduction: Reproduction) -> dict[str, dict[str, MethodGain]]:
    """Return the gains over SOLO by federation and row, in the order of the table."""
    cells = {(cell.column.name, cell.row.name): cell for cell in reproduction.cells if cell.figures}
    gains: dict[str, dict[str, MethodGain]] = {}
    for column in reproduction.table.columns:
        solo = cells.get((column.name, SOLO))
        if solo is None or column.name.endswith(STEPS):
            continue
        parties = int(reproduction.settings[column.runs][SOLO]["parties"])
        gains[column.name] = {
            row.name: _gain(cell, solo, parties)
            for row in reproduction.table.rows
            if row.name != SOLO
            and (cell := cells.get((column.name, row.name)))
            and solo.figures.keys() & cell.figures.keys()
        }
    return gains


def page(reproduction: Reproduction) -> str:
    """Return the page: the federations, mean ranks, gains by kind, and what to use where."""
    table, gains = reproduction.table, _gains(reproduction)
    seeds = ", ".join(map(str, reproduction.seeds))
    titles = {column.name: column.title for column in table.columns}
    federations = [name for name in titles if not name.endswith(STEPS)]
    run = {name for by_method in gains.values() for name in by_method}
    parts = [
        f"# {table.title}",
        reproduction.origin,
        " ".join(
            [
                f"{len(gains)} of {len(federations)} federations, {len(run)} of"
                f" {len(table.rows) - 1} methods beside SOLO, seeds {seeds}.",
                *_not_run("Federations", [titles[n] for n in federations if n not in gains]),
                *_not_run(
                    "Methods",
                    [r.title for r in table.rows if r.name not in run and r.name != SOLO],
                ),
            ]
        ),
        table.notes,
        "## The federations",
        _federations(reproduction, gains),
        (
            "*Label skew* is the mean total variation distance between a party's class"
            " distribution and that of all parties, 0 to 1. *Inputs differ by* is the distance of"
            " a party's inputs from those of all in standard deviations, as `comity compare`"
            " measures it for its warnings. Both are those of seed 0."
        ),
        "## Mean ranks",
        *_rank_section(reproduction, gains),
        "## Gains",
        (
            "Points above SOLO in the parties' mean accuracy, and half the width of the 95%"
            " interval over seeds (Student's t, paired by seed). **Bold**: the interval does not"
            " hold zero. With three seeds intervals are wide: what is not bold may still be there."
        ),
    ]
    for kind, names in KINDS.items():
        if selected := {name: gains[name] for name in names if name in gains}:
            parts += [f"### {kind}", _advice(selected), _gain_table(reproduction, selected)]
    parts += ["## How sure is that?", _certainty(gains)]
    parts += ["## What we make of it", table.findings] if table.findings else []
    return "\n\n".join(parts) + "\n"


def _not_run(what: str, titles: Sequence[str]) -> list[str]:
    """Return a sentence on what was not run so far; nothing if all was."""
    return [f"{what} not run so far: {'; '.join(titles)}."] if titles else []


def _federations(reproduction: Reproduction, gains: Mapping[str, Mapping[str, MethodGain]]) -> str:
    """Return a table of the federations: what they are, and SOLO's accuracy."""
    described = {federation.name: federation.description for federation in _shipped()}
    titles = {column.name: column.title for column in reproduction.table.columns}
    rows = []
    for name, by_method in gains.items():
        about = described.get(name)
        alone = next(iter(by_method.values())).solo.values()
        facts = [""] * 5
        if about:
            skew = "" if about.label_skew is None else f"{about.label_skew:.2f}"
            facts = [
                str(about.parties),
                f"{about.samples:.0f} ({about.least_samples})",
                skew,
                f"{about.input_difference:.2f}",
                f"`{about.model}`",
            ]
        rows.append([titles[name], *facts, f"{statistics.fmean(alone):.1f}"])
    heads = ["federation", "parties", "samples a party (fewest)", "label skew", "inputs differ by"]
    return numeric_table([*heads, "network", "SOLO"], rows)


def _shipped() -> Sequence[BoardFederation]:
    """Return the federations of the shipped board; none before its first part was written."""
    try:
        return read_board().federations
    except CorruptedFile:
        return ()


def ranks(gains: Mapping[str, Mapping[str, MethodGain]]) -> MeanRanks | None:
    """Return the mean ranks of SOLO and of all methods that ran on every federation.

    None if there are too few federations or methods.
    """
    everywhere = [
        name
        for name in dict.fromkeys(name for by_method in gains.values() for name in by_method)
        if all(name in by_method for by_method in gains.values())
    ]
    if len(gains) < FEWEST_FEDERATIONS or len(everywhere) + 1 < FEWEST_METHODS:
        return None
    figures = {SOLO: [0.0] * len(gains)}
    figures |= {name: [of[name].mean for of in gains.values()] for name in everywhere}
    return mean_ranks(figures)


def _rank_section(
    reproduction: Reproduction, gains: Mapping[str, Mapping[str, MethodGain]]
) -> list[str]:
    """Return the table of all methods over all federations, and what the ranks can tell."""
    titles = {row.name: row.title for row in reproduction.table.rows}
    result = ranks(gains)
    order = list(result.ranks) if result else []
    run = {name for by_method in gains.values() for name in by_method}
    order += [name for name in titles if name in run and name not in order]
    rows = []
    for name in order:
        of_method = [by_method[name] for by_method in gains.values() if name in by_method]
        rank = f"{result.ranks[name]:.1f}" if result and name in result.ranks else ""
        if not of_method:  # SOLO
            rows.append([titles[name], rank, "", "", "", "", ""])
            continue
        steps = statistics.median(_relative_steps(reproduction, gains, name))
        up, down = (sum(gain.sign == sign for gain in of_method) for sign in (1, -1))
        rows.append(
            [
                titles[name],
                rank,
                f"{statistics.fmean(gain.mean for gain in of_method):+.1f}",
                f"{up} of {len(of_method)}",
                f"{down} of {len(of_method)}",
                f"{steps:.2f}",
                size(round(statistics.median(gain.bytes for gain in of_method))),
            ]
        )
    heads = ["method", "mean rank", "mean gain", "clearly helps", "clearly hurts"]
    parts = [
        numeric_table([*heads, "steps, relative to SOLO (median)", "bytes a party (median)"], rows)
    ]
    if result:
        solo = result.ranks[SOLO]
        better = [
            titles[name]
            for name, rank in result.ranks.items()
            if result.differ and solo - rank >= result.critical_difference
        ]
        worse = [
            titles[name]
            for name, rank in result.ranks.items()
            if result.differ and rank - solo >= result.critical_difference
        ]
        groups = "; ".join(", ".join(titles[name] for name in group) for group in result.alike)
        parts.append(
            f"Ranks are those of {len(result.ranks)} methods that ran on all {result.federations}"
            f" federations, 1 for the best. Friedman's test: p = {result.p:.2g}. By Nemenyi's test"
            " two methods are clearly different if their mean ranks are"
            f" {result.critical_difference:.1f} or more apart."
            f" {join_names(better) if better else 'No method'}"
            f" {'are' if len(better) > 1 else 'is'} clearly above SOLO over these federations, and"
            f" {join_names(worse) if worse else 'none'} clearly below."
            + (f" Not clearly different from each other: {groups}." if groups else "")
            + " Gains over federations are of different size, and a mean over other federations"
            " would be another one."
        )
    return parts


def _relative_steps(
    reproduction: Reproduction, gains: Mapping[str, Mapping[str, MethodGain]], row: str
) -> list[float]:
    """Return a party's steps relative to SOLO's, by federation."""
    steps = {
        (cell.column.name.removesuffix(STEPS), cell.row.name): cell.mean
        for cell in reproduction.cells
        if cell.column.name.endswith(STEPS) and cell.mean is not None
    }
    return [
        steps[name, row] / alone
        for name in gains
        if (name, row) in steps and (alone := steps.get((name, SOLO)))
    ]


def _advice(selected: Mapping[str, Mapping[str, MethodGain]]) -> str:
    """Return a list of the best methods of a kind, and sentences on the cheapest and those that
    hurt.
    """
    common = set.intersection(*(set(by_method) for by_method in selected.values()))
    means = {
        name: statistics.fmean(by_method[name].mean for by_method in selected.values())
        for name in common
    }
    helps = {
        name: sum(by_method[name].sign > 0 for by_method in selected.values()) for name in common
    }
    hurts = {
        name: sum(by_method[name].sign < 0 for by_method in selected.values()) for name in common
    }
    title = {
        name: gain.method for by_method in selected.values() for name, gain in by_method.items()
    }
    best = sorted(means, key=lambda name: -means[name])[:NAMED]
    several = len(selected) > 1
    where = f"of {len(selected)} federations" if several else "here"
    listed = "\n".join(
        f"- {title[name]}: {means[name]:+.1f}, clear in {helps[name]}" for name in best
    )
    texts: list[str] = []
    if any(helps[name] for name in best):
        leader = means[best[0]]
        near = [name for name in best if helps[name] and leader - means[name] <= 1]
        if near:

            def cost(name: str) -> float:
                return statistics.fmean(by_method[name].bytes for by_method in selected.values())

            cheapest = min(near, key=cost)
            texts.append(
                f"Of those within a point of the best that clearly help somewhere,"
                f" {title[cheapest]} is the cheapest ({size(round(cost(cheapest)))} a party)."
            )
    else:
        texts.append("None of them clearly helps anywhere: stay alone.")
    everywhere = [title[name] for name in title if hurts.get(name) == len(selected)]
    if everywhere:
        texts.append(
            f"Clearly worse than SOLO {'in all of them' if several else 'here'}:"
            f" {join_names(everywhere)}."
        )
    return "\n\n".join([f"Best in the mean {where}:", listed, " ".join(texts)])


def _gain_table(
    reproduction: Reproduction, selected: Mapping[str, Mapping[str, MethodGain]]
) -> str:
    """Return the gains of all methods on some federations, the best mean first."""
    titles = {column.name: column.title for column in reproduction.table.columns}
    rows = {}
    for row in reproduction.table.rows:
        of_row = [by_method.get(row.name) for by_method in selected.values()]
        present = [gain.mean for gain in of_row if gain]
        if present:
            texts = [row.title, *(gain.text if gain else "" for gain in of_row)]
            rows[row.name] = (-statistics.fmean(present), texts)
    ordered = [texts for _, texts in sorted(rows.values(), key=lambda entry: entry[0])]
    return numeric_table(["method", *(titles[name] for name in selected)], ordered)


def _certainty(gains: Mapping[str, Mapping[str, MethodGain]]) -> str:
    """Return how many gains are clear, and how many would be by chance."""
    every = [gain for by_method in gains.values() for gain in by_method.values()]
    up, down = (sum(gain.sign == sign for gain in every) for sign in (1, -1))
    return (
        f"Of {len(every)} figures, {up} clearly help and {down} clearly hurt; if no method did"
        f" anything, about {BY_CHANCE * len(every):.0f} of each would come out so by chance. The"
        " best of many is named after looking, so its gain is flattered: trust what several"
        " federations of a kind repeat. Steps of the server and of auxiliary models there are not"
        " among the steps."
    )


def describe_federations(names: Sequence[str]) -> dict[str, Description]:
    """Return the descriptions of federations of the board, under seed 0, from their data.

    Raises DatasetNotFound if data are missing.
    """
    table = papers.table(NAME)
    solo = next(row for row in table.rows if row.name == SOLO)
    described = {}
    for name in names:
        of_run = experiment(table.run_settings(name, solo, "reduced") | {"seed": 0})
        described[name] = describe(prepare(of_run, federation_for(of_run)))
    return described


def main(data: Path) -> None:
    """Write the shipped board from the saved figures."""
    reproduction = read(data)
    described = {federation.name: federation.description for federation in _shipped()}
    names = list(_gains(reproduction))
    described |= describe_federations([name for name in names if name not in described])
    board = board_of(reproduction, {name: described[name] for name in names})
    write_atomically(BOARD, board.to_text())
    print(BOARD)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "docs/results/data/board.json"))
