"""Handling of the signals that stop a command: SIGINT (Ctrl-C), and SIGTERM from batch systems."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterator
from types import FrameType

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
STOPPED_EARLY = "Stopped before anything was run."


class Signals:
    """Handlers for SIGINT and SIGTERM while a command runs. The exit code says which was sent."""

    def __init__(self) -> None:
        self.exit_code = 128 + signal.SIGINT
        # Shells start background commands with SIGINT ignored. Such handlers are not replaced.
        in_main_thread = threading.current_thread() is threading.main_thread()
        default_handlers = (signal.default_int_handler, signal.SIG_DFL)
        self._handled_signals = [
            s for s in STOP_SIGNALS if in_main_thread and signal.getsignal(s) in default_handlers
        ]

    @contextlib.contextmanager
    def end_process(self) -> Iterator[None]:
        """End the process at once on a signal, while modules are imported.

        Many modules swallow exceptions during their import and would then be incomplete. There is
        nothing to clean up yet.
        """

        def end(number: int, frame: FrameType | None) -> None:
            os.write(2, f"comity: {STOPPED_EARLY}\n".encode())
            os._exit(128 + number)

        with self._handlers(end):
            yield

    @contextlib.contextmanager
    def interrupt(self) -> Iterator[None]:
        """Raise KeyboardInterrupt on a signal, while a command runs."""

        def interrupt(number: int, frame: FrameType | None) -> None:
            self.exit_code = 128 + number
            # Party functions may have been created and not yet started. That is no error here.
            warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)
            raise KeyboardInterrupt

        with self._handlers(interrupt), self._repeat_if_discarded():
            yield

    def ignore(self) -> None:
        """Ignore the signals from now on, while Python shuts down."""
        for number in self._handled_signals:
            signal.signal(number, signal.SIG_IGN)

    @contextlib.contextmanager
    def _handlers(self, handler: signal.Handlers | object) -> Iterator[None]:
        """Install a handler, and restore the earlier ones afterwards."""
        earlier = {
            number: signal.signal(number, handler)  # type: ignore[arg-type]
            for number in self._handled_signals
        }
        try:
            yield
        finally:
            for number, earlier_handler in earlier.items():
                signal.signal(number, earlier_handler)

    @contextlib.contextmanager
    def _repeat_if_discarded(self) -> Iterator[None]:
        """Send the signal again if Python discards its exception.

        Python discards exceptions that are raised in a destructor or in the callback of a weak
        reference.
        """
        earlier_hook = sys.unraisablehook

        def hook(discarded: sys.UnraisableHookArgs) -> None:
            if issubclass(discarded.exc_type, KeyboardInterrupt):
                # This is the main thread: only there do signals raise exceptions.
                number, main_thread = self.exit_code - 128, threading.get_ident()
                if hasattr(signal, "pthread_kill"):  # it also wakes the main thread
                    threading.Timer(0.01, signal.pthread_kill, (main_thread, number)).start()
                else:
                    threading.Timer(0.01, signal.raise_signal, (number,)).start()
            else:
                earlier_hook(discarded)

        sys.unraisablehook = hook
        try:
            yield
        finally:
            sys.unraisablehook = earlier_hook
