"""Rows of a table that are the best of several settings: for each seed, the run that is best on
validation samples.

Papers tune a constant and print the best result. Here the choice does not depend on test samples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from comity.errors import UsageError
from comity.measure.conventions import last_tenth
from comity.papers import MethodRow
from comity.papers.reproduce import RunOutcome
from comity.runs.figures import by_round, carry_forward, mean
from comity.runs.folder import RunFolder

Outcomes = Mapping[tuple[str, str], Sequence[RunOutcome]]
"""Finished runs by the names of run and row."""


def validation_score(folder: Path, rounds: int) -> float:
    """Return the criterion of the choice: the unweighted mean validation accuracy of the parties,
    averaged over the last tenth of the run.
    """
    figures = carry_forward(by_round(RunFolder(folder).read_metrics(), "validation"))
    end = last_tenth({t: mean(parties) for t, parties in figures.items()}, rounds)
    if not end:
        raise UsageError(
            f"{folder} has no validation samples to choose by: validation must be more than 0."
        )
    return sum(end) / len(end)


def best_run(candidates: Sequence[RunOutcome]) -> RunOutcome:
    """Return the run that is best on validation samples; of equal ones, the first."""
    return max(candidates, key=lambda run: validation_score(run.folder, run.summary["rounds"]))


def choose_runs(
    rows: Sequence[MethodRow], finished: Outcomes
) -> dict[tuple[str, str], list[RunOutcome]]:
    """Return the best runs of the rows with `best_of`, by the names of run and row.

    There is one run for each seed that all candidates have.
    """
    best_runs: dict[tuple[str, str], list[RunOutcome]] = {}
    for row in rows:
        for run in dict.fromkeys(name for name, _ in finished) if row.best_of else ():
            candidates = [
                {outcome.summary["seed"]: outcome for outcome in finished.get((run, name), ())}
                for name in row.best_of
            ]
            best_runs[run, row.name] = [
                best_run([by_seed[seed] for by_seed in candidates])
                for seed in candidates[0]
                if all(seed in by_seed for by_seed in candidates)
            ]
    return best_runs


def describe_choice(row: MethodRow, best_runs: Sequence[RunOutcome]) -> str:
    """Return a text with the chosen candidate of each seed; a run's folder has its row's name."""
    if not best_runs:
        return f"not all of {', '.join(row.best_of)} were run"
    return "chosen on validation samples: " + ", ".join(
        f"{run.folder.parent.name} (seed {run.summary['seed']})" for run in best_runs
    )
