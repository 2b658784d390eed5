"""Runs a command and turns every exception into a sentence and an exit code.

Only errors that were found together (`UsageErrors`) are several sentences, each on its own line.
"""

from __future__ import annotations

import os
import sys

from comity.cli.signals import Signals

MAX_LENGTH = 2000  # characters of a message, which may quote everything that was typed


def enter() -> None:
    """Run the command that was typed. Errors end the process with a sentence and an exit code."""
    signals = Signals()
    try:
        _run_command(signals)
        if sys.stdout:
            sys.stdout.flush()  # here, so that a full disk becomes a sentence
    except SystemExit:
        raise
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except BaseException as why:  # not Exception: libraries written in Rust panic past it
        sentence, code = _sentence_and_code(why, signals)
        from comity.errors import UsageErrors
        from comity.text import escape_terminal

        for text in why.sentences if isinstance(why, UsageErrors) else (sentence,):
            message = " ".join(text.split())[:MAX_LENGTH]
            print(escape_terminal(f"comity: {message}"), file=sys.stderr)
        sys.exit(code)
    finally:
        signals.ignore()


def _run_command(signals: Signals) -> None:
    """Run the command that was typed, and raise whatever goes wrong."""
    if sys.argv[1:] == ["--version"]:  # before the slow imports
        from comity.cli.version import version_line

        print(version_line())
        return
    if sys.argv[1:] in ([], ["--help"]):
        from comity.cli.overview import help_text

        print(help_text())
        return
    with signals.end_process():
        import click

        from comity.cli import (  # noqa: F401  (each module adds commands)
            advise,
            audit,
            catalogue,
            check,
            data,
            demo,
            deploy,
            finished_runs,
            papers,
            run_commands,
            watch_command,
        )
        from comity.cli.options import StoppedByUser, app

    with signals.interrupt():
        try:
            exit_code = app(standalone_mode=False)
        except click.exceptions.NoArgsIsHelpError as help_:
            print(help_.format_message())
            return
    if exit_code == StoppedByUser.exit_code:  # typer converts Ctrl-C to this exit code
        raise KeyboardInterrupt


def _sentence_and_code(why: BaseException, signals: Signals) -> tuple[str, int]:
    """Return the message and the exit code for an exception."""
    import click

    from comity.errors import ComityError, describe

    if isinstance(why, click.exceptions.Exit):
        sys.exit(why.exit_code)
    if isinstance(why, click.ClickException):
        from comity.cli.usage import sentence

        return sentence(why), 2
    if isinstance(why, KeyboardInterrupt | click.Abort):
        return "Stopped.", signals.exit_code
    if isinstance(why, ComityError):
        return str(why), signals.exit_code if why.exit_code == 130 else why.exit_code
    if os.environ.get("COMITY_DEBUG"):
        raise why
    return describe(why), 1
