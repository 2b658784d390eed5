"""The command `comity watch`."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Annotated

import typer

from comity.cli.options import app


@app.command()
def watch(
    folder: Annotated[
        Path,
        typer.Argument(metavar="DIR", help="folder of a run, or a folder that contains runs"),
    ],
    once: Annotated[
        bool, typer.Option("--once", help="print once and exit (default without a terminal)")
    ] = False,
) -> None:
    """Show running or finished runs, and update until Ctrl-C. Runs are not affected."""
    with contextlib.suppress(KeyboardInterrupt):
        from comity.cli import screen, watch

        if once or not screen.out.is_terminal:
            watch.once(folder)
        else:
            watch.live(folder)
