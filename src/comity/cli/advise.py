"""`comity advise`: which method to use on a federation, or whether to stay alone."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from comity.cli.options import (
    Jobs,
    Out,
    PlainModels,
    Settings,
    app,
    free_folder,
    print_warning,
    resumable,
    with_experiment,
)
from comity.errors import UsageError
from comity.runs.config import experiment

if TYPE_CHECKING:
    from comity.studies.advise.advise import Advice

MOST_PARTIES = 8
"""Of more parties, only those with the largest and smallest gains are printed."""


@app.command()
@with_experiment
def advise(
    settings: Settings,
    methods: Annotated[
        str | None,
        typer.Option(
            "--methods",
            help="methods to try, as in fedavg,ditto or all; default: a dozen usual ones",
            metavar="A,B",
        ),
    ] = None,
    folds: Annotated[
        int, typer.Option("--folds", min=2, help="folds of each party's samples", metavar="K")
    ] = 4,
    margin: Annotated[
        float,
        typer.Option("--margin", help="differences below it do not matter, in points"),
    ] = 1.0,
    max_bytes: Annotated[
        str | None,
        typer.Option(
            "--max-bytes", help="the most that the final run may send, as in 100MB", metavar="SIZE"
        ),
    ] = None,
    budget_time: Annotated[
        str | None,
        typer.Option(
            "--budget-time", help="how long the race may take, as in 10min", metavar="TIME"
        ),
    ] = None,
    max_hurt: Annotated[
        int | None,
        typer.Option(
            "--max-hurt", min=0, help="the most parties that may clearly be hurt", metavar="N"
        ),
    ] = None,
    repeats: Annotated[
        int,
        typer.Option(
            "--repeats",
            min=1,
            help="seeds with which the method that is tested runs on each fold",
            metavar="R",
        ),
    ] = 1,
    prior: Annotated[
        str,
        typer.Option(
            "--prior",
            help="board: let gains on similar federations help to choose who goes on",
            metavar="none|board",
        ),
    ] = "none",
    plain: PlainModels = "auto",
    jobs: Jobs = "1",
    out: Out = None,
    page: Annotated[
        bool, typer.Option("--report/--no-report", help="write advice.html at the end")
    ] = True,
) -> None:
    """Which method to use on these data, or whether to stay alone.

    All methods are tried on one fold of the samples, and the best is tested on the others.
    """
    from comity.cli import screen
    from comity.reporting.advice_page import write_advice_page
    from comity.studies.advise.advise import ADVICE, find_prior
    from comity.studies.advise.advise import advise as find_advice
    from comity.studies.advise.feasible import parse_bytes, parse_time
    from comity.studies.parallel import parse_jobs

    job_count = parse_jobs(jobs)
    if "test" in settings:
        raise UsageError(
            "advise tests on every sample by cross-validation: leave out --test (--folds says into"
            " how many parts)."
        )
    most_bytes = None if max_bytes is None else parse_bytes(max_bytes)
    seconds = None if budget_time is None else parse_time(budget_time)
    base = experiment(settings).but(test=f"folds({folds})")
    folder = out or free_folder(f"advise-{Path(base.data).stem}")
    with resumable(f"the same command and --out {folder}", always=True):
        advice = find_advice(
            base,
            folder,
            screen.progress_of_runs(None, job_count),
            print_warning,
            methods=split_methods(methods),
            jobs=job_count,
            margin=margin,
            plain=plain,
            prior=find_prior(prior),
            max_bytes=most_bytes,
            budget_time=seconds,
            max_hurt=max_hurt,
            repeats=repeats,
            settings=settings,
        )
    show_advice(advice)
    if page:
        screen.out.print(f"The page is in {write_advice_page(advice)}", soft_wrap=True)
    else:
        screen.out.print(f"The advice is in {folder / ADVICE}", soft_wrap=True)


def split_methods(text: str | None) -> list[str] | None:
    """Return the typed methods: separated by commas, except for those in brackets."""
    if text is None:
        return None
    parts, depth = [""], 0
    for letter in text:
        depth += (letter == "(") - (letter == ")")
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    names = [part.strip() for part in parts]
    if not all(names):
        raise UsageError(f"--methods takes names with commas between them, not {text!r}.")
    return names


def show_advice(advice: Advice) -> None:
    """Print the advice on one screen."""
    from comity.cli import screen
    from comity.reporting.advice_page import (
        METHOD_HEADS,
        method_rows,
        own_model_lines,
        party_lines,
    )
    from comity.studies.advise.verdict import BASELINES
    from comity.units import duration

    screen.out.print("Advice", style="bold")
    screen.print_sentence(advice.verdict.sentence)
    screen.table(METHOD_HEADS, method_rows(advice), "The race", wide=(len(METHOD_HEADS) - 1,))
    screen.print_legend(
        f"gain: over {BASELINES[advice.race.baseline]} in points, mean over parties, with half of"
        " its 95% interval: of the method that was tested, on the folds that did not choose it; of"
        f" the others, on the first fold, for all {len(advice.race.arms) - 1} methods together."
        " folds: on which all rounds were run; 1/2: half of the rounds of one."
    )
    for line in [*party_lines(advice, MOST_PARTIES), *own_model_lines(advice, MOST_PARTIES)]:
        screen.print_sentence(line)
    for warning in advice.race.warnings:
        screen.print_sentence(warning)
    screen.out.print(
        f"The race took {advice.race.spent:.1f} runs, where one of each method is"
        f" {len(advice.race.arms)}; {duration(advice.seconds)}.",
        soft_wrap=True,
    )
    if advice.command:
        screen.out.print("Train the final model with:", style="bold")
        screen.out.print(advice.command, soft_wrap=True)
