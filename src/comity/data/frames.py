"""Pandas frames among the arrays of `Federation.from_arrays`: columns are matched by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from comity.data.preparation import Column, Schema
from comity.errors import UsageError, quote


@dataclass(frozen=True)
class FrameColumns:
    """The columns of parties' frames, in the order of the first frame."""

    order: tuple[str, ...]
    """Empty if no party gives a frame."""
    names: tuple[str, ...]
    """The same; empty if some input is not a frame."""

    @staticmethod
    def of(parties: Mapping[str, Any]) -> FrameColumns:
        """The columns of all parties, which must be the same."""
        order: tuple[str, ...] = ()
        only_frames = True
        for party, value in parties.items():
            for x in _inputs(value):
                if not _is_frame(x):
                    only_frames = False
                    continue
                names = tuple(map(str, x.columns))
                order = order or names
                if sorted(names) != sorted(order) or len(set(names)) < len(names):
                    other = next(iter(parties))
                    odd = sorted(set(names) ^ set(order)) or names
                    raise UsageError(
                        f"The columns of party {party!r} differ from those of {other!r}, or one"
                        f" occurs twice: see {odd[0]!r}."
                    )
                _check_numbers(party, x, names)
        return FrameColumns(order, order if only_frames else ())

    def arrays(self, value: Any) -> Any:
        """A party's input with arrays in place of frames, their columns in order."""
        if not _is_pair(value):
            return value  # refused when the party is read, with a better message
        if _is_pair_of_pairs(value):
            return tuple((self._array(x), y) for x, y in value)
        return (self._array(value[0]), value[1])

    def _array(self, x: Any) -> Any:
        if not _is_frame(x):
            return x
        names = list(map(str, x.columns))
        return x.to_numpy()[:, [names.index(name) for name in self.order]]

    def schema(self, classes: int) -> Schema | None:
        """The schema of numeric columns that are used without scaling; None without names."""
        columns = tuple(Column(name, "number") for name in self.names)
        if not columns:
            return None
        return Schema(columns, "label", tuple(map(str, range(classes))), scale="none")


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


def _inputs(value: Any) -> Iterator[Any]:
    """Every x of a party's input."""
    if _is_pair(value):
        yield from (x for x, _ in value) if _is_pair_of_pairs(value) else (value[0],)


def _is_pair(value: Any) -> bool:
    return isinstance(value, tuple | list) and len(value) == 2


def _is_pair_of_pairs(value: Any) -> bool:
    return all(isinstance(part, tuple) and len(part) == 2 for part in value)


def _is_frame(x: Any) -> bool:
    """Whether x is a frame. It is recognised by its methods, because pandas need not be
    installed.
    """
    return hasattr(x, "columns") and hasattr(x, "to_numpy")
