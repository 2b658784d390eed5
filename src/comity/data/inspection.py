"""Inspection of a federation's data, party by party (`comity data inspect`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from comity.data.dataset import Dataset
from comity.data.federation import Federation
from comity.data.preparation import Schema
from comity.data.table_checks import (
    SEVERAL_ROWS,
    PartyRows,
    Values,
    check_tables,
    missing_rows,
    percentiles,
    split_columns,
)
from comity.text import join_names

FEW_SAMPLES = 10
"""With fewer training samples of a class, accuracy says little."""
OFTEN_MISSING = 0.5
"""Fraction of missing values of a column that is worth a caveat."""


@dataclass(frozen=True)
class ColumnFindings:
    """Missing values and ranges of a table's columns, by party, and caveats."""

    missing: Mapping[str, Mapping[str, float]]
    """By column, then by party: the fraction of rows in which the column is missing."""
    ranges: Mapping[str, Mapping[str, tuple[float, float, float] | None]]
    """By column of numbers, then by party: 5th, 50th and 95th percentile; None without values."""
    caveats: tuple[str, ...]


def missing_by_column(schema: Schema, x: Values) -> dict[str, float]:
    """The fraction of rows in which each column is missing."""
    return {
        name: float(missing_rows(column, values).mean())
        for name, (column, values) in split_columns(schema, x).items()
    }


def inspect(federation: Federation, dataset: Dataset) -> ColumnFindings:
    """Inspect all samples that the parties have in this split."""
    names = federation.class_names or tuple(f"class {k}" for k in range(federation.classes))
    caveats = _class_caveats(federation, names)
    if dataset.schema is None:
        return ColumnFindings({}, {}, tuple(caveats))
    x, y = dataset.x.numpy(), dataset.y.numpy()
    rows = {name: _rows(federation, name) for name in federation.names}
    missing: dict[str, dict[str, float]] = {column.name: {} for column in dataset.schema.columns}
    for party, positions in rows.items():
        for column, share in missing_by_column(dataset.schema, x[positions]).items():
            missing[column][party] = share
    values = split_columns(dataset.schema, x)
    numbers = {
        name: cells[:, 0] for name, (column, cells) in values.items() if column.kind == "number"
    }
    ranges = {
        name: {party: percentiles(cells[positions]) for party, positions in rows.items()}
        for name, cells in numbers.items()
    }
    caveats += _missing_caveats(missing)
    all_rows = np.concatenate(list(rows.values()))
    caveats += [
        f"{name} is {present[0]:g} everywhere, so it carries no information."
        for name, cells in numbers.items()
        if len(present := cells[all_rows][~np.isnan(cells[all_rows])])
        and present.min() == present.max()
    ]
    caveats += check_tables(
        dataset.schema,
        {party: PartyRows(x[positions], y[positions]) for party, positions in rows.items()},
        copies_stay_together=dataset.copies is not None,
        shared_stay_together=dataset.shared_rows is not None,
    )
    caveats += [  # identifiers are not stored: only the import can see that they repeat
        warning.removeprefix(f"{dataset.name}: ")
        for warning in dataset.warnings
        if SEVERAL_ROWS in warning
    ]
    return ColumnFindings(missing, ranges, tuple(caveats))


def _rows(federation: Federation, party: str) -> NDArray[np.int64]:
    """The positions of all of a party's samples."""
    share = federation.split.parties[party]
    return np.array(sorted({*share.train, *share.validation, *share.test}), np.int64)


def _class_caveats(federation: Federation, names: tuple[str, ...]) -> list[str]:
    """Parties with very few training samples of one of two classes."""
    if federation.classes > 2:
        return []
    caveats = []
    for party, counts in zip(federation.names, federation.counts().tolist(), strict=True):
        rarest = min(range(len(counts)), key=lambda k: counts[k])
        if counts and not counts[rarest]:
            caveats.append(
                f"{party} trains on no sample of {names[rarest]!r} ({sum(counts)} others): alone"
                " it cannot learn that class, and where no test sample is of it, neither AUC nor"
                " sensitivity exist, so that it cannot be judged."
            )
        elif counts[rarest] < FEW_SAMPLES:
            caveats.append(
                f"{party} trains on {counts[rarest]} samples of {names[rarest]!r} and"
                f" {sum(counts) - counts[rarest]} others: accuracy says little there, so judge by"
                " balanced_accuracy or auc (--metric)."
            )
    return caveats


def _missing_caveats(missing: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Columns that a party lacks, or that are mostly missing."""
    absent_columns = {
        p: [c for c, shares in missing.items() if shares[p] == 1]
        for p in next(iter(missing.values()), {})
    }
    caveats = [
        f"{party} never has {join_names(columns)}."
        for party, columns in absent_columns.items()
        if columns
    ]
    for column, shares in missing.items():
        parties = [
            f"{party} ({share:.0%})" for party, share in shares.items() if OFTEN_MISSING < share < 1
        ]
        if parties:
            caveats.append(f"{column} is missing more often than not at {join_names(parties)}.")
    return caveats
