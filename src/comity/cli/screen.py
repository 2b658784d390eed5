"""Output on the terminal: progress while runs go on, and tables when they have ended.

Everything is printed through `out` and `err`, which escape control characters, or is escaped with
`escape_terminal`.
"""

from __future__ import annotations

import contextlib
import math
import sys
import textwrap
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from rich.cells import cell_len
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.style import Style
from rich.table import Table
from rich.text import Text

from comity.charts.curves import Curves
from comity.cli import text_plot
from comity.measure import conventions
from comity.metrics.metrics import METRICS, Metric
from comity.runs.folder import RunFolder
from comity.runs.server_run import ServerRun
from comity.text import RunNumbers, escape_terminal
from comity.units import duration as duration  # noqa: PLC0414
from comity.units import size as size  # noqa: PLC0414
from comity.wire.ledger import Ledger


class Screen(Console):
    """A console that prints every string as plain text, without markup or escape codes.

    With `soft_wrap`, a sentence is one line if stdout is not a terminal. On a terminal it is
    wrapped between words, never inside a word.
    """

    def print(self, *objects: Any, soft_wrap: bool | None = None, **options: Any) -> None:
        """Print objects above the live display, if there is one."""
        if self.stderr or not ParallelDisplay.active:
            self._print(*objects, soft_wrap=soft_wrap, **options)
        else:
            with ParallelDisplay.active.paused():
                self._print(*objects, soft_wrap=soft_wrap, **options)

    def _print(self, *objects: Any, soft_wrap: bool | None, **options: Any) -> None:
        if soft_wrap and self.is_terminal and len(objects) == 1 and isinstance(objects[0], str):
            for line in textwrap.wrap(
                escape_terminal(objects[0]),
                self.width,
                break_long_words=False,
                break_on_hyphens=False,
            ):
                super().print(line, soft_wrap=True, **options)
        else:
            super().print(*objects, soft_wrap=soft_wrap, **options)

    def render_str(self, text: str, *, style: str | Style = "", **options: Any) -> Text:
        """Render a string as plain text."""
        plain = {"markup": False, "emoji": False, "highlight": False}
        return super().render_str(escape_terminal(text), style=style, **options | plain)


out = Screen()
err = Screen(stderr=True)


def traffic(ledger: Ledger) -> int:
    """Return the bytes so far, without those of evaluation."""
    return sum(n for kind, n in ledger.total.items() if kind != "eval")


def _percent(figure: float) -> str:
    return f"{figure:.1%}" if math.isfinite(figure) else "diverged"


class Bar:
    """A progress bar on a terminal, with round, parties, metric, bytes and time left."""

    def __init__(self, title: str, width: int = 14) -> None:
        self._title = escape_terminal(title).ljust(width)

    def begin(self, job: ServerRun, first_round: int) -> None:
        """Show the bar."""
        self._cohort_size = len(job.cohort(1))
        self._answer_count = 0
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            TextColumn("round {task.completed}/{task.total}"),
            TextColumn("parties {task.fields[parties]}"),
            TextColumn(f"{METRICS[job.experiment.metric].title} {{task.fields[figure]}}"),
            TextColumn("{task.fields[bytes]}"),
            TimeRemainingColumn(),
            console=err,
            transient=True,
        )
        self._progress.start()
        self._task = self._progress.add_task(
            self._title,
            total=job.experiment.rounds,
            completed=first_round,
            parties="",
            figure="...",
            bytes="",
        )

    def add_replies(self, count: int) -> None:
        """Count parties that have answered."""
        self._answer_count += count
        if hasattr(self, "_task"):
            answers = min(self._answer_count, self._cohort_size)
            self._progress.update(self._task, parties=f"{answers}/{self._cohort_size}")

    def round(self, t: int, figure: float | None, ledger: Ledger) -> None:
        """Show a finished round."""
        self._answer_count = 0
        if figure is not None:
            self._progress.update(self._task, figure=_percent(figure))
        self._progress.update(self._task, completed=t, bytes=size(traffic(ledger)))

    def end(self) -> None:
        """Remove the bar."""
        if hasattr(self, "_progress"):
            self._progress.stop()


