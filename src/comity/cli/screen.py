"""What a person sees: progress while a run goes on, tables when it is over.

All that is printed passes through `out` and `err`, whose strings are text and nothing else, or
through `escape_terminal`.
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

from comity.cli import text_plot
from comity.measure import conventions
from comity.metrics.metrics import METRICS, Metric
from comity.runs.folder import RunFolder
from comity.runs.server_run import ServerRun
from comity.text import Turns, escape_terminal
from comity.units import duration as duration  # noqa: PLC0414
from comity.units import size as size  # noqa: PLC0414
from comity.wire.ledger import Ledger


class Screen(Console):
    """A console to which every string is one line of text: `[red]` in a name is no colour, and an
    escape code is not obeyed.

    With `soft_wrap` a sentence is one line to a program; on a terminal it is broken between words,
    and never within one.
    """

    def print(self, *objects: Any, soft_wrap: bool | None = None, **ways: Any) -> None:
        """Show it, where a live display leaves room for it."""
        with (
            contextlib.nullcontext()
            if self.stderr or not ParallelDisplay.showing
            else ParallelDisplay.showing.aside()
        ):
            self._print(*objects, soft_wrap=soft_wrap, **ways)

    def _print(self, *objects: Any, soft_wrap: bool | None, **ways: Any) -> None:
        if soft_wrap and self.is_terminal and len(objects) == 1 and isinstance(objects[0], str):
            for line in textwrap.wrap(
                escape_terminal(objects[0]),
                self.width,
                break_long_words=False,
                break_on_hyphens=False,
            ):
                super().print(line, soft_wrap=True, **ways)
        else:
            super().print(*objects, soft_wrap=soft_wrap, **ways)

    def render_str(self, text: str, *, style: str | Style = "", **ways: Any) -> Text:
        """A string as it is to be seen."""
        return super().render_str(
            escape_terminal(text),
            style=style,
            **ways | {"markup": False, "emoji": False, "highlight": False},
        )


out = Screen()
err = Screen(stderr=True)


def traffic(ledger: Ledger) -> int:
    """Bytes so far, evaluation left out."""
    return sum(n for kind, n in ledger.total.items() if kind != "eval")


def _percent(figure: float) -> str:
    return f"{figure:.1%}" if math.isfinite(figure) else "diverged"


class Bar:
    """A live line on a terminal: round, parties done, the chosen metric, bytes so far, time left."""

    def __init__(self, title: str, width: int = 14) -> None:
        self._title = escape_terminal(title).ljust(width)

    def begin(self, job: ServerRun, first_round: int) -> None:
        """Show the bar."""
        self._cohort = len(job.cohort(1))
        self._done = 0
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

    def answered(self, count: int) -> None:
        """Some parties have answered."""
        self._done += count
        if hasattr(self, "_task"):
            shown = f"{min(self._done, self._cohort)}/{self._cohort}"
            self._progress.update(self._task, parties=shown)

    def round(self, t: int, figure: float | None, ledger: Ledger) -> None:
        """A round is over."""
        self._done = 0
        if figure is not None:
            self._progress.update(self._task, figure=_percent(figure))
        self._progress.update(self._task, completed=t, bytes=size(traffic(ledger)))

    def end(self) -> None:
        """Take the bar away."""
        if hasattr(self, "_progress"):
            self._progress.stop()


class Lines:
    """Plain lines where there is no terminal: one every few seconds, and the last."""

    every = 2.0

    def __init__(self, title: str) -> None:
        self._title = title

    def begin(self, job: ServerRun, first_round: int) -> None:
        """Remember where it started."""
        self._rounds = job.experiment.rounds
        self._first = first_round
        self._title_of_figure = METRICS[job.experiment.metric].title
        self._figure = "..."
        self._begin = time.monotonic()
        self._shown = self._begin

    def answered(self, count: int) -> None:
        """Too fine for lines."""

    def round(self, t: int, figure: float | None, ledger: Ledger) -> None:
        """A round is over."""
        now = time.monotonic()
        self._figure = self._figure if figure is None else _percent(figure)
        if t < self._rounds and now - self._shown < self.every:
            return
        self._shown = now
        left = (now - self._begin) / max(t - self._first, 1) * (self._rounds - t)
        what = (
            f"round {t}/{self._rounds}  {self._title_of_figure} {self._figure} "
            f" {size(traffic(ledger))}"
        )
        print(
            escape_terminal(f"{self._title}  {what}  {duration(left)} left"),
            file=sys.stderr,
            flush=True,
        )

    def end(self) -> None:
        """Nothing to take away."""


def progress(title: str) -> Bar | Lines:
    """Whichever suits where we are."""
    return Bar(title) if err.is_terminal else Lines(title)


class _Done:
    """How many of several runs that go on at once are over, and how long the others take."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._over: set[str] = set()
        self._left: float | None = None

    def over(self, title: str) -> None:
        """A run is over; one that is looked at again counts once."""
        self._over.add(title)

    def overview(self, rest: int, left: float | None) -> None:
        """What is known of those that are not over; others may be still to come, and then nobody
        knows how long all take.
        """
        self._left = left if len(self._over) + rest >= self._total else None

    def __str__(self) -> str:
        left = (
            ""
            if self._left is None or len(self._over) >= self._total
            else f", {duration(self._left)} left"
        )
        return f"{len(self._over)}/{self._total} done{left}"


