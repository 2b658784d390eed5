"""Tables of planned absences, and the absences that a run recorded."""

from __future__ import annotations

from pathlib import Path

import comity
from comity.core.participation import Absence
from comity.runs.folder import RunFolder

EVENTS = (
    "east,0,,offline",
    "north,1,local,lost",
    "south,2,,offline",
    "west,2,evaluate,lost",
    "west,3,local,lost",
)


def plan(folder: Path, *lines: str, heads: str = "party,round,call,how") -> str:
    """Write a table of planned absences. Returns its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "plan.csv"
    path.write_text("\n".join([heads, *lines]) + "\n")
    return str(path)


def absences(result: comity.Result) -> list[Absence]:
    return RunFolder(result.folder).read_absences()
