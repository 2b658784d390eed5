"""What is in a federation's data, party by party, and what may be wrong with it: for whoever is
about to learn from them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from comity.data.dataset import Dataset
from comity.data.federation import Federation
from comity.data.formats.common import join_names
from comity.data.preparation import Column, Schema
from comity.metrics.auc import auc

FEW = 10  # samples of a class that say little
FAR = 4  # times the distance between the 5th and the 95th of a hundred values
SELDOM = 0.5  # of a column's values
GIVEN_AWAY = 0.99  # area under the ROC curve of one column by itself
Values = NDArray[np.float32]


@dataclass(frozen=True)
class Findings:
    """A table's columns by party: how much is missing, between what its numbers lie; and what may
    be wrong.
    """

    missing: Mapping[str, Mapping[str, float]]
    """By column, then by party: the share of rows in which it is missing."""
    ranges: Mapping[str, Mapping[str, tuple[float, float, float] | None]]
    """By column of numbers, then by party: the 5th, 50th and 95th of a hundred; nothing where there
    are no values.
    """
    caveats: tuple[str, ...]


def columns_of(schema: Schema, x: Values) -> dict[str, tuple[Column, Values]]:
    """A table's columns in the numbers that they became."""
    made = {}
    at = 0
    for column in schema.columns:
        made[column.name] = column, x[:, at : at + column.width]
        at += column.width
    return made


def gaps(column: Column, values: Values) -> NDArray[np.bool_]:
    """In which rows a column is missing."""
    empty: NDArray[np.bool_] = (
        values.sum(1) == 0 if column.kind == "words" else np.isnan(values[:, 0])
    )
    return empty


def missing_by_column(schema: Schema, x: Values) -> dict[str, float]:
    """The share of rows in which each column is missing."""
    return {
        name: float(gaps(column, values).mean())
        for name, (column, values) in columns_of(schema, x).items()
    }


def far_from_all(schema: Schema, parties: Mapping[str, Values]) -> list[str]:
    """Numbers that lie so far from a party's others that they may be typing errors."""
    found = []
    for party, x in parties.items():
        for name, (column, values) in columns_of(schema, x).items():
            cells = values[:, 0]
            usual = _range(cells) if column.kind == "number" else None
            if usual is None:
                continue
            low, middle, high = usual
            off = np.abs(np.nan_to_num(cells - middle))
            if high > low and off.max() > FAR * (high - low):
                row = int(off.argmax())
                found.append(
                    f"{name} is {cells[row]:g} in row {row + 1} of {party}, but from {low:g} to"
                    f" {high:g} in most: a typing error?"
                )
    return found


def inspect(federation: Federation, dataset: Dataset) -> Findings:
    """EvaluationRequest at all samples that the parties have in this split."""
    names = federation.class_names or tuple(f"class {k}" for k in range(federation.classes))
    caveats = _few_of_a_class(federation, names)
    if dataset.schema is None:
        return Findings({}, {}, tuple(caveats))
    x, y = dataset.x.numpy(), dataset.y.numpy()
    rows = {name: _rows(federation, name) for name in federation.names}
    missing: dict[str, dict[str, float]] = {column.name: {} for column in dataset.schema.columns}
    for party, mine in rows.items():
        for column, share in missing_by_column(dataset.schema, x[mine]).items():
            missing[column][party] = share
    values = columns_of(dataset.schema, x)
    numbers = {
        name: cells[:, 0] for name, (column, cells) in values.items() if column.kind == "number"
    }
    ranges = {
        name: {party: _range(cells[mine]) for party, mine in rows.items()}
        for name, cells in numbers.items()
    }
    caveats += _often_missing(missing)
    caveats += _far_away(ranges, dataset.schema)
    caveats += far_from_all(dataset.schema, {party: x[mine] for party, mine in rows.items()})
    everyone = np.concatenate(list(rows.values()))
    caveats += [
        text
        for name, cells in numbers.items()
        if (text := _odd(name, cells[everyone], y[everyone], federation.classes))
    ]
    caveats += _twice({party: (x[mine], y[mine]) for party, mine in rows.items()})
    return Findings(missing, ranges, tuple(caveats))


