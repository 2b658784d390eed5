"""The command about papers: reproduce."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from comity.cli.options import (
    Jobs,
    Out,
    Report,
    Seeds,
    Track,
    app,
    chosen_seeds,
    resumable,
    trackers,
    write_report,
)
from comity.errors import UsageError, unknown

if TYPE_CHECKING:
    from comity.papers import Scale
    from comity.papers.reproduce import Run
    from comity.papers.reproduction import Reproduction

ScaleOption = Annotated[
    str,
    typer.Option("--scale", help="smoke (a minute), reduced (half an hour) or full (the paper's)"),
]
Name = Annotated[
    str | None,
    typer.Argument(metavar="EXPERIMENT", help="as in dbe/table5, or a FILE.toml of one's own"),
]
Some = Annotated[str | None, typer.Option(help="only these, as in a,b")]


def _scale(text: str) -> Scale:
    """A scale that was typed."""
    from comity import papers

    for known in papers.SCALES:
        if text == known:
            return known
    raise UsageError(f"--scale must be one of {', '.join(papers.SCALES)}, not {text!r}.")


def _some(text: str | None, known: list[str], what: str) -> list[str]:
    """The names of a list that was typed; all of them if none was."""
    if text is None:
        return known
    chosen = [part.strip() for part in text.split(",")]
    for name in chosen:
        if name not in known:
            raise unknown(what, name, known)
    return chosen


@app.command()
def reproduce(
    name: Annotated[
        str | None,
        typer.Argument(metavar="EXPERIMENT", help="as in dbe/table5, or a FILE.toml of one's own"),
    ] = None,
    scale: ScaleOption = "reduced",
    columns: Some = None,
    rows: Some = None,
    seeds: Seeds = None,
    rounds: Annotated[int | None, typer.Option(help="other than the scale's")] = None,
    only_plan: Annotated[
        bool, typer.Option("--plan", help="only say what it will cost here")
    ] = False,
    rewrite: Annotated[
        bool,
        typer.Option("--table", help="only write the pages in docs/results again, from saved runs"),
    ] = False,
    join: Annotated[
        bool,
        typer.Option(
            "--join", help="with --table: add other seeds, rows or columns to what is kept"
        ),
    ] = False,
    jobs: Jobs = "1",
    out: Out = None,
    track: Track = None,
    report: Report = True,
) -> None:
    """A paper's table again: printed beside measured. The same command goes on where it was
    stopped.
    """
    from comity import papers
    from comity.cli import screen
    from comity.papers import pages, reproduce
    from comity.papers.cells import collect
    from comity.papers.reproduction import Reproduction
    from comity.studies.parallel import parse_jobs

    if rewrite:
        _rewrite(name, out, join)
        return
    if join:
        raise UsageError(
            "--join is about the pages: give --table with it, and the folder of what is to be"
            " added."
        )
    if name is None:
        raise UsageError(
            "reproduce needs the name of an experiment, as in dbe/table5: 'comity list experiments'"
            " has them all."
        )
    at_once = parse_jobs(jobs)
    table, at = papers.table(name), _scale(scale)
    every = chosen_seeds(seeds, 0) if seeds else list(range(table.seeds(at)))
    able_columns, able_rows = table.select(at)
    if columns:
        able_columns = list(table.columns)
    wanted = _some(columns, [c.name for c in able_columns], "column called")
    methods = _some(rows, [r.name for r in table.rows], "row called")
    kept = [c for c in table.columns if c.name in wanted]
    lines = table.with_candidates(
        [r for r in (table.rows if rows else able_rows) if r.name in methods]
    )
    changes: dict[str, Any] = {} if rounds is None else {"rounds": rounds}
    runs = reproduce.plan_runs(table, at, every, kept, lines, changes)
    screen.out.print(f"{table.source}: {table.title}", style="bold", soft_wrap=True)
    for run_name, why in dict.fromkeys(
        (run.name, run.why) for run in runs if run.why.startswith("no data")
    ):
        screen.out.print(f"{run_name}: {why}", soft_wrap=True)
    if only_plan or scale == "full":
        _costs(runs, len(every))
    if only_plan:
        return
    if not any(not run.why for run in runs):
        raise UsageError(f"Nothing of {name} can be run here: {runs[0].why}.")
    folder = out or Path("runs") / "reproduce" / Path(name).with_suffix("") / scale
    others = trackers(track, folder)
    with resumable(f"the same command and --out {folder}"):
        watched = screen.several(sum(len(run.experiments) for run in runs if not run.why), at_once)
        done = reproduce.execute(runs, folder, watched, others, at_once)
    spent = reproduce.measure_resources(done)
    asked = {
        "--scale": scale,
        "--columns": columns,
        "--rows": rows,
        "--seeds": seeds,
        "--rounds": rounds,
    }
    words = [
        str(word) for flag, given in asked.items() if given is not None for word in (flag, given)
    ]
    made = Reproduction(
        name,
        at,
        shlex.join(["comity", "reproduce", name, *words]),
        reproduce.code_of(done),
        round(spent.seconds, 1),
        spent.memory,
        changes,
        reproduce.settings_by_row(table, at, runs, changes),
        collect(runs, done, kept, lines),
    )
    _show(made, folder)
    pages.write_reproduction(made, folder)
    if report:
        write_report(folder)


def _show(made: Reproduction, folder: Path) -> None:
    """The table on the screen, and what became of the paper's claims."""
    from comity.cli import screen
    from comity.papers import pages
    from comity.papers.claims import untested, verdicts

    screen.table(pages.HEADS, pages.format_cells(made.cells), words=2)
    found = verdicts(made.table, made.cells, made.as_printed)
    for text in [
        *map(str, found),
        *(f"{claim}: not put to the test" for claim in untested(made.table, found)),
    ]:
        screen.out.print(text, soft_wrap=True)
    screen.out.print(f"{pages.cost(made)}. The table and the runs are in {folder}", soft_wrap=True)