class Lines:
    """Progress as plain lines, if there is no terminal: one every few seconds, and the last."""

    interval = 2.0

    def __init__(self, title: str) -> None:
        self._title = title

    def begin(self, job: ServerRun, first_round: int) -> None:
        """Start measuring the time."""
        self._rounds = job.experiment.rounds
        self._first_round = first_round
        self._metric_title = METRICS[job.experiment.metric].title
        self._figure = "..."
        self._start_time = time.monotonic()
        self._last_line = self._start_time

    def add_replies(self, count: int) -> None:
        """Do nothing: lines are printed per round."""

    def round(self, t: int, figure: float | None, ledger: Ledger) -> None:
        """Print a line if the last one is old enough, or if this is the last round."""
        now = time.monotonic()
        self._figure = self._figure if figure is None else _percent(figure)
        if t < self._rounds and now - self._last_line < self.interval:
            return
        self._last_line = now
        seconds_per_round = (now - self._start_time) / max(t - self._first_round, 1)
        seconds_left = seconds_per_round * (self._rounds - t)
        line = (
            f"{self._title}  round {t}/{self._rounds}  {self._metric_title} {self._figure} "
            f" {size(traffic(ledger))}  {duration(seconds_left)} left"
        )
        print(escape_terminal(line), file=sys.stderr, flush=True)

    def end(self) -> None:
        """Do nothing: lines stay."""


def progress(title: str) -> Bar | Lines:
    """Return a progress bar on a terminal, and progress as lines elsewhere."""
    return Bar(title) if err.is_terminal else Lines(title)


class _RunCounter:
    """Counts the finished runs among several parallel runs, and estimates the time left.

    `total` is the number of runs, or None if it is not known beforehand.
    """

    def __init__(self, total: int | None) -> None:
        self._total = total
        self._finished: set[str] = set()
        self._seconds_left: float | None = None

    def finish(self, title: str) -> None:
        """Count a finished run. The same title counts once."""
        self._finished.add(title)

    def overview(self, rest: int, seconds_left: float | None) -> None:
        """Set the time left.

        Args:
            rest: number of unfinished runs that have been scheduled
            seconds_left: until these have finished; ignored if more runs are to be scheduled
        """
        all_scheduled = self._total is None or len(self._finished) + rest >= self._total
        self._seconds_left = seconds_left if all_scheduled else None

    def __str__(self) -> str:
        if self._total is None:
            return f"{len(self._finished)} done"
        text = f"{len(self._finished)}/{self._total} done"
        if self._seconds_left is None or len(self._finished) >= self._total:
            return text
        return f"{text}, {duration(self._seconds_left)} left"


class ParallelLines(_RunCounter):
    """Progress of parallel runs as plain lines, with one more line whenever a run has finished."""

    def __init__(self, total: int | None) -> None:
        super().__init__(total)
        self._numbered = RunNumbers(total)

    def __call__(self, title: str) -> Lines:
        """Return the progress of one run."""
        return _ParallelRunLines(self._numbered(title), self, title)

    def finish(self, title: str) -> None:
        """Count a finished run, and print how many have finished."""
        if title not in self._finished:
            super().finish(title)
            print(escape_terminal(str(self)), file=sys.stderr, flush=True)


class _ParallelRunLines(Lines):
    """Progress of one of several parallel runs as plain lines."""

    def __init__(self, numbered_title: str, counter: ParallelLines, title: str) -> None:
        super().__init__(numbered_title)
        self._counter, self._run_title = counter, title

    def end(self) -> None:
        """Count the run as finished."""
        self._counter.finish(self._run_title)


