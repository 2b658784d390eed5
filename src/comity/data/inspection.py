"""Inspection of a federation's data, party by party (`comity data inspect`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from comity.data.dataset import Dataset
from comity.data.federation import Federation
from comity.data.preparation import Column, Schema
from comity.metrics.auc import auc
from comity.text import join_names

FEW_SAMPLES = 10
"""With fewer training samples of a class, accuracy says little."""
OUTLIER_FACTOR = 4
"""Distance from the median of an outlier, in units of the 5-95 % percentile range."""
OFTEN_MISSING = 0.5
"""Fraction of missing values of a column that is worth a caveat."""
LEAKING_AUC = 0.99
"""AUC of a single column above which it may leak the label."""
Values = NDArray[np.float32]


@dataclass(frozen=True)
class Findings:
    """Missing values and ranges of a table's columns, by party, and caveats."""

    missing: Mapping[str, Mapping[str, float]]
    """By column, then by party: the fraction of rows in which the column is missing."""
    ranges: Mapping[str, Mapping[str, tuple[float, float, float] | None]]
    """By column of numbers, then by party: 5th, 50th and 95th percentile; None without values."""
    caveats: tuple[str, ...]


def split_columns(schema: Schema, x: Values) -> dict[str, tuple[Column, Values]]:
    """The columns of a schema, and their features in `x`."""
    columns = {}
    start = 0
    for column in schema.columns:
        columns[column.name] = column, x[:, start : start + column.width]
        start += column.width
    return columns


def missing_rows(column: Column, values: Values) -> NDArray[np.bool_]:
    """A mask of the rows in which a column is missing."""
    empty: NDArray[np.bool_] = (
        values.sum(1) == 0 if column.kind == "words" else np.isnan(values[:, 0])
    )
    return empty


def missing_by_column(schema: Schema, x: Values) -> dict[str, float]:
    """The fraction of rows in which each column is missing."""
    return {
        name: float(missing_rows(column, values).mean())
        for name, (column, values) in split_columns(schema, x).items()
    }


def outlier_warnings(schema: Schema, parties: Mapping[str, Values]) -> list[str]:
    """Warnings about numbers far from a party's other numbers, which may be typing errors."""
    warnings = []
    for party, x in parties.items():
        for name, (column, values) in split_columns(schema, x).items():
            cells = values[:, 0]
            percentiles = _range(cells) if column.kind == "number" else None
            if percentiles is None:
                continue
            low, middle, high = percentiles
            distances = np.abs(np.nan_to_num(cells - middle))
            if high > low and distances.max() > OUTLIER_FACTOR * (high - low):
                row = int(distances.argmax())
                warnings.append(
                    f"{name} is {cells[row]:g} in row {row + 1} of {party}, but from {low:g} to"
                    f" {high:g} in most: a typing error?"
                )
    return warnings


def inspect(federation: Federation, dataset: Dataset) -> Findings:
    """Inspect all samples that the parties have in this split."""
    names = federation.class_names or tuple(f"class {k}" for k in range(federation.classes))
    caveats = _class_caveats(federation, names)
    if dataset.schema is None:
        return Findings({}, {}, tuple(caveats))
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
        name: {party: _range(cells[positions]) for party, positions in rows.items()}
        for name, cells in numbers.items()
    }
    caveats += _missing_caveats(missing)
    caveats += _range_caveats(ranges, dataset.schema)
    caveats += outlier_warnings(
        dataset.schema, {party: x[positions] for party, positions in rows.items()}
    )
    all_rows = np.concatenate(list(rows.values()))
    caveats += [
        text
        for name, cells in numbers.items()
        if (text := _column_caveat(name, cells[all_rows], y[all_rows], federation.classes))
    ]
    caveats += _duplicate_caveats(
        {party: (x[positions], y[positions]) for party, positions in rows.items()}
    )
    return Findings(missing, ranges, tuple(caveats))


def _rows(federation: Federation, party: str) -> NDArray[np.int64]:
    """The positions of all of a party's samples."""
    share = federation.split.parties[party]
    return np.array(sorted({*share.train, *share.validation, *share.test}), np.int64)


def _range(values: Values) -> tuple[float, float, float] | None:
    """The 5th, 50th and 95th percentile; None without values."""
    present = values[~np.isnan(values)]
    if not len(present):
        return None
    low, middle, high = np.percentile(present, [5, 50, 95]).tolist()
    return low, middle, high


def _class_caveats(federation: Federation, names: tuple[str, ...]) -> list[str]:
    """Parties with very few training samples of one of two classes."""
    if federation.classes > 2:
        return []
    caveats = []
    for party, counts in zip(federation.names, federation.counts().tolist(), strict=True):
        rarest = min(range(len(counts)), key=lambda k: counts[k])
        if counts[rarest] < FEW_SAMPLES:
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


def _range_caveats(
    ranges: Mapping[str, Mapping[str, tuple[float, float, float] | None]], schema: Schema
) -> list[str]:
    """Columns whose median at one party is outside the ranges of all others.

    The party may use another unit, or have a different population.
    """
    units = {column.name: f" {column.unit}" if column.unit else "" for column in schema.columns}
    caveats = []
    for column, party_ranges in ranges.items():
        present = {
            party: percentiles
            for party, percentiles in party_ranges.items()
            if percentiles is not None
        }
        for party, (_, middle, _) in present.items():
            others = [percentiles for other, percentiles in present.items() if other != party]
            if others and (
                middle < min(low for low, _, _ in others)
                or middle > max(high for _, _, high in others)
            ):
                low, high = min(low for low, _, _ in others), max(high for _, _, high in others)
                elsewhere = f"between {low:g} and {high:g} elsewhere"
                caveats.append(
                    f"{column} is about {middle:g}{units[column]} at {party}, but {elsewhere}:"
                    " another unit?"
                )
    return caveats


def _column_caveat(name: str, cells: Values, y: NDArray[np.int64], classes: int) -> str:
    """A caveat about a column that is constant, or that may leak the label; "" if none."""
    is_present = ~np.isnan(cells)
    if is_present.any() and cells[is_present].min() == cells[is_present].max():
        return f"{name} is {cells[is_present][0]:g} everywhere, so it carries no information."
    if classes == 2 and is_present.any():
        area = auc(torch.from_numpy(cells[is_present]), torch.from_numpy(y[is_present] == 1))
        if area is not None and max(area, 1 - area) > LEAKING_AUC:
            return f"{name} alone separates the classes: is it known before the label is?"
    return ""


def _duplicate_caveats(parties: Mapping[str, tuple[Values, NDArray[np.int64]]]) -> list[str]:
    """Rows that two parties have in common."""
    owner: dict[bytes, str] = {}
    duplicates: dict[tuple[str, str], int] = {}
    for party, (x, y) in parties.items():
        for row, label in zip(x, y, strict=True):
            content = row.tobytes() + bytes([int(label) % 256])
            if (first := owner.setdefault(content, party)) != party:
                duplicates[first, party] = duplicates.get((first, party), 0) + 1
    return [
        f"{count} rows of {party} are identical to rows of {first}: the same people?"
        for (first, party), count in duplicates.items()
    ]
