"""The command `comity reproduce`."""

from __future__ import annotations

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
    print_warning,
    resumable,
    trackers,
    write_report,
)
from comity.errors import UsageError, unknown
from comity.text import shell_line

if TYPE_CHECKING:
    from comity.papers import PaperTable, Scale
    from comity.papers.reproduce import Run
    from comity.papers.reproduction import Reproduction

ScaleOption = Annotated[
    str,
    typer.Option(
        "--scale", help="smoke (a minute), reduced (half an hour) or full (as in the paper)"
    ),
]
Some = Annotated[str | None, typer.Option(help="only these, as in a,b")]


def _parse_scale(text: str) -> Scale:
    """Return the typed scale."""
    from comity import papers

    for scale in papers.SCALES:
        if text == scale:
            return scale
    raise UsageError(f"--scale must be one of {', '.join(papers.SCALES)}, not {text!r}.")


def _select_names(text: str | None, names: list[str], what: str) -> list[str]:
    """Return the typed names, or all names if none were typed."""
    if text is None:
        return names
    selection = [part.strip() for part in text.split(",")]
    for name in selection:
        if name not in names:
            raise unknown(what, name, names)
    return selection


@app.command()
def reproduce(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="EXPERIMENT", help="experiment, as in dbe/table5, or your own FILE.toml"
        ),
    ] = None,
    scale: ScaleOption = "reduced",
    columns: Some = None,
    rows: Some = None,
    seeds: Seeds = None,
    rounds: Annotated[
        int | None, typer.Option(help="number of rounds; default: that of the scale")
    ] = None,
    only_plan: Annotated[
        bool, typer.Option("--plan", help="only estimate the cost on this machine")
    ] = False,
    rewrite: Annotated[
        bool,
        typer.Option("--table", help="only rewrite the pages in docs/results from saved runs"),
    ] = False,
    join: Annotated[
        bool,
        typer.Option(
            "--join", help="with --table: add new seeds, rows or columns to the saved results"
        ),
    ] = False,
    jobs: Jobs = "1",
    out: Out = None,
    track: Track = None,
    report: Report = True,
) -> None:
    """Reproduce a table of a paper: the printed figures next to the measured ones.

    The same command resumes an interrupted reproduction.
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
        raise UsageError("--join needs --table, and the folder of the results to be added.")
    if name is None:
        raise UsageError(
            "Name an experiment, as in dbe/table5: 'comity list experiments' lists them all."
        )
    job_count = parse_jobs(jobs)
    table, chosen_scale = papers.table(name), _parse_scale(scale)
    seed_list = chosen_seeds(seeds, 0) if seeds else list(range(table.seeds(chosen_scale)))
    scale_columns, scale_rows = table.select(chosen_scale)
    if columns:
        scale_columns = list(table.columns)
    column_names = _select_names(columns, [c.name for c in scale_columns], "column called")
    row_names = _select_names(rows, [r.name for r in table.rows], "row called")
    selected_columns = [c for c in table.columns if c.name in column_names]
    selected_rows = table.with_candidates(
        [r for r in (table.rows if rows else scale_rows) if r.name in row_names]
    )
    changes: dict[str, Any] = {} if rounds is None else {"rounds": rounds}
    runs = reproduce.plan_runs(
        table, chosen_scale, seed_list, selected_columns, selected_rows, changes
    )
    _show_setting(table, runs)
    if only_plan or scale == "full":
        _show_costs(runs, len(seed_list))
    if only_plan:
        return
    if not any(not run.why for run in runs):
        raise UsageError(f"Nothing of {name} can be run here: {runs[0].why}.")
    folder = out or Path("runs") / "reproduce" / Path(name).with_suffix("") / scale
    run_trackers = trackers(track, folder)
    with resumable(f"the same command and {shell_line('--out', folder)}", always=True):
        run_count = sum(len(run.experiments) for run in runs if not run.why)
        progress = screen.progress_of_runs(run_count, job_count)
        results = reproduce.execute(runs, folder, progress, run_trackers, job_count)
    cost = reproduce.measure_resources(results)
    options = {
        "--scale": scale,
        "--columns": columns,
        "--rows": rows,
        "--seeds": seeds,
        "--rounds": rounds,
    }
    words = [word for flag, value in options.items() if value is not None for word in (flag, value)]
    reproduction = Reproduction(
        name,
        chosen_scale,
        shell_line("comity", "reproduce", name, *words),
        reproduce.code_of(results),
        round(cost.seconds, 1),
        cost.memory,
        changes,
        reproduce.settings_by_row(table, chosen_scale, runs, changes),
        collect(runs, results, selected_columns, selected_rows),
        reproduce.processors_of(results),
    )
    _show_table(reproduction, folder)
    pages.write_reproduction(reproduction, folder)
    if report:
        write_report(folder)


def _show_setting(table: PaperTable, runs: Sequence[Run]) -> None:
    """Print what is run, where its constants come from, and which data are missing."""
    from comity.cli import screen
    from comity.papers import pages

    screen.out.print(f"{table.source}: {table.title}", style="bold", soft_wrap=True)
    for line in pages.describe_constants(table):
        screen.out.print(line, soft_wrap=True)
    for run_name, why in dict.fromkeys(
        (run.name, run.why) for run in runs if run.why.startswith("no data")
    ):
        screen.out.print(f"{run_name}: {why}", soft_wrap=True)


def _show_table(reproduction: Reproduction, folder: Path) -> None:
    """Print the table and the verdicts on the paper's claims."""
    from comity.cli import screen
    from comity.papers import pages
    from comity.papers.claims import untested, verdicts

    table, cells = reproduction.table, reproduction.cells
    screen.table(pages.HEADS, pages.format_cells(cells), words=2)
    claim_verdicts = verdicts(table, cells, reproduction.as_printed)
    for verdict in claim_verdicts:
        screen.out.print(str(verdict), soft_wrap=True)
    for claim in untested(table, claim_verdicts):
        screen.out.print(f"{claim}: not tested", soft_wrap=True)
    if reproduction.scale == "smoke":
        print_warning(
            "These figures are those of --scale smoke: a little of the data and few rounds, to see"
            " that everything runs. They say nothing about the paper: use --scale reduced or full."
        )
    screen.out.print(
        f"{pages.cost(reproduction)}. The table and the runs are in {folder}", soft_wrap=True
    )


