"""Pandas frames among the arrays that parties bring: columns are known by their names, not by their
places.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from comity.data.preparation import Column, Schema
from comity.errors import UsageError


def named_columns(parties: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The same parties, every frame's columns in the order of the first; their names, if all
    parties give frames.
    """
    first: list[str] = []
    frames = 0
    inputs = 0

    def taken(party: str, x: Any) -> Any:
        nonlocal frames, inputs, first
        inputs += 1
        if not (
            hasattr(x, "columns") and hasattr(x, "to_numpy")
        ):  # pandas itself need not be installed
            return x
        frames += 1
        names = list(map(str, x.columns))
        first = first or names
        if sorted(names) != sorted(first) or len(set(names)) < len(names):
            other = next(iter(parties))
            odd = sorted(set(names) ^ set(first)) or names
            raise UsageError(
                f"The columns of party {party!r} are not those of {other!r}, each once: see"
                f" {odd[0]!r}."
            )
        return x.to_numpy()[:, [names.index(name) for name in first]]

    def pair(party: str, given: Any) -> Any:
        if not isinstance(given, tuple | list) or len(given) != 2:
            return given  # which is refused elsewhere, by a better sentence
        if all(isinstance(part, tuple) and len(part) == 2 for part in given):
            return tuple((taken(party, x), y) for x, y in given)
        return (taken(party, given[0]), given[1])

    made = {party: pair(party, given) for party, given in parties.items()}
    return made, tuple(first) if frames == inputs else ()


def schema_of(names: tuple[str, ...], classes: int) -> Schema | None:
    """What is known of a table whose columns are numbers and used as they are."""
    columns = tuple(Column(name, "number") for name in names)
    return (
        Schema(columns, "label", tuple(map(str, range(classes))), scale="none") if names else None
    )
