"""Checks of command lines that stand in documents."""

from __future__ import annotations

import typer

# All commands, as the command line is built once for all tests (conftest.py): a module that is not
# imported here would be missing in other tests.
from comity.cli import (  # noqa: F401 -- each adds its commands
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
from comity.cli.options import app


def check_command(words: list[str]) -> None:
    """Fail if there is no such command, or if it has no such option."""
    command = typer.main.get_command(app)
    context = None
    while hasattr(command, "commands"):
        context = command.make_context("comity", [], parent=context, resilient_parsing=True)
        command = command.commands[words.pop(0)]
    options = {name for parameter in command.params for name in parameter.opts}
    assert not [
        word for word in words if word.startswith("--") and word.split("=")[0] not in options
    ], words