def _rows(federation: Federation, party: str) -> NDArray[np.int64]:
    share = federation.split.parties[party]
    return np.array(sorted({*share.train, *share.validation, *share.test}), np.int64)


def _range(values: Values) -> tuple[float, float, float] | None:
    there = values[~np.isnan(values)]
    if not len(there):
        return None
    low, middle, high = np.percentile(there, [5, 50, 95]).tolist()
    return low, middle, high


def _few_of_a_class(federation: Federation, names: tuple[str, ...]) -> list[str]:
    """Parties that have hardly any samples of a class to train on, where there are few classes."""
    if federation.classes > 2:
        return []
    found = []
    for party, counts in zip(federation.names, federation.counts().tolist(), strict=True):
        least = min(range(len(counts)), key=lambda k: counts[k])
        if counts[least] < FEW:
            found.append(
                f"{party} trains on {counts[least]} samples of {names[least]!r} and"
                f" {sum(counts) - counts[least]} others: accuracy says little there, so judge by"
                " balanced_accuracy or auc (--metric)."
            )
    return found


def _often_missing(missing: Mapping[str, Mapping[str, float]]) -> list[str]:
    never = {
        p: [c for c, by in missing.items() if by[p] == 1] for p in next(iter(missing.values()), {})
    }
    found = [
        f"{party} never has {join_names(columns)}." for party, columns in never.items() if columns
    ]
    for column, by in missing.items():
        often = [f"{party} ({share:.0%})" for party, share in by.items() if SELDOM < share < 1]
        if often:
            found.append(f"{column} is missing more often than not at {join_names(often)}.")
    return found


def _far_away(
    ranges: Mapping[str, Mapping[str, tuple[float, float, float] | None]], schema: Schema
) -> list[str]:
    """Columns whose middle at one party lies beyond what all others have: another unit, or other
    people.
    """
    units = {column.name: f" {column.unit}" if column.unit else "" for column in schema.columns}
    found = []
    for column, by in ranges.items():
        there = {party: one for party, one in by.items() if one is not None}
        for party, (_, middle, _) in there.items():
            others = [one for other, one in there.items() if other != party]
            if others and (
                middle < min(low for low, _, _ in others)
                or middle > max(high for _, _, high in others)
            ):
                low, high = min(low for low, _, _ in others), max(high for _, _, high in others)
                elsewhere = f"between {low:g} and {high:g} elsewhere"
                found.append(
                    f"{column} is about {middle:g}{units[column]} at {party}, but {elsewhere}:"
                    " another unit?"
                )
    return found


def _odd(name: str, cells: Values, y: NDArray[np.int64], classes: int) -> str:
    """A column that says nothing, or all."""
    there = ~np.isnan(cells)
    if there.any() and cells[there].min() == cells[there].max():
        return f"{name} is {cells[there][0]:g} everywhere, so it says nothing."
    if classes == 2 and there.any():
        area = auc(torch.from_numpy(cells[there]), torch.from_numpy(y[there] == 1))
        if area is not None and max(area, 1 - area) > GIVEN_AWAY:
            return f"{name} alone tells the classes apart: is it known before the answer is?"
    return ""


def _twice(parties: Mapping[str, tuple[Values, NDArray[np.int64]]]) -> list[str]:
    """Rows that two parties have alike."""
    owner: dict[bytes, str] = {}
    double: dict[tuple[str, str], int] = {}
    for party, (x, y) in parties.items():
        for row, label in zip(x, y, strict=True):
            mark = row.tobytes() + bytes([int(label) % 256])
            if (first := owner.setdefault(mark, party)) != party:
                double[first, party] = double.get((first, party), 0) + 1
    return [
        f"{many} rows of {party} are, cell by cell, also at {first}: the same people?"
        for (first, party), many in double.items()
    ]
