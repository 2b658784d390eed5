"""A run's life in a process of its own: what it says goes to the process that forked it, with which
it ends, too.
"""

from __future__ import annotations

import ctypes
import io
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterable
from contextlib import suppress
from multiprocessing.connection import Connection
from traceback import format_exception
from typing import Any

import torch

from comity.engines.process import ENDS
from comity.errors import CorruptedFile, UsageError, describe
from comity.runs.server_run import Progress, ServerRun
from comity.wire.ledger import Ledger

PATIENCE = 5  # seconds in which a run that is to end can close what it has open
PR_SET_PDEATHSIG = 1  # as in prctl.h

PartyFunction = Callable[[Progress, Callable[[str], None]], dict[str, Any]]
"""Makes a run; it is given who watches it, and whom to tell what a user should know."""


def live(
    line: Connection, strangers: Iterable[Connection], parent: int, function: PartyFunction
) -> None:
    """Do the work and send its summary, or why there is none.

    `strangers` are ends of other lines, which this process has only inherited; `parent` is the
    process that forked it.
    """
    teller = _Teller(line)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent to answer
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, teller.stop)
    with suppress(
        OSError, AttributeError
    ):  # another system than Linux: there a run notices at its next round
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    for stranger in strangers:
        stranger.close()
    torch.set_num_threads(1)  # as in a run, and the parent's threads are not here
    sys.stdout, sys.stderr = _Relay(teller, "stdout"), _Relay(teller, "stderr")
    warnings.showwarning = teller.warned  # type: ignore[assignment]
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDS)
        if os.getppid() != parent:
            teller.stop()
        summary = function(teller, lambda text: teller.send("told", text))
        teller.send("done", summary)
    except KeyboardInterrupt:
        pass
    except BaseException as why:  # a user's code may even raise SystemExit
        kind = next(
            (known.__name__ for known in (UsageError, CorruptedFile) if isinstance(why, known)), ""
        )
        teller.send("failed", kind, describe(why), "".join(format_exception(why)))
    finally:
        signal.alarm(PATIENCE)  # for threads that somebody's code has left here


class _Teller:
    """Who watches a run in its own process: all is passed on to the parent."""

    def __init__(self, line: Connection) -> None:
        self._line = line
        self._stopping = False

    def stop(self, *_: object) -> None:
        """Have the run end: as by Ctrl-C or, should that be swallowed, by the system a little
        later.
        """
        if not self._stopping:
            self._stopping = True
            signal.alarm(PATIENCE)
            raise KeyboardInterrupt

    def send(self, *message: object) -> None:
        """Tell it; if nobody listens any more, it is time to stop."""
        if not self._stopping:
            try:
                self._line.send(message)
            except OSError:
                self.stop()

    def begin(self, job: ServerRun, first_round: int) -> None:
        """The run begins, or goes on."""
        self.send("begin", first_round)

    def answered(self, count: int) -> None:
        """Too fine to be told."""

    def round(self, t: int, figure: float | None, ledger: Ledger) -> None:
        """A round is over."""
        self.send("round", t, figure, dict(ledger.total))

    def end(self) -> None:
        """The summary, or the error, says so."""

    def warned(
        self,
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        *_: object,
    ) -> None:
        """A warning, instead of showing it here."""
        self.send("warned", str(message), category.__name__, filename, lineno)


class _Relay(io.TextIOBase):
    """What is printed here, printed by the parent, which knows where its display is."""

    def __init__(self, teller: _Teller, name: str) -> None:
        self._teller, self._name = teller, name

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self._teller.send("said", self._name, text)
        return len(text)
