"""Rows of a table that stand for a choice: for each seed the run, of several settings, that is best
on validation samples.

Papers tune a constant and print the best result. Here no test sample has a say in which that is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from comity.errors import UsageError
from comity.measure.conventions import last_tenth
from comity.papers import MethodRow
from comity.papers.reproduce import Outcome
from comity.runs.figures import by_round, carry_forward, mean
from comity.runs.folder import RunFolder

Done = Mapping[tuple[str, str], Sequence[Outcome]]
"""Finished runs, by the run's and the row's name."""


def goodness(folder: Path, rounds: int) -> float:
    """What a finished run is chosen by: validation accuracy, all parties alike, mean over the run's
    last tenth.
    """
    figures = carry_forward(by_round(RunFolder(folder).read_metrics(), "validation"))
    end = last_tenth({t: mean(parties) for t, parties in figures.items()}, rounds)
    if not end:
        raise UsageError(
            f"{folder} has no validation samples to choose by: validation must be more than 0."
        )
    return sum(end) / len(end)


def best(candidates: Sequence[Outcome]) -> Outcome:
    """The run of one seed that is best on validation samples; of equals, the first."""
    return max(
        candidates, key=lambda one: goodness(one.folder, one.summary["rounds"])
    )  # max keeps the first


def choices(rows: Sequence[MethodRow], done: Done) -> dict[tuple[str, str], list[Outcome]]:
    """What the rows with `best_of` stand for, by the run's and the row's name: a run for each seed
    that all candidates have.
    """
    made: dict[tuple[str, str], list[Outcome]] = {}
    for row in rows:
        for run in dict.fromkeys(name for name, _ in done) if row.best_of else ():
            mine = [
                {one.summary["seed"]: one for one in done.get((run, name), ())}
                for name in row.best_of
            ]
            made[run, row.name] = [
                best([each[seed] for each in mine])
                for seed in mine[0]
                if all(seed in each for each in mine)
            ]
    return made


def told(row: MethodRow, chosen: Sequence[Outcome]) -> str:
    """Which candidate it was, seed by seed; a run's folder is called after its row."""
    if not chosen:
        return f"not all of {', '.join(row.best_of)} were run"
    return "chosen on validation samples: " + ", ".join(
        f"{one.folder.parent.name} (seed {one.summary['seed']})" for one in chosen
    )
