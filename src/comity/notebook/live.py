"""Who watches a run that was begun from Python: a live line in a notebook, the terminal's bar if it
is asked for, or nobody.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from html import escape
from typing import Any

from comity.errors import UsageError
from comity.runs.server_run import Progress, Quiet, ServerRun
from comity.text import RunNumbers
from comity.units import size
from comity.wire.ledger import Ledger

EVERY = 0.1  # seconds between two pictures of the line
Watched = Callable[[str], Progress]


def in_notebook() -> bool:
    """Whether this process is a notebook's kernel."""
    asked = getattr(sys.modules.get("IPython"), "get_ipython", None)
    return hasattr(asked() if asked else None, "kernel")


@contextmanager
def watching(
    progress: bool | Progress | Watched | None, runs: int = 1, jobs: int = 1
) -> Iterator[Watched]:
    """Who watches each run of a call: in a notebook a line unless `progress` is False, elsewhere
    nobody unless it is True.

    It is asked with the run's title; of several `runs`, of which so many as `jobs` go on at once,
    people see which one it is.
    """
    if progress is None:
        progress = in_notebook()
    if isinstance(progress, bool):
        if progress and in_notebook():
            live = Live(runs)
            try:
                yield live
            finally:
                live.clear()
        elif progress:
            from comity.cli import screen

            yield screen.progress_of_runs(runs, jobs) if runs > 1 else screen.progress
        else:
            yield lambda title: Quiet()
    elif isinstance(progress, Progress):
        if jobs > 1:
            raise UsageError(
                "One object cannot watch several runs at once: give progress a function that makes"
                " one from a title."
            )
        one = progress
        yield lambda title: one
    elif callable(progress):
        yield progress
    else:
        raise UsageError(
            "progress is True, False, or somebody who watches: an object with begin, answered,"
            " round and end."
        )


class Line:
    """One picture of a run that goes on."""

    def __init__(self, text: str, done: int, of: int) -> None:
        self._text, self._done, self._of = text, done, of

    def __repr__(self) -> str:
        return self._text

    def _repr_html_(self) -> str:
        bar = (
            f'<progress value="{self._done}" max="{max(1, self._of)}"></progress> '
            if self._text
            else ""
        )
        return f'<div style="font-size:90%">{bar}{escape(self._text)}</div>'


class Live:
    """A line below a notebook's cell that follows the runs of one call, and goes when they are
    over.
    """

    def __init__(self, runs: int = 1) -> None:
        from IPython.display import display

        self._named: Callable[[str], str] = RunNumbers(runs) if runs > 1 else str
        self._handle: Any = display(Line("", 0, 1), display_id=True)  # type: ignore[no-untyped-call]
        self._shown = 0.0
        self.under_way: list[Followed] = []

    def __call__(self, title: str) -> Followed:
        """Follow the next run."""
        return Followed(self, self._named(title))

    def show(self, at_once: bool) -> None:
        """All runs that are under way, beside each other."""
        now = time.monotonic()
        if self.under_way and (at_once or now - self._shown >= EVERY):
            self._shown = now
            done, of = (
                sum(getattr(one, what) for one in self.under_way) for what in ("done", "rounds")
            )
            self._handle.update(Line("; ".join(map(str, self.under_way)), done, of))

    def clear(self) -> None:
        """Take the line away."""
        self._handle.update(Line("", 0, 1))


class Followed:
    """A run that the line follows."""

    def __init__(self, live: Live, title: str) -> None:
        self._live, self._title = live, title
        self._figure = self._crossed = ""

    def begin(self, job: ServerRun, first_round: int) -> None:
        """The run begins."""
        self.rounds, self._metric, self.done = job.experiment.rounds, job.metric, first_round
        self._live.under_way.append(self)
        self._live.show(at_once=True)

    def answered(self, count: int) -> None:
        """Too fine for this line."""

    def round(self, t: int, figure: float | None, ledger: Ledger) -> None:
        """A round is over."""
        self.done = t
        if figure is not None:
            self._figure = f", {self._metric.title} {figure:.1%}"
        self._crossed = f", {size(sum(n for kind, n in ledger.total.items() if kind != 'eval'))}"
        self._live.show(at_once=t == self.rounds)

    def end(self) -> None:
        """The next run may follow."""
        if self in self._live.under_way:
            self._live.under_way.remove(self)

    def __str__(self) -> str:
        return f"{self._title}: round {self.done}/{self.rounds}{self._figure}{self._crossed}"
