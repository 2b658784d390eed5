"""What things are called where people read of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from comity.plugins import is_code
from comity.spec import parse, split


def display_name(algorithm: str) -> str:
    """What people call an algorithm: its name with its options, a user's file by its stem."""
    specs = [parse(part) for part in split(algorithm, "+")]
    return "+".join(
        str(replace(s, name=Path(s.name).stem if is_code(s.name) else s.name)) for s in specs
    )
