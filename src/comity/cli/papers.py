"""The command about papers: reproduce."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from comity.cli.options import Jobs, Out, Report, Seeds, Track, app, chosen_seeds, resumable, trackers, write_report
from comity.errors import Refusal, unknown
from comity.experiments.checkpoint import write_atomically

if TYPE_CHECKING:
    from comity.studies.reproduce import Cell, Run

ScaleOption = Annotated[str, typer.Option("--scale", help="smoke (a minute), reduced (half an hour) or full (the paper's)")]
Some = Annotated[str | None, typer.Option(help="only these, as in a,b")]


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
    name: Annotated[str, typer.Argument(metavar="EXPERIMENT", help="as in dbe/table5, or a FILE.toml of one's own")],
    scale: ScaleOption = "reduced",
    columns: Some = None,
    rows: Some = None,
    seeds: Seeds = None,
    rounds: Annotated[int | None, typer.Option(help="other than the scale's")] = None,
    only_plan: Annotated[bool, typer.Option("--plan", help="only say what it will cost here")] = False,
    jobs: Jobs = "1",
    out: Out = None,
    track: Track = None,
    report: Report = True,
) -> None:
    """A paper's table again: printed beside measured. The same command goes on where it was stopped."""
    from comity import papers
    from comity.cli import screen
    from comity.studies import reproduce
    from comity.studies.side_by_side import chosen_jobs

    at_once = chosen_jobs(jobs)
    if scale not in papers.SCALES:
        raise Refusal(f"--scale must be one of {', '.join(papers.SCALES)}, not {scale!r}.")
    table = papers.table(name)
    every = chosen_seeds(seeds, 0) if seeds else list(range(table.seeds(scale)))
    able_columns, able_rows = table.chosen(scale)
    if columns:
        able_columns = list(table.columns)
    wanted = _some(columns, [c.name for c in able_columns], "column called")
    methods = _some(rows, [r.name for r in table.rows], "row called")
    kept = [c for c in table.columns if c.name in wanted]
    lines = [r for r in (table.rows if rows else able_rows) if r.name in methods]
    changes: dict[str, Any] = {} if rounds is None else {"rounds": rounds}
    runs = reproduce.plan_runs(table, scale, every, kept, lines, changes)
    screen.out.print(f"{table.source}: {table.title}", style="bold", soft_wrap=True)
    for run_name, why in dict.fromkeys((run.name, run.why) for run in runs if run.why.startswith("no data")):
        screen.out.print(f"{run_name}: {why}", soft_wrap=True)
    if only_plan or scale == "full":
        _costs(runs, len(every))
    if only_plan:
        return
    if not any(not run.why for run in runs):
        raise Refusal(f"Nothing of {name} can be run here: {runs[0].why}.")
    folder = out or Path("runs") / "reproduce" / Path(name).with_suffix("") / scale
    others = trackers(track, folder)
    with resumable(f"the same command and --out {folder}"):
        watched = screen.several(sum(len(run.experiments) for run in runs if not run.why), at_once)
        done = reproduce.execute(runs, folder, watched, others, at_once)
    cells = reproduce.collect(runs, done, kept, lines)
    screen.table(reproduce.HEADS, reproduce.lines(cells), words=2)
    told = [str(verdict) for verdict in reproduce.verdicts(table, cells)]
    for text in told:
        screen.out.print(text, soft_wrap=True)
    spent = reproduce.spent(done)
    cost = f"{screen.duration(spent.seconds)} of computing, at most {screen.size(spent.memory)} of memory"
    screen.out.print(f"{cost}. The table and the runs are in {folder}", soft_wrap=True)
    asked = {"--scale": scale, "--columns": columns, "--rows": rows, "--seeds": seeds, "--rounds": rounds}
    words = [str(word) for flag, given in asked.items() if given is not None for word in (flag, given)]
    head = [
        f"# {name}: {table.title}",
        "",
        f"{table.source}. Scale {scale}, seeds {', '.join(map(str, every))}; {cost}.",
        "",
        f"`{shlex.join(['comity', 'reproduce', name, *words])}`, run at {reproduce.code_of(done)}.",
        "",
        table.notes,
        "",
    ]
    _write(folder, head, reproduce.settings_of(runs), cells, told)
    if report:
        write_report(folder)


def _write(folder: Path, head: list[str], settings: list[str], cells: Sequence[Cell], told: list[str]) -> None:
    """The table beside the runs: a page for people, and the same for programs."""
    from comity.studies import reproduce

    page = [*head, "Settings of each run:", "", *(f"- {text}" for text in settings), "", reproduce.markdown(cells)]
    page += [*(f"- {text}" for text in told), ""]
    write_atomically(folder / "table.md", "\n".join(page))
    write_atomically(folder / "table.txt", "\n".join("\t".join(row) for row in [reproduce.HEADS, *reproduce.lines(cells)]) + "\n")
    reproduce.write_csv(folder / "table.csv", cells)


def _costs(runs: Sequence[Run], seeds: int) -> None:
    """What all runs will take here, from one round of each tried with one party."""
    from comity.cli import screen
    from comity.studies import reproduce
    from comity.studies.plan import plan

    rows = []
    total = 0.0
    for run, job in reproduce.jobs(runs):
        made = plan(job)
        seconds = (made.train_seconds + made.evaluate_seconds) * seeds
        total += seconds
        memory = made.data_bytes + made.state_bytes + made.message_bytes
        rows.append([run.name, run.row.title, str(job.experiment.rounds), screen.duration(seconds), screen.size(memory)])
    screen.table(["data", "method", "rounds", "time", "memory"], rows, f"What it will cost here, {seeds} seeds", words=2)
    screen.out.print(
        f"together about {screen.duration(total)}, scaled from one round of each tried with one party; "
        "memory is beside torch itself"
    )