def _rewrite(runs: str | None, out: Path | None, join: bool) -> None:
    """The pages again, from what is kept beside them and from reproductions below a folder."""
    from comity.cli import screen
    from comity.papers import pages

    folder = out or Path("docs") / "results"
    if not (folder / pages.DATA_FOLDER).is_dir():
        raise UsageError(
            f"{folder} has no {pages.DATA_FOLDER}/ that pages could be made of: name another with --out."
        )
    saved = Path(runs) if runs else Path("runs") / "reproduce"
    if runs and not saved.is_dir():
        raise UsageError(
            f"There is no folder {runs}: with --table, name the folder of reproductions, or"
            " nothing."
        )
    for path in pages.rewrite_pages(folder, saved if saved.is_dir() else None, join):
        screen.out.print(f"{path}", soft_wrap=True)


def _costs(runs: Sequence[Run], seeds: int) -> None:
    """What all runs will take here, from one round of each tried with one party."""
    from comity.cli import screen
    from comity.papers import reproduce
    from comity.studies.plan import plan

    rows = []
    total = 0.0
    for run, job in reproduce.prepare_first_seeds(runs):
        made = plan(job)
        seconds = (made.train_seconds + made.evaluate_seconds) * seeds
        total += seconds
        memory = made.data_bytes + made.state_bytes + made.message_bytes
        rows.append(
            [
                run.name,
                run.row.title,
                str(job.experiment.rounds),
                screen.duration(seconds),
                screen.size(memory),
            ]
        )
    screen.table(
        ["data", "method", "rounds", "time", "memory"],
        rows,
        f"What it will cost here, {seeds} seeds",
        words=2,
    )
    screen.out.print(
        f"together about {screen.duration(total)}, scaled from one round of each tried with one"
        " party; memory is beside torch itself"
    )
