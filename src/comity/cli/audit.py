"""The command `comity audit`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from comity.cli.options import Trust, app


@app.command()
def audit(
    folder: Annotated[
        Path,
        typer.Argument(metavar="DIR", help="folder of a run with recorded messages, or of several"),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
    trust: Trust = False,
) -> None:
    """Attack the messages of runs that were made with --record-messages.

    Prints what each attack reconstructs or infers about samples, compared with guessing.
    """
    from comity.auditing.audit import CANNOT, JSON, PAGE, WORDS, table
    from comity.auditing.audit import audit as attack
    from comity.auditing.page import READING
    from comity.cli import screen

    def show_progress(text: str) -> None:
        if screen.err.is_terminal or "left out" in text:
            screen.err.print(text, style="dim", soft_wrap=True)

    audits = attack(folder, trust=trust, report_progress=show_progress)
    if as_json:
        print(json.dumps({"runs": [audit.plain() for audit in audits]}))
        return
    heads, rows = table(audits)
    screen.table(heads, rows, f"{folder}: results of the attacks", WORDS)
    screen.print_legend(READING)
    for audit in audits:
        for text in audit.sentences:
            screen.print_sentence(text)
    screen.print_sentence(CANNOT)
    screen.out.print(f"Written to {folder / JSON}; see {folder / PAGE}", soft_wrap=True)
