"""The display of `comity watch`: running or finished runs. It only reads their files."""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from comity.charts.curves import Curves
from comity.cli import text_plot
from comity.cli.run_monitor import FolderMonitor, RunMonitor
from comity.cli.screen import out, print_full_width
from comity.errors import UsageError
from comity.names import display_name
from comity.runs.folder import RunFolder
from comity.text import escape_terminal, shell_line
from comity.units import duration, size

INTERVAL = 1.0  # seconds between updates
OTHER_COLUMNS = 58  # characters of a line beside the name of the run
COLOURS = {"running": "green", "finished": "bold", "stopped": "yellow"}


def once(root: Path) -> None:
    """Print the present state of the runs."""
    runs = FolderMonitor(root).find_runs()
    if not runs:
        raise UsageError(f"{root} holds no run, nor does any folder in it.")
    for part in view(runs, root, out):
        if isinstance(part, Table):
            print_full_width(part)
        else:
            out.print(part, soft_wrap=True)


def live(root: Path) -> None:
    """Update the display until Ctrl-C, or until the run has ended if `root` is a single run."""
    if root.exists() and not root.is_dir():
        raise UsageError(f"{root} is not a folder.")
    with Live(console=out, auto_refresh=False) as display:
        try:
            _follow(FolderMonitor(root), display)
        except KeyboardInterrupt:
            # A second Ctrl-C must not interrupt the cleanup.
            signal.signal(signal.SIGINT, signal.SIG_IGN)


def _follow(monitor: FolderMonitor, display: Live) -> None:
    root = monitor.root
    while True:
        runs = monitor.find_runs()
        if runs:
            parts = view(runs, root, display.console, display.console.height)
        else:
            parts = [_line(f"Waiting for a run in {root} ...")]
        display.update(Group(*parts), refresh=True)
        if [run.folder for run in runs] == [root] and runs[0].state == "finished":
            return
        time.sleep(INTERVAL)


def view(
    runs: Sequence[RunMonitor], root: Path, console: Console, max_lines: int | None = None
) -> list[RenderableType]:
    """Return the parts of the display from top to bottom, in at most `max_lines` lines."""
    if [run.folder for run in runs] == [root]:
        (run,) = runs
        run.update()
        lines = {display_name(run.settings.get("algorithm", "")): run.curve}
        chart = text_plot.plot_for(console, Curves(_chart_title(runs), lines, run.rounds))
        return [*describe_run(run), *chart]
    for run in runs:
        run.update(tables=False)
    by_activity = sorted(runs, key=lambda run: (run.state != "running", -_last_change(run)))
    plotted = by_activity[: len(text_plot.COLOURS)]
    for run in plotted:
        run.update()
    names = {run.folder: escape_terminal(str(run.folder.relative_to(root))) for run in runs}
    if max_lines is not None:  # the end of a long name says more than its beginning
        name_width = max(16, console.width - OTHER_COLUMNS)
        names = {
            folder: name if len(name) <= name_width else f"…{name[1 - name_width :]}"
            for folder, name in names.items()
        }
    lines = {names[run.folder]: run.curve for run in runs if run in plotted}
    rounds = max(run.rounds for run in plotted)
    chart = text_plot.plot_for(console, Curves(_chart_title(plotted), lines, rounds))
    running = [line for run in runs if run.state == "running" for line in describe_run(run)]
    resume_lines = [
        _line(f"stopped; resume with: {resume_command(run)}")
        for run in runs
        if run.state == "stopped"
    ]
    below = [*running, *(resume_lines if max_lines is None else resume_lines[:3]), *chart]
    rows = None if max_lines is None else max_lines - len(below) - 3
    return [overview(runs, names, rows), *below]


def _line(text: str, style: str = "") -> Text:
    """Return a line of text that may contain names."""
    return Text(escape_terminal(text), style)


def _metric_title(runs: Sequence[RunMonitor]) -> str:
    """Return the metric of the runs, or "own metric" if they have different metrics."""
    titles = {run.metric.title for run in runs}
    return titles.pop() if len(titles) == 1 else "own metric"


def _chart_title(runs: Sequence[RunMonitor]) -> str:
    return f"mean {_metric_title(runs)}"