def _rewrite(runs: str | None, out: Path | None, join: bool) -> None:
    """Rewrite the pages from the results saved next to them, and from reproductions in a folder."""
    from comity.cli import screen
    from comity.papers import pages

    folder = out or Path("docs") / "results"
    if not (folder / pages.DATA_FOLDER).is_dir():
        raise UsageError(
            f"{folder} has no folder {pages.DATA_FOLDER} with saved results: choose another with"
            " --out."
        )
    saved = Path(runs) if runs else Path("runs") / "reproduce"
    if runs and not saved.is_dir():
        raise UsageError(
            f"There is no folder {runs}: --table takes the folder of reproductions, or nothing."
        )
    for path in pages.rewrite_pages(folder, saved if saved.is_dir() else None, join):
        screen.out.print(f"{path}", soft_wrap=True)


def _show_costs(runs: Sequence[Run], seeds: int) -> None:
    """Print the cost of all runs, extrapolated from one round of one party in each."""
    from comity.cli import screen
    from comity.papers import reproduce
    from comity.studies.plan import plan

    rows = []
    total = 0.0
    for run, job in reproduce.prepare_first_seeds(runs):
        costs = plan(job)
        seconds = (costs.train_seconds + costs.evaluate_seconds) * seeds
        total += seconds
        memory = costs.data_bytes + costs.state_bytes + costs.message_bytes
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
        f"Estimated cost on this machine, {seeds} seeds",
        words=2,
    )
    screen.out.print(
        f"in total about {screen.duration(total)}, extrapolated from one round of one party in each"
        " run; memory is in addition to torch"
    )