class ParallelLines(_Done):
    """Plain lines of several runs at once, and one whenever a run is over."""

    def __init__(self, total: int) -> None:
        super().__init__(total)
        self._turns = Turns(total)

    def __call__(self, title: str) -> Lines:
        """Who watches a run."""
        return _OneOfLines(self._turns(title), self, title)

    def over(self, title: str) -> None:
        """A run is over."""
        if title not in self._over:
            super().over(title)
            print(escape_terminal(str(self)), file=sys.stderr, flush=True)


class _OneOfLines(Lines):
    """One run of several."""

    def __init__(self, turn: str, together: ParallelLines, title: str) -> None:
        super().__init__(turn)
        self._together, self._name = together, title

    def end(self) -> None:
        """Count it."""
        self._together.over(self._name)


class ParallelDisplay(_Done):
    """Several runs at once on a terminal: a line for all of them, and one for each that is under
    way.

    Nothing is drawn but when somebody tells something: a process that forks must have no thread
    that draws by itself.
    """

    every = 0.1  # seconds from picture to picture
    showing: ClassVar[ParallelDisplay | None] = None

    def __init__(self, total: int) -> None:
        super().__init__(total)
        self.rows = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[said]}", markup=False),
            console=err,
            transient=True,
            auto_refresh=False,
        )
        self._all = self.rows.add_task("all runs", total=total, said="")
        self._drawn = 0.0

    def __call__(self, title: str) -> _Row:
        """Who watches a run."""
        return _Row(self, title)

    def overview(self, rest: int, left: float | None) -> None:
        """Time passes, also while nothing ends."""
        super().overview(rest, left)
        self.draw()

    def over(self, title: str) -> None:
        """Take the picture away when nothing is under way any more."""
        super().over(title)
        if len(self.rows.tasks) == 1:
            self.rows.stop()
            ParallelDisplay.showing = None
        else:
            self.draw(at_once=True)

    def draw(self, at_once: bool = False) -> None:
        """A new picture, if the last is old enough."""
        now = time.monotonic()
        if len(self.rows.tasks) > 1 and (at_once or now - self._drawn >= self.every):
            self._drawn = now
            fractions = (task.percentage / 100 for task in self.rows.tasks[1:])
            self.rows.update(self._all, completed=len(self._over) + sum(fractions), said=str(self))
            ParallelDisplay.showing = self
            self.rows.start()
            self.rows.refresh()

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """Room for what stays on the screen."""
        self.rows.stop()
        try:
            yield
        finally:
            self.rows.start()