def describe_run(run: RunMonitor) -> list[Text]:
    """Return a few lines about one run."""
    settings = run.settings
    experiment = (
        f"{display_name(str(settings.get('algorithm')))} on {settings.get('data')},"
        f" {settings.get('partition')}, {settings.get('parties')} parties,"
        f" seed {settings.get('seed')}"
    )
    lines = [_line(experiment, "bold"), _state(run), *_damage(run)]
    if curve := run.curve:
        last = max(curve)
        sign = run.metric.sign
        best = max(curve, key=lambda t: (sign * curve[t], -t))
        extreme = "highest" if run.metric.higher else "lowest"
        lines.append(
            _line(
                f"{run.metric.title} {curve[last]:.1%} after round {last}; the {extreme} was"
                f" {curve[best]:.1%} after round {best}"
            )
        )
        if figures := run.party_figures:
            low = min(figures, key=lambda party: sign * figures[party])
            high = max(figures, key=lambda party: sign * figures[party])
            lines.append(
                _line(
                    f"worst party {low} {figures[low]:.1%}, best party {high} {figures[high]:.1%}"
                )
            )
    traffic = ", ".join(f"{kind} {size(run.bytes[kind])}" for kind in ("up", "down", "peer"))
    lines.append(_line(f"{traffic}; peak memory {size(run.memory)}" if run.memory else traffic))
    return lines


def _state(run: RunMonitor) -> Text:
    """Return a line with the state of a run, its round and its remaining time."""
    progress = f"round {max(0, min(run.last_round, run.rounds))} of {run.rounds}"
    seconds = run.seconds_per_round
    speed = f", {seconds:.3g} s per round" if seconds is not None else ""
    rest = f", {duration(run.seconds_left)} left" if run.seconds_left is not None else ""
    if run.summary:
        progress = f"{run.rounds} rounds in {duration(run.summary['seconds']['total'])}"
    elif run.state == "stopped":
        rest = f"; resume with: {resume_command(run)}"
    details = escape_terminal(f": {progress}{speed}{rest}")
    return Text.assemble((run.state, COLOURS[run.state]), details)


def _damage(run: RunMonitor) -> list[Text]:
    """Return a warning if files differ from what the run wrote."""
    if not run.damaged:
        return []
    return [Text(f"damaged: {', '.join(run.damaged)} (not what the run wrote)", "red")]


def resume_command(run: RunMonitor) -> str:
    """Return the command that resumes a run."""
    return shell_line("comity", "resume", run.folder)


def overview(
    runs: Sequence[RunMonitor], names: dict[Path, str], rows: int | None = None
) -> RenderableType:
    """Return a table with one line per run, in at most `rows` lines, unfinished runs preferred."""
    table = Table(header_style="bold", pad_edge=False, box=None)
    for k, column in enumerate(
        ("run", "state", "round", _metric_title(runs), "worst", "sent", "per round")
    ):
        table.add_column(column, justify="left" if k < 2 else "right", no_wrap=True)
    listed = list(runs)
    if rows is not None and len(runs) > rows:
        listed = sorted(runs, key=lambda run: run.state == "finished")[: max(rows, 1)]
    for run in runs:
        if run in listed:
            table.add_row(names[run.folder], *_cells(run))
    if len(listed) == len(runs):
        return table
    return Group(table, Text(f"and {len(runs) - len(listed)} more"))


def _cells(run: RunMonitor) -> list[str]:
    """Return the cells of a run in the overview, after its name."""
    mean: float | None = None
    worst: float | None = None
    if run.summary:
        block = run.summary.get(run.metric.name) or {}
        mean = block.get("mean")
        worst = None if mean is None else block["per_party"][block["worst_party"]]
        traffic = run.summary["bytes"]["total"]
        last_round = run.rounds
        seconds = run.summary["seconds"]["total"] / max(1, run.rounds)
    else:
        if curve := run.curve:
            mean = curve[max(curve)]
            worst = min(
                run.party_figures.values(),
                key=lambda figure: run.metric.sign * figure,
                default=None,
            )
        traffic = sum(n for kind, n in run.bytes.items() if kind != "eval")
        last_round = run.last_round
        seconds = run.seconds_per_round
    if run.seconds_left is not None:
        state = f"{duration(run.seconds_left)} left"
    else:
        state = "damaged" if run.damaged else run.state
    percent = ["" if value is None else f"{value:.1%}" for value in (mean, worst)]
    return [
        state,
        f"{max(0, min(last_round, run.rounds))}/{run.rounds}",
        *percent,
        size(traffic),
        "" if seconds is None else f"{seconds:.3g} s",
    ]


def _last_change(run: RunMonitor) -> float:
    """Return when a run last completed a round; 0 if that is unknown."""
    try:
        return RunFolder(run.folder).timing.stat().st_mtime
    except OSError:
        return 0.0
