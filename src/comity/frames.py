"""Rows as pandas data frames. pandas is optional."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from comity.errors import UsageError

if TYPE_CHECKING:
    import pandas


def frame(rows: Iterable[Any], columns: Sequence[str] | None = None) -> pandas.DataFrame:
    """Return rows (tuples, or dicts by column) as a data frame.

    Raises `UsageError` if pandas is not installed.
    """
    try:
        import pandas
    except ImportError as why:
        raise UsageError(
            "to_pandas needs pandas, which is not installed: pip install pandas."
        ) from why
    return pandas.DataFrame(list(rows), columns=None if columns is None else list(columns))
