"""The command line."""

from __future__ import annotations

import os
import sys

import click

from comity.cli import data, finished, looking, papers, running  # noqa: F401  (each adds its commands)
from comity.cli.options import Stopped, app
from comity.errors import ComityError, describe

__all__ = ["app", "main"]


def main() -> None:
    """The entry point: whatever goes wrong is one sentence on stderr and an exit code."""
    try:
        if app(standalone_mode=False) == Stopped.exit_code:  # what typer makes of Ctrl-C
            raise KeyboardInterrupt
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


def _complain(sentence: str, code: int) -> None:
    print(f"comity: {' '.join(sentence.split())}", file=sys.stderr)
    sys.exit(code)