class ParallelDisplay(_RunCounter):
    """Progress of parallel runs on a terminal: a line for all runs, and one for each active run.

    It is drawn only when a run reports something. A thread that draws by itself would be unsafe in
    a process that forks.
    """

    interval = 0.1  # seconds between drawings
    active: ClassVar[ParallelDisplay | None] = None

    def __init__(self, total: int | None) -> None:
        super().__init__(total)
        self.rows = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[state]}", markup=False),
            console=err,
            transient=True,
            auto_refresh=False,
        )
        self._all_runs = self.rows.add_task("all runs", total=total, state="")
        self._last_drawing = 0.0

    def __call__(self, title: str) -> _Row:
        """Return the progress of one run."""
        return _Row(self, title)

    def overview(self, rest: int, seconds_left: float | None) -> None:
        """Set the time left, and draw."""
        super().overview(rest, seconds_left)
        self.draw()

    def finish(self, title: str) -> None:
        """Count a finished run, and remove the display if no run is active."""
        super().finish(title)
        if len(self.rows.tasks) == 1:
            self.rows.stop()
            ParallelDisplay.active = None
        else:
            self.draw(force=True)

    def draw(self, force: bool = False) -> None:
        """Draw the display, if the last drawing is old enough or `force` is set."""
        now = time.monotonic()
        if len(self.rows.tasks) > 1 and (force or now - self._last_drawing >= self.interval):
            self._last_drawing = now
            active_runs = sum(task.percentage / 100 for task in self.rows.tasks[1:])
            completed = len(self._finished) + active_runs
            self.rows.update(self._all_runs, completed=completed, state=str(self))
            ParallelDisplay.active = self
            self.rows.start()
            self.rows.refresh()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Remove the display while something else is printed."""
        self.rows.stop()
        try:
            yield
        finally:
            self.rows.start()


class _Row:
    """The line of one run in a `ParallelDisplay`."""

    def __init__(self, display: ParallelDisplay, title: str) -> None:
        self._display, self._title = display, title
        self._task: TaskID | None = None
        self._figure = "..."

    def begin(self, job: ServerRun, first_round: int) -> None:
        """Add the line."""
        self._rounds, self._metric = job.experiment.rounds, METRICS[job.experiment.metric].title
        self._task = self._display.rows.add_task(
            escape_terminal(self._title), total=self._rounds, state=""
        )
        self._show(first_round)

    def add_replies(self, count: int) -> None:
        """Do nothing: the line is updated per round."""

    def round(self, t: int, figure: float | None, ledger: Ledger) -> None:
        """Show a finished round."""
        self._figure = self._figure if figure is None else _percent(figure)
        self._show(t)

    def _show(self, t: int) -> None:
        if self._task is not None:
            state = f"round {t}/{self._rounds}  {self._metric} {self._figure}"
            self._display.rows.update(self._task, completed=t, state=state)
            self._display.draw()

    def end(self) -> None:
        """Remove the line."""
        if self._task is not None:
            self._display.rows.remove_task(self._task)
        self._display.finish(self._title)


def progress_of_runs(total: int | None, jobs: int = 1) -> Callable[[str], Bar | Lines | _Row]:
    """Return a function that makes the progress of each run of a study from its title.

    Args:
        total: number of runs; None if it is not known beforehand
        jobs: number of runs in parallel
    """
    if jobs > 1:
        return ParallelDisplay(total) if err.is_terminal else ParallelLines(total)
    numbered = RunNumbers(total)
    return lambda title: progress(numbered(title))


def print_sentence(text: str, style: str = "") -> None:
    """Print a sentence: wrapped between words on a terminal, as one line elsewhere."""
    out.print(text, style=style, soft_wrap=not out.is_terminal)


def table(
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    title: str = "",
    words: int = 1,
    wide: Collection[int] = (),
) -> None:
    """Print a table.

    Figures are never cut. On a terminal, the columns that do not fit follow below, with the columns
    of words repeated. Elsewhere, the lines are as long as they need to be.

    Args:
        columns: the headings
        rows: the cells
        title: a line above the table
        words: number of columns, from the left, that contain words; the others contain figures
        wide: the columns that may wrap; a table with such columns is fitted to the screen
    """
    lines = [list(row) for row in rows]
    if title:
        out.print(title, style="bold", soft_wrap=True)
    if wide or not out.is_terminal:
        parts = [list(range(len(columns)))]
    else:
        parts = _split_columns(columns, lines, words)
    for part in parts:
        rendered = Table(header_style="bold", pad_edge=False, box=None)
        for k in part:
            rendered.add_column(
                columns[k],
                justify="left" if k < words else "right",
                no_wrap=k not in wide,
                overflow="fold",
            )
        for line in lines:
            rendered.add_row(*(line[k] for k in part))
        if wide:
            out.print(rendered)
        else:
            print_full_width(rendered)


def _split_columns(
    columns: Sequence[str], lines: Sequence[Sequence[str]], words: int
) -> list[list[int]]:
    """Return the columns of a table in parts that fit the screen, each with the words in front."""
    width = [
        2 + max(cell_len(cell) for cell in (column, *(line[k] for line in lines)))
        for k, column in enumerate(columns)
    ]
    front = list(range(min(words, len(columns))))
    parts = [front]
    for k in range(len(front), len(columns)):
        if parts[-1] != front and sum(width[c] for c in (*parts[-1], k)) - 2 > out.width:
            parts.append(front)
        parts[-1] = [*parts[-1], k]
    return parts


def print_legend(text: str) -> None:
    """Print the meaning of a table's columns below the table."""
    print_sentence(text, "dim")


def print_full_width(table: Table) -> None:
    """Print a table in its full width, even if it is wider than the screen."""
    width = out.measure(table, options=out.options.update(max_width=1000)).maximum
    console = out if width <= out.width else Screen(width=width)
    console.print(table)


def show_curves(folders: Mapping[str, Sequence[Path]], metric: Metric) -> None:
    """Plot the mean of a metric over parties by round, if stdout is a terminal.

    Args:
        folders: the folders of finished runs, one per seed, by the name of the curve
        metric: the metric
    """
    if not out.is_terminal:
        return
    lines = {}
    for name, seeds in folders.items():
        curves = [
            conventions.curve(RunFolder(folder).read_metrics(), metric=metric.name)
            for folder in seeds
        ]
        lines[name] = conventions.mean_curve(curves)
    for row in text_plot.plot_for(out, Curves(f"mean {metric.title}", lines)):
        out.print(row)