class _Row:
    """The line of one run of several."""

    def __init__(self, together: ParallelDisplay, title: str) -> None:
        self._together, self._title = together, title
        self._task: TaskID | None = None
        self._figure = "..."

    def begin(self, job: ServerRun, first_round: int) -> None:
        """Add the line."""
        self._rounds, self._metric = job.experiment.rounds, METRICS[job.experiment.metric].title
        self._task = self._together.rows.add_task(
            escape_terminal(self._title), total=self._rounds, said=""
        )
        self._show(first_round)

    def answered(self, count: int) -> None:
        """Too fine for this line."""

    def round(self, t: int, figure: float | None, ledger: Ledger) -> None:
        """A round is over."""
        self._figure = self._figure if figure is None else _percent(figure)
        self._show(t)

    def _show(self, t: int) -> None:
        if self._task is not None:
            said = f"round {t}/{self._rounds}  {self._metric} {self._figure}"
            self._together.rows.update(self._task, completed=t, said=said)
            self._together.draw()

    def end(self) -> None:
        """Take the line away."""
        if self._task is not None:
            self._together.rows.remove_task(self._task)
        self._together.over(self._title)


def several(total: int, jobs: int = 1) -> Callable[[str], Bar | Lines | _Row]:
    """The progress of so many runs, each with which of them it is, or of as many at once as there
    are `jobs`.
    """
    if jobs > 1:
        return ParallelDisplay(total) if err.is_terminal else ParallelLines(total)
    turns = Turns(total)
    return lambda title: progress(turns(title))


def say(text: str, style: str = "") -> None:
    """A sentence: words are kept whole on a terminal, lines where a program reads them."""
    out.print(text, style=style, soft_wrap=not out.is_terminal)


def table(
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    title: str = "",
    words: int = 1,
    wide: Collection[int] = (),
) -> None:
    """A table on the screen: the first `words` columns are words, the others figures; only the
    columns `wide` may wrap.

    Without such columns a table that does not fit is printed in full: a cut figure is worth less
    than a long line. On a terminal the columns that do not fit follow below, with the words before
    them again.
    """
    lines = [list(row) for row in rows]
    if title:
        out.print(title, style="bold", soft_wrap=True)
    for shown in (
        [range(len(columns))] if wide or not out.is_terminal else _fitting(columns, lines, words)
    ):
        made = Table(header_style="bold", pad_edge=False, box=None)
        for k in shown:
            made.add_column(
                columns[k],
                justify="left" if k < words else "right",
                no_wrap=k not in wide,
                overflow="fold",
            )
        for line in lines:
            made.add_row(*(line[k] for k in shown))
        if wide:
            out.print(made)
        else:
            in_full(made)


def _fitting(columns: Sequence[str], lines: Sequence[Sequence[str]], words: int) -> list[list[int]]:
    """The columns of a table in as many parts as the screen needs, each with the words in front."""
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


def note(text: str) -> None:
    """What the columns of a table mean, below it."""
    say(text, "dim")


def in_full(made: Table) -> None:
    """Print a table as wide as it is."""
    needed = out.measure(made, options=out.options.update(max_width=1000)).maximum
    (out if needed <= out.width else Screen(width=needed)).print(made)


def show_curves(folders: Mapping[str, Sequence[Path]], metric: Metric) -> None:
    """The mean of a metric over parties by round, of finished runs: a curve for each name, over its
    folders, which are its seeds.

    Only for people: what programs read stays as it is.
    """
    if not out.is_terminal:
        return
    lines = {}
    for name, seeds in folders.items():
        curves = [
            conventions.curve(RunFolder(folder).read_metrics(), metric=metric.name)
            for folder in seeds
        ]
        lines[name] = {
            t: value for t, value in conventions.mean_curve(curves).items() if math.isfinite(value)
        }
    for row in text_plot.on(out, lines, title=f"mean {metric.title}"):
        out.print(row)
