"""`comity watch`: a run, or a folder of runs, on the screen as it goes on. Watching reads only;
runs do not notice it.
"""

from __future__ import annotations

import shlex
import signal
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from comity.cli import text_plot
from comity.cli.screen import in_full, out
from comity.cli.tail import Followed, Runs
from comity.errors import UsageError
from comity.names import display_name
from comity.runs.folder import RunFolder
from comity.text import escape_terminal
from comity.units import duration, size

EVERY = 1.0  # seconds from look to look
OTHERS = 58  # columns of the screen that a line has beside the run's name
COLOURS = {"running": "green", "finished": "bold", "stopped": "yellow"}


def once(root: Path) -> None:
    """What there is now."""
    runs = Runs(root).look()
    if not runs:
        raise UsageError(f"{root} holds no run, nor does any folder in it.")
    for part in view(runs, root, out):
        if isinstance(part, Table):
            in_full(part)
        else:
            out.print(part, soft_wrap=True)


def live(root: Path) -> None:
    """Look again and again: until a run that is watched by itself has ended, or until Ctrl-C."""
    if root.exists() and not root.is_dir():
        raise UsageError(f"{root} is not a folder.")
    with Live(console=out, auto_refresh=False) as shown:
        try:
            _follow(Runs(root), shown)
        except KeyboardInterrupt:
            signal.signal(
                signal.SIGINT, signal.SIG_IGN
            )  # a second one must not disturb the tidying up


def _follow(known: Runs, shown: Live) -> None:
    while True:
        runs = known.look()
        waiting = [_line(f"Waiting for a run in {known.root} ...")]
        shown.update(
            Group(
                *(view(runs, known.root, shown.console, shown.console.height) if runs else waiting)
            ),
            refresh=True,
        )
        if [run.folder for run in runs] == [known.root] and runs[0].state == "finished":
            return
        time.sleep(EVERY)


def view(
    runs: Sequence[Followed], root: Path, console: Console, tall: int | None = None
) -> list[RenderableType]:
    """All that is to be seen, from top to bottom, in `tall` lines if that is given."""
    if [run.folder for run in runs] == [root]:
        (run,) = runs
        run.look()
        return [
            *about(run),
            *text_plot.on(
                console,
                {display_name(run.settings.get("algorithm", "")): run.line},
                run.rounds,
                title=_title(runs),
            ),
        ]
    for run in runs:
        run.look(tables=False)
    drawn = sorted(runs, key=lambda run: (run.state != "running", -_changed(run)))[
        : len(text_plot.COLOURS)
    ]
    for run in drawn:
        run.look()
    names = {run.folder: escape_terminal(str(run.folder.relative_to(root))) for run in runs}
    if tall is not None:  # the end of a long name tells more than its beginning
        room = max(16, console.width - OTHERS)
        names = {
            folder: name if len(name) <= room else f"…{name[1 - room :]}"
            for folder, name in names.items()
        }
    lines = {names[run.folder]: run.line for run in runs if run in drawn}
    picture = text_plot.on(console, lines, max(run.rounds for run in drawn), title=_title(drawn))
    busy = [part for run in runs if run.state == "running" for part in about(run)]
    stopped = [
        _line(f"stopped; go on with: {resume(run)}") for run in runs if run.state == "stopped"
    ]
    below = [*busy, *(stopped if tall is None else stopped[:3]), *picture]
    return [overview(runs, names, None if tall is None else tall - len(below) - 3), *below]


def _line(words: str, style: str = "") -> Text:
    """A line of text, which may hold names."""
    return Text(escape_terminal(words), style)


def _heading(runs: Sequence[Followed]) -> str:
    """What the runs are judged by, in a word."""
    titles = {run.metric.title for run in runs}
    return titles.pop() if len(titles) == 1 else "own metric"


def _title(runs: Sequence[Followed]) -> str:
    return f"mean {_heading(runs)}"


