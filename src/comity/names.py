"""Names of methods in tables, charts and messages."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from comity.plugins import is_code
from comity.spec import parse, split


def display_name(algorithm: str) -> str:
    """Return the name of a method for display: a user's file is named by its stem."""
    specs = [parse(part) for part in split(algorithm, "+")]
    return "+".join(
        str(replace(s, name=Path(s.name).stem if is_code(s.name) else s.name)) for s in specs
    )
