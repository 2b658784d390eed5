"""Pandas frames among the arrays of `Federation.from_arrays`: columns are matched by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from comity.data.preparation import Column, Schema
from comity.errors import UsageError, quote


def named_columns(parties: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Convert frames to arrays with the columns in the order of the first frame.

    Returns:
        The parties with arrays in place of frames, and the column names. The names are empty if
        some input is not a frame.
    """
    first: list[str] = []
    frames = 0
    inputs = 0

    def align(party: str, x: Any) -> Any:
        nonlocal frames, inputs, first
        inputs += 1
        # Frames are recognised by their methods, because pandas need not be installed.
        if not (hasattr(x, "columns") and hasattr(x, "to_numpy")):
            return x
        frames += 1
        names = list(map(str, x.columns))
        first = first or names
        if sorted(names) != sorted(first) or len(set(names)) < len(names):
            other = next(iter(parties))
            odd = sorted(set(names) ^ set(first)) or names
            raise UsageError(
                f"The columns of party {party!r} differ from those of {other!r}, or one occurs"
                f" twice: see {odd[0]!r}."
            )
        _check_numbers(party, x, names)
        return x.to_numpy()[:, [names.index(name) for name in first]]

    def pair(party: str, value: Any) -> Any:
        if not isinstance(value, tuple | list) or len(value) != 2:
            return value  # refused when the party is read, with a better message
        if all(isinstance(part, tuple) and len(part) == 2 for part in value):
            return tuple((align(party, x), y) for x, y in value)
        return (align(party, value[0]), value[1])

    aligned = {party: pair(party, value) for party, value in parties.items()}
    return aligned, tuple(first) if frames == inputs else ()


def _check_numbers(party: str, frame: Any, names: Sequence[str]) -> None:
    """Refuse a column of words."""
    for position, name in enumerate(names):
        column = frame.iloc[:, position].to_numpy()
        if column.dtype.kind in "fiub":
            continue
        word = next((value for value in column if isinstance(value, str)), None)
        holds = f"values of type {column.dtype}"
        if word is not None:
            holds = f"words ({quote(word)}, for instance)"
        raise UsageError(
            f"The column {name!r} of party {party!r} holds {holds}, but inputs are numbers: encode"
            " it for all parties together, as pandas.get_dummies does, or write each party's table"
            " to a file and import these with 'comity data import', which encodes words."
        )


def frame_schema(names: tuple[str, ...], classes: int) -> Schema | None:
    """The schema of numeric columns that are used without scaling; None without names."""
    columns = tuple(Column(name, "number") for name in names)
    return (
        Schema(columns, "label", tuple(map(str, range(classes))), scale="none") if names else None
    )