def about(run: Followed) -> list[Text]:
    """One run in a few lines."""
    told = run.settings
    what = (
        f"{display_name(str(told.get('algorithm')))} on {told.get('data')},"
        f" {told.get('partition')}, {told.get('parties')} parties, "
    )
    made = [_line(f"{what}seed {told.get('seed')}", "bold"), _state(run), *_damage(run)]
    if line := run.line:
        now = max(line)
        sign = run.metric.sign
        best = max(line, key=lambda t: (sign * line[t], -t))
        most = "highest" if run.metric.higher else "lowest"
        figures = run.party_figures
        now_and_then = (
            f"{line[now]:.1%} after round {now}; the {most} was {line[best]:.1%} after round {best}"
        )
        made.append(_line(f"{run.metric.title} {now_and_then}"))
        if figures:
            low = min(figures, key=lambda party: sign * figures[party])
            high = max(figures, key=lambda party: sign * figures[party])
            made.append(
                _line(
                    f"worst party {low} {figures[low]:.1%}, best party {high} {figures[high]:.1%}"
                )
            )
    sent = ", ".join(f"{kind} {size(run.bytes[kind])}" for kind in ("up", "down", "peer"))
    made.append(_line(f"{sent}; peak memory {size(run.memory)}" if run.memory else sent))
    return made


def _state(run: Followed) -> Text:
    where = f"round {max(0, min(run.done, run.rounds))} of {run.rounds}"
    each = f", {seconds:.3g} s a round" if (seconds := run.seconds_a_round) is not None else ""
    left = f", {duration(run.left)} left" if run.left is not None else ""
    if run.summary:
        where = f"{run.rounds} rounds in {duration(run.summary['seconds']['total'])}"
    elif run.state == "stopped":
        left = f"; go on with: {resume(run)}"
    return Text.assemble((run.state, COLOURS[run.state]), escape_terminal(f": {where}{each}{left}"))


def _damage(run: Followed) -> list[Text]:
    """A warning, if files are not what the run wrote."""
    return (
        [Text(f"damaged: {', '.join(run.damaged)} (not what the run wrote)", "red")]
        if run.damaged
        else []
    )


def resume(run: Followed) -> str:
    """The command that goes on with a run."""
    return f"comity resume {shlex.quote(str(run.folder))}"


def overview(
    runs: Sequence[Followed], names: dict[Path, str], rows: int | None = None
) -> RenderableType:
    """A line a run, in at most so many `rows`: what goes on comes before what has ended."""
    table = Table(header_style="bold", pad_edge=False, box=None)
    for k, column in enumerate(
        ("run", "state", "round", _heading(runs), "worst", "sent", "a round")
    ):
        table.add_column(column, justify="left" if k < 2 else "right", no_wrap=True)
    shown = (
        sorted(runs, key=lambda run: run.state == "finished")
        if rows is not None and len(runs) > rows
        else list(runs)
    )
    shown = shown if rows is None else shown[: max(rows, 1)]
    for run in runs:
        if run in shown:
            table.add_row(names[run.folder], *_figures(run))
    return (
        table
        if len(shown) == len(runs)
        else Group(table, Text(f"and {len(runs) - len(shown)} more"))
    )


def _figures(run: Followed) -> list[str]:
    """The cells of a run's line in the overview."""
    mean: float | None = None
    worst: float | None = None
    if run.summary:
        block = run.summary.get(run.metric.name) or {}
        mean = block.get("mean")
        worst = None if mean is None else block["per_party"][block["worst_party"]]
        sent = run.summary["bytes"]["total"]
        done = run.rounds
        each = run.summary["seconds"]["total"] / max(1, run.rounds)
    else:
        if line := run.line:
            mean = line[max(line)]
            worst = min(
                run.party_figures.values(),
                key=lambda figure: run.metric.sign * figure,
                default=None,
            )
        sent = sum(n for kind, n in run.bytes.items() if kind != "eval")
        done = run.done
        each = run.seconds_a_round
    state = (
        f"{duration(run.left)} left"
        if run.left is not None
        else "damaged"
        if run.damaged
        else run.state
    )
    percent = ["" if value is None else f"{value:.1%}" for value in (mean, worst)]
    return [
        state,
        f"{max(0, min(done, run.rounds))}/{run.rounds}",
        *percent,
        size(sent),
        "" if each is None else f"{each:.3g} s",
    ]


def _changed(run: Followed) -> float:
    try:
        return RunFolder(run.folder).timing.stat().st_mtime
    except OSError:
        return 0.0
