"""Names of methods in tables, charts and messages."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from comity.plugins import is_code
from comity.spec import parse, split

PLAIN = {"linear": "plain-linear", "boosting": "plain-boosting"}
"""The plain models that parties of a comparison train alone, by the value of `--plain`."""
OWN_MODEL = "own-model"
"""In a comparison, each party's best model of its own."""
OWN_MODELS = (*PLAIN.values(), OWN_MODEL)
"""Rows of a comparison that are no methods of their own: nothing is exchanged, and scikit-learn
trains.
"""


def display_name(algorithm: str) -> str:
    """Return the name of a method for display: a user's file is named by its stem."""
    specs = [parse(part) for part in split(algorithm, "+")]
    return "+".join(
        str(replace(s, name=Path(s.name).stem if is_code(s.name) else s.name)) for s in specs
    )
