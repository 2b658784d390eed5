"""The command `comity check`."""

from __future__ import annotations

from typing import Annotated

import typer

from comity.cli.options import app
from comity.errors import ComityError

MARKS = {"holds": ("✓", "green"), "fails": ("✗", "red"), "note": ("-", "yellow")}


@app.command()
def check(
    algo: Annotated[
        str, typer.Argument(metavar="ALGO", help="the method, as in ./mine.py or ./mine.py(mu=1)")
    ],
    model: Annotated[
        str, typer.Option("--model", help="network of the tiny runs (images of 8 x 8 pixels)")
    ] = "mlp2(width=8)",
) -> None:
    """Check your own method: purity, repeatability, resume, engines, bytes."""
    from comity.cli import screen
    from comity.studies.method_check import check_method

    results = []
    for result in check_method(algo, model):
        results.append(result)
        mark, style = MARKS[result.verdict]
        screen.print_sentence(f"{mark} {result.name:<13} {result.text}", style)
    failed = [result.name for result in results if result.verdict == "fails"]
    if failed:
        raise ComityError(f"The method does not pass the check of {', '.join(failed)}.")
    screen.print_sentence("The method passes all checks.")
