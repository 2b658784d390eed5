"""Names of methods and models in tables, charts and messages."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from comity.plugins import is_code
from comity.spec import Value, parse, split

PLAIN = {"linear": "plain-linear", "boosting": "plain-boosting"}
"""The plain models that parties of a comparison train alone, by the value of `--plain`."""
SOLO = "solo"
"""The method with which each party trains alone."""
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


def display_model(model: str) -> str:
    """Return the setting `model` for display: files are named without their folders."""
    spec = parse(model)
    name = Path(spec.name).name if is_code(spec.name) else spec.name
    options = {key: _without_folder(value) for key, value in spec.options.items()}
    return str(replace(spec, name=name, options=options))


def display_data(data: str, partition: str) -> str:
    """Return the settings `data` and `partition` for display: files and folders are named without
    the folders that they are in.
    """
    return f"{display_dataset(data)}, {display_partition(partition)}"


def display_dataset(data: str) -> str:
    """Return the setting `data` for display: a file or folder without the folders it is in."""
    return str(_without_folder(data))


def display_partition(partition: str) -> str:
    """Return the setting `partition` for display: files are named without their folders."""
    steps = [parse(step) for step in split(partition, "|")]
    return "|".join(str(replace(step, name=str(_without_folder(step.name)))) for step in steps)


def _without_folder(value: Value) -> Value:
    is_path = isinstance(value, str) and Path(value).is_absolute()
    return Path(str(value)).name if is_path else value
