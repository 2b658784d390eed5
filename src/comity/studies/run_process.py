"""A run in its own process: it reports to the process that forked it, and ends with it."""

from __future__ import annotations

import io
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterable
from multiprocessing.connection import Connection
from traceback import format_exception
from typing import Any

import torch

from comity.engines.process import ENDS
from comity.errors import CorruptedFile, UsageError, describe
from comity.machine import signal_at_end_of_parent
from comity.runs.server_run import Progress, ServerRun
from comity.wire.ledger import Ledger

PATIENCE = 5  # seconds that a stopped run has to close its files

RunFunction = Callable[[Progress, Callable[[str], None]], dict[str, Any]]
"""Runs an experiment, given an observer and a function that takes warnings for the user."""


def run_and_report(
    connection: Connection, inherited: Iterable[Connection], parent: int, function: RunFunction
) -> None:
    """Call the function, and send its summary or its error through `connection`.

    `inherited` are other connections, which this process closes; `parent` is the id of the process
    that forked it.
    """
    reporter = _Reporter(connection)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, reporter.stop)
    # On other systems than Linux, a run notices the end of its parent at the next round.
    if ask_for_signal := signal_at_end_of_parent(signal.SIGTERM):
        ask_for_signal()
    for other in inherited:
        other.close()
    torch.set_num_threads(1)  # as in every run; the parent's threads do not survive the fork
    sys.stdout, sys.stderr = _Relay(reporter, "stdout"), _Relay(reporter, "stderr")
    warnings.showwarning = reporter.warned  # type: ignore[assignment]
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDS)
        if os.getppid() != parent:
            reporter.stop()
        summary = function(reporter, lambda text: reporter.send("told", text))
        reporter.send("done", summary)
    except KeyboardInterrupt:
        pass
    except BaseException as why:  # a user's code may even raise SystemExit
        kinds = (UsageError, CorruptedFile)
        kind = next((error.__name__ for error in kinds if isinstance(why, error)), "")
        reporter.send("failed", kind, describe(why), "".join(format_exception(why)))
    finally:
        signal.alarm(PATIENCE)  # a user's code may have left threads running


class _Reporter:
    """The observer of a run in its own process: it sends all events to the parent."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._stopping = False

    def stop(self, *_: object) -> None:
        """Stop the run: by KeyboardInterrupt or, if that is caught, by an alarm after a while."""
        if not self._stopping:
            self._stopping = True
            signal.alarm(PATIENCE)
            raise KeyboardInterrupt

    def send(self, *message: object) -> None:
        """Send a message to the parent; stop if the parent has ended."""
        if not self._stopping:
            try:
                self._connection.send(message)
            except OSError:
                self.stop()

    def begin(self, job: ServerRun, first_round: int) -> None:
        """Report that the run begins, or continues."""
        self.send("begin", first_round)

    def add_replies(self, count: int) -> None:
        """Not reported: there are too many replies."""

    def round(self, t: int, figure: float | None, ledger: Ledger) -> None:
        """Report a finished round."""
        self.send("round", t, figure, dict(ledger.total))

    def end(self) -> None:
        """Not reported: the summary or the error follows."""

    def warned(
        self,
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        *_: object,
    ) -> None:
        """Send a warning to the parent, in place of `warnings.showwarning`."""
        self.send("warned", str(message), category.__name__, filename, lineno)


class _Relay(io.TextIOBase):
    """A text stream that the parent prints, as it manages the display."""

    def __init__(self, reporter: _Reporter, name: str) -> None:
        self._reporter, self._name = reporter, name

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self._reporter.send("said", self._name, text)
        return len(text)
