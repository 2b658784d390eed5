"""The command that looks on: watch."""

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
        typer.Argument(metavar="DIR", help="a run's folder, or one with runs in it at any depth"),
    ],
    once: Annotated[
        bool, typer.Option("--once", help="show it once and end, as where there is no terminal")
    ] = False,
) -> None:
    """Look on while runs go on, or at what they came to; Ctrl-C ends the watching, never the run."""
    with contextlib.suppress(KeyboardInterrupt):
        from comity.cli import screen, watch

        if once or not screen.out.is_terminal:
            watch.once(folder)
        else:
            watch.live(folder)
