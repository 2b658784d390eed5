"""What ends a command from outside: Ctrl-C (SIGINT), and SIGTERM, which batch systems send."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterator
from types import FrameType

ENDS = (signal.SIGINT, signal.SIGTERM)
BEFORE = "Stopped before anything was run."


class Signals:
    """How SIGINT and SIGTERM are answered while a command runs: by a KeyboardInterrupt, and an exit
    code that tells which.
    """

    def __init__(self) -> None:
        self.exit_code = 128 + signal.SIGINT
        # A shell starts what is to run in the background with Ctrl-C ignored: that is left as it
        # is.
        ours = threading.current_thread() is threading.main_thread()
        self._answered = [
            s
            for s in ENDS
            if ours and signal.getsignal(s) in (signal.default_int_handler, signal.SIG_DFL)
        ]

    @contextlib.contextmanager
    def at_once(self) -> Iterator[None]:
        """While modules are imported: many of them swallow an exception and go on in halves, and
        there is nothing to tidy up.
        """

        def end(number: int, frame: FrameType | None) -> None:
            os.write(2, f"comity: {BEFORE}\n".encode())
            os._exit(128 + number)

        with self._handled(end):
            yield

    @contextlib.contextmanager
    def raised(self) -> Iterator[None]:
        """While a command runs, which may have something to say or to close."""

        def interrupt(number: int, frame: FrameType | None) -> None:
            self.exit_code = 128 + number
            # A work that was made and not yet begun: where all is stopped that is no fault.
            warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)
            raise KeyboardInterrupt

        with self._handled(interrupt), self._heard():
            yield

    def ignored(self) -> None:
        """From now on: all is done, and Ctrl-C while Python tidies up says nothing."""
        for which in self._answered:
            signal.signal(which, signal.SIG_IGN)

    @contextlib.contextmanager
    def _handled(self, handler: signal.Handlers | object) -> Iterator[None]:
        usual = {which: signal.signal(which, handler) for which in self._answered}  # type: ignore[arg-type]
        try:
            yield
        finally:
            for which, before in usual.items():
                signal.signal(which, before)

    @contextlib.contextmanager
    def _heard(self) -> Iterator[None]:
        """What is raised in a destructor or a weak reference's callback is thrown away by Python:
        send the signal again.
        """
        usual = sys.unraisablehook

        def hook(thrown_away: sys.UnraisableHookArgs) -> None:
            if issubclass(
                thrown_away.exc_type, KeyboardInterrupt
            ):  # in the main thread, as only there signals raise
                threading.Timer(
                    0.01, signal.pthread_kill, (threading.get_ident(), self.exit_code - 128)
                ).start()
            else:
                usual(thrown_away)

        sys.unraisablehook = hook
        try:
            yield
        finally:
            sys.unraisablehook = usual
