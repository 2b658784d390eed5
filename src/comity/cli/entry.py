"""What `comity` does once it is guarded: a command, and one sentence for whatever goes wrong."""

from __future__ import annotations

import os
import sys

from comity.cli.signals import Signals

MOST_SAID = 2000  # letters: what was typed is quoted, and may have been a whole file


def enter() -> None:
    """Run what was asked for on the command line; whatever goes wrong ends the process with a sentence and an exit code."""
    signals = Signals()
    try:
        _command(signals)
        if sys.stdout:
            sys.stdout.flush()  # here, where a full disk is a sentence
    except SystemExit:
        raise
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except BaseException as why:  # not Exception: libraries written in Rust panic past it
        sentence, code = _verdict(why, signals)
        from comity.text import escape_terminal

        print(escape_terminal(f"comity: {' '.join(sentence.split())[:MOST_SAID]}"), file=sys.stderr)
        sys.exit(code)
    finally:
        signals.ignored()


def _command(signals: Signals) -> None:
    """What was asked for on the command line; whatever goes wrong is raised."""
    if sys.argv[1:] == ["--version"]:  # at once: the commands import torch
        from comity.cli.version import version_line

        print(version_line())
        return
    with signals.at_once():
        import click

        from comity.cli import audit, data, deploy, finished, looking, papers, running, watching  # noqa: F401  (each adds commands)
        from comity.cli.options import Stopped, app

    with signals.raised():
        try:
            done = app(standalone_mode=False)
        except click.exceptions.NoArgsIsHelpError as help_:
            print(help_.format_message())
            return
    if done == Stopped.exit_code:  # what typer makes of Ctrl-C
        raise KeyboardInterrupt


def _verdict(why: BaseException, signals: Signals) -> tuple[str, int]:
    """What is said of an exception, and the exit code that belongs to it."""
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
