"""The command line."""

from __future__ import annotations

import _thread
import atexit
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator

import click

from comity.cli.version import version_line
from comity.errors import ComityError, describe
from comity.text import harmless

__all__ = ["main"]


def main() -> None:
    """The entry point: whatever goes wrong is one sentence on stderr and an exit code."""
    if sys.argv[1:] == ["--version"]:  # at once: the commands import torch
        print(version_line())
        return
    try:
        _command()
    except click.exceptions.NoArgsIsHelpError as help_:
        print(help_.format_message())
    except click.exceptions.Exit as done:
        sys.exit(done.exit_code)
    except click.ClickException as why:
        _complain(why.format_message(), 2)
    except (KeyboardInterrupt, click.Abort):
        _complain("Stopped before anything was run.", 130)
    except ComityError as why:
        _complain(str(why), why.exit_code)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except Exception as why:
        if os.environ.get("COMITY_DEBUG"):
            raise
        _complain(describe(why), 1)
    finally:
        atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)  # all is done: Ctrl-C while Python tidies up says nothing


def _command() -> None:
    """What was asked for on the command line; whatever goes wrong is raised."""
    with _heard():
        from comity.cli import data, finished, looking, papers, running, watching  # noqa: F401  (each adds its commands)
        from comity.cli.options import Stopped, app

        if app(standalone_mode=False) == Stopped.exit_code:  # what typer makes of Ctrl-C
            raise KeyboardInterrupt


@contextlib.contextmanager
def _heard() -> Iterator[None]:
    """Ctrl-C while a destructor or a weak reference's callback runs is thrown away by Python: say it again, until it is heard."""
    usual = sys.unraisablehook

    def hook(thrown_away: sys.UnraisableHookArgs) -> None:
        if issubclass(thrown_away.exc_type, KeyboardInterrupt):
            threading.Timer(0.01, _thread.interrupt_main).start()
        else:
            usual(thrown_away)

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = usual


def _complain(sentence: str, code: int) -> None:
    print(harmless(f"comity: {' '.join(sentence.split())}"), file=sys.stderr)
    sys.exit(code)
