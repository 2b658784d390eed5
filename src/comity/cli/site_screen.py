"""The screen of a site that takes part in runs: requests and their outcomes, and one line of
progress for the rounds of a run.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path

from rich.live import Live
from rich.text import Text

from comity.cli import screen
from comity.text import escape_terminal

INTERVAL = 60.0  # seconds between lines of progress if stdout is not a terminal
STAMPED = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) (.*)")
ACCEPTED = re.compile(r"accepted: run (\w+)")
ROUND = re.compile(r"round (\d+) of (\d+): .*, (\S+ \S+) in all")


class SiteScreen:
    """Shows the lines of a site's log.

    The lines about single calls become one line of progress: on a terminal it is overwritten;
    elsewhere, as in a service's journal, there is at most one a minute. Of an error the screen has
    one sentence with the path of the log, which has the rest.

    Arguments:
        log: the site's log
        clock: returns the time in seconds
    """

    def __init__(self, log: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._clock = clock
        self._run = ""
        self._live: Live | None = None
        self._last_progress = -INTERVAL

    def show(self, line: str) -> None:
        """Show a line of the log. Lines that go on with the one before have no time, and are left
        out.
        """
        match = STAMPED.fullmatch(line)
        if match is None:
            return
        stamp, text = match.groups()
        if accepted := ACCEPTED.match(text):
            self._run = accepted[1]
            self._last_progress = -INTERVAL
        if round_line := ROUND.fullmatch(text):
            t, rounds, amount = round_line.groups()
            self._show_progress(f"{stamp} run {self._run}: round {t} of {rounds}, {amount} sent")
            return
        if "Traceback (most recent call last)" in text:
            text = f"{text.partition(': ')[0]}: {self._log} says why."
        self.say(f"{stamp} {text}")

    def say(self, sentence: str) -> None:
        """Print a sentence, and end the line of progress."""
        self.close()
        screen.out.print(sentence, soft_wrap=True)

    def close(self) -> None:
        """Remove the line of progress."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _show_progress(self, text: str) -> None:
        if screen.out.is_terminal:
            if self._live is None:
                self._live = Live(console=screen.out, transient=True, auto_refresh=False)
                self._live.start()
            self._live.update(Text(escape_terminal(text)), refresh=True)
        elif self._clock() - self._last_progress >= INTERVAL:
            self._last_progress = self._clock()
            screen.out.print(text, soft_wrap=True)
