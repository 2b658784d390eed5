"""A line below a notebook's cell that shows the progress of runs."""

from __future__ import annotations

import time
from collections.abc import Callable
from html import escape
from typing import Any

from comity.runs.server_run import ServerRun
from comity.text import RunNumbers
from comity.units import size
from comity.wire.ledger import Ledger

INTERVAL = 0.1
"""The least time between two updates of the line, in seconds."""


class LineContent:
    """The text and the progress bar that the line shows at one moment."""

    def __init__(self, text: str, rounds_done: int, rounds: int) -> None:
        self._text, self._rounds_done, self._rounds = text, rounds_done, rounds

    def __repr__(self) -> str:
        return self._text

    def _repr_html_(self) -> str:
        bar = ""
        if self._text:
            bar = f'<progress value="{self._rounds_done}" max="{max(1, self._rounds)}"></progress> '
        return f'<div style="font-size:90%">{bar}{escape(self._text)}</div>'


EMPTY = LineContent("", 0, 1)


class LiveLine:
    """A line that shows the runs of one call while they are under way."""

    def __init__(self, runs: int | None = 1) -> None:
        from IPython.display import display

        self._number_title: Callable[[str], str] = RunNumbers(runs) if runs != 1 else str
        self._handle: Any = display(EMPTY, display_id=True)  # type: ignore[no-untyped-call]
        self._last_update = 0.0
        self.active: list[RunProgress] = []

    def __call__(self, title: str) -> RunProgress:
        """Return the progress of the next run."""
        return RunProgress(self, self._number_title(title))

    def update(self, force: bool) -> None:
        """Show all active runs, if the last update is old enough or with `force`."""
        now = time.monotonic()
        if self.active and (force or now - self._last_update >= INTERVAL):
            self._last_update = now
            text = "; ".join(map(str, self.active))
            rounds_done = sum(run.rounds_done for run in self.active)
            rounds = sum(run.rounds for run in self.active)
            self._handle.update(LineContent(text, rounds_done, rounds))

    def clear(self) -> None:
        """Remove the line."""
        self._handle.update(EMPTY)


class RunProgress:
    """The progress of one run in a `LiveLine`."""

    def __init__(self, line: LiveLine, title: str) -> None:
        self._line, self._title = line, title
        self._figure = self._bytes = ""

    def begin(self, job: ServerRun, first_round: int) -> None:
        """Show the run."""
        self.rounds, self._metric, self.rounds_done = job.experiment.rounds, job.metric, first_round
        self._line.active.append(self)
        self._line.update(force=True)

    def add_replies(self, count: int) -> None:
        """Do nothing: the line shows rounds."""

    def round(self, t: int, figure: float | None, ledger: Ledger) -> None:
        """Show a finished round."""
        self.rounds_done = t
        if figure is not None:
            self._figure = f", {self._metric.title} {figure:.1%}"
        self._bytes = f", {size(sum(n for kind, n in ledger.total.items() if kind != 'eval'))}"
        self._line.update(force=t == self.rounds)

    def end(self) -> None:
        """Remove the run from the line."""
        if self in self._line.active:
            self._line.active.remove(self)

    def __str__(self) -> str:
        return f"{self._title}: round {self.rounds_done}/{self.rounds}{self._figure}{self._bytes}"
