"""The command that attacks runs: audit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from comity.cli.options import Trust, app


@app.command()
def audit(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="the folder of a run with a tape, or of several")
    ],
    as_json: Annotated[bool, typer.Option("--json", help="for programs")] = False,
    trust: Trust = False,
) -> None:
    """What can be learned of samples from what a run with --record-messages has sent: attacks,
    beside guessing.
    """
    from comity.audit.auditing import CANNOT, HEADS, JSON, PAGE, WORDS
    from comity.audit.auditing import audit as attack
    from comity.audit.page import READING
    from comity.cli import screen

    def told(text: str) -> None:
        if screen.err.is_terminal or "left out" in text:
            screen.err.print(text, style="dim", soft_wrap=True)

    found = attack(folder, trust=trust, told=told)
    if as_json:
        print(json.dumps({"runs": [one.plain() for one in found]}))
        return
    screen.table(
        HEADS,
        [row for one in found for row in one.rows()],
        f"{folder}: what attacks could do",
        WORDS,
    )
    screen.note(READING)
    for one in found:
        for text in one.sentences:
            screen.say(text)
    screen.say(CANNOT)
    screen.out.print(f"Written to {folder / JSON}; see {folder / PAGE}", soft_wrap=True)
