"""Each party's own file from a split: the other way round than importing."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

from comity.data.dataset import Dataset
from comity.data.federation import Federation
from comity.data.library import load
from comity.data.preparation import Schema
from comity.errors import UsageError


def deal(federation: Federation, data: str, out: Path) -> list[Path]:
    """A file a party, in a folder that does not exist yet, of the samples that are its own in this
    split.

    Of a table that was imported it is a csv file with the columns it had; of all else an npz file
    with `x` and `y`, and with `x_test` and `y_test` where the split keeps a test part of the data
    for all. Values are as in the dataset, before scaling.
    """
    if out.exists():
        raise UsageError(f"{out} is there already: choose another --out.")
    if any(share.shift for share in federation.split.parties.values()):
        raise UsageError(
            "Parties whose features are shifted have no files of their own: leave out the shift."
        )
    dataset = load(data)
    names = dataset.class_names or tuple(map(str, range(dataset.classes)))
    out.mkdir(parents=True)
    made = []
    for name in federation.names:
        share = federation.split.parties[name]
        learn, held = sorted(share.train + share.validation), sorted(share.test)
        labels = share.labels or tuple(range(dataset.classes))
        y = np.array(labels)[dataset.y.numpy()]
        if dataset.schema:
            path = out / f"{name}.csv"
            _write_table(path, dataset, dataset.schema, sorted(learn + held), [names[k] for k in y])
        else:
            path = out / f"{name}.npz"
            x = dataset.x.numpy()
            np.savez_compressed(path, x=x[learn], y=y[learn], x_test=x[held], y_test=y[held])
        made.append(path)
    return made


def _write_table(
    path: Path, dataset: Dataset, schema: Schema, rows: list[int], labels: list[str]
) -> None:
    """Rows with the columns that they had: words as words, nothing where a value is missing."""
    x = dataset.x.numpy()
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*(column.name for column in schema.columns), schema.label])
        for row in rows:
            cells: list[str] = []
            at = 0
            for column in schema.columns:
                values = x[row, at : at + column.width]
                at += column.width
                if column.kind == "words":
                    cells.append(column.words[int(values.argmax())] if values.any() else "")
                else:
                    cells.append(_text(values[0]))
            writer.writerow([*cells, labels[row]])


def _text(value: np.float32) -> str:
    """A number as people write it, of which the same number is read; nothing where it is missing."""
    if np.isnan(value):
        return ""
    return str(int(value)) if value == int(value) else str(value)
